"""What all crews have in common: bands by what each worker can hold, and what to do where one of them cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from ...memory.units import format_bytes
from ...vae.exact import CannotRecord, DoesNotFit, StoreOverflow
from ...vae.exact.cutting.share import Share
from ..core.compat import interruptions, out_of_memory_kind

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


@dataclass
class CrewReport:
    """What a crew did.

    Attributes:
        lines: one for each worker.
        received: bytes that all of them took from each other, as planned; measured: as it was.
    """

    lines: list[str] = field(default_factory=list)
    received: int = 0
    measured: int = 0


class Crew(Protocol):
    """Workers that compute a task together."""

    def compute(self, task: Task) -> tuple[list[Tensor], CrewReport]:
        """The bands of the result, from the top, float32 in host memory.

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
    made = CrewReport()
    for name, answer, budget in zip(names, answers, budgets):
        rows = answer["band"].shape[-2]
        made.lines.append(
            f"{name}: {rows} rows, {answer['strips']} strips in {answer['passes']} passes, planned peak"
            f" {format_bytes(answer['peak'])} of {format_bytes(budget)}, {format_bytes(answer['measured'])} received"
        )
        made.received += answer["received"]
        made.measured += answer["measured"]
    return made


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
