"""Full grids run at night (HEADROOM_NIGHTLY=1); at other times a slice of each, in which every choice still occurs."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

NIGHTLY = os.environ.get("HEADROOM_NIGHTLY") == "1"

#: Of a test that takes long.
at_night = pytest.mark.skipif(not NIGHTLY, reason="it takes long and runs at night: HEADROOM_NIGHTLY=1")


def night_tests() -> list[str]:
    """The tests of ``night.txt``, as pytest names them."""
    lines = Path(__file__).with_name("night.txt").read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def grid(*choices: Sequence[Any], each: int = 1) -> list[tuple[Any, ...]]:
    """All combinations at night; else every choice of the longest list with `each` of the others, by turns."""
    combinations: list[tuple[Any, ...]] = [()]
    for some in choices:
        combinations = [(*one, choice) for one in combinations for choice in some]
    if NIGHTLY:
        return combinations
    longest = max(len(some) for some in choices)
    turns = {
        tuple(some[(row + turn * (len(some) < longest)) % len(some)] for some in choices)
        for row in range(longest)
        for turn in range(each)
    }
    return [one for one in combinations if one in turns]


def some_of(cases: Sequence[Any], every: int) -> list[Any]:
    """All cases at night, else one in `every`, the first among them."""
    return list(cases) if NIGHTLY else list(cases)[::every]
