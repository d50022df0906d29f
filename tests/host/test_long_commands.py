"""The commands of the README and the docs that take long, as a contributor types them, in a copy of the checkout.

Those that end within minutes run to their end; of the others (hours, a server, suites that run anyway) it is awaited
that they do their work, and then they are interrupted as by Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headroom.tools.check.faults import copied
from headroom.tools.setup.hosts import DEFAULT

from ..nightly import at_night
from .conftest import ENVIRONMENT
from .test_documented_commands import SHELL

ROOT = Path(__file__).parents[2]
SECONDS = 1500  # a first environment of another ComfyUI
DONE = None  # to its end
PYTEST, SERVES = r"\[ +\d+%\]|\d passed", r"ComfyUI with Headroom is on http"
# Of each what it prints once it works. What test_documented_commands.py runs, or another test, is not here.
SIGNS: dict[str, str | None] = {
    "python3 -m farm simulate --workers 1000 --prompts 100000 --failures 10": DONE,
    "python3 -m tools": DONE,
    "python3 -m tools artwork": DONE,
    "python3 -m tools bench": DONE,
    "python3 -m tools bench vae": r"(decode|encode) (random|trained)",
    "python3 -m tools campaign": DONE,
    "python3 -m tools catalogue": DONE,
    "python3 -m tools check": DONE,
    "python3 -m tools locales": DONE,
    "python3 -m tools mutations": r"(?m)^(fast|full|-) +.+: ",
    "python3 -m tools screenshots": r"\d kB",
    "python3 -m tools serve": SERVES,
    "python3 -m tools serve --card 8GB-rtx3060": SERVES,
    "python3 -m tools site": DONE,
    "python3 -m tools templates": DONE,
    "python3 -m tools templates-table": r": (computes elsewhere|.*\d GB: )",
    "python3 -m tools test": PYTEST,
    "python3 -m tools test --fast": PYTEST,
    "python3 -m tools test -- tests/emulator": PYTEST,
    "python3 -m tools test -- tests/unit -q": PYTEST,
    "python3 -m tools test -- tests/host/test_fit.py -k exact": PYTEST,
    "python3 -m tools test --host 0.18.2": PYTEST,
    "python3 -m tools test --host 0.18.2 -- tests/host/test_contract.py": PYTEST,
    "python3 -m tools test --frontend 1.58.1 -- tests/browser": PYTEST,
    "python3 -m tools test --card 8GB-rtx3060 -- tests/emulator/test_memory.py": PYTEST,
    "python3 cli/calibrate.py": DONE,
    "python3 cli/check.py": DONE,
}
# They write into the checkout what is committed there.
WRITING = {"python3 -m tools locales": "locales", "python3 -m tools templates": "workflows"}
ELSEWHERE = {
    "python3 -m tools demo": "test_demo.py",
    "python3 -m tools.contract_diff": "test_contract_diff.py",
    "python3 -m farm": "test_farm.py",
    "python3 -m pip": "read by test_documented_commands.py: an environment of its own",
    "python3 cli/estimate.py": "test_documented_commands.py",
    "python3 cli/fit.py": "test_documented_commands.py",
    "python3 cli/check.py --json": "test_check.py",
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Commands that write files write them here."""
    return copied(tmp_path_factory.mktemp("copy") / "headroom")


def typed(line: str) -> str:
    """Without its comment."""
    return shlex.join(shlex.split(line, comments=True))


def test_each_command_is_run_by_some_test() -> None:
    lines = {typed(line) for line in SHELL if line.startswith("python3 ")}
    assert [line for line in lines if line not in SIGNS and not line.startswith(tuple(ELSEWHERE))] == []
    assert set(SIGNS) <= lines
    files = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert files.issuperset(name for where in ELSEWHERE.values() for name in re.findall(r"test_\w+\.py", where))


@at_night
@pytest.mark.skipif(ENVIRONMENT.version != DEFAULT, reason=f"they use ComfyUI {DEFAULT}, or one that they name")
@pytest.mark.parametrize("line", SIGNS)
def test_it_works(line: str, checkout: Path, tmp_path: Path) -> None:
    words = [sys.executable, *shlex.split(line)[1:]]
    if words[1].startswith("cli/"):
        words += ["--comfyui", str(ENVIRONMENT.comfyui), "--cpu"]
        words += ["--base-directory", str(tmp_path)] if "calibrate" in line else ["--seconds", "600"]
    if "serve" in line:
        words += ["--port", "8199"]  # beside one that somebody uses
    written = checkout / WRITING[line] if line in WRITING else None
    if written is not None:
        for path in written.rglob("nodeDefs.json" if written.name == "locales" else "*.json"):
            path.unlink() if path.parent.name in ("en", "workflows") else None
    told, status = shown(words, checkout, tmp_path / "told.txt", SIGNS[line])
    assert not status, told[-2000:]
    assert told.strip()
    assert "Traceback" not in told, told[-2000:]
    assert "failed: " not in told, told[-2000:]
    if written is not None:
        found = {path.relative_to(checkout): path.read_bytes() for path in written.rglob("*.json")}
        assert found == {path.relative_to(ROOT): path.read_bytes() for path in (ROOT / written.name).rglob("*.json")}


def shown(words: list[str], folder: Path, file: Path, sign: str | None) -> tuple[str, int]:
    """What a command prints, to its end or until a sign of its work, and its exit status, then 0."""
    dropped = ("HEADROOM_COMFYUI", "HEADROOM_VERSION", "HEADROOM_MODELS", "HEADROOM_NIGHTLY", "PYTEST_CURRENT_TEST")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    with file.open("w") as output:
        child = subprocess.Popen(
            words, cwd=folder, env=kept | {"PYTHONUNBUFFERED": "1"}, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + SECONDS
        while child.poll() is None:
            told = file.read_text(errors="replace")
            if sign is not None and re.search(sign, told):
                return told, 0
            assert time.monotonic() < deadline, told[-2000:]
            time.sleep(0.5)
        return file.read_text(errors="replace"), child.returncode
    finally:
        ended(child)


def ended(child: subprocess.Popen[bytes]) -> None:
    """As by Ctrl-C, and whatever is left of it afterwards as well."""
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if child.poll() is None:
            os.killpg(child.pid, stop)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(120)
