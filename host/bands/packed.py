"""Tensors as plain arrays of bytes, which Ray's object store hands from process to process without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

TENSOR = "tensor"


def packed(things: Sequence[Any]) -> list[Any]:
    """Tensors as (mark, bytes, dtype, shape); anything else as it is."""
    return [_bytes_of(thing) if isinstance(thing, Tensor) else thing for thing in things]


def unpacked(things: Sequence[Any], device: torch.device) -> list[Any]:
    """The same tensors on a device."""
    return [_tensor_of(thing, device) if _is_tensor(thing) else thing for thing in things]


def bytes_of(things: Sequence[Any]) -> int:
    """Bytes of what is packed."""
    return sum(thing[1].nbytes for thing in things if _is_tensor(thing))


def _is_tensor(thing: Any) -> bool:
    return isinstance(thing, tuple) and len(thing) == 4 and thing[0] == TENSOR


def _bytes_of(tensor: Tensor) -> tuple[str, Any, str, tuple[int, ...]]:
    there = tensor.detach().cpu().contiguous()
    array = there.reshape(-1).view(torch.uint8).numpy()
    return TENSOR, array, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def _tensor_of(thing: tuple[str, Any, str, tuple[int, ...]], device: torch.device) -> Tensor:
    _, array, dtype, shape = thing
    flat = torch.empty(array.nbytes, dtype=torch.uint8)
    flat.numpy()[:] = array  # what Ray hands over may not be written to
    return flat.view(getattr(torch, dtype)).view(shape).to(device)
