"""Goes through a workflow without data: loads headers, runs the nodes that only shape things, predicts the rest.

Nodes are the host's own. Which of them are run, and which stand for a stage, is said in the tables of :mod:`.kinds`;
what is in none of them is listed and not guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import comfy.utils
import folder_paths
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from ...graph.formats import shortened
from ...graph.kinds import DECODES, ENCODES, FIT, GUIDED_SAMPLER, GUIDERS, SAMPLERS, TO_FILE, TRAIN, VAE
from ...graph.prompt import Prompt, in_order, is_link, parents_in
from ...graph.settings import FitSettings
from ...memory.prediction import (
    THIS_MACHINE,
    CannotPredict,
    Card,
    Forecast,
    Stage,
    fake_mode,
    fake_tree,
    named_card,
    require_wanted,
)
from ...memory.render import why_nothing_fits
from ..core.device import GB
from ..measure.calibrated import workspaces_for
from ..offload.budget import least_weights
from ..planning.fit import apply_fit, find_fit
from ..prediction.header_loading import Absent, loading_headers
from ..prediction.host_answers import replaced
from ..prediction.stages import Question, coding_stage, first_part, notes_of, sampling_stage, tiled_arguments
from ..prediction.step import shape_in_model
from ..prediction.text import predict_encoding
from ..prediction.vae import Coding
from ..training.estimate import training_stage
from ..training.settings import TrainingSettings
from ..training.without_data import Training
from ..vae.wrapper import LowMemoryVAE, low_memory_vae
from .calling import Nodes, Outputs, first_line, outputs
from .inputs import Guided, Inputs, NotFollowed, of_the_workflow, vae_settings
from .kinds import ENCODING, LOADERS, PICTURE, PLAIN, SAME, SETTINGS, SIZE, TEXT, is_neutral
from .packed import GGUF_LOADERS, tell_of_gguf
from .shapes import MISSING_SIZE, CountingVAE, latent_like, missing_picture, of_this_world, pixels_like, size_of, sized

NOTHING = (None,) * 8  # outputs that are words and charts
# What following a node raises where its model, its file or its settings are the reason. Any other error is a fault of
# this pack's and is not taken for a node's: it goes up to whoever asked.
REASONS = (CannotPredict, OSError, RuntimeError, ValueError)


@dataclass
class DryRun:
    """A workflow in the API format, on a card.

    Attributes:
        workflow: its nodes by their ids; not changed.
        card: where it would run.
        stages: what was predicted, in the order of the workflow.
        unknown: nodes that were not followed, with the reason.
        notes: what the stages leave out.
        results: what the nodes that were followed give, tensors without data.
        loaded: what loaders gave before, by class and inputs: a file that two nodes load counts once.
        mode: what the tensors are faked in.
        ours: this pack's nodes by their ids, where the host has not loaded them.
        absent: files that are not on this machine, and were taken from the catalogue.
    """

    workflow: Prompt
    card: Card
    stages: list[Stage] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    results: dict[str, Outputs] = field(default_factory=dict)
    loaded: dict[tuple[str, str], Outputs] = field(default_factory=dict)
    mode: FakeTensorMode = field(default_factory=fake_mode)
    ours: Mapping[str, Any] = field(default_factory=dict)
    absent: Absent = field(default_factory=Absent)

    @property
    def nodes(self) -> Nodes:
        """The classes of nodes that there are."""
        return Nodes(self.ours)

    def run(self) -> DryRun:
        """Goes through all nodes; what cannot be followed is listed in ``unknown``.

        Raises:
            ValueError: a link to a node that is not there, or a circle.
        """
        for number in in_order(self.workflow, parents_in(self.workflow)):
            node = self.workflow[number]
            kind = node["class_type"]
            require_wanted()
            try:
                values = {name: self._value(value) for name, value in node["inputs"].items()}
                constants = [name for name, value in node["inputs"].items() if not is_link(value)]
                self.results[number] = of_this_world(kind, self._node(kind, Inputs(kind, values), constants))
            except NotFollowed as error:
                self.unknown[number] = str(error)
            except REASONS as error:
                self.unknown[number] = f"{kind}: {first_line(error)}"
        return self

    @property
    def stages_followed(self) -> bool:
        """Whether every text, sampling, encode and decode was followed."""
        kinds = {self.workflow[number]["class_type"] for number in self.unknown}
        return not kinds.intersection((*SAMPLERS, TRAIN, *DECODES, *ENCODES, TO_FILE, *TEXT))

    @property
    def complete(self) -> bool:
        """Whether everything was followed, but for what takes no memory: a node that nobody knows may take any."""
        kinds = {self.workflow[number]["class_type"] for number in self.unknown}
        return not {kind for kind in kinds if not is_neutral(kind)}

    def forecast(self, limit: float, ram: int = 0) -> Forecast:
        """The stages on the card.

        Args:
            limit: share of the card's memory that may be used.
            ram: bytes of the machine's memory; 0: not asked.
        """
        return Forecast(self.card, tuple(self.stages), limit, ram)

    def _value(self, value: Any) -> Any:
        if not is_link(value):
            return value
        number, output = value
        if not 0 <= output < len(self.results.get(number, ())):
            raise NotFollowed(f"needs node {number}, {self.workflow[number]['class_type']}, which is not known")
        return self.results[number][output]

    def _node(self, kind: str, inputs: Inputs, constants: Collection[str]) -> Outputs:
        self.nodes.check(kind, inputs, constants)
        if kind == "HeadroomLocalAttention":
            self.notes.append("Local Attention is counted as dense")
        if kind in SAME:
            return (*(inputs[name] for name in SAME[kind]), *NOTHING)
        if kind in SETTINGS:
            return NOTHING
        for kinds, follow in self._followers():
            if kind in kinds:
                return follow(kind, inputs)
        raise NotFollowed(f"{kind} is not known")

    def _followers(self) -> Iterator[tuple[Iterable[str], Callable[[str, Inputs], Outputs]]]:
        yield GUIDERS, self._guide
        yield SAMPLERS, self._sample
        yield (TRAIN,), self._train
        yield (*DECODES, *ENCODES), self._code
        yield (TO_FILE,), self._to_file
        yield TEXT, self._text
        yield LOADERS, self._load
        yield GGUF_LOADERS, tell_of_gguf
        yield (VAE,), _wrap
        yield (FIT,), self._fit
        yield (PICTURE,), self._read
        yield (SIZE,), size_of
        yield (*PLAIN, *ENCODING), self._run_plainly

    def _load(self, kind: str, inputs: Inputs) -> Outputs:
        key = kind, repr(sorted(inputs.items()))
        if key not in self.loaded:
            with loading_headers(self.mode, self.card, self.absent):
                self.loaded[key] = self.nodes.call(kind, inputs)
        return self.loaded[key]

    def _text(self, kind: str, inputs: Inputs) -> Outputs:
        clip = inputs.clip()
        with self._encodes_counted(inputs) as counted:
            encode = self.nodes.prepared(kind, counted)
            spaces, given = workspaces_for(self.card), list(inputs.values())
            prediction, results = predict_encoding(
                clip, self.card, lambda one: outputs(kind, encode(clip=one)), self.mode, spaces, given
            )
        weights = int(clip.patcher.model_size())
        least = least_weights(clip.patcher, 0)
        self._add(Stage("text", prediction, weights, least, model=id(clip.cond_stage_model)))
        return results

    def _read(self, kind: str, inputs: Inputs) -> Outputs:
        """A picture of an input folder; one that is not there is taken to have a size, which is told."""
        exists = getattr(folder_paths, "exists_annotated_filepath", lambda name: True)
        if not exists(inputs["image"]):
            self.notes.append(f"{shortened(inputs['image'])} is not there: taken to have {MISSING_SIZE}")
            with self.mode:
                return missing_picture()
        image = self.nodes.call(kind, inputs)
        with self.mode:
            return tuple(fake_tree(list(image)))

    def _run_plainly(self, kind: str, inputs: Inputs) -> Outputs:
        if "upscale_method" in inputs:  # some work on data; the size is the same by all of them
            inputs["upscale_method"] = "bilinear"
        resizing = replaced(comfy.utils, "lanczos", sized)
        with self._encodes_counted(inputs) as counted, loading_headers(self.mode, self.card), resizing:
            return self.nodes.call(kind, counted)

    @contextmanager
    def _encodes_counted(self, inputs: Inputs) -> Iterator[Inputs]:
        """Within it, a node may encode pictures by its VAE; each encode is a stage of its own, added afterwards."""
        if inputs.get("vae") is None:
            yield inputs
            return
        vae = inputs.vae()
        encoded: list[Tensor] = []
        yield Inputs(inputs.kind, {**inputs, "vae": CountingVAE(vae, encoded.append)})
        for pixels in encoded:
            self._add(coding_stage(Coding(vae, pixels, encodes=True), self.card))

    def _guide(self, kind: str, inputs: Inputs) -> Outputs:
        asked = GUIDERS[kind]
        positive = inputs.conditioning(asked.positive)
        negative = inputs.conditioning(asked.negative) if asked.negative else positive
        return (Guided(inputs.model(), positive, negative, inputs.number("cfg") if asked.guided else 1.0),)

    def _sample(self, kind: str, inputs: Inputs) -> Outputs:
        asked = inputs.guided() if kind == GUIDED_SAMPLER else inputs.guidance()
        latent = inputs.latent("latent_image")
        question = Question(asked.model, latent, positive=asked.positive, negative=asked.negative, cfg=asked.cfg)
        self.notes += notes_of(question)
        self._add(sampling_stage(question, self.card))
        shape = shape_in_model(asked.model, latent)  # a picture for a video's model comes back as a video of one frame
        with self.mode:
            result = {**latent, "samples": torch.empty(shape)}
        return result, result

    def _train(self, kind: str, inputs: Inputs) -> Outputs:
        with of_the_workflow(kind):
            settings = TrainingSettings.of(inputs)
        latents, positive = first_part(inputs.latent("latents")["samples"]), inputs.conditioning("positive")
        stage, more = training_stage(Training(inputs.model(), latents, positive, settings), self.card)
        self.notes += more
        self._add(stage)
        return NOTHING

    def _code(self, kind: str, inputs: Inputs) -> Outputs:
        vae, encodes = inputs.vae(), kind in ENCODES
        x = inputs.pixels() if encodes else inputs.latent("samples")["samples"]
        widgets = inputs.without("vae", "pixels", "samples")
        if kind.startswith("Headroom"):
            vae, widgets = low_memory_vae(vae, vae_settings(kind, widgets)), {}
        coding = Coding(vae, x, encodes)
        if "tile_size" in widgets and not isinstance(vae, LowMemoryVAE):
            with of_the_workflow(kind):
                coding = replace(coding, tiles=tiled_arguments(vae, encodes=encodes, **widgets))
        self._add(coding_stage(coding, self.card))
        with self.mode:
            return ({"samples": latent_like(vae, x)} if encodes else pixels_like(vae, x),)

    def _to_file(self, kind: str, inputs: Inputs) -> Outputs:
        budget = inputs.number("vram_budget_gb") if "vram_budget_gb" in inputs else 0.0
        x = first_part(inputs.latent("samples")["samples"])
        self._add(coding_stage(Coding(inputs.vae(), x, file_budget_gb=budget), self.card))
        return NOTHING

    def _fit(self, kind: str, inputs: Inputs) -> Outputs:
        """For the card that is asked about, unless the node names one."""
        given = {name: inputs[name] for name in ("vram_gb", "gpu", "limit") if name in inputs}
        asked = FitSettings(inputs["quality"], **given)
        asked.check()
        card = self.card if not asked.vram_gb else replace(self.card, total=int(asked.vram_gb * GB))
        card = card if asked.gpu == THIS_MACHINE else named_card(asked.gpu, card.total / GB, card.reserved)
        model, vae = inputs.model(), inputs.vae()
        positive, negative = (
            None if inputs.get(name) is None else inputs.conditioning(name) for name in ("positive", "negative")
        )
        latent, cfg = inputs.latent("samples"), inputs.number("cfg")
        question = Question(model, latent, vae, positive=positive, negative=negative, cfg=cfg)
        fit = find_fit(question, card, asked.quality, asked.limit)
        if not fit.found:
            self.notes.append(f"{kind}: {why_nothing_fits(fit)}")
            return model, vae, *NOTHING
        self.notes.append(f"{kind}: {fit.summary}")
        with loading_headers(self.mode, self.card):
            return *apply_fit(model, vae, fit), *NOTHING

    def _add(self, stage: Stage) -> None:
        """Of equal stages of one model the one that needs most counts."""
        for number, other in enumerate(self.stages):
            same = (other.work, other.model, other.method) == (stage.work, stage.model, stage.method)
            if same and (stage.work != "sampling" or stage.prediction == other.prediction):
                self.stages[number] = max(stage, other, key=lambda one: one.peak)
                return
        self.stages.append(stage)


def _wrap(kind: str, inputs: Inputs) -> Outputs:
    return (low_memory_vae(inputs.vae(), vae_settings(kind, inputs.without("vae"))),)
