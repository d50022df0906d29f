"""The run log: what each node of a prompt did, kept for the report. Locked, bounded, one row per stretch of work."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from .peak import Peak, PeakMeter

if TYPE_CHECKING:
    from .prediction import Prediction

MOST_NODES = 256
MOST_ROWS_PER_NODE = 64


class AttentionKey(NamedTuple):
    """What calls are counted by: the block (None: the model does not say), the backend, and why it ran."""

    block: tuple[str, int] | None
    backend: str
    reason: str


class AttentionCounts:
    """Calls per block, backend and reason. Safe from several threads: the host runs one per GPU."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[AttentionKey] = Counter()

    def add(self, block: tuple[str, int] | None, backend: str, reason: str) -> None:
        with self._lock:
            self._calls[AttentionKey(block, backend, reason)] += 1

    def snapshot(self) -> dict[AttentionKey, int]:
        with self._lock:
            return dict(self._calls)

    @property
    def total(self) -> int:
        with self._lock:
            return self._calls.total()


@dataclass
class Row:
    """One stretch of work of one node.

    Attributes:
        work: "sampling", "decode" or "encode".
        seconds: wall time; None while it runs or after it failed before an end.
        peak: measured memory.
        live: bytes of the work at most, beyond the weights: of all tensors alive at once on a CPU, allocated ones on
            an accelerator; None where nothing tells.
        question: what to predict the same work by, as the host's adapter keeps it; None where that was asked already,
            or never can be.
        predicted: the answer, once somebody has asked; of strips their plan, from the start.
        attention: calls that reached our override; None where attention was not ours to choose.
        lines: what was done, for people.
        notices: what did not go as asked, and what to do about it.
        signature: of the node and all before it, once a report has seen the row.
        outcome: "running", "done", "interrupted" or "failed".
        meter: of :attr:`peak`, while the work runs.
        streams: whether some weights are copied to the device when they are due; :attr:`live` counts those copies.
        paged: bytes of weights on the device that its allocator does not count, so that neither :attr:`peak` nor
            :attr:`live` has them; None where it counts all.
        steps: calls of the model by a sampler.
        step_seconds: of each but the first; None where there was none, or where following tensors took time.
        expected: seconds of each by the prediction, once somebody has asked.
    """

    work: str
    seconds: float | None = None
    peak: Peak | None = None
    attention: AttentionCounts | None = None
    lines: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    signature: str | None = None
    outcome: str = "running"
    live: int | None = None
    question: object | None = None
    predicted: Prediction | None = None
    meter: PeakMeter | None = field(default=None, repr=False, compare=False)
    streams: bool = False
    paged: int | None = None
    steps: int = 0
    step_seconds: float | None = None
    expected: float | None = None


class RunLog:
    """Rows by (prompt id, node id), the latest :data:`MOST_NODES` of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: OrderedDict[tuple[str, str], list[Row]] = OrderedDict()

    def start(self, prompt: str, node: str, work: str) -> Row:
        """Adds a running row; the oldest nodes, and a node's oldest rows, make room."""
        row = Row(work)
        with self._lock:
            rows = self._rows.setdefault((prompt, node), [])
            rows.append(row)
            del rows[:-MOST_ROWS_PER_NODE]
            self._rows.move_to_end((prompt, node))
            while len(self._rows) > MOST_NODES:
                self._rows.popitem(last=False)
        return row

    def rows(self, prompt: str, node: str) -> list[Row]:
        with self._lock:
            return list(self._rows.get((prompt, node), ()))

    def nodes(self, prompt: str) -> list[str]:
        """Ids of the nodes of a prompt that have rows."""
        with self._lock:
            return [node for other, node in self._rows if other == prompt]

    def earlier(self, node: str, signature: str) -> list[Row]:
        """Rows of the same node with the same graph before it, from the latest prompt whose report saw them."""
        with self._lock:
            for (_, other), rows in reversed(self._rows.items()):
                if other == node and rows and rows[-1].signature == signature:
                    return list(rows)
        return []
