"""Virtual environments and pip, with their failures put into a sentence."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from .progress import SetupError, Stage, run_logged

# A user's settings for their own packages must not decide where ours go.
PIP_VARIABLES = {
    "PIP_USER": "0",
    "PIP_REQUIRE_VIRTUALENV": "0",
    "PIP_NO_INPUT": "1",
    "PIP_PROGRESS_BAR": "off",
}

ADVICE = {
    r"No space left on device": "free some disk space, or set HEADROOM_CACHE to a folder on another disk",
    r"DO NOT MATCH THE HASHES": "the package index has another file than the one known here: not used",
    r"NewConnectionError|Max retries|timed out|name resolution|ProxyError|SSLError": "check the network "
    "connection and pip's index and proxy settings, then run this again",
}


def make_venv(folder: Path, log: Path, stage: Stage) -> Path:
    """Make a virtual environment with the running Python and return its interpreter."""
    stage.detail = "virtual environment"
    command = [sys.executable, "-I", "-m", "venv", "--clear", str(folder)]
    if run_logged(command, log, stage, lambda line: None, {}):
        raise SetupError(
            f"{sys.executable} cannot make a virtual environment: install its venv and ensurepip modules "
            f"(on Debian or Ubuntu: sudo apt install python3-venv) or use another Python; see {log}."
        )
    return interpreter(folder)


def interpreter(folder: Path) -> Path:
    """The Python of a virtual environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def pip(python: Path, *arguments: str | Path, log: Path, stage: Stage) -> None:
    """Run pip; its whole output goes to `log`. Raises `SetupError`."""
    command = [python, "-I", "-m", "pip", "--disable-pip-version-check", "--no-color", *arguments]
    if run_logged(command, log, stage, _describe, PIP_VARIABLES):
        reason, advice = _diagnose(log.read_text(encoding="utf-8"))
        raise SetupError(f"pip failed ({reason}): {advice}; its full output is in {log}.")


def _describe(line: str) -> str | None:
    """What a line of pip's output says it is busy with: `Collecting numpy>=1.25.0` and the like."""
    if match := re.match(r"\s*(Collecting|Downloading|Building wheel for) ([\w.]+)\S*( \(.*B\))?", line):
        return f"{match[1].lower()} {match[2]}{match[3] or ''}"
    if line.startswith("Installing collected packages:"):
        return f"installing {line.count(',') + 1} packages"
    return None


def _diagnose(output: str) -> tuple[str, str]:
    """Why pip failed, in its own words, and what to do."""
    errors = re.findall(r"^ERROR: (.+)$", output, re.MULTILINE) or output.split("\n")[-1:]
    advice = (text for pattern, text in ADVICE.items() if re.search(pattern, output))
    return errors[-1].rstrip(".")[:200], next(advice, "see what it says, then run this again")
