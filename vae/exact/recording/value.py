"""The value of a recorded tensor: views share it, and in-place functions change it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..operations.graph import Node


class CannotRecord(Exception):
    """The module does something to a map that strips cannot follow; the message says what."""


class Value:
    """What a recorded tensor holds at present.

    Args:
        node: the value.
        base, look: for a view, the value it looks into, and how its node is computed from the base's. A ``look``
            with a method ``put_back`` can be written through.
        twin: a tensor without data with the strides the real one would have: tells whether a reshape copies.
    """

    def __init__(
        self,
        node: Node,
        base: Value | None = None,
        look: Callable[[Node], Node | None] | None = None,
        twin: Tensor | None = None,
    ) -> None:
        self._node, self.base, self.look = node, base, look
        self.twin = torch.empty(node.shape, device="meta") if twin is None else twin
        self._seen = base.version if base is not None else 0
        self._version = 0
        self._root = None if base is None else base.root

    @property
    def root(self) -> Value:
        """The value that this and all views of the same memory look into."""
        return self._root or self

    @property
    def version(self) -> int:
        """Counts writes, also those through views and into what this is a view of."""
        return self._version + (self.base.version if self.base is not None else 0)

    @property
    def node(self) -> Node:
        """The value as a node; a view's is made anew once its base was written to."""
        if self.base is not None and self.look is not None and self._seen != self.base.version:
            node = self.look(self.base.node)
            if node is None:
                raise CannotRecord("a view of a map that was written to")
            self._node, self._seen = node, self.base.version
        return self._node

    def assign(self, node: Node, is_observed: Callable[[], bool]) -> None:
        """A write to the whole of this value, seen by its views and by what it is a view of."""
        if node.shape != self._node.shape or node.dtype != self._node.dtype:
            raise CannotRecord(f"an in-place operation gives {node.shape}, {node.dtype}")
        put_back = getattr(self.look, "put_back", None)
        if self.base is None:
            self._node = node
            self._version += 1
        elif put_back is not None:
            self.base.assign(put_back(self.base.node, node), is_observed)
        elif is_observed():
            raise CannotRecord("an in-place operation on a view that cannot be written through")
        else:
            self._node, self.base, self.look, self._root = node, None, None, None
            self._version += 1
