"""Layers whose weights are tensors of another pack's class, as those that read GGUF files: bytes, and among the
attributes what they are read by."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Packed(Tensor):
    """A weight's bytes; ``packed_as`` is its dtype and shape."""

    packed_as: tuple[torch.dtype, torch.Size]

    @classmethod
    def of(cls, weight: Tensor) -> Packed:
        packed = weight.contiguous().view(torch.uint8).as_subclass(cls)
        packed.packed_as = (weight.dtype, weight.shape)
        return packed

    def detach(self) -> Packed:
        return self

    def to(self, *args: Any, **kwargs: Any) -> Packed:
        moved = super().to(*args, **kwargs)
        moved.packed_as = self.packed_as
        return moved

    def new_empty(self, *args: Any, **kwargs: Any) -> Packed:
        made = super().new_empty(*args, **kwargs).as_subclass(Packed)
        made.packed_as = self.packed_as
        return made

    def unpacked(self) -> Tensor:
        dtype, shape = self.packed_as
        return self.as_subclass(Tensor).view(dtype).view(shape)


class ReadsPacked:
    """Before a class of linear layers."""

    weight: Packed
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.device).unpacked().to(x.dtype)
        bias = None if self.bias is None else self.bias.to(x.device, x.dtype)
        return nn.functional.linear(x, weight, bias)


def pack(root: nn.Module) -> None:
    """Exchanges the weights of all linear layers within, and the layers' class."""
    for layer in root.modules():
        if isinstance(layer, nn.Linear):
            layer.weight = nn.Parameter(Packed.of(layer.weight.data), requires_grad=False)
            layer.__class__ = type("PackedLinear", (ReadsPacked, type(layer)), {})
