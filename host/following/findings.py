"""What a dry run has found so far, and what it works with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_iter

from ...memory.prediction import Card, Stage
from ..prediction.header_loading import Absent
from ..prediction.stages import Question, coding_stage
from ..prediction.vae import Coding
from .calling import Nodes, Outputs
from .inputs import Inputs, NotFollowed
from .loads import Loads


@dataclass
class Findings:
    """What the nodes of a workflow that were gone through add up to.

    Attributes:
        card: where the workflow would run.
        ours: this pack's nodes by their ids, where the host has not loaded them.
        stages: what was predicted, in the order of the workflow.
        notes: what the stages leave out.
        loaded: what loaders gave before, by class and inputs: a file that two nodes load counts once.
        loads: what loaders gave to earlier runs.
        absent: files that are not on this machine, and were taken from the catalogue.
        limit: share of the card's memory that may be used.
        node: the id of the node that is followed now.
        refused: whether a node has ended the workflow since nothing fits; the host does nothing in tiles then.
        predicts: whether what VAEs do is predicted; else only how large it is that they give.
        for_all_sizes: makes the question of a Make It Fit one for all that is sampled behind it; with what to say.
    """

    card: Card
    ours: Mapping[str, Any] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    loaded: dict[tuple[str, str], Outputs] = field(default_factory=dict)
    loads: Loads = field(default_factory=Loads)
    absent: Absent = field(default_factory=Absent)
    limit: float = 0.85
    node: str = ""
    refused: bool = False
    predicts: bool = True
    for_all_sizes: Callable[[Question], tuple[Question, tuple[str, ...]]] = lambda question: (question, ())

    @property
    def mode(self) -> FakeTensorMode:
        """What the tensors are faked in."""
        return self.loads.mode

    @property
    def nodes(self) -> Nodes:
        """The classes of nodes that there are."""
        return Nodes(self.ours)

    def add_coding(self, coding: Coding) -> None:
        """A VAE's work."""
        self.add(coding_stage(coding, self.card, int(self.limit * self.card.total)))

    def add(self, stage: Stage) -> None:
        """Of equal stages of one model the one that needs most counts, as often as all are done."""
        stage = replace(stage, node=self.node, or_tiles=stage.or_tiles and not self.refused)
        for number, other in enumerate(self.stages):
            same = (other.work, other.model, other.method) == (stage.work, stage.model, stage.method)
            if same and (stage.work != "sampling" or stage.prediction == other.prediction):
                larger = max(stage, other, key=lambda one: (one.peak, one.ram))
                known = bool(stage.times and other.times)
                self.stages[number] = replace(larger, times=(stage.times + other.times) * known)
                return
        self.stages.append(stage)


Follow = Callable[[Findings, str, Inputs], Outputs]
NOTHING = (None,) * 8  # outputs that are words and charts
MOST_VALUES, MOST_FRAMES = 2**35, 2**20  # of a tensor that is followed: 128 GB in float32; a million frames


def of_this_world(kind: str, results: tuple[Any, ...]) -> tuple[Any, ...]:
    """The results of a node, if there can be a machine that holds them: what takes no data is made in any size.

    Raises:
        NotFollowed: there can be none.
    """
    for tensor in tree_iter(results):
        if isinstance(tensor, Tensor) and (
            tensor.numel() > MOST_VALUES or max(tensor.shape[:1], default=0) > MOST_FRAMES
        ):
            size = " x ".join(map(str, tensor.shape))
            raise NotFollowed(f"{kind}: it would give {size} values; check its width, height, length and batch size")
    return results
