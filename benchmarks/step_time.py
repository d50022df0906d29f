"""Predicted seconds of steps and decodes against measured ones, on this CPU.

The figures of the CPU are measured first, as ``cli/calibrate.py`` does. What models take at 256 and 512 px is known,
and what they take at other sizes is told. Sizes take turns, so that all have the same machine.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _harness import ROOT, load_package, measured_cpu
from _sections import Report, Section

load_package()

from headroom.memory.prediction import CannotPredict, Card, Prediction  # noqa: E402
from headroom.memory.speed import History, TimedRun  # noqa: E402

TITLES = {"steps": "Sampling steps", "decodes": "Decodes"}
INTRODUCTION = """# Prediction of time

Seconds by a roofline of each kernel that a prediction met, on a CPU whose figures `cli/calibrate.py` measures, beside
seconds that the host's own step and decode take. What all models took at 256 and 512 px is known, as a Memory Report or
a Compare would keep it; of 768 and 1024 px and a batch of two nothing was. Models are the host's own classes at a
smaller width, with random weights in float32. Sizes take turns; medians of the runs. What would take more than the
limit is left out and said."""
FAMILIES = (
    "sd15", "sdxl", "sd3", "flux", "flux2", "wan21", "ltxv", "chroma", "qwen_image", "z_image", "lumina2",
    "hunyuan_video", "aura_flow", "cosmos_predict2",
)  # fmt: skip
KNOWN = ((256, 1), (512, 1))
ASKED = ((768, 1), (1024, 1), (512, 2))
# Latents by pixels, of 256 a side.
VAES = {"sd": (1, 4, 32, 32), "flux": (1, 16, 32, 32), "flux2": (1, 128, 16, 16), "wan21": (1, 16, 2, 32, 32),
        "ltx": (1, 128, 2, 8, 8)}  # fmt: skip


def timed(works: dict[Any, Callable[[], object]], runs: int, limit: float) -> dict[Any, float | None]:
    """Seconds of each, which take turns; None of what takes more than the limit."""
    found: dict[Any, list[float]] = {name: [] for name in works}
    left: set[Any] = set()
    for turn in range(runs + 1):
        for name, work in works.items():
            if name in left:
                continue
            start = time.perf_counter()
            work()
            seconds = time.perf_counter() - start
            if seconds > limit:
                left.add(name)
            elif turn:  # the first is a warm-up
                found[name].append(seconds)
    return {name: statistics.median(some) if some and name not in left else None for name, some in found.items()}


def _short(works: dict[Any, Any], predictions: dict[Any, Prediction], card: Card, limit: float) -> dict[Any, Any]:
    """Without those that are predicted to take more than the limit."""
    return {size: work for size, work in works.items() if card.speed.by_figures(predictions[size].work) <= limit}


def compared(
    card: Card,
    predictions: dict[str, dict[Any, Prediction]],
    seconds: dict[str, dict[Any, float | None]],
    limit: float,
) -> Iterator[tuple[list[str], float | None]]:
    """A row for each model and size, with how far it was off; None for those that were known."""
    history = History()
    for name, sizes in seconds.items():
        for size in KNOWN:
            if sizes.get(size):
                by_figures = card.speed.by_figures(predictions[name][size].work)
                history = history.with_run(name, TimedRun(by_figures, sizes[size] or 0.0))
    speed = replace(card.speed, history=history)
    for name, sizes in seconds.items():
        for side, batch in predictions[name]:
            measured = sizes.get((side, batch))
            case = [name, f"{side} px, batch {batch}"]
            if measured is None:
                yield [*case, f"more than {limit:g} s", "", "", ""], None
                continue
            work, known = predictions[name][side, batch].work, (side, batch) in KNOWN
            told = speed.seconds(work, name)
            off = "known" if known else f"{told / measured - 1:+.1%}"
            alone = f"{speed.by_figures(work) / measured - 1:+.0%}"
            yield [*case, f"{measured:.3f} s", alone, f"{told:.3f} s", off], None if known else abs(told / measured - 1)


def section_of(rows: Iterator[tuple[list[str], float | None]], what: str) -> Section:
    section, errors, cells = Section(), [], []
    for row, error in rows:
        cells.append(row)
        errors += [] if error is None else [error]
    section.most(f"{what}, {len(errors)} cases: median", 10, 100 * statistics.median(errors), "%")
    section.most(f"{what}: worst", 20, 100 * max(errors), "%")
    section.table(("model", "size", "measured", "by the figures alone", "predicted", "off"), cells)
    return section


def steps_section(card: Card, names: list[str], runs: int, limit: float) -> Section:
    from headroom.host.prediction.step import Step, predict_step
    from headroom.tests.host.families import FAMILIES as MODELS
    from headroom.tests.host.one_step import one_call

    predictions: dict[str, dict[Any, Prediction]] = {}
    seconds = {}
    for name in names:
        family, model = MODELS[name], MODELS[name].load()
        text, predicted = (family.conditioning(1), family.conditioning(2)), predictions.setdefault(name, {})
        latents = {(side, batch): family.latent(side, side, batch) for side, batch in (*KNOWN, *ASKED)}
        for size, latent in list(latents.items()):
            try:
                predicted[size] = predict_step(Step(model, latent, *text, 3.0), card)
            except CannotPredict:  # some of the host's models cannot batch
                del latents[size]
        works = {size: one_call(model, family, tuple(latent.shape)) for size, latent in latents.items()}
        seconds[name] = timed(_short(works, predicted, card, limit), runs, limit)
    return section_of(compared(card, predictions, seconds, limit), "steps")


def decodes_section(card: Card, runs: int, limit: float) -> Section:
    from headroom.host.prediction.vae import Coding, predict_coding
    from headroom.tests.host.families import load_vae

    predictions, seconds = {}, {}
    for name, (_, *cells, height, width) in VAES.items():
        vae = load_vae(name)
        latents = {
            (side, batch): torch.zeros(batch, *cells, height * side // 256, width * side // 256)
            for side, batch in (*KNOWN, *ASKED)
        }
        predictions[name] = {size: predict_coding(Coding(vae, one), card).prediction for size, one in latents.items()}
        works = {size: partial(vae.decode, one) for size, one in latents.items()}
        seconds[name] = timed(_short(works, predictions[name], card, limit), runs, limit)
    return section_of(compared(card, predictions, seconds, limit), "decodes")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3, help="of each size (default 3)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds above which a size is left out")
    parser.add_argument("--only", metavar="NAME,...", default=",".join(TITLES), help=f"of {', '.join(TITLES)}")
    parser.add_argument("--models", metavar="NAME,...", default=",".join(FAMILIES))
    parser.add_argument("--quick", action="store_true", help="two models, into output/: to see whether it runs")
    options = parser.parse_args()
    folder = ROOT / "output" / "bench" if options.quick else Path(__file__).resolve().parent
    folder.mkdir(parents=True, exist_ok=True)
    logging.disable(logging.WARNING)
    names = ["sd3", "qwen_image"] if options.quick else options.models.split(",")
    card = measured_cpu(options.threads)
    report = Report(folder / "step_time.md", INTRODUCTION, TITLES)
    sections = {
        "steps": partial(steps_section, card, names, options.runs, options.limit),
        "decodes": partial(decodes_section, card, options.runs, options.limit),
    }
    with torch.inference_mode():
        for name in options.only.split(","):
            report.measure(name, sections[name], options.runs)


if __name__ == "__main__":
    main()
