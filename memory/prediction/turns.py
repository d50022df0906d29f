"""One prediction at a time: what a host answers is exchanged for it, and put back by whoever began last."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .giving_up import require_wanted

LOOK = 0.1  # seconds after which one that waits asks whether it is still wanted
_ONE_AT_A_TIME = threading.RLock()
_waiting: set[int] = set()  # threads


@contextmanager
def turn() -> Iterator[None]:
    """Within it no other thread predicts.

    Raises:
        GivenUp: what waits for its turn is wanted no longer.
    """
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        _wait()
    try:
        with _uncollected():
            yield
    finally:
        _ONE_AT_A_TIME.release()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Within it Python's collector does not begin by itself: it would look through everything, half a million objects
    of a host's, each time that a prediction has made a quarter as many, and no thread of the server goes on meanwhile.
    Whatever the host collects when it asks for that goes on."""
    if not gc.isenabled():
        yield
        return
    try:
        gc.disable()  # within: what ends work from outside may arrive behind any step
        yield
    finally:
        gc.enable()


def _wait() -> None:
    here = threading.get_ident()
    _waiting.add(here)
    try:
        while not _ONE_AT_A_TIME.acquire(timeout=LOOK):
            require_wanted()
    finally:
        _waiting.discard(here)


def others_wait() -> bool:
    """Whether another thread waits for its turn."""
    return bool(_waiting - {threading.get_ident()})
