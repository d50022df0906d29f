"""Slabs sent to page-locked host memory and fetched back while the computation goes on.

Memory that a stream may still use has an owner here until an event says that the stream is done with it: slabs that
leave are kept until the computation has waited for their copy, page-locked memory until the copies out of it are over.
:meth:`Parking.close` waits for what is left, however the run ends. Nothing makes the host wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..operations.graph import Node


@dataclass
class Ticket:
    """A slab in host memory.

    Attributes:
        memory: page-locked, where that can be had.
        slab: what is copied there, kept as long as the copy may not be over.
        written: event: the copy is over.
        free: event: the last copy out of the memory is over.
    """

    memory: Tensor
    slab: Tensor | None
    written: Any
    free: Any = None


@dataclass
class Arrival:
    """A slab that comes back, and the event that says it is there."""

    slab: Tensor
    event: Any


class Parking:
    """Host memory beside a device; a stream of copies for each direction.

    Args:
        device: where the computation runs.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.module: Any = None if device.type == "cpu" else torch.get_device_module(device)
        # An accelerator without streams (Metal) copies in the order of the computation.
        makes = getattr(self.module, "Stream", None) if hasattr(self.module, "current_stream") else None
        self.out: Any = makes and makes(device=device)
        self.back: Any = makes and makes(device=device)
        self.vacant: dict[tuple[torch.Size, torch.dtype], list[Ticket]] = {}

    def put(self, slab: Tensor) -> Ticket:
        """A slab that is in host memory already."""
        ticket = Ticket(_locked(slab).copy_(slab), None, None)
        if self.out is not None:
            ticket.written = self.out.record_event()
        return ticket

    def held(self, ticket: Ticket) -> Tensor:
        """A slab in host memory, for the host itself to read: it waits for the copy."""
        if ticket.written is not None:
            ticket.written.synchronize()
        return ticket.memory

    def send(self, node: Node, slab: Tensor) -> Ticket:
        """Starts to copy a slab away."""
        ticket = self._vacancy(slab)
        if self.out is None:
            ticket.memory.copy_(slab)
            return ticket
        self.out.wait_stream(self._current())
        if ticket.free is not None:
            self.out.wait_event(ticket.free)
        with self.module.stream(self.out):
            ticket.memory.copy_(slab, non_blocking=True)
        ticket.written, ticket.slab = self.out.record_event(), slab
        return ticket

    def left(self, ticket: Ticket | None) -> None:
        """The computation may write where the slab was, as soon as its copy is over."""
        if ticket is not None and ticket.slab is not None and self.out is not None:
            self._current().wait_event(ticket.written)
            ticket.slab = None

    def fetch(self, ticket: Ticket) -> Arrival:
        """Starts to copy a slab back."""
        slab = torch.empty(ticket.memory.shape, dtype=ticket.memory.dtype, device=self.device)
        if self.back is None:
            return Arrival(slab.copy_(ticket.memory), None)
        # The new slab may lie in memory that the computation has just used.
        self.back.wait_stream(self._current())
        self.back.wait_event(ticket.written)
        with self.module.stream(self.back):
            slab.copy_(ticket.memory, non_blocking=True)
        ticket.free = self.back.record_event()
        return Arrival(slab, ticket.free)

    def arrived(self, arrival: Arrival) -> Tensor:
        """The slab; the computation goes on when it is there."""
        if arrival.event is not None:
            self._current().wait_event(arrival.event)
            arrival.event = None
        return arrival.slab

    def give_up(self, ticket: Ticket) -> None:
        """Its host memory may hold another slab."""
        self.left(ticket)
        self.vacant.setdefault((ticket.memory.shape, ticket.memory.dtype), []).append(ticket)

    def close(self) -> None:
        """The computation goes on when nothing is on its way any more."""
        if self.out is not None:
            self._current().wait_stream(self.out)
            self._current().wait_stream(self.back)
        self.vacant.clear()

    def _vacancy(self, slab: Tensor) -> Ticket:
        alike = self.vacant.get((slab.shape, slab.dtype))
        if alike:
            free = alike.pop(0)
            return Ticket(free.memory, None, free.written, free.free)
        return Ticket(_locked(slab), None, None)

    def _current(self) -> Any:
        return self.module.current_stream(self.device)


def _locked(like: Tensor) -> Tensor:
    try:
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)
    except RuntimeError:  # there is no more of it, or the device has none
        return torch.empty(like.shape, dtype=like.dtype)
