"""The host's dynamic VRAM on the emulated card, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headroom.host.core.internals import find
from headroom.host.offload.watermark import WATERMARK

from ..host.training import repeats_on_a_card
from .conftest import ENVIRONMENT

PACK = Path(__file__).parents[2]
START = "import sys, comfy_aimdo.control as aimdo, pytest; aimdo.init(); sys.exit(pytest.main(sys.argv[1:]))"


def passes(test: str) -> None:
    """Runs one of `under_dynamic_vram.py`."""
    command = [sys.executable, "-c", START, "-n", "0", "-s", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, f"tests/emulator/under_dynamic_vram.py::{test}"],
        check=False, cwd=PACK, env={**os.environ, "EMU_DRIVER": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    told = "\n".join(line for line in ran.stdout.splitlines() if not line.startswith("aimdo:"))
    assert ran.returncode == 0, told[-3000:] + ran.stderr[-2000:]


@repeats_on_a_card
def test_a_training_over_a_lora() -> None:
    """Weights that the host would read from its pages come block by block, with the patches that it gives them."""
    passes("test_a_lora_that_was_loaded_before_counts")


@pytest.mark.skipif(
    ENVIRONMENT.version.startswith("0.18."), reason="its comfy-aimdo, the newest, does not begin on the emulated card"
)
@pytest.mark.skipif(find(WATERMARK) is None, reason="its comfy-aimdo cannot limit pages, and the report says so")
def test_block_offload() -> None:
    """A budget bounds what dynamic VRAM keeps on the card, for the model that has it and while it has it."""
    passes("test_a_budget_is_kept")


@pytest.mark.skipif(
    ENVIRONMENT.version.startswith("0.18."), reason="its comfy-aimdo, the newest, does not begin on the emulated card"
)
def test_what_a_report_tells() -> None:
    """The weights in pages are told beside what the card's allocator counts."""
    passes("test_pages_are_told")
