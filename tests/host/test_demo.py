"""The README's demo, as people run it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from headroom.tools.demo.__main__ import DEMOS, PAINTED
from headroom.tools.models.painter.judge import obeys
from headroom.tools.models.painter.scenes import PAIRS

from ..nightly import at_night
from .conftest import ENVIRONMENT

ROOT = Path(__file__).parents[2]


@at_night
def test_it_writes_what_it_says_and_its_checks_hold(tmp_path: Path) -> None:
    """And what is painted is what was told."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.demo", "--out", str(tmp_path)],
        cwd=ROOT, env={**os.environ, **ENVIRONMENT.variables()}, capture_output=True, text=True, timeout=1800,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    table = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))
    assert list(table["workflows"]) == list(DEMOS)
    for name, sentence in PAINTED.items():
        (scene,) = (one for one in PAIRS if str(one) == sentence)
        with Image.open(tmp_path / f"{name}_headroom.png") as picture:
            pixels = np.asarray(picture.convert("RGB"), np.float32) / 255
        assert obeys(pixels, scene), name
