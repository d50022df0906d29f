"""Block Offload beside the host's own streaming over models, budgets and cards, into `benchmarks/offload_grid.md`.

Not collected by itself: `OFFLOAD_GRID=every python3 -m tools test -- tests/emulator/offload_grid.py` runs the whole of
it (hours), without `OFFLOAD_GRID` a slice, and `-k` a part. Each model is streamed ours, then by the host with as much
kept on the card as the same peak of allocated bytes permits. Rows are added to the table, or replaced, one by one.
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median

import pytest
import torch

from headroom.host.offload.layers import least_weights

from .conftest import Card
from .streaming import Case, Ran, model_of, ours, ran, ran_by_the_host, set_card, staging_of

REPORT = Path(__file__).resolve().parents[2] / "benchmarks" / "offload_grid.md"
ABOUT = """# Block Offload beside the host's own streaming

Computed on an emulated card, not measured on a GPU: ComfyUI 0.30 samples with small generated models, whose
card is made slow in proportion (`tests/emulator/streaming.py`). Ratio: transfer of all weights over compute of a step;
Flux in 16 bits at 1024 px has 0.59 on a 3060, 0.92 on a 4070 Ti, 1.07 on a 5090 and 1.72 on a 4090. Step: milliseconds
of the virtual clock, after the third. Peak: bytes allocated, activations, staging and the host's cast buffers included;
the host's own streaming keeps as much on the card as that peak permits; a dash: it cannot run within it. Reached: the
longer one of compute and copies over the step. Latents are equal bit by bit in every row.

What the host's own streaming hides: with the link's speed by the rows of ours in which the copies are the longer part,
a step of the host takes computing and copying together less half of the shorter one, 0.90x to 1.17x of that in eight of
ten rows, in the median 1.02x. Predictions of seconds say the same (`HOST_HIDES` in `memory/prediction/card.py`).

To repeat: `OFFLOAD_GRID=every python3 -m tools test -- tests/emulator/offload_grid.py` (40 minutes)."""
HEADER = (
    "| model | blocks | weights, MB | ratio | budget | peak, MB | staging, MB | host's step | our step | | reached |"
)
SUMMARY = (
    "| model | points | the host cannot | ours to the host's step | slower than the host | reached from 25 % of the"
    " weights up, least | median | 95 % or more |"
)
NAMED = 5  # columns that name a row
FROM = 25  # percent of the weights, from where the goal counts
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
    text = REPORT.read_text(encoding="utf-8") if REPORT.exists() else ""
    rows = text.partition(HEADER)[2].splitlines()[2:]
    kept = [line for line in rows if line.split("|")[: NAMED + 1] != new.split("|")[: NAMED + 1]]
    REPORT.write_text(report([*kept, new]), encoding="utf-8")


def report(rows: list[str]) -> str:
    """The file: what the rows come to, then the rows."""
    models: dict[str, list[list[str]]] = {}
    for line in rows:
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        models.setdefault(cells[0], []).append(cells)
    lines = [summed(name, points) for name, points in models.items()]
    lines.append(summed("all", [cells for points in models.values() for cells in points]))
    tables = [
        [header, "|" + "---|" * header.count(" |"), *below] for header, below in ((SUMMARY, lines), (HEADER, rows))
    ]
    return "\n\n".join([ABOUT, *("\n".join(table) for table in tables)]) + "\n"


def summed(name: str, points: list[list[str]]) -> str:
    """One line of the summary."""
    ours = [float(cells[9].rstrip("x")) for cells in points if cells[9]]
    slower = [ratio for ratio in ours if ratio > 1]
    reached = [int(cells[10].split()[0]) for cells in points if int(cells[4].split()[0]) >= FROM]
    cells = (
        name, len(points), len(points) - len(ours), f"{min(ours):.2f}x to {max(ours):.2f}x", len(slower),
        f"{min(reached)} %", f"{median(reached):.0f} %", f"{sum(part >= 95 for part in reached)} of {len(reached)}",
    )  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"
