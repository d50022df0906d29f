"""Room for deep calls: where one piece of Python's stack ends, each call asks the system for memory and gives it back.

CPython keeps its frames in pieces of 16 KB, from 3.11 until it held one in reserve (its issue 142183, mended during
3.13 and 3.14). Operators of a model without data are called a hundred frames deep, thousands of times: by chance a
piece ends where each of them passes, and a tenth of a prediction's time is the system's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Worked = TypeVar("Worked")
# A frame of 256 KB and a little: it gets a piece of twice as much, and what is called from it has the other half.
SLOTS = 2**15


def with_room(work: Callable[[], Worked]) -> Worked:
    """What the work gives, called where 250 KB of Python's stack, about a thousand frames, lie in one piece."""
    return work()


with_room.__code__ = with_room.__code__.replace(co_stacksize=SLOTS)
