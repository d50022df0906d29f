"""What goes into blocks, copied to page-locked memory while they compute, and back before they are run again.

Memory that a stream may still use has an owner here until the computation waits for that stream: tensors that leave are
held until the next block has run, those that come back from before their copy begins. Nothing makes the host wait.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Sent:
    """A tensor in the machine's memory.

    Attributes:
        memory: the copy; page-locked, where that can be had.
        leaving: the tensor itself, as long as its copy may not be over.
        version: how often it had been written to.
        written: event: it is copied.
        uses: times that it will be asked for.
        arriving: a copy on the device, on its way or there.
        arrived: event: it is there.
        was_changed: it was written to while it was copied.

    One that nobody asks for any more, after an error, leaves no copy under way behind.
    """

    memory: Tensor
    leaving: Tensor | None
    version: int
    written: torch.Event | None
    uses: int = 1
    arriving: Tensor | None = None
    arrived: torch.Event | None = None
    was_changed: bool = False

    def __del__(self) -> None:
        for tensor, event in ((self.leaving, self.written), (self.arriving, self.arrived)):
            if tensor is not None and event is not None:
                torch.accelerator.current_stream(tensor.device).wait_event(event)


class InRam:
    """Of one forward, beside its device.

    Args:
        device: of the computation. One that has no streams copies in the order of the computation.

    Attributes:
        sent, fetched: bytes that were copied out and back.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.sent, self.fetched = device, 0, 0
        self._out, self._back = _stream(device), _stream(device)
        self._leaving: list[Sent] = []
        self._known: dict[int, tuple[weakref.ref[Tensor], int, Sent]] = {}

    def takes(self, tensor: Tensor) -> bool:
        """Whether it is on the device, and not something that is trained."""
        return tensor.device == self.device and not (tensor.is_leaf and tensor.requires_grad)

    def known(self, tensor: Tensor) -> Sent | None:
        """The ticket of a tensor that several blocks are given, and that nobody has written to since the first."""
        reference, version, ticket = self._known.get(id(tensor), (None, 0, None))
        if reference is None or ticket is None or reference() is not tensor or version_of(tensor) != version:
            return None
        ticket.uses += 1
        return ticket

    def remember(self, tensor: Tensor, ticket: Sent) -> None:
        """What the ticket is of."""
        self._known[id(tensor)] = (weakref.ref(tensor), version_of(tensor), ticket)

    def turn(self) -> None:
        """A block has run: the computation waits for what left before it did."""
        for ticket in self._leaving:
            if ticket.written is not None:
                self._now().wait_event(ticket.written)
            ticket.was_changed = ticket.leaving is not None and version_of(ticket.leaving) != ticket.version
            ticket.leaving = None
        self._leaving.clear()

    def send(self, tensor: Tensor) -> Sent:
        """Starts to copy a tensor away."""
        ticket = Sent(_locked(tensor), tensor, version_of(tensor), None)
        self.sent += tensor.nbytes
        if self._out is None:
            ticket.memory.copy_(tensor)
        else:
            self._out.wait_stream(self._now())
            with self._out:
                ticket.memory.copy_(tensor, non_blocking=True)
            ticket.written = self._out.record_event()
        self._leaving.append(ticket)
        return ticket

    def fetch(self, ticket: Sent) -> None:
        """Starts to copy it back, unless that has begun."""
        if ticket.arriving is not None:
            return
        like = ticket.memory
        arriving = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=self.device)
        self.fetched += like.nbytes
        if self._back is None:
            arriving.copy_(like)
        else:
            self._back.wait_stream(self._now())  # it may lie in memory that the computation has just used
            if ticket.written is not None:
                self._back.wait_event(ticket.written)
            with self._back:
                arriving.copy_(like, non_blocking=True)
            ticket.arrived = self._back.record_event()
        ticket.arriving = arriving

    def back(self, ticket: Sent) -> Tensor:
        """The tensor; the computation goes on when it is there."""
        self.fetch(ticket)
        if ticket.arrived is not None:
            self._now().wait_event(ticket.arrived)
        tensor, ticket.uses = ticket.arriving, ticket.uses - 1
        assert tensor is not None
        if ticket.uses <= 0:
            ticket.arriving = ticket.arrived = None
        return tensor

    def _now(self) -> torch.Stream:
        return torch.accelerator.current_stream(self.device)


def version_of(tensor: Tensor) -> int:
    """How often it was written to; a tensor made under inference mode does not tell."""
    return -1 if tensor.is_inference() else tensor._version


def _stream(device: torch.device) -> torch.Stream | None:
    if device.type == "cpu":
        return None
    try:
        return torch.Stream(device)
    except (RuntimeError, NotImplementedError):  # the device has none
        return None


def _locked(like: Tensor) -> Tensor:
    """Memory of the same shape; elements lie in the same order, if without gaps."""
    order = torch.empty_like(like, device="meta").stride()
    try:
        return torch.empty_strided(like.shape, order, dtype=like.dtype, pin_memory=like.device.type != "cpu")
    except RuntimeError:  # there is no more of it, or the device has none
        return torch.empty_strided(like.shape, order, dtype=like.dtype)
