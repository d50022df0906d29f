"""A ring of memory on the compute device that weights are copied into while earlier layers compute.

It is one flat buffer; staged weights are views of it. Where the device has streams, copies run on one of their own, and
events order them against the computation: the compute stream waits for a copy before it reads it, and a copy waits for
the computation that read the bytes it overwrites. The first copies wait for all that was under way when the buffer was
made, since its memory may have been another tensor's. Closing or dropping the buffer waits for the copies under way, so
that neither its memory nor the weights they read are reused before. Copies overlap only from pinned memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .ring import Region, Ring
from .streams import compute_stream, copy_stream

ALIGNMENT = 512  # bytes; torch's allocators round to as much, so that a weight takes the same staged and resident


def flat_bytes(tensor: Tensor) -> int:
    """Bytes of device memory that a weight takes, the parts of a quantised one together."""
    if not is_traceable_wrapper_subclass(tensor):
        return -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    return sum(map(flat_bytes, _parts(tensor)))


def _parts(tensor: Tensor) -> list[Tensor]:
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    return [part for name in tensor.__tensor_flatten__()[0] for part in _parts(getattr(tensor, name))]


def is_pinned(tensor: Tensor) -> bool:
    """Whether a weight lies in page-locked memory, which the device can read by itself."""
    return all(part.is_pinned() for part in _parts(tensor))


def _fills(tensor: Tensor) -> bool:
    """Whether a tensor's elements lie without gaps, whatever the order of its dimensions."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape) if n > 1):
        if stride != expected:
            return False
        expected *= size
    return True


class _InOrder:
    """Stands in for an event where everything runs in order."""


IN_ORDER = _InOrder()
Moment = torch.Event | _InOrder


@dataclass
class Staged:
    """Weights in the ring.

    Attributes:
        weights: the copies; not to be read before :meth:`Staging.ready`.
        copied: the end of the copies.
        region: of the ring that they take; None: they have a place of their own and stay.
        began: the start of the copies, where that is measured.
    """

    weights: list[Tensor]
    copied: Moment
    region: Region[Moment] | None = None
    began: Moment | None = None


class Staging:
    """A ring of bytes on a device.

    Args:
        device: to compute on.
        size: bytes, all of them allocated at once.
    """

    def __init__(self, device: torch.device, size: int) -> None:
        self.bytes = size
        self._device = device
        self._ring: Ring[Moment] = Ring(size)
        self._stream = copy_stream(device)
        self._buffer: Tensor | None = torch.empty(size, dtype=torch.uint8, device=device)
        if self._stream is not None:
            self._home = compute_stream(device)
            self._stream.wait_stream(self._home)

    @property
    def overlaps(self) -> bool:
        """Whether copies run beside the computation."""
        return self._stream is not None

    def copy(self, sources: Sequence[Tensor], timed: bool = False) -> Staged | None:
        """Starts copying into the ring; None while the bytes that come next are in use, or wait for their use.

        Args:
            sources: weights, on any device.
            timed: :attr:`Staged.began` and :attr:`Staged.copied` can tell how long the copies took.
        """
        sizes = list(map(flat_bytes, sources))
        taken = self._ring.take(sum(sizes))
        if taken is None:
            return None
        region, moments = taken
        with self._stream or nullcontext():
            self._wait(moments)
            began = self._moment(self._stream, timed)
            copies = self._copies(sources, sizes, region.start)
        return Staged(copies, self._moment(self._stream, timed), region, began)

    def split(self, kept: int) -> None:
        """Makes the ring smaller by the last ``kept`` bytes. Nothing may be staged, and all that was has been read."""
        self._ring = Ring(self.bytes - kept)

    def copy_to_stay(self, sources: Sequence[Tensor], offset: int) -> Staged:
        """Starts copying to a place outside the ring, ``offset`` bytes from the buffer's start."""
        with self._stream or nullcontext():
            if self._stream is not None:
                self._stream.wait_stream(compute_stream(self._device))  # it may still read the bytes
            copies = self._copies(sources, list(map(flat_bytes, sources)), offset)
        return Staged(copies, self._moment(self._stream))

    def now(self) -> Moment:
        """This moment of the computation, as an event that tells time where the device has such."""
        return self._moment(compute_stream(self._device) if self._stream is not None else None, timed=True)

    def ready(self, staged: Staged) -> None:
        """The compute stream waits for the copies."""
        if isinstance(staged.copied, torch.Event):
            compute_stream(self._device).wait_event(staged.copied)

    def release(self, staged: Staged) -> None:
        """The work queued so far is the last to read them; after it their bytes may be taken again."""
        if staged.region is not None:
            stream = compute_stream(self._device) if self._stream is not None else None
            self._ring.give_back(staged.region, self._moment(stream))

    def drop(self, staged: Staged) -> None:
        """Undoes the latest :meth:`copy`, which nothing has read."""
        if staged.region is not None:
            self._ring.drop(staged.region)

    def leave(self) -> None:
        """The memory goes with the last of its copies: whoever reads one has waited for it, and nobody for the rest."""
        if self._buffer is not None and self._stream is not None:
            compute_stream(self._device).wait_stream(self._stream)
        self._buffer = None

    def close(self) -> None:
        """Waits for the copies under way and gives the memory back."""
        if self._buffer is not None and self._stream is not None:
            self._stream.synchronize()
            self._home.wait_stream(compute_stream(self._device))  # the last layers, if they ran elsewhere
        self._buffer = None

    def __del__(self) -> None:
        if getattr(self, "_buffer", None) is not None:
            self.close()

    def _wait(self, moments: Iterable[Moment]) -> None:
        for moment in moments:
            if self._stream is not None and isinstance(moment, torch.Event):
                self._stream.wait_event(moment)

    def _moment(self, stream: torch.Stream | None, timed: bool = False) -> Moment:
        if stream is None:
            return IN_ORDER
        event = torch.Event(self._device, enable_timing=timed)
        event.record(stream)
        return event

    def _copies(self, sources: Sequence[Tensor], sizes: Sequence[int], offset: int) -> list[Tensor]:
        starts = accumulate(sizes, initial=offset)
        return [self._copy(source, start) for source, start in zip(sources, starts)]

    def _copy(self, source: Tensor, offset: int) -> Tensor:
        if not is_traceable_wrapper_subclass(source):
            assert self._buffer is not None
            flat = self._buffer[offset : offset + source.nbytes].view(source.dtype)
            if source.is_contiguous() or not _fills(source):
                target = flat.view(source.shape)
            else:  # the same strides: kernels of convolutions differ by the order of the channels
                target = flat.as_strided(source.shape, source.stride())
            return target.copy_(source, non_blocking=True)
        names, context = source.__tensor_flatten__()
        parts: dict[str, Any] = {}
        for name in names:
            part = getattr(source, name)
            parts[name] = self._copy(part, offset)
            offset += flat_bytes(part)
        copy: Tensor = type(source).__tensor_unflatten__(parts, context, source.shape, source.stride())
        return copy
