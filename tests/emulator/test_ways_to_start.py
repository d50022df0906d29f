"""The same operators and memory with other allocators, run late, and on an accelerator that is not CUDA."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headroom.tools.card import emulator

from .conftest import ENVIRONMENT

HERE = Path(__file__).parent
PYTORCH = "PYTORCH_CUDA_ALLOC_CONF"


def passed(files: list[str], variables: dict[str, str], **settings: Any) -> None:
    """Runs these tests in a pytest of their own."""
    on_card = emulator.variables(ENVIRONMENT, **settings)
    command = [ENVIRONMENT.script("pytest"), *(HERE / name for name in files), "-q", "-p", "no:xdist"]
    variables = {**os.environ, **ENVIRONMENT.variables(), **on_card, **variables}
    done = subprocess.run(command, env=variables, cwd=ENVIRONMENT.pack, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


@pytest.mark.parametrize(
    "variables",
    [{PYTORCH: "backend:cudaMallocAsync"}, {PYTORCH: "expandable_segments:True"}],
    ids=["cudaMallocAsync, which ComfyUI takes", "expandable segments"],
)
def test_other_allocators(variables: dict[str, str]) -> None:
    passed(["test_operators.py"], variables, lazy=True, races=True)


def test_another_accelerator() -> None:
    passed(["test_operators.py"], {}, device="npu")
