"""Memory against what may be used, as numbers for a bar on a node's face."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..peak import PROCESS
from ..units import format_bytes
from .report import NodeReport

USUAL_LIMIT = 0.85  # share of a device that may be used where nobody has said another
STREAMED = "streamed"


@dataclass(frozen=True)
class Load:
    """What one stretch of work takes.

    Attributes:
        name: of the work.
        parts: bytes by what they are, from the bottom up; what is :data:`STREAMED` is not on the device at once.
    """

    name: str
    parts: dict[str, int]

    @property
    def peak(self) -> int:
        return sum(size for kind, size in self.parts.items() if kind != STREAMED)


@dataclass(frozen=True)
class MemoryBar:
    """Stretches of work on one device.

    Attributes:
        total: bytes of the device.
        allowed: bytes of it that may be used.
        loads: in the order in which they run.
    """

    total: int
    allowed: int
    loads: tuple[Load, ...]

    @property
    def peak(self) -> int:
        return max((load.peak for load in self.loads), default=0)

    def sentence(self) -> str:
        """The bar for those who do not see it."""
        share = self.allowed / max(self.total, 1)
        whole = f"Peak {format_bytes(self.peak)}, {format_bytes(self.allowed)} allowed ({share:.0%} of"
        return "; ".join([f"{whole} {format_bytes(self.total)})", *map(_describe, self.loads)])

    def numbers(self) -> dict[str, Any]:
        """What can be written as JSON, sizes in bytes."""
        loads = [{"name": load.name, "parts": load.parts, "peak": load.peak} for load in self.loads]
        return {"total": self.total, "allowed": self.allowed, "loads": loads, "sentence": self.sentence()}


def measured_bar(
    nodes: Sequence[NodeReport], total: int, limit: float = USUAL_LIMIT, own_memory: bool = False
) -> MemoryBar:
    """What was measured, of the nodes that a report tells of.

    Args:
        nodes: in the order of the report.
        total: bytes of the device.
        limit: share of it that may be used.
        own_memory: it has memory beside the machine's, where work on the CPU, as of ``--cpu-vae``, takes nothing.
    """
    loads = (
        Load(
            f"#{node.node} {row.work}",
            {"before": row.peak.highest - row.peak.growth + (row.paged or 0), "growth": row.peak.growth},
        )
        for node in nodes
        for row in node.rows
        if row.peak is not None and not (own_memory and row.peak.source == PROCESS)
    )
    return MemoryBar(total, int(limit * total), tuple(loads))


def _describe(load: Load) -> str:
    parts = (f"{kind} {format_bytes(size)}" for kind, size in load.parts.items() if size)
    return f"{load.name} {format_bytes(load.peak)}: {', '.join(parts)}"
