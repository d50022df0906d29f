"""The host's dynamic VRAM on the emulated card, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

from ..host.training import repeats_on_a_card

PACK = Path(__file__).parents[2]
START = "import sys, comfy_aimdo.control as aimdo, pytest; aimdo.init(); sys.exit(pytest.main(sys.argv[1:]))"


@repeats_on_a_card
def test_a_training_over_a_lora() -> None:
    """Weights that the host would read from its pages come block by block, with the patches that it gives them."""
    command = [sys.executable, "-c", START, "-n", "0", "-s", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, "tests/emulator/under_dynamic_vram.py"],
        check=False, cwd=PACK, env={**os.environ, "EMU_DRIVER": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    told = "\n".join(line for line in ran.stdout.splitlines() if not line.startswith("aimdo:"))
    assert ran.returncode == 0, told[-3000:] + ran.stderr[-2000:]
