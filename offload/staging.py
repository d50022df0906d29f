"""Slots on the compute device that weights are copied into while other blocks compute.

A slot is one flat buffer; a block's weights are views of it. Where the device has streams the copies run on one of
their own, and events order them against the computation: the compute stream waits for a copy, and a copy into a slot
waits for the computation that used its memory before, be it as another tensor. The allocator knows that the copies'
stream uses the buffer, and gives its memory to nobody before they have ended, however the slot came to be dropped.
Nothing is synchronised with the CPU. Copies overlap only from pinned memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .streams import compute_stream, copy_stream

ALIGNMENT = 256  # bytes; what kernels expect of a tensor's start


def flat_bytes(tensor: Tensor) -> int:
    """Bytes of a slot that a weight takes, the parts of a quantised one together."""
    return sum(-(-part.nbytes // ALIGNMENT) * ALIGNMENT for part in _parts(tensor))


def _parts(tensor: Tensor) -> list[Tensor]:
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    return [part for name in tensor.__tensor_flatten__()[0] for part in _parts(getattr(tensor, name))]


def _fills(tensor: Tensor) -> bool:
    """Whether a tensor's elements lie without gaps, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape) if n > 1):
        if stride != expected:
            return False
        expected *= size
    return True


class Slot:
    """One buffer and what orders its use.

    Args:
        device: to compute on.
        size: bytes.
        stream: for the copies; None: they are made in order with everything else.
    """

    def __init__(self, device: torch.device, size: int, stream: torch.Stream | None) -> None:
        self._buffer = torch.empty(size, dtype=torch.uint8, device=device)
        self._stream = stream
        if stream is None:
            return
        self._buffer.record_stream(stream)
        self._copied, self._read = torch.Event(device), torch.Event(device)
        self.release()  # the memory may have been another tensor's, which is still in use

    def copy(self, sources: Sequence[Tensor]) -> list[Tensor]:
        """Starts copying; the results hold nothing before :meth:`ready`."""
        offset = 0
        copies = []
        with self._stream or nullcontext():
            if self._stream is not None:
                self._stream.wait_event(self._read)
            for source in sources:
                copies.append(self._copy(source, offset))
                offset += flat_bytes(source)
            if self._stream is not None:
                self._copied.record(self._stream)
        return copies

    def _copy(self, source: Tensor, offset: int) -> Tensor:
        if not is_traceable_wrapper_subclass(source):
            # The same strides: kernels of convolutions differ by the order of the channels.
            flat = self._buffer[offset : offset + source.nbytes].view(source.dtype)
            target = flat.as_strided(source.shape, source.stride()) if _fills(source) else flat.view(source.shape)
            target.copy_(source, non_blocking=True)
            return target
        names, context = source.__tensor_flatten__()
        parts: dict[str, Any] = {}
        for name in names:
            part = getattr(source, name)
            parts[name] = self._copy(part, offset)
            offset += flat_bytes(part)
        copy: Tensor = type(source).__tensor_unflatten__(parts, context, source.shape, source.stride())
        return copy

    def ready(self) -> None:
        """The compute stream waits for the copy."""
        if self._stream is not None:
            compute_stream(self._buffer.device).wait_event(self._copied)

    def release(self) -> None:
        """What was computed so far has read the slot."""
        if self._stream is not None:
            self._read.record(compute_stream(self._buffer.device))


class Staging:
    """Slots of one size on a device."""

    def __init__(self, device: torch.device, slots: int, size: int) -> None:
        stream = copy_stream(device)
        self.slots = [Slot(device, size, stream) for _ in range(slots)]
        self.bytes = slots * size
