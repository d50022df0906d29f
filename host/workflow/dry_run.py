"""Goes through a workflow without data: loads headers, runs the nodes that only shape things, predicts the rest.

Nodes are the host's own. Which of them are run, and which stand for a stage, is said in the tables of
:mod:`..following.kinds`; what is in none of them is listed and not guessed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import comfy.model_management
from torch import nn

from ...graph.kinds import DECODES, ENCODES, FIT, FROM_FILE, GUIDERS, SAMPLERS, TO_FILE, TRAIN, VAE
from ...graph.prompt import Prompt, in_order, is_link, parents_in
from ...memory.prediction import CannotPredict, Card, Forecast, Stage, require_wanted
from ..following import files, loading, plain, sounds
from ..following.calling import Outputs, first_line
from ..following.findings import NOTHING, Findings, Follow, of_this_world
from ..following.inputs import FileMissing, Inputs, NotFollowed, NotReached
from ..following.kinds import (
    BY_BLOCKS,
    DUAL_GUIDER,
    ENCODING,
    LOADERS,
    PAINTER,
    PICTURE,
    PLAIN,
    SAME,
    SETTINGS,
    SIZE,
    SONG,
    TEXT,
    TRACKS,
    TWO_MODELS,
    VISION,
    WRITES,
    ZEROS,
    is_neutral,
)
from ..following.loads import Loads
from ..following.stages import audio, coding, encoders, ltx, networks, sampling, seedvr
from ..following.steps import OF_STEPS
from ..planning.behind import for_all_sizes
from ..prediction.header_loading import Absent
from ..prediction.host_answers import replaced
from ..prediction.stages import Question, disk_free

# What following a node raises where its model, its file or its settings are the reason. Any other error is a fault of
# this pack's and is not taken for a node's: it goes up to whoever asked.
REASONS = (CannotPredict, OSError, RuntimeError, ValueError)


@dataclass
class DryRun:
    """A workflow in the API format, on a card.

    Attributes:
        workflow: its nodes by their ids; not changed.
        card: where it would run.
        ours: this pack's nodes by their ids, where the host has not loaded them.
        limit: share of the card's memory that may be used.
        predicts: whether what VAEs do is predicted; else only how large it is that they give.
        loads: what loaders gave to earlier runs of the same thread.
        found: what the nodes that were followed add up to.
        unknown: nodes that were not followed, with the reason.
        waiting: those of them that wait for others of them.
        missing: those of them that lack a file.
        results: what the nodes that were followed give, tensors without data.
    """

    workflow: Prompt
    card: Card
    ours: Mapping[str, Any] = field(default_factory=dict)
    limit: float = 0.85
    predicts: bool = True
    loads: Loads = field(default_factory=Loads)
    unknown: dict[str, str] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    results: dict[str, Outputs] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.found = Findings(
            self.card,
            self.ours,
            loads=self.loads,
            limit=self.limit,
            predicts=self.predicts,
            for_all_sizes=self._for_all_sizes,
        )

    def _for_all_sizes(self, question: Question) -> tuple[Question, tuple[str, ...]]:
        follow = partial(outputs_of, card=self.card, ours=self.ours)
        return for_all_sizes(question, self.card, self.workflow, self.found.node, follow)

    @property
    def stages(self) -> list[Stage]:
        """What was predicted, in the order of the workflow."""
        return self.found.stages

    @property
    def notes(self) -> list[str]:
        """What the stages leave out."""
        return self.found.notes

    @property
    def absent(self) -> Absent:
        """Files that are not on this machine, and were taken from the catalogue."""
        return self.found.absent

    def run(self) -> DryRun:
        """Goes through all nodes; what cannot be followed is listed in ``unknown``.

        Raises:
            ValueError: a link to a node that is not there, or a circle.
        """
        with replaced(comfy.model_management, "module_size", nbytes_of):
            for number in in_order(self.workflow, parents_in(self.workflow)):
                self._follow(number)
        return self

    def _follow(self, number: str) -> None:
        node = self.workflow[number]
        kind = node["class_type"]
        require_wanted()
        self.found.node = number
        try:
            values = {name: self._value(value) for name, value in node["inputs"].items()}
            constants = [name for name, value in node["inputs"].items() if not is_link(value)]
            self.results[number] = of_this_world(kind, self._node(kind, Inputs(kind, values), constants))
        except NotFollowed as error:
            self.unknown[number] = str(error)
            if isinstance(error, NotReached):
                self.waiting.add(number)
            if isinstance(error, FileMissing):
                self.missing.add(number)
        except REASONS as error:
            self.unknown[number] = f"{kind}: {first_line(error)}"

    @property
    def stages_followed(self) -> bool:
        """Whether every text, sampling, encode and decode was followed."""
        kinds = {self.workflow[number]["class_type"] for number in self.unknown}
        return not kinds.intersection(
            (*SAMPLERS, TRAIN, *DECODES, *ENCODES, TO_FILE, FROM_FILE, *audio.OF_AUDIO, *TEXT, *SONG, *WRITES, VISION)
        )

    @property
    def complete(self) -> bool:
        """Whether everything was followed, but for what takes no memory: a node that nobody knows may take any."""
        kinds = {self.workflow[number]["class_type"] for number in self.unknown}
        return not {kind for kind in kinds if not is_neutral(kind)}

    def forecast(self, ram: int = 0) -> Forecast:
        """The stages on the card; ``ram``: bytes of the machine's memory, 0: not asked."""
        return Forecast(self.card, tuple(self.stages), self.limit, ram, disk_free(self.card))

    def _value(self, value: Any) -> Any:
        if not is_link(value):
            return value
        number, output = value
        if not 0 <= output < len(self.results.get(number, ())):
            raise NotReached(f"needs node {number}, {self.workflow[number]['class_type']}, which was not followed")
        return self.results[number][output]

    def _node(self, kind: str, inputs: Inputs, constants: Collection[str]) -> Outputs:
        self.found.nodes.check(kind, inputs, constants)
        if kind == "HeadroomLocalAttention":
            self.notes.append("Local Attention is counted as dense")
        if kind in SAME:
            return (*(inputs[name] for name in SAME[kind]), *NOTHING)
        if kind in SETTINGS and kind not in OF_STEPS:
            return NOTHING
        if kind not in FOLLOWERS:
            raise NotFollowed(f"{kind} is not known")
        return FOLLOWERS[kind](self.found, kind, inputs)


def nbytes_of(module: nn.Module) -> int:
    """As the host's ``module_size``, without a detached copy of each weight: of those without data that copy took a
    sixth of an estimate's time."""
    return sum(tensor.nbytes for tensor in module.state_dict(keep_vars=True).values())


def outputs_of(prompt: Prompt, card: Card, ours: Mapping[str, Any] | None = None) -> dict[str, Outputs]:
    """What the nodes of a prompt give, as far as it can be followed; nothing of it is predicted."""
    return DryRun(prompt, card, ours or {}, predicts=False).run().results


def _followers() -> Iterator[tuple[Iterable[str], Follow]]:
    yield GUIDERS, sampling.guide
    yield (DUAL_GUIDER,), sampling.guide_by_two
    yield (TWO_MODELS,), sampling.guide_by_two_models
    yield (BY_BLOCKS,), sampling.sample_by_blocks
    yield (TRACKS,), plain.tracks
    yield SAMPLERS, sampling.sample
    yield (TRAIN,), sampling.train
    yield (FIT,), sampling.fit
    yield (*DECODES, *ENCODES), coding.code
    yield (TO_FILE,), coding.decode_to_file
    yield (FROM_FILE,), coding.encode_from_file
    yield (VAE,), coding.wrap
    yield TEXT, encoders.encode_text
    yield SONG, encoders.encode_song
    yield WRITES, encoders.write_text
    yield (VISION,), encoders.encode_vision
    yield LOADERS, loading.load
    yield loading.GGUF_LOADERS, loading.tell_of_gguf
    yield (PICTURE,), files.read_picture
    yield (SIZE,), plain.size_of
    yield (PAINTER,), plain.painted
    yield (ZEROS,), plain.set_to_zeros
    yield (*PLAIN, *ENCODING), plain.run_plainly


FOLLOWERS = (
    {kind: follow for kinds, follow in _followers() for kind in kinds}
    | files.OF_VIDEO
    | OF_STEPS
    | networks.OF_NETWORKS
    | sounds.OF_SOUND
    | audio.OF_AUDIO
    | ltx.OF_LTX
    | seedvr.OF_SEEDVR
)
