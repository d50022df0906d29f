"""A server that really runs out of memory, without harm to the machine."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

MARGIN = 300 * 2**20


@contextmanager
def short_of_memory(pid: int, margin: int = MARGIN) -> Iterator[None]:
    """A process gets no more address space than it has, and a margin: a larger allocation is refused by the system.

    Args:
        pid: the process.
        margin: bytes.
    """
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (psutil.Process(pid).memory_info().vms + margin, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, before)
