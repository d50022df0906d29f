"""Block Offload beside the host's own streaming over models, budgets and cards, into `benchmarks/offload.md`.

Not collected by itself: `OFFLOAD_GRID=every python3 -m tools test -- tests/emulator/offload_grid.py` runs the whole of
it (hours), without `OFFLOAD_GRID` a slice, and `-k` a part. Each model is streamed ours, then by the host with as much
kept on the card as the same peak of allocated bytes permits. Rows are added to the table, or replaced, one by one.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from headroom.host.budget import least_weights

from .conftest import Card
from .streaming import Case, Ran, model_of, ours, ran, ran_by_the_host, set_card, staging_of

REPORT = Path(__file__).resolve().parents[2] / "benchmarks" / "offload.md"
TITLE = "## On an emulated card, beside the host's own streaming"
ABOUT = """Computed on an emulated card, not measured on a GPU: ComfyUI 0.30 samples with small generated models, whose
card is made slow in proportion (`tests/emulator/streaming.py`). Ratio: transfer of all weights over compute of a step;
Flux in 16 bits at 1024 px has 0.59 on a 3060, 0.92 on a 4070 Ti, 1.07 on a 5090 and 1.72 on a 4090. Step: milliseconds
of the virtual clock, after the third. Peak: bytes allocated, activations, staging and the host's cast buffers included;
the host's own streaming keeps as much on the card as that peak permits; a dash: it cannot run within it. Reached: the
longer one of compute and copies over the step. Latents are equal bit by bit in every row."""
HEADER = (
    "| model | blocks | weights, MB | ratio | budget | peak, MB | staging, MB | host's step | our step | | reached |"
)
NAMED = 5  # columns that name a row
EVERY = os.environ.get("OFFLOAD_GRID", "some") == "every"
RATIOS = (0.67, 1.06, 1.24, 2.0) if EVERY else (2.0, 0.67)
SHARES = tuple(part / 20 for part in range(21)) if EVERY else (0.0, 0.25, 0.5, 0.75)
SOME = {Case("flux", 1): 2, Case("flux", 2): 4, Case("sd3", 4): 4, Case("wan21", 6): 6, Case("sd15"): 25}
MORE = {Case("flux", 4): 8, Case("sdxl"): 19, Case("sd3", 8): 8, Case("wan21", 30): 30, Case("flux", 28): 56}
BLOCKS = SOME | MORE if EVERY else SOME


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("case", BLOCKS, ids=str)
def test_point(card: Card, case: Case, ratio: float, share: float) -> None:
    """A budget ``share`` of the way from the least to all weights."""
    model = model_of(case)
    least = least_weights(model, 2)
    budget = int(least + share * (model.model_size() - least))
    set_card(card, case, ratio)
    limited = ours(model, budget)
    mine = ran(card, case, limited)
    theirs = ran_by_the_host(card, case, mine.peak)
    write(row(case, ratio, budget, staging_of(limited), mine, theirs))
    assert theirs is None or (torch.equal(mine.latents, theirs.latents) and mine.step <= theirs.step * 1.0001)


def row(case: Case, ratio: float, budget: int, staging: int, mine: Ran, theirs: Ran | None) -> str:
    mb, whole = 2**20, model_of(case).model_size()
    host = ("–", "") if theirs is None else (f"{theirs.step * 1000:.1f}", f"{mine.step / theirs.step:.2f}x")
    cells = (
        case, BLOCKS[case], f"{whole / mb:.0f}", ratio, f"{100 * budget / whole:.0f} %", f"{mine.peak / mb:.1f}",
        f"{staging / mb:.1f}", host[0], f"{mine.step * 1000:.1f}", host[1], f"{100 * mine.floor / mine.step:.0f} %",
    )  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def write(new: str) -> None:
    before, _, rest = REPORT.read_text(encoding="utf-8").partition(TITLE)
    table, found, after = rest.partition("\n## ")
    rows = [line for line in table.splitlines() if line.startswith("| ") and line != HEADER]
    kept = [line for line in rows if line.split("|")[: NAMED + 1] != new.split("|")[: NAMED + 1]]
    head = [TITLE, "", ABOUT, "", HEADER, "|" + "---|" * HEADER.count(" |")]
    REPORT.write_text(
        before.rstrip() + "\n\n" + "\n".join([*head, *kept, new]) + "\n" + found + after, encoding="utf-8"
    )
