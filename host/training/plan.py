"""What Training Memory is asked for, and the blocks of a network that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isqrt

from torch import nn

from ...attention import BlockPlace, BlockSelection
from ...offload import block_lists
from ...training import Checkpoints

EVERY_BLOCK, EVERY_KTH, ATTENTION, FEED_FORWARD, BUDGET = (
    "every block", "every k-th block", "attention", "feed-forward", "budget",
)  # fmt: skip
UNET = {"input_blocks": "input", "middle_block": "middle", "output_blocks": "output"}
TRANSFORMERS = "transformer_blocks"
REFINER = "refiner"  # of a list that runs before the numbered blocks, as Z-Image's: "all" alone holds its blocks
# Of a module in a block, as ComfyUI's models name it: mlp, img_mlp, txt_mlp, ff, ff_context, ffn, feed_forward.
FEED_FORWARDS = re.compile(r"(?:\w+_)?mlp|ff(?:_\w+)?|ffn|(?:\w+_)?feed_forward")


@dataclass(frozen=True)
class TrainingPlan:
    """What lies behind checkpoints.

    Attributes:
        kind: one of the constants of this file.
        selection: of the blocks; others are kept.
        k: blocks behind one checkpoint; 0: the root of their number.
        budget: bytes for all that a training has on its device; 0 if :attr:`kind` is another.
        in_ram: what goes into the blocks behind checkpoints is kept in the machine's memory, where that is another.
    """

    kind: str
    selection: BlockSelection
    k: int = 0
    budget: int = 0
    in_ram: bool = False

    def checkpoints(self, blocks: TrainedBlocks) -> Checkpoints:
        """Of a network's blocks, while no budget is planned."""
        selected = blocks.are_in(self.selection)
        if self.kind in (ATTENTION, FEED_FORWARD):
            return tuple(range(len(selected)))
        k = 1 if self.kind != EVERY_KTH else self.k or max(1, isqrt(sum(selected)))
        return tuple(_grouped(selected, k))

    def __str__(self) -> str:
        parts = {EVERY_KTH: f", {self.k or 'root of their number'} at a time"}.get(self.kind, "")
        blocks = "" if self.selection.text == "all" else f" of {self.selection.text}"
        ram = ", checkpoints in RAM" if self.in_ram else ""
        return f"{self.kind}{parts}{blocks}{ram}"


def _grouped(selected: Sequence[bool], k: int) -> Iterator[int | Checkpoints]:
    for chosen, run in groupby(range(len(selected)), key=selected.__getitem__):
        numbers = list(run)
        if not chosen:
            yield from numbers
            continue
        yield from (tuple(numbers[start : start + k]) for start in range(0, len(numbers), k))


@dataclass(frozen=True)
class TrainedBlocks:
    """A network's blocks, in their order.

    A UNet never calls its blocks, only what they hold: the parts of one are a block each here, and so are the
    transformer blocks of a part that has several.

    Attributes:
        paths: of the modules.
        places: as the nodes' ``blocks`` inputs name them.
    """

    paths: tuple[str, ...]
    places: tuple[BlockPlace, ...]

    @classmethod
    def of(cls, network: nn.Module) -> TrainedBlocks:
        """
        Raises:
            ValueError: the network has no repeated blocks.
        """
        paths = block_lists(network).blocks
        if not paths:
            raise ValueError(
                f"model: {type(network).__name__} has no repeated blocks to lay checkpoints around; connect a diffusion"
                " model, or leave this node out and set Train LoRA's checkpoint_depth to 2 or more"
            )
        parts = [(part, place) for path, place in zip(paths, _places(paths)) for part in _called(network, path)]
        return cls(tuple(part for part, _ in parts), tuple(place for _, place in parts))

    @property
    def ends(self) -> tuple[BlockPlace, BlockPlace]:
        numbered = [place for place in self.places if place.kind != REFINER] or self.places
        return numbered[0], numbered[-1]

    def are_in(self, selection: BlockSelection) -> list[bool]:
        places = (None if place.kind == REFINER else place for place in self.places)
        return [selection.holds(place, self.ends) for place in places]

    @property
    def lists(self) -> str:
        """As "double 19, single 38"; those that no span names among them."""
        kinds = [place.kind for place in dict.fromkeys(self.places)]
        return ", ".join(f"{kind} {kinds.count(kind)}" for kind in dict.fromkeys(kinds))


def _places(paths: Sequence[str]) -> Iterator[BlockPlace]:
    """As the host counts them: a transformer's blocks are double ones, unless their list is called single; a refiner's
    have no number there."""
    counts: dict[str, int] = {}
    for path in paths:
        name, _, number = path.rpartition(".")
        kind = UNET.get(name or path) or next((one for one in ("single", REFINER) if one in name), "double")
        index = int(number) if name in UNET else counts.get(kind, 0)
        counts[kind] = index + 1
        yield BlockPlace(kind, index)


def _called(network: nn.Module, path: str) -> Iterator[str]:
    """Paths of the modules that the network calls of a block."""
    if path.partition(".")[0] not in UNET:
        yield path
        return
    for name, child in network.get_submodule(path).named_children():
        inner = list(getattr(child, TRANSFORMERS, ()))
        if len(inner) > 1:
            yield from (f"{path}.{name}.{TRANSFORMERS}.{number}" for number in range(len(inner)))
        else:
            yield f"{path}.{name}"


def feed_forwards(module: nn.Module) -> Iterator[nn.Module]:
    """The feed-forward parts of a block, outermost ones."""
    for name, child in module.named_children():
        if FEED_FORWARDS.fullmatch(name):
            yield child
        else:
            yield from feed_forwards(child)
