"""How a command's process ends: with its status, its words, and what others do at an end."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headroom.cli import process

CLI = Path(__file__).parents[2] / "cli"
MAINS = {
    "returned": ("return 3", 3),
    "argparse": ("argparse.ArgumentParser().parse_args(['--no-such'])", 2),
    "help": ("argparse.ArgumentParser().parse_args(['--help'])", 0),
    "an error": ("raise ValueError('for nobody')", 1),
    "Ctrl-C": ("raise KeyboardInterrupt", 130),
}


def ended(main: str) -> subprocess.CompletedProcess[str]:
    """A command with this in its main."""
    script = f"""
import argparse, atexit, gc, sys
import process
def main():
    atexit.register(lambda: print("done by others", end=""))
    print("answer", gc.isenabled(), end="; ")
    process.imported()
    print("then", gc.isenabled(), gc.get_freeze_count() > 1000, end="; ")
    {main}
process.run(main)
"""
    return subprocess.run([sys.executable, "-c", script], cwd=CLI, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("how", MAINS)
def test_it_ends_with_its_status_and_all_words(how: str) -> None:
    main, status = MAINS[how]
    found = ended(main)
    assert found.returncode == status
    assert found.stdout.startswith("answer False; then True True; ")
    assert found.stdout.endswith("done by others")
    assert ("Traceback" in found.stderr) == (how in ("an error", "Ctrl-C"))


def test_nobody_reads_what_is_said() -> None:
    """As behind a pager that was closed."""
    reading, writing = os.pipe()
    os.close(reading)
    script = "import process; process.run(lambda: print('answer') or 0)"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    given = {"cwd": CLI, "env": buffered, "stdout": writing, "stderr": subprocess.PIPE}
    found = subprocess.run([sys.executable, "-c", script], check=False, **given)
    os.close(writing)
    assert (found.returncode, found.stderr) == (1, b"")


def test_in_a_process_of_somebody_elses_nothing_is_put_aside() -> None:
    before = gc.get_freeze_count()
    process.imported()
    assert gc.get_freeze_count() == before
