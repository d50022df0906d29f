"""Exact execution of a module part by part, with what it keeps of each for the next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .engine import ExactRun
from .operations.graph import Leaf, Node
from .operations.leaves import Held
from .planning.schedule import Schedule, SlabRows
from .recording.record import Recorded
from .recording.value import CannotRecord, Value
from .runner import Target, into
from .running.banded import here
from .running.carried import Carried, carried
from .running.kernels import Kernels
from .running.parking import Parking
from .running.stream import Taker

ModulePart = Callable[..., Sequence[Tensor]]
PlaceOf = Callable[[Node], Tensor]
LAST = 3  # plans that :meth:`ExactRun.explain` tells of


class PartsRun(ExactRun):
    """An :class:`ExactRun` of several parts of a module, one after the other.

    What the module keeps of a part, whichever way it keeps it, is computed with the part and lies on the device until
    the next one is done: two of each, however many there are. Or it is sent to host memory strip by strip, and fetched
    so, with copies beside the computation.

    Args:
        outside: what the module keeps lies in host memory.
        others: of :class:`ExactRun`.

    Attributes:
        held: bytes of each tensor that is there beside all parts, where they count.
    """

    _kept: Sequence[Tensor] = ()
    _sent = 0  # bytes that the last part left in host memory

    def __init__(self, *others: Any, outside: bool = False, **named: Any) -> None:
        super().__init__(*others, **named)
        self.outside = outside
        self.held: list[int] = []
        self.parking: Parking | None = None

    def chunk(
        self,
        step: ModulePart,
        *parts: Tensor,
        result: PlaceOf | None = None,
        opened: Callable[[], Recorded] | None = None,
    ) -> list[Tensor]:
        """One part: its results.

        Args:
            step: calls the module with the chunk, (B, C, t, H, W), and returns its results.
            parts: of the chunk, on the device.
            result: makes what a result is put into, which takes no memory of the device; None: a tensor in
                :attr:`out_dtype` on :attr:`out_device`.
            opened: makes a further part of what takes no memory of the device.

        Raises:
            DoesNotFit, CannotRecord, StoreOverflow: as :meth:`run`.
        """
        given, there = self.beside, [*parts, *self._kept]
        self.beside = [*given, *self.held, *(tensor.nbytes for tensor in there)]
        try:
            outs = self._chunk(step, parts, result, opened)
        finally:
            self.beside = given
        self.recorder.made.clear()
        self.remains.clear()
        return outs

    def _chunk(
        self,
        step: ModulePart,
        parts: Sequence[Tensor],
        result: PlaceOf | None,
        opened: Callable[[], Recorded] | None,
    ) -> list[Tensor]:
        with self.recorder:
            # Nothing here is to hold what is recorded: it would pass for what the module keeps.
            nodes = _nodes(step(*map(self._opened, parts), *([opened()] if opened else [])))
            self.recorder.flush()
        self.report.materialised = self.recorder.materialised
        # In the order of their recording, which is the next chunk's too: chunks that are alike have one plan.
        alive = sorted(self.recorder.live, key=lambda recorded: recorded.node.order)
        keep = {recorded.node: None for recorded in alive if not self._stays(recorded.node)}
        outs = [self._result(node) if result is None else result(node) for node in nodes]
        targets: list[Target] = [out if result is None else self._into(out, node) for node, out in zip(nodes, outs)]
        if self.outside:
            kept = self._send(list(zip(nodes, targets)), keep)
        else:
            tensors = {node: self._empty(node) for node in keep}
            # A chunk may keep what it returns: written to both.
            self._fill([*zip(nodes, targets), *tensors.items()])
            kept = {
                node: self._there(node, Held(tensor, node.rows.dim, node.rows.unit)) for node, tensor in tensors.items()
            }
        self.report.condense()
        del self._explained[:-LAST]
        for recorded in alive:
            if recorded.node in kept:
                recorded.value = Value(kept[recorded.node])  # not as a view of the chunk, which is to go
        self._kept = self._held()
        return outs

    def _stays(self, node: Node) -> bool:
        """Whether a map that the module keeps is where it is to be."""
        return here(node).is_tensor or carried(node) is not None

    def _send(self, results: Sequence[tuple[Node, Target]], keep: Iterable[Node]) -> dict[Node, Node]:
        """Computes a chunk, and sends what is kept of it to host memory."""
        stores = {node: self._store(node) for node in keep}
        pairs: list[tuple[Node, Target]] = [
            *results,
            *((node, self._onto(store, node)) for node, store in stores.items()),
        ]
        schedule = self._fill(pairs, stores)
        before, self._sent = self._sent, sum(store.node.bytes for store in stores.values())
        self.report.carried = max(self.report.carried, before + self._sent)
        for node, store in stores.items():
            self._end(store, schedule.sent[node])
        return {node: self._there(node, store) for node, store in stores.items()}

    def _fill(self, pairs: Sequence[tuple[Node, Target]], sent: Collection[Node] = ()) -> Schedule:
        """Computes outputs of a part, each to where it goes."""
        return self._execute(pairs, allocated=True, sent=sent)

    def _into(self, out: Tensor, node: Node) -> Taker:
        """What puts the rows of a map into a tensor of :meth:`_empty`'s size."""
        return into(out, node)

    def _onto(self, store: Carried, node: Node) -> Taker:
        """What sends the rows of a map to a store of :meth:`_store`."""
        return store.append

    def _there(self, node: Node, leaf: Leaf) -> Node:
        """A map that outlives its part, for the next one."""
        return Node(leaf, (), node.shape, node.dtype, node.device, node.rows)

    def _store(self, node: Node) -> Carried:
        return Carried(node, Kernels(node.device), node.dtype, self._parking(node.device))

    def _end(self, store: Carried, layout: SlabRows) -> None:
        """All strips of a map are sent."""
        store.rest()

    def _empty(self, node: Node) -> Tensor:
        """For what the module keeps."""
        return torch.empty(self._shape(node), dtype=node.dtype, device=node.device)

    def _result(self, node: Node) -> Tensor:
        return torch.zeros(self._shape(node), dtype=self.out_dtype or node.dtype, device=self.out_device or node.device)

    def _shape(self, node: Node) -> Sequence[int]:
        """Of what is gathered of a map."""
        return node.shape

    def _parking(self, device: torch.device) -> Parking | None:
        if self.parking is None:
            self.parking = Parking(device)
        return self.parking

    def _held(self) -> list[Tensor]:
        """What the module keeps of a chunk for the next one."""
        found = (here(recorded.node).whole(recorded.node) for recorded in list(self.recorder.live))
        return [tensor for tensor in found if tensor is not None]

    def close(self) -> None:
        super().close()
        self._kept = ()


def _nodes(results: Sequence[Tensor]) -> list[Node]:
    """Of recorded results; apart from where they are read, so that these die before the chunk is planned."""
    for result in results:
        if not isinstance(result, Recorded):
            raise CannotRecord("a chunk's result is not of its frames")
    return [result.node for result in results]  # type: ignore[attr-defined]
