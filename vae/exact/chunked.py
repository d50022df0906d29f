"""Exact execution of a video autoencoder that brings a cache of its own from one chunk of frames to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .engine import PLACES, DoesNotFit, ExactRun
from .operations.graph import Node
from .operations.leaves import Held
from .planning.schedule import SlabRows
from .recording.chunk_by_chunk import ChunkByChunk
from .recording.record import Recorded
from .recording.value import CannotRecord, Value
from .runner import Target, into
from .running.all_frames import AllFrames, in_memory
from .running.carried import Carried, carried
from .running.kernels import Kernels
from .running.parking import Parking

# The first chunk finds no cache, the second a short one; Wan 2.1's encoder takes two of these for a latent frame, and
# what it keeps has its full length after the sixth.
ALIKE = 7
ModulePart = Callable[..., Sequence[Tensor]]
Share = tuple[float, float]
PlaceOf = Callable[[Node], Tensor]
LAST = 3  # plans that :meth:`ChunkedRun.explain` tells of


class ChunkedRun(ExactRun):
    """An :class:`ExactRun` of chunk after chunk, each of them in strips of rows.

    What the module keeps of a chunk for the next one, whichever way it keeps it, is computed with the chunk and lies on
    the device until the chunk after that is done: two of each, whatever the number of chunks. Or it is sent to host
    memory strip by strip, and fetched so, with copies beside the computation.

    What the module computes of all frames, before its chunks or behind them, is computed in strips too, and lies in
    host memory.

    Args:
        begin: (frames of the input) -> a new :class:`ChunkByChunk`.
        outside: what the module keeps lies in host memory.
        hold: (shape, dtype) -> a tensor in host memory, for maps of all frames that are no result.
        holds_on_disk: those take no memory.
        others: of :class:`ExactRun`.

    Attributes:
        bring: a chunk of the input to the device.
        after_chunk: called when the frames of a chunk are handed on.
        share: of the whole work, where the present chunk begins and ends; what :attr:`on_strip` is told is within it.
    """

    share: Share = (0.0, 1.0)
    most: int | None = None  # chunks that are run; None = all
    told = 0.0  # share of the work that was told of last
    given = 0  # frames of the whole result
    so_far: Tensor | None = None  # the result, with zeros where it is not there yet
    _kept: Sequence[Tensor] = ()
    _sent = 0  # bytes that the last chunk left in host memory

    def __init__(
        self,
        begin: Callable[[int], ChunkByChunk],
        *others: Any,
        outside: bool = False,
        hold: Callable[[Sequence[int], torch.dtype], Tensor] = in_memory,
        holds_on_disk: bool = False,
        **named: Any,
    ) -> None:
        super().__init__(*others, **named)
        self.begin, self.outside = begin, outside
        self.hold, self.holds_on_disk = hold, holds_on_disk
        self.held: list[int] = []  # bytes of maps of all frames that are no result, where they count
        self.parking: Parking | None = None
        self.bring: Callable[[Tensor], Tensor] = lambda x: x
        self.after_chunk: Callable[[ChunkByChunk], None] = lambda chunks: None

    def run(self, module: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """All chunks of a video (1, C, T, H, W); the module's own loop over them is not run."""
        self.so_far = None
        done = 0

        def gather(piece: Tensor) -> None:
            nonlocal done
            if self.so_far is None:
                shape = (*piece.shape[:2], self.given, *piece.shape[3:])
                self.so_far = self.new(shape, piece.dtype, piece.device)
                if self.so_far.device.type == x.device.type:
                    self.beside = [*self.beside, self.so_far.nbytes]
            self.so_far[:, :, done : done + piece.shape[2]] = piece
            done += piece.shape[2]

        self._each(gather, x)
        whole, self.so_far = self.so_far, None
        assert whole is not None, "a video has a first frame"
        self.close()
        return whole

    def stream(self, take: Callable[[Tensor], None], module: Callable[..., Any], x: Tensor, **kwargs: Any) -> None:
        """As :meth:`run`, with the frames of each chunk handed on, in :attr:`out_dtype` on :attr:`out_device`."""
        self._each(take, x)
        self.close()

    def _each(self, take: Callable[[Tensor], None], x: Tensor) -> None:
        chunks = self.begin(x.shape[2])
        borders = chunks.borders[chunks.done : self.most]
        self.given, self.told, self.held = chunks.given, 0.0, []
        self._kept = self._held()
        works = len(borders) + chunks.has_head + chunks.has_tail
        shares = iter([(number / works, (number + 1) / works) for number in range(works)])
        try:
            parts: Sequence[Tensor] = [x]
            if chunks.has_head:
                brought = self.bring(x)
                parts = self._of_all(chunks.head, brought, brought.device, next(shares), self._aside)
                del brought
            gathered = AllFrames(self._aside, self.given) if chunks.has_tail else None
            for start, stop in borders:
                self.share = next(shares)
                of_chunk = [self.bring(part[:, :, start:stop]) for part in parts]
                device = of_chunk[0].device
                pieces = self.chunk(chunks.step, *of_chunk, result=gathered.place if gathered else None)
                del of_chunk
                while pieces and gathered is None:
                    take(pieces.pop(0))
                self.after_chunk(chunks)
            if gathered is not None:
                for piece in self._of_all(lambda x: [chunks.tail(x)], gathered.whole(), device, next(shares)):
                    take(piece)
        finally:
            if self.parking is not None:
                self.parking.close()

    def _of_all(
        self,
        work: ModulePart,
        x: Tensor,
        device: torch.device,
        share: Share,
        result: PlaceOf | None = None,
    ) -> list[Tensor]:
        """A part of the module that sees all frames, cut along rows or, where nothing fits so, along frames.

        Args:
            share: of the whole work.
            result: as of :meth:`chunk`.

        Raises:
            DoesNotFit: with the least of both.
        """
        self.share, least, x = share, list[int](), x.to(device)
        for place in PLACES.values():
            self.recorder.place = place
            try:
                return self.chunk(work, x, result=result)
            except DoesNotFit as error:
                least.append(error.least)
            finally:
                self.recorder.place = PLACES["rows"]
        raise DoesNotFit(min(least))

    def _aside(self, node: Node, shape: Sequence[int] = ()) -> Tensor:
        """Room for a map that is no result, or for one of all frames that it is a part of."""
        out = self.hold(tuple(shape or node.shape), node.dtype)
        self.report.aside += out.nbytes
        if node.device.type == "cpu" and not self.holds_on_disk:
            self.held.append(out.nbytes)
            self.beside.append(out.nbytes)
        return out

    def restored(self, tensor: Tensor, device: torch.device) -> Recorded:
        """What a module kept at a border, for the chunk that goes on there.

        Args:
            tensor: in host memory.
            device: of the computation.
        """
        if not self.outside:
            return self.recorder.leaf(tensor.to(device))
        rows = self.recorder.leaf(tensor).node.rows
        return Recorded(Carried.opened(tensor, rows, device, self._parking(device)).node, self.recorder)

    def _parking(self, device: torch.device) -> Parking | None:
        if self.parking is None:
            self.parking = Parking(device)
        return self.parking

    def _held(self) -> list[Tensor]:
        """What the module keeps of a chunk for the next one."""
        found = (recorded.node.op.whole(recorded.node) for recorded in list(self.recorder.live))
        return [tensor for tensor in found if tensor is not None]

    def chunk(self, step: ModulePart, *parts: Tensor, result: PlaceOf | None = None) -> list[Tensor]:
        """One chunk: its results.

        Args:
            step: calls the module with the chunk, (B, C, t, H, W), and returns its results.
            parts: of the chunk, on the device.
            result: makes what a result is put into, which takes no memory of the device; None: a tensor in
                :attr:`out_dtype` on :attr:`out_device`.

        Raises:
            DoesNotFit, CannotRecord, StoreOverflow: as :meth:`run`.
        """
        given, there = self.beside, [*parts, *self._kept]
        self.beside = [*given, *self.held, *(tensor.nbytes for tensor in there)]
        try:
            outs = self._chunk(step, parts, result)
        finally:
            self.beside = given
        self.recorder.made.clear()
        self.remains.clear()
        return outs

    def _chunk(self, step: ModulePart, parts: Sequence[Tensor], result: PlaceOf | None) -> list[Tensor]:
        with self.recorder:
            nodes = _nodes(step(*map(self.recorder.leaf, parts)))
            self.recorder.flush()
        self.report.materialised = self.recorder.materialised
        # In the order of their recording, which is the next chunk's too: chunks that are alike have one plan.
        alive = sorted(self.recorder.live, key=lambda recorded: recorded.node.order)
        keep = {recorded.node: None for recorded in alive if not self._stays(recorded.node)}
        outs = [self._result(node) if result is None else result(node) for node in nodes]
        targets: list[Target] = [out if result is None else into(out, node) for node, out in zip(nodes, outs)]
        if self.outside:
            kept = self._send(list(zip(nodes, targets)), keep)
        else:
            tensors = {node: self._empty(node) for node in keep}
            # A chunk may keep what it returns: written to both.
            self._execute([*zip(nodes, targets), *tensors.items()], allocated=True)
            kept = {node: _held(node, tensor) for node, tensor in tensors.items()}
        self.report.condense()
        del self._explained[:-LAST]
        for recorded in alive:
            if recorded.node in kept:
                recorded.value = Value(kept[recorded.node])  # not as a view of the chunk, which is to go
        self._kept = self._held()
        return outs

    def _stays(self, node: Node) -> bool:
        """Whether a map that the module keeps is where it is to be."""
        return node.op.is_tensor or carried(node) is not None

    def _send(self, results: Sequence[tuple[Node, Target]], keep: Iterable[Node]) -> dict[Node, Node]:
        """Computes a chunk, and sends what is kept of it to host memory."""
        stores = {node: self._store(node) for node in keep}
        pairs: list[tuple[Node, Target]] = [*results, *((node, store.append) for node, store in stores.items())]
        schedule = self._execute(pairs, allocated=True, sent=stores)
        before, self._sent = self._sent, sum(node.bytes for node in stores)
        self.report.carried = max(self.report.carried, before + self._sent)
        for node, store in stores.items():
            self._end(store, schedule.sent[node])
        return {node: store.node for node, store in stores.items()}

    def _store(self, node: Node) -> Carried:
        return Carried(node, Kernels(node.device), node.dtype, self._parking(node.device))

    def _end(self, store: Carried, layout: SlabRows) -> None:
        """All strips of a map are sent."""
        store.rest()

    def _empty(self, node: Node) -> Tensor:
        """For what the module keeps."""
        return node.empty(node.rows.count)

    def _result(self, node: Node) -> Tensor:
        return torch.zeros(node.shape, dtype=self.out_dtype or node.dtype, device=self.out_device or node.device)

    def _tell(self, share: float, out: Tensor | None) -> None:
        begin, end = self.share
        # A chunk in which something asks for a whole map begins anew.
        self.told = max(self.told, begin + (end - begin) * share)
        super()._tell(self.told, self.so_far)

    def close(self) -> None:
        super().close()
        self._kept = ()


def _nodes(results: Sequence[Tensor]) -> list[Node]:
    """Of recorded results; apart from where they are read, so that these die before the chunk is planned."""
    for result in results:
        if not isinstance(result, Recorded):
            raise CannotRecord("a chunk's result is not of its frames")
    return [result.node for result in results]  # type: ignore[attr-defined]


def kept_of(node: Node) -> Tensor:
    """A map that a module keeps from one chunk to the next, as a tensor: on the device, or gathered in host memory."""
    outside = carried(node)
    whole = node.op.whole(node) if outside is None else outside.gathered()
    assert whole is not None, "what is kept has been computed"
    return whole


def _held(node: Node, tensor: Tensor) -> Node:
    return Node(Held(tensor, node.rows.dim, node.rows.unit), (), node.shape, node.dtype, node.device, node.rows)
