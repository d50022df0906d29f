"""Maps that exist before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .graph import Leaf, Node


@dataclass
class Held(Leaf):
    """A tensor that exists."""

    tensor: Tensor
    dim: int
    unit: int = 1
    is_tensor = True

    def read(self, start: int, stop: int) -> Tensor:
        return self.tensor.narrow(self.dim, start * self.unit, (stop - start) * self.unit)

    def whole(self, node: Node) -> Tensor:
        return self.tensor


@dataclass
class Filled(Leaf):
    """A map of one value, which takes no memory as long as nobody asks for the whole."""

    shape: tuple[int, ...]
    value: float
    dtype: torch.dtype
    device: torch.device
    dim: int

    def read(self, start: int, stop: int) -> Tensor:
        shape = (*self.shape[: self.dim], stop - start, *self.shape[self.dim + 1 :])
        return torch.full((), self.value, dtype=self.dtype, device=self.device).expand(shape)

    def whole(self, node: Node) -> Tensor:
        return torch.full(node.shape, self.value, dtype=node.dtype, device=node.device)
