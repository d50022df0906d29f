"""Exact execution of a video autoencoder that brings a cache of its own from one chunk of frames to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .engine import PLACES, DoesNotFit
from .operations.graph import Node
from .parts import ModulePart, PartsRun, PlaceOf
from .recording.chunk_by_chunk import ChunkByChunk
from .recording.record import Recorded
from .running.all_frames import AllFrames, in_memory
from .running.banded import here
from .running.carried import Carried, carried

# The first chunk finds no cache, the second a short one; Wan 2.1's encoder takes two of these for a latent frame, and
# what it keeps has its full length after the sixth.
ALIKE = 7
Portion = tuple[float, float]


class ChunkedRun(PartsRun):
    """A :class:`PartsRun` of chunk after chunk, each of them in strips of rows.

    What the module computes of all frames, before its chunks or behind them, is computed in strips too, and lies in
    host memory.

    Args:
        begin: (frames of the input) -> a new :class:`ChunkByChunk`.
        hold: (shape, dtype) -> a tensor in host memory, for maps of all frames that are no result.
        holds_on_disk: those take no memory.
        others: of :class:`PartsRun`.

    Attributes:
        bring: a chunk of the input to the device.
        fetch: (part, first frame, end) -> a chunk of what chunks are cut from, on the device; None: by :attr:`bring`.
        after_chunk: called when the frames of a chunk are handed on.
        share: of the whole work, where the present chunk begins and ends; what :attr:`on_strip` is told is within it.
    """

    share: Portion = (0.0, 1.0)
    most: int | None = None  # chunks that are run; None = all
    told = 0.0  # share of the work that was told of last
    given = 0  # frames of the whole result
    so_far: Tensor | None = None  # the result, with zeros where it is not there yet
    ways_of_all: Sequence[str] = tuple(PLACES)  # along which what the module computes of all frames is cut, by turns

    def __init__(
        self,
        begin: Callable[[int], ChunkByChunk],
        *others: Any,
        hold: Callable[[Sequence[int], torch.dtype], Tensor] = in_memory,
        holds_on_disk: bool = False,
        **named: Any,
    ) -> None:
        super().__init__(*others, **named)
        self.begin = begin
        self.hold, self.holds_on_disk = hold, holds_on_disk
        self.bring: Callable[[Tensor], Tensor] = lambda x: x
        self.fetch: Callable[[Tensor, int, int], Tensor] | None = None
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
                if self.so_far.device.type == self.bring(x[:, :, :1]).device.type:
                    self.beside = [*self.beside, self.so_far.nbytes]
            self._put(self.so_far[:, :, done : done + piece.shape[2]], piece)
            done += piece.shape[2]

        self._each(gather, x)
        whole, self.so_far = self.so_far, None
        assert whole is not None, "a video has a first frame"
        self.close()
        return whole

    def _put(self, place: Tensor, frames: Tensor) -> None:
        """The frames of a chunk to their place in the result."""
        place.copy_(frames)

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
                parts = self._of_all(chunks.head, x, next(shares), self._aside)
            gathered = AllFrames(self._aside, self.given) if chunks.has_tail else None
            for start, stop in borders:
                self.share = next(shares)
                of_chunk = [self._of_chunk(part, start, stop) for part in parts]
                pieces = self.chunk(chunks.step, *of_chunk, result=gathered.place if gathered else None)
                del of_chunk
                while pieces and gathered is None:
                    take(pieces.pop(0))
                self.after_chunk(chunks)
            if gathered is not None:
                for piece in self._of_all(lambda x: [chunks.tail(x)], gathered.whole(), next(shares)):
                    take(piece)
        finally:
            if self.parking is not None:
                self.parking.close()

    def _of_chunk(self, part: Tensor, start: int, stop: int) -> Tensor:
        """Frames [start, stop) of what chunks are cut from, on the device."""
        return self.bring(part[:, :, start:stop]) if self.fetch is None else self.fetch(part, start, stop)

    def _of_all(self, work: ModulePart, x: Tensor, share: Portion, result: PlaceOf | None = None) -> list[Tensor]:
        """A part of the module that sees all frames, cut along rows or, where nothing fits so, along frames.

        Args:
            x: all frames, in host memory or on the device.
            share: of the whole work.
            result: as of :meth:`chunk`.

        Raises:
            DoesNotFit: with the least of both.
        """
        self.share, least = share, list[int]()
        if self.holds_on_disk:
            self.far = self.hold
        try:
            for place in self.ways_of_all:
                self.recorder.place, before = PLACES[place], self._beside()
                try:
                    return self.chunk(work, result=result, opened=partial(self.opened, x))
                except DoesNotFit as error:
                    least.append(error.least)
                    self.beside, self.held, self.report.aside = before
            raise DoesNotFit(min(least))
        finally:
            self.recorder.place, self.far = PLACES["rows"], None

    def _beside(self) -> tuple[list[int], list[int], int]:
        """What lies beside the computation by now: a way that does not fit leaves nothing there."""
        return list(self.beside), list(self.held), self.report.aside

    def opened(self, x: Tensor) -> Recorded:
        """All frames, as a part of the module begins with them: what :attr:`bring` would move to the device comes there
        from host memory piece by piece, and what is there belongs to the caller."""
        one, height = self.bring(x[:, :, :1]), self._height(x)
        if one.device != x.device:
            return self._arriving(x.to(one.dtype), height, one.device)
        if one.dtype != x.dtype:
            x = self.bring(x)
            self.recorder.made.append(x.nbytes)
        return self._leaf(x, height)

    def _height(self, x: Tensor) -> int:
        """Rows of the whole map that a tensor holds."""
        return x.shape[-2]

    def _leaf(self, x: Tensor, height: int) -> Recorded:
        """A map that is there, of so many rows in all."""
        return self.recorder.leaf(x)

    def _arriving(self, tensor: Tensor, height: int, device: torch.device) -> Recorded:
        """The same for one that is in host memory."""
        return Recorded(self._opened_outside(tensor, device).node, self.recorder)

    def _opened_outside(self, tensor: Tensor, device: torch.device) -> Carried:
        rows = self.recorder.leaf(tensor).node.rows
        return Carried.opened(tensor, rows, device, self._parking(device))

    def _aside(self, node: Node, shape: Sequence[int] = ()) -> Tensor:
        """Room for a map that is no result, or for one of all frames that it is a part of."""
        out = self.hold(tuple(shape or node.shape), node.dtype)
        self.report.aside += out.nbytes
        if node.device.type == "cpu" and not self.holds_on_disk:
            self.held.append(out.nbytes)
            self.beside.append(out.nbytes)
        return out

    def restored(self, tensor: Tensor, device: torch.device, height: int = 0) -> Recorded:
        """What a module kept at a border, for the chunk that goes on there.

        Args:
            tensor: in host memory.
            device: of the computation.
            height: rows of the whole map; 0: those of the tensor.
        """
        height = height or tensor.shape[-2]
        return self._arriving(tensor, height, device) if self.outside else self._leaf(tensor.to(device), height)

    def _tell(self, share: float, out: Tensor | None) -> None:
        begin, end = self.share
        # A chunk in which something asks for a whole map begins anew.
        self.told = max(self.told, begin + (end - begin) * share)
        super()._tell(self.told, self.so_far)


def kept_of(node: Node) -> Tensor:
    """A map that a module keeps from one chunk to the next, or this worker's band of it, as a tensor: on the device, or
    gathered in host memory."""
    outside = carried(node)
    whole = here(node).whole(node) if outside is None else outside.gathered()
    assert whole is not None, "what is kept has been computed"
    return whole
