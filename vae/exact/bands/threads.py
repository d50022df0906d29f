"""Workers that are threads of one process, each with a device of the machine's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from contextvars import copy_context
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..running.banded import Gift
from .peers import ASKER, PeerLost, Peers

Made = TypeVar("Made")


class Table:
    """Where threads leave things for each other."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.given: dict[tuple[int, int, Hashable], Sequence[Any]] = {}
        self.failed: int | None = None

    def fail(self, rank: int) -> None:
        """A worker gave up: nobody is to wait for it."""
        with self.changed:
            if self.failed is None:
                self.failed = rank
            self.changed.notify_all()


class ThreadPeers(Peers):
    """The other threads.

    Attributes:
        received: bytes of tensors that were taken from other workers.
    """

    def __init__(self, table: Table, rank: int) -> None:
        self.table, self.rank, self.received = table, rank, 0

    def give(self, key: Hashable, things: Sequence[Any], to: Sequence[int]) -> None:
        with self.table.changed:
            self.table.given.update({(self.rank, other, key): things for other in to})
            self.table.changed.notify_all()

    def take(self, key: Hashable, of: int) -> Gift:
        place = (of, self.rank, key)
        with self.table.changed:
            self.table.changed.wait_for(lambda: place in self.table.given or self.table.failed is not None)
            if place not in self.table.given:
                assert self.table.failed is not None
                raise PeerLost(self.table.failed, "gave up")
            things = self.table.given.pop(place)
        if of != ASKER:
            self.received += sum(thing.nbytes for thing in things if isinstance(thing, Tensor))
        return lambda device: [on(thing, device) for thing in things]


def on(thing: Any, device: torch.device) -> Any:
    """A tensor on a device; anything else as it is."""
    return thing.to(device) if isinstance(thing, Tensor) else thing


def together(
    work: Callable[[int, ThreadPeers], Made], workers: int, beside: Callable[[ThreadPeers], None] | None = None
) -> list[Made]:
    """What each of several workers makes, in threads of their own.

    Args:
        work: (rank, the other workers) -> what it makes.
        beside: what the caller does meanwhile, as one of them (:data:`.peers.ASKER`).

    Raises:
        Whatever the caller's own work, or the first worker that failed, raised.
    """
    table, made, errors = Table(), dict[int, Made](), dict[int, BaseException]()

    def run(rank: int) -> None:
        try:
            # Of each thread its own: what the caller has holds for all.
            with torch.inference_mode(is_inference), torch.set_grad_enabled(is_grad):
                made[rank] = work(rank, ThreadPeers(table, rank))
        except BaseException as error:
            errors[rank] = error
            table.fail(rank)

    is_inference, is_grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    threads = [
        threading.Thread(target=copy_context().run, args=(run, rank), name=f"band {rank}") for rank in range(workers)
    ]
    for thread in threads:
        thread.start()
    try:
        if beside is not None:
            beside(ThreadPeers(table, ASKER))
    except BaseException:
        table.fail(ASKER)
        raise
    finally:
        for thread in threads:
            thread.join()
    if errors:
        own = [error for error in errors.values() if not isinstance(error, PeerLost)]
        raise (own or list(errors.values()))[0]
    return [made[rank] for rank in range(workers)]
