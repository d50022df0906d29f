"""A tensor that goes into blocks behind a checkpoint, kept for their second run."""

from __future__ import annotations

from torch import Tensor

from .in_ram import InRam, Sent, version_of


class ComputedOtherwise(RuntimeError):
    """A block that is run again saves other tensors than it did: what it does depends on more than its inputs."""


class BlockInput:
    """As it was before the block ran.

    A block may write to what goes into it (Flux's do): a copy is kept then, and else the tensor itself, on its device
    or in the machine's memory.

    Args:
        tensor: before the block runs.
        ram: where it is kept; None: on its device.
    """

    def __init__(self, tensor: Tensor, ram: InRam | None = None) -> None:
        self.needs_gradient, self.version = tensor.requires_grad, version_of(tensor)
        self.is_copy = tensor.requires_grad and not tensor.is_leaf
        self._ram = ram if ram is not None and ram.takes(tensor) else None
        self.ticket: Sent | None = self._ram.known(tensor) if self._ram is not None else None
        self._tensor: Tensor | None = None
        if self.ticket is None:
            self._tensor = tensor.detach().clone() if self.is_copy else tensor.detach()

    def settle(self, tensor: Tensor) -> None:
        """When the block has run on it."""
        if self.is_copy and version_of(tensor) == self.version:
            self._tensor, self.is_copy = None if self._tensor is None else tensor.detach(), False
        if self._ram is None or self._tensor is None:
            return
        self.ticket = self._ram.send(self._tensor)
        self._tensor = None
        if version_of(tensor) == self.version:
            self._ram.remember(tensor, self.ticket)

    def fetch(self) -> None:
        """Its second run is near."""
        if self._ram is not None and self.ticket is not None:
            self._ram.fetch(self.ticket)

    def back(self, number: int) -> Tensor:
        """For a block that runs again.

        Raises:
            ComputedOtherwise: it is not what it was.
        """
        tensor, was_changed = self._tensor, False
        if self._ram is not None and self.ticket is not None:
            tensor, was_changed = self._ram.back(self.ticket), self.ticket.was_changed
        assert tensor is not None
        if self.is_copy:
            return tensor.detach().requires_grad_(self.needs_gradient).clone()
        if was_changed or (self.ticket is None and version_of(tensor) != self.version):
            raise ComputedOtherwise(f"block {number}: what goes into it was written to after it had run")
        return tensor.detach().requires_grad_(self.needs_gradient)
