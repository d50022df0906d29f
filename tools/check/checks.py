"""What can be said of a change in seconds: style, types, the tree's arrows, the words of the nodes, their contract."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..setup.environment import PACK, Environment

SHOWN = 12  # lines of what is wrong
NOT_TYPED = ("tests", "benchmarks")
TREE = "tests/unit/test_source.py"
WORDS = ("tests/host/test_languages.py", "tests/host/test_contract.py")
PYTEST = ("-q", "--no-header", "--no-summary", "--tb=short", "--show-capture=no")


@dataclass(frozen=True)
class Check:
    """A program that ends with status 0 if all is well.

    Attributes:
        title: what it looks at.
        command: the program and its arguments.
        folder: where it runs.
    """

    title: str
    command: Sequence[str | Path]
    folder: Path = PACK


def checks(environment: Environment) -> list[Check]:
    """All of them, in the order in which they are told."""
    python, pytest = environment.python, environment.script("pytest")
    by_themselves = [f"--deselect={TREE}::{test}" for test in ("test_style", "test_types")]
    return [
        Check("ruff check", (python, "-m", "ruff", "check", "--output-format=concise", ".")),
        Check("ruff format", (python, "-m", "ruff", "format", "--check", ".")),
        Check("types", mypy(python, PACK / ".mypy_cache"), linked(PACK / ".mypy_cache")),
        Check("arrows, circles, rooms, map", (pytest, *PYTEST, TREE, *by_themselves)),
        Check("locales, help, contract", (pytest, *PYTEST, *WORDS)),
    ]


def mypy(python: Path, cache: Path) -> tuple[str | Path, ...]:
    """The command that checks the types of everything but tests and benchmarks, in the folder :func:`linked` gives."""
    packages = sorted(path.parent.name for path in PACK.glob("*/__init__.py"))
    options = [word for name in packages if name not in NOT_TYPED for word in ("-p", f"headroom.{name}")]
    return python, "-m", "mypy", "--config-file", PACK / "pyproject.toml", "--cache-dir", cache, *options


def linked(folder: Path) -> Path:
    """A folder that holds the checkout under the name `headroom`: its own need not be one that Python can import."""
    place = folder / "checkout"
    place.mkdir(parents=True, exist_ok=True)
    link = place / "headroom"
    if not link.exists():
        link.unlink(missing_ok=True)
        link.symlink_to(PACK, target_is_directory=True)
    return place


def check(environment: Environment) -> int:
    """Run all checks side by side and print a line for each, with the beginning of what is wrong; 1 if anything is."""
    started = time.monotonic()
    variables = {**os.environ, **environment.variables(), "OMP_NUM_THREADS": "1"}
    running = [(one, *_start(one, variables)) for one in checks(environment)]
    failed = 0
    for one, process, output in running:
        status = process.wait()
        failed += status != 0
        print(f"{one.title:<30} {'ok' if status == 0 else 'wrong'}", flush=True)
        if status:
            output.seek(0)
            print("\n".join(f"    {line}" for line in first_lines(output.read())), flush=True)
        output.close()
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    return 1 if failed else 0


def _start(one: Check, variables: dict[str, str]) -> tuple[subprocess.Popen[str], IO[str]]:
    output = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  # closed when it has been told
    process = subprocess.Popen(
        one.command, cwd=one.folder, env=variables, stdout=output, stderr=subprocess.STDOUT, text=True
    )
    return process, output


def first_lines(text: str) -> list[str]:
    """The beginning of a program's output, without empty lines and rules."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip(" =_.")]
    rest = len(lines) - SHOWN
    return lines if rest <= 1 else [*lines[:SHOWN], f"... and {rest} lines more"]
