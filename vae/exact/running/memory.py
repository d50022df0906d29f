"""Where slabs come from, and how they are shaped and cut."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..operations.graph import Node
from .allocator import even


class Memory:
    """Of a device, in tensors.

    Args:
        far: bytes -> memory that :meth:`outside` gives; None: the system's.
    """

    def __init__(self, device: torch.device, far: Callable[[int], Tensor] | None = None) -> None:
        self.device, self.far = device, far

    def empty(self, node: Node, rows: int) -> Any:
        """An uninitialised slab."""
        size = node.row_bytes * rows
        if size == (asked := even(size, self.device)):
            return node.empty(rows)
        return self.shaped(node, self.memory(asked), rows, node.dtype)

    def memory(self, size: int) -> Any:
        """Bytes without a shape."""
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def outside(self, size: int) -> Any:
        """Bytes beside PyTorch's allocator, without a shape."""
        return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8) if self.far is None else self.far(size)

    def size_of(self, memory: Any) -> int:
        """Bytes of what :meth:`memory` or :meth:`outside` gave."""
        return int(memory.numel())

    def shaped(self, node: Node, memory: Any, rows: int, dtype: torch.dtype) -> Any:
        """The beginning of some bytes as a slab."""
        shape = node.slab_shape(rows)
        return memory[: node.row_elements * rows * dtype.itemsize].view(dtype).view(shape)

    def cut(self, node: Node, slab: Any, start: int, rows: int) -> Any:
        """A view of some rows of a slab, counted from its first."""
        return (
            slab if start == 0 and slab.shape[node.rows.dim] == rows * node.rows.unit else node.cut(slab, start, rows)
        )

    def columns(self, node: Node, slab: Any, first: int, count: int) -> Any:
        """A view of some columns of a slab."""
        return slab if count == node.shape[-1] else slab.narrow(-1, first, count)

    def stands_alone(self, slab: Any) -> bool:
        """Whether a slab is contiguous and holds no memory but its own."""
        return bool(slab.is_contiguous()) and slab.untyped_storage().nbytes() <= slab.numel() * slab.element_size()
