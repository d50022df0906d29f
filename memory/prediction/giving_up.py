"""Predictions that nobody waits for any longer: work in one thread that another may have given up half-way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class GivenUp(BaseException):
    """The work is wanted no longer. No :class:`Exception`: the host's code would take it for a fault of its own."""


_wanted: ContextVar[Callable[[], bool] | None] = ContextVar("headroom_wanted", default=None)
_only_asking = set[int | None]()  # threads


@contextmanager
def while_wanted(wanted: Callable[[], bool]) -> Iterator[None]:
    """Within it, work in this thread goes on for as long as the function says so, and those around it."""
    outer = _wanted.get()
    token = _wanted.set(wanted if outer is None else lambda: outer() and wanted())
    try:
        yield
    finally:
        _wanted.reset(token)


def is_asked() -> bool:
    """Whether work in this thread may be given up already."""
    return _wanted.get() is not None


def require_wanted() -> None:
    """Asked wherever long work goes round.

    Raises:
        GivenUp: within :func:`while_wanted`, once the work is wanted no longer.
    """
    wanted = _wanted.get()
    if wanted is not None and not wanted():
        raise GivenUp


@contextmanager
def ends_where_it_asks() -> Iterator[None]:
    """Within it nobody raises :class:`GivenUp` in this thread from outside: work with gradients has torch call Python
    from where it takes no error, which ends the process for one (PyTorch 2.11)."""
    here = threading.get_ident()
    _only_asking.add(here)
    try:
        yield
    finally:
        _only_asking.discard(here)


def ends_by_asking_alone(thread: threading.Thread) -> bool:
    """Whether a thread is within :func:`ends_where_it_asks`."""
    return thread.ident in _only_asking
