"""Tells a person who waits what for, and for how long, on one line of the terminal that goes away afterwards."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

EVERY = 0.5  # seconds
CLEARED = "\r\x1b[K"  # to the line's begin, and without what is on it


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Within it, the error output says what is done and since when; nothing where no terminal is."""
    if not sys.stderr.isatty():
        yield
        return
    done, start = threading.Event(), time.monotonic()

    def tell() -> None:
        while True:
            print(f"{CLEARED}{what} · {time.monotonic() - start:.0f} s", end="", file=sys.stderr, flush=True)
            if done.wait(EVERY):
                return

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()
        print(CLEARED, end="", file=sys.stderr, flush=True)
