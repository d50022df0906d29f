"""Settings that Make It Fit chooses for cards of 6 to 24 GB and models in their real size, from headers alone."""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _harness import ROOT, enter_host, load_package
from _sections import Report, Section

load_package()

from headroom.memory.prediction import Fit, named_card  # noqa: E402
from headroom.memory.units import format_bytes, format_seconds  # noqa: E402
from headroom.tools.templates_table import CARDS as CARD_NAMES  # noqa: E402
from headroom.tools.templates_table import card_of  # noqa: E402

GPU, LIMIT = "sm86", 0.85
TITLES = {"settings": "What it chooses", "time": "Time to choose"}
INTRODUCTION = """# Make It Fit: settings by card

What HeadroomFit chooses, by its own predictions, for a card of compute capability 8.6 (RTX 30) of which 85 % may be
used. The models are loaded by ComfyUI's own loaders from files that have true headers and no weights; the text has 256
tokens. SD1.5, SDXL and Wan are sampled with guidance, Flux.1 without. Not measured on a GPU: these are predictions.
Seconds a step are by the published figures of a card that is sold with so much memory (`memory/speed/documented.py`):
{cards}.
"time" is a step's seconds over those of the same plan with all weights on the card."""


def settings_section(cards: tuple[int, ...], folder: Path) -> Section:
    """A row per model and card."""
    from headroom.host.planning.fit import find_fit
    from headroom.tests.host.full_fits import WISHES, question

    section, rows = Section(), []
    for name, wish in WISHES.items():
        asked = question(folder, wish, named_card(GPU, 24.0))
        for vram in cards:
            found = find_fit(asked, card_of(vram), limit=LIMIT)
            rows.append([name, f"{vram} GB", *settings(found, wish.cfg != 1)])
    head = (
        "model", "card", "weights on the card", "guidance", "sampling", "decode", "decode peak", "result", "a step",
        "time",
    )  # fmt: skip
    section.table(head, rows)
    return section


def settings(fit: Fit, guided: bool) -> list[str]:
    """A fit as cells."""
    if fit.sampling is None or fit.vae is None or fit.vae.stage is None:
        from headroom.memory.render import why_nothing_fits

        return [why_nothing_fits(fit), *[""] * 7]
    plan, stage = fit.sampling, fit.sampling.settled(fit.card, fit.allowed)
    everything = min(one.stage.prediction.flops for one in fit.considered) / plan.stage.prediction.flops
    held = "all" if stage.resident == stage.weights else format_bytes(stage.resident)
    streams = "" if held == "all" else f" of {format_bytes(stage.weights)}"
    storage = f", {plan.storage}" if plan.storage else ""
    resident = plan.seconds(fit.card, plan.stage.peak)
    return [
        f"{held}{streams}{storage}",
        "in turns" if plan.in_turns else "together" if guided else "none",
        format_bytes(stage.peak),
        fit.vae.stage.method,
        format_bytes(fit.vae.stage.peak),
        fit.loss.name.lower().replace("_", "-"),
        format_seconds(fit.seconds),
        f"{everything * fit.seconds / resident:.2f}x",
    ]


def time_section(folder: Path, runs: int) -> Section:
    """Seconds for a first question and for one that was asked before."""
    from headroom.host.planning.fit import find_fit
    from headroom.tests.host.full_fits import WISHES, question

    section, rows = Section(), []
    for name, wish in WISHES.items():
        first, again = [], []
        for _ in range(runs):
            asked = question(folder, wish, named_card(GPU, 24.0))
            for seconds in (first, again):
                start = time.perf_counter()
                find_fit(asked, named_card(GPU, 8.0), limit=LIMIT)
                seconds.append(time.perf_counter() - start)
        rows.append([name, f"{statistics.median(first):.2f} s", f"{statistics.median(again):.2f} s"])
    section.table(("model, card of 8 GB", "first", "again"), rows)
    section.parts.append("Medians; every way that is considered is a prediction of its own.")
    return section


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3, help="for the times (default 3)")
    parser.add_argument("--only", metavar="NAME,...", default=",".join(TITLES), help=f"of {', '.join(TITLES)}")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    enter_host("--cpu")
    torch.set_num_threads(1)
    from headroom.tests.host.full_fits import CARDS, write_files

    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        folder = Path(name)
        write_files(folder)
        sections: dict[str, Any] = {
            "settings": partial(settings_section, CARDS, folder),
            "time": partial(time_section, folder, options.runs),
        }
        cards = ", ".join(f"{CARD_NAMES[vram]} for {vram} GB" for vram in CARDS)
        report = Report(ROOT / "benchmarks" / "fit.md", INTRODUCTION.format(cards=cards), TITLES)
        for section in options.only.split(","):
            report.measure(section, sections[section], options.runs)


if __name__ == "__main__":
    main()
