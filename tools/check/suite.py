"""Runs pytest: everything, what is named, or the slice of `tests/fast.txt`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..card import emulator
from ..setup.environment import PACK, Environment
from ..setup.run import run

Variables = dict[str, str] | None
BROWSER, EMULATOR = "tests/browser", "tests/emulator"
FAST = PACK / "tests" / "fast.txt"
MOST_WORKERS = 4  # each has a host of its own in memory
FAST_WORKERS = 2
NOTHING_RAN = 5  # pytest's status where arguments such as -k leave no test


def everything(environment: Environment, arguments: Sequence[str]) -> int:
    """All tests; those of the browser last and alone: a page that waits for a busy machine looks like a broken one."""
    pytest = environment.script("pytest")
    # Files in their order, the long ones of the host before those of torch alone: the last ones end together.
    # One more than processors: who drives a server waits for it.
    workers = side_by_side(min(MOST_WORKERS, (os.cpu_count() or 1) + 1))
    with _one_thread():
        statuses = [run(environment, pytest, *workers, "--ignore", BROWSER, "--ignore", EMULATOR, *arguments)]
        if can_emulate():
            on_card = emulator.variables(environment)
            statuses.append(run(environment, pytest, *workers, EMULATOR, *arguments, variables=on_card))
    statuses.append(run(environment, pytest, BROWSER, *arguments))
    return _worst(statuses)


def named(environment: Environment, arguments: Sequence[str], card: Variables) -> int:
    """The tests that the arguments name; those of the emulated card are started on one."""
    if any(path.resolve().is_relative_to(PACK / EMULATOR) for path in paths_in(arguments)):
        card = card or emulator.variables(environment)
    return run(environment, environment.script("pytest"), *arguments, variables=card)


def fast(environment: Environment, arguments: Sequence[str]) -> int:
    """The slice: in a host in process and over HTTP, then on the emulated card."""
    pytest = environment.script("pytest")
    others, on_card = by_place(fast_tests())
    with _one_thread():
        statuses = [run(environment, pytest, *side_by_side(FAST_WORKERS), "-q", *others, *arguments)]
        if can_emulate():
            variables = emulator.variables(environment)
            statuses.append(run(environment, pytest, "-q", *on_card, *arguments, variables=variables))
    return _worst(statuses)


def fast_tests() -> list[str]:
    """The tests of the slice, as pytest names them."""
    lines = (line.partition("#")[0].strip() for line in FAST.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def by_place(tests: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tests of the slice as they are, and those that are started on the emulated card."""
    on_card = [test for test in tests if test.startswith(EMULATOR)]
    return [test for test in tests if test not in on_card], on_card


def paths_in(arguments: Sequence[str]) -> list[Path]:
    """The files and folders among pytest's arguments."""
    return [path for argument in arguments if (path := Path(argument.partition("::")[0])).exists()]


def side_by_side(workers: int) -> tuple[str, ...]:
    """Options of pytest-xdist: a file stays with one worker, which keeps what it has loaded."""
    return "-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"


def can_emulate() -> bool:
    """Whether there can be an emulated card here; says why not."""
    if reason := emulator.missing():
        print(f"{reason} Its tests are left out; the rest has run.", file=sys.stderr)
    return not reason


def _worst(statuses: Sequence[int]) -> int:
    return next((status for status in statuses if status not in (0, NOTHING_RAN)), statuses[0])


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """One thread each, unless it is set already: the tests' models are small, several would wait for each other."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
