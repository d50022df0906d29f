"""What all crews have in common: bands by what each worker can hold, and what to do where one of them cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from ...memory.units import format_bytes
from ...vae.exact import CannotRecord, DoesNotFit, StoreOverflow
from ...vae.exact.bands.talk import OnChunk
from ...vae.exact.cutting.share import Share
from ..chunks.chunks import State
from ..core.compat import interruptions, out_of_memory_kind
from ..video.along import cut_into
from .work import BandWork, dim_of

NARROWER = 0.7  # of a worker's bytes, after it ran out of them
MOST_TRIES = 4  # with less for one that ran out


@dataclass(frozen=True)
class Task:
    """An encode or decode for a crew.

    Attributes:
        model: the autoencoder.
        method: of it.
        device: where it would run by itself: whose random numbers it is to draw.
        x: (B, C, [T,] H, W), prepared, in host memory.
        dtype: of the module.
        options: further arguments.
        half_store: maps are kept in float16.
        rows: of the result in a strip; 0 = by the budget.
        on_share: called with how much is done; may raise to stop.
        notice: tells of what went otherwise.
        along: what bands are cut along: rows or frames.
        on_chunk: takes the chunks of a video that are handed on as they are done, and kept nowhere.
        begins: of such a video, asked at each try: frames that are there already, and the state behind them.
        brings: of a video whose frames come as they are needed, ``x`` being a likeness of all of them: asked at each
            try for the chunks.
    """

    model: Any
    method: str
    device: torch.device
    x: Tensor
    dtype: torch.dtype
    options: dict[str, Any]
    half_store: bool
    rows: int
    on_share: Callable[[float], None]
    notice: Callable[[str], None]
    along: str = "rows"
    on_chunk: OnChunk | None = None
    begins: Callable[[], tuple[int, State]] = lambda: (0, {})
    brings: Callable[[], Iterator[Tensor]] | None = None

    @property
    def talks(self) -> bool:
        """Whether there is more to be said than the result."""
        return self.on_chunk is not None or self.brings is not None

    @property
    def height(self) -> int:
        """Rows, or frames, of the input."""
        return int(self.x.shape[dim_of(self.along)])

    def part(self, share: Share, budget: float) -> BandWork:
        """A worker's part."""
        done, state = (0, {}) if self.on_chunk is None else self.begins()
        x = self.x if self.brings is None else self.x[:, :, :1]
        return BandWork(
            self.method,
            _cut(x, share, dim_of(self.along)).contiguous(),
            self.height,
            self.dtype,
            budget,
            self.options,
            self.half_store,
            self.rows,
            self.along,
            self.on_chunk is not None,
            0 if self.brings is None else self.x.shape[2],
            done,
            {name: _entry(entry, share) for name, entry in state.items()},
        )


@dataclass
class CrewReport:
    """What a crew did.

    Attributes:
        lines: one for each worker.
        received: bytes that all of them took from each other, as planned; measured: as it was.
        way: what strips were cut along, of :data:`..video.along.ALONG`.
    """

    lines: list[str] = field(default_factory=list)
    received: int = 0
    measured: int = 0
    way: str = "rows"


class Crew(Protocol):
    """Workers that compute a task together."""

    def compute(self, task: Task) -> tuple[list[Tensor], CrewReport]:
        """The bands of the result, from the top or from the first frames on, float32 in host memory; none where it is
        handed on.

        Raises:
            DoesNotFit, CannotRecord, StoreOverflow: as an exact run of one device.
            OOM_EXCEPTION: a worker ran out of memory however little it was to take.
            RuntimeError: a worker failed, or none is left.
        """


def shares(budgets: Sequence[float], rows: int) -> list[Share]:
    """A band for each worker, as high as its bytes are many."""
    return [Share.of(rank, [max(1.0, budget) for budget in budgets], rows) for rank in range(len(budgets))]


def report_of(names: Sequence[str], answers: Sequence[dict[str, Any]], budgets: Sequence[float]) -> CrewReport:
    """What a crew did, by its workers' answers."""
    made = CrewReport(way=answers[0]["way"])
    of_what = "frames" if made.way == "frames" else "rows"
    for name, answer, budget in zip(names, answers, budgets):
        made.lines.append(
            f"{name}: {answer['rows']} {of_what} in {cut_into(made.way, answer['strips'], answer['passes'])},"
            " planned peak"
            f" {format_bytes(answer['peak'])} of {format_bytes(budget)}, {format_bytes(answer['measured'])} received"
        )
        made.received += answer["received"]
        made.measured += answer["measured"]
    return made


def _entry(entry: Tensor, share: Share) -> tuple[Tensor, int]:
    """What is kept behind a chunk as a worker is given it: its band of a map, with the rows of all of it."""
    if entry.ndim < 4:
        return entry, 0
    return _cut(entry, share, -2), int(entry.shape[-2])


def _cut(x: Tensor, share: Share, dim: int) -> Tensor:
    first, stop = share.rows(x.shape[dim])
    return x.narrow(dim, first, stop - first)


def raise_unless_done(names: Sequence[str], answers: Sequence[dict[str, Any]]) -> None:
    """What a crew's answers raise; nothing, where all are done.

    Raises:
        DoesNotFit, StoreOverflow, CannotRecord, OOM_EXCEPTION, RuntimeError, the host's interruption.
    """
    found = {answer["status"]: (name, str(answer.get("why", ""))) for name, answer in zip(names, answers)}
    if "does_not_fit" in found:
        raise DoesNotFit(max(answer.get("least", 0) for answer in answers))
    if "interrupted" in found:
        raise interruptions()[0]()
    for kind, error in (("overflow", StoreOverflow), ("not_exact", CannotRecord)):
        if kind in found:
            raise error(found[kind][1])
    if "out_of_memory" in found:
        name, why = found["out_of_memory"]
        raise out_of_memory_kind()(
            f"workers: {name} ran out of memory ({why}); take it out, or lower the size of the picture"
        )
    for kind in ("failed", "lost"):
        if kind in found:
            name, why = found[kind]
            raise RuntimeError(f"workers: {name} failed: {why or kind}")
