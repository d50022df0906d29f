"""Room for deep calls, by the pages that the system hands to the thread: a piece of the stack is new ones each time."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from headroom.memory.prediction.deep_calls import with_room

if sys.platform == "linux":
    import resource

CALLS, DEPTHS = 200, range(2, 400, 2)  # a piece of 16 KB holds some hundred frames


def leaf(one: int, two: int, three: int) -> int:
    return one + two + three


def new_pages(depth: int) -> int:
    """Pages that the calls of one function from so deep take."""
    if depth:
        return new_pages(depth - 1)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for number in range(CALLS):
        leaf(number, number, number)
    return int(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)


def most(run: Callable[[Callable[[], int]], int]) -> int:
    """The most pages at any depth, with nothing that happens once."""
    return max(min(run(lambda depth=depth: new_pages(depth)) for _ in range(3)) for depth in DEPTHS)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not count a thread's pages")
def test_no_depth_asks_the_system_for_memory_at_each_call() -> None:
    # Without room (3.11 to the middle of 3.13) some depth takes a page with each call.
    assert most(with_room) < CALLS / 10


def test_it_gives_what_the_work_gives() -> None:
    assert with_room(lambda: "result") == "result"
    with pytest.raises(KeyError, match="missing"):
        with_room(lambda: {}["missing"])
