"""The exact VAE under the host's dynamic VRAM on the emulated card, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..host.conftest import ENVIRONMENT

PACK = Path(__file__).parents[2]
START = "import sys, comfy_aimdo.control as aimdo, pytest; aimdo.init(); sys.exit(pytest.main(sys.argv[1:]))"


@pytest.mark.skipif(
    ENVIRONMENT.version.startswith(("0.18.", "0.24.")),
    reason="this ComfyUI takes the newest aimdo, which asks the emulated driver for more than it has",
)
def test_strips_whose_pages_go() -> None:
    """What is recorded of a layer is computed with its weights, whatever becomes of their page."""
    command = [sys.executable, "-c", START, "-n", "0", "-s", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, "tests/emulator/vae_under_dynamic_vram.py"],
        check=False, cwd=PACK, env={**os.environ, "EMU_DRIVER": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    told = "\n".join(line for line in ran.stdout.splitlines() if not line.startswith("aimdo:"))
    assert ran.returncode == 0, told[-3000:] + ran.stderr[-2000:]
