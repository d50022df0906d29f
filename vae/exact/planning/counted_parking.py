"""Host memory beside the device, without data: :mod:`..running.parking` of ghosts."""

from __future__ import annotations

from ..operations.graph import Node
from .counted import Counted
from .ghosts import Allocation, Ghost


class CountedTicket:
    """A slab in host memory, without data."""

    __slots__ = ("rows", "size", "slab")

    def __init__(self, slab: Ghost) -> None:
        self.slab: Ghost | None = slab
        self.size, self.rows = slab.size, slab.rows


class CountedParking:
    """:class:`..running.parking.Parking` of ghosts.

    Args:
        counts: bytes in host memory; else its owner does.
    """

    def __init__(self, kernels: Counted, counts: bool = True) -> None:
        self.kernels, self.counts = kernels, counts

    def send(self, node: Node, slab: Ghost) -> CountedTicket:
        """Copies a slab away."""
        self.kernels.meter.sent += slab.size
        return self.put(slab)

    def put(self, slab: Ghost) -> CountedTicket:
        """A slab that is there already, when a pass is planned."""
        meter = self.kernels.meter
        if self.counts:
            meter.host += slab.size
            meter.host_peak = max(meter.host_peak, meter.host)
        return CountedTicket(slab)

    def left(self, ticket: CountedTicket | None) -> None:
        """The slab that was copied goes."""
        if ticket is not None:
            ticket.slab = None

    def fetch(self, ticket: CountedTicket) -> Ghost:
        """Copies a slab back."""
        self.kernels.meter.fetched += ticket.size
        return Ghost(Allocation(self.kernels.meter, ticket.size), ticket.size, ticket.rows)

    def arrived(self, arrival: Ghost) -> Ghost:
        """The slab that came back."""
        return arrival

    def give_up(self, ticket: CountedTicket) -> None:
        """Its host memory is free."""
        ticket.slab = None
        if self.counts:
            self.kernels.meter.host -= ticket.size
