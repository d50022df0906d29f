"""What a casting did, as a report."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

import torch

from .layers import Layer
from .storage import Storage

GB = 2**30
MB = 2**20
NAMES_SHOWN = 3


@dataclass(frozen=True)
class CastLayer:
    """A layer after it was, or was to be, cast.

    Attributes:
        layer: what was decided before.
        stored: how its weight is kept now; None: as it was.
        bytes_before: of its weight.
        bytes_after: of its weight, scales included.
        sqnr: signal to quantisation noise ratio of its weight in dB; None where it was not measured.
        problem: why it stayed as it was.
    """

    layer: Layer
    stored: str | None
    bytes_before: int
    bytes_after: int
    sqnr: float | None
    problem: str | None = None


@dataclass
class CastReport:
    """What a casting did.

    Attributes:
        storage: what was asked for.
        compute: dtype of the computation.
        bytes_before: of the whole model.
        layers: all of the model's, with what was decided for each.
        done: those that were processed.
        bytes_after: of the whole model.
        tensors: in the whole model afterwards, without scales.
        notes: what else is to be known.
    """

    storage: Storage
    compute: torch.dtype
    bytes_before: int
    layers: list[Layer]
    done: list[CastLayer] = field(default_factory=list)
    bytes_after: int = 0
    tensors: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def cast(self) -> list[CastLayer]:
        """Layers that are stored in another way now."""
        return [done for done in self.done if done.stored is not None]

    @property
    def saved_bytes(self) -> int:
        """Bytes of the original model that the cast layers no longer use."""
        return sum(done.bytes_before for done in self.cast)

    def kept(self) -> dict[str, list[str]]:
        """Names of the layers that stayed, by reason."""
        names: defaultdict[str, list[str]] = defaultdict(list)
        for layer in self.layers:
            if layer.reason is not None:
                names[layer.reason].append(layer.name)
        for done in self.done:
            if done.problem is not None:
                names[done.problem].append(done.layer.name)
        return dict(names)

    def summary(self) -> str:
        """One line."""
        if not self.cast:
            return f"{self.storage.name}: 0 layers cast"
        share = self.bytes_after / self.bytes_before
        return (
            f"{self.storage.name}, computing in {_dtype(self.compute)}: {len(self.cast)} layers,"
            f" {_size(self.bytes_before)} -> {_size(self.bytes_after)} ({share:.2f}x)"
        )

    def render(self) -> str:
        """The report: classes of storage, quality by group, what stayed and why, and what the original holds."""
        lines = [f"Layerwise Casting · {self.summary()}"]
        lines += [f"  {line}" for line in self._classes()]
        if self.cast:
            lines += ["Signal to quantisation noise of the weights, by group:"]
            lines += [f"  {line}" for line in self._quality()]
        lines += ["Kept as it was:", *(f"  {line}" for line in self._reasons())]
        if self.cast:
            lines.append(
                f"The MODEL or CLIP this was made from still holds {_size(self.saved_bytes)} of RAM for these layers"
                " while its loader's result is cached or another branch uses it; what was kept is shared."
            )
        return "\n".join([*lines, *(f"! {note}" for note in self.notes)])

    def _classes(self) -> Iterable[str]:
        classes: defaultdict[str, list[CastLayer]] = defaultdict(list)
        for done in self.cast:
            classes[done.stored or ""].append(done)
        for stored, members in classes.items():
            before, after = sum(d.bytes_before for d in members), sum(d.bytes_after for d in members)
            yield f"{stored}: {len(members)} tensors, {_size(before)} -> {_size(after)}"
        rest = self.bytes_after - sum(done.bytes_after for done in self.cast)
        yield f"as it was: {self.tensors - len(self.cast)} tensors, {_size(rest)}"

    def _quality(self) -> Iterable[str]:
        groups: defaultdict[str, list[float]] = defaultdict(list)
        for done in self.cast:
            if done.sqnr is not None:
                groups[_list_and_role(done.layer)].append(done.sqnr)
        for group, values in groups.items():
            yield f"{group}: {_db(median(values))} ({_db(min(values))} to {_db(max(values))}, {len(values)} layers)"

    def _reasons(self) -> Iterable[str]:
        for reason, names in self.kept().items():
            more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
            yield f"{reason}: {len(names)} ({', '.join(names[:NAMES_SHOWN])}{more})"


def _list_and_role(layer: Layer) -> str:
    """The group of a layer over all blocks of its list: ``double_blocks attention``."""
    if layer.block is None:
        return "outside the blocks"
    return f"{layer.block.rpartition('.')[0] or layer.block} {layer.group.rpartition(' ')[2]}"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _db(value: float) -> str:
    return "exact" if math.isinf(value) else f"{value:.1f} dB"


def _size(count: float) -> str:
    return f"{count / GB:.2f} GB" if count >= GB else f"{count / MB:.1f} MB"
