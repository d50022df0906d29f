"""A LoRA's training by ComfyUI's own node: memory of a step by checkpoints of its own and of Training Memory's plans.

Each section is written to ``training.md`` as soon as it is done; ``--only`` measures some of them anew.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import matplotlib
import torch
from _harness import ROOT, enter_host, load_package
from _sections import Report, Section, rows_of, sections_of
from _step_clock import StepClock
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

load_package()
matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402

from headroom.attention import parse_blocks  # noqa: E402
from headroom.memory.render.chart import BACKGROUND, FAINT, INK  # noqa: E402

MIB = 2**20
ALL = parse_blocks("all")
TITLES = {
    "memory": "Memory of a step",
    "beforehand": "What is said before a training",
    "recipes": "Models in their published size",
    "cases": "From naive attention to checkpoints",
    "time": "Time of a step",
}
INTRODUCTION = """# Training: memory and time of a step

*Train LoRA* of ComfyUI 0.30.0 in process, AdamW, rank 2, two steps, one picture, in float32, small models of each
family with random weights, one thread. Memory is the live bytes of all tensors beyond weights and adapter at most over
both steps, followed one by one. "Without": no checkpoints; families that write to what autograd has saved, which it
refuses, then save copies. "Depth": the node's own `gradient_checkpointing` at that `checkpoint_depth`, 1 by default.
Attention is torch's fused one in all columns but where it says so."""
FAMILIES = (
    "sd15", "sdxl", "sd3", "flux", "flux2", "chroma", "qwen_image", "z_image", "wan21", "ltxv", "hunyuan_video",
)  # fmt: skip
IN_PLACE = {"flux", "flux2", "chroma", "ltxv", "hunyuan_video", "qwen_image"}
SIDE, WIDE = 32, 64  # cells of the latent; where time is measured, arithmetic is to outweigh the calls
HEAVY = {"sd15", "sdxl", "ltxv"}  # enough arithmetic in the small size
TIMED = (
    "family", "adapter", "pairs", "without, s", "by operations", "by its forward", "every block", "off operations",
    "off its forward", "every k-th", "off operations", "off its forward",
)  # fmt: skip
PLANS = ("every block", "every k-th block", "attention", "feed-forward")
CARDS = (8, 12, 16, 24)
KEPT, AMPLE = "every block kept", 2**40  # by a budget of so many bytes, which no training takes


@dataclass(frozen=True)
class Settings:
    """What the command line asks for."""

    runs: int
    families: tuple[str, ...]
    folder: Path


class Trained:
    """A family's training by name: "without", "depth N", or a plan of the node."""

    def __init__(self, name: str, side: int = SIDE) -> None:
        from headroom.tests.host.families import FAMILIES as FOUND
        from headroom.tests.host.training import training_node

        self.name, self.family, self.node = name, FOUND[name], training_node()
        shape = self.family.latent(side * self.family.reach, side * self.family.reach).shape
        self.latent = torch.randn(shape, generator=torch.Generator().manual_seed(1))

    def model(self, attention: str = "attention_pytorch") -> Any:
        """As loaded, measured, with one function for its attention."""
        from comfy.ldm.modules import attention as functions

        from headroom.host.measure.wrappers import measure_sampling
        from headroom.tests.host.training import loadable

        model, function = loadable(self.family), getattr(functions, attention)
        measure_sampling(model)
        options = model.model_options["transformer_options"]
        options["optimized_attention_override"] = lambda _, *args, **kwargs: function(*args, **kwargs)
        return model

    def run(
        self, way: str, attention: str = "attention_pytorch", clock: StepClock | None = None, **changes: Any
    ) -> Any:
        """Two steps, by other settings of the node; the row of the run log."""
        from headroom.host.core.wrapper_kinds import APPLY_MODEL
        from headroom.host.measure.runs import LOG
        from headroom.host.measure.wrappers import wrap
        from headroom.host.training.checkpointed import apply_checkpoints
        from headroom.host.training.plan import TrainingPlan
        from headroom.tests.host.training import train

        model, changes = self.model(attention), {"optimizer": "AdamW", "learning_rate": 1e-4, **changes}
        if clock is not None:
            wrap(model, APPLY_MODEL, "clock", clock.forward)
        copies = way == "without" and self.name in IN_PLACE
        if way.startswith("depth"):
            changes |= {"gradient_checkpointing": True, "checkpoint_depth": int(way.split()[1])}
        elif way != "without":
            plan = TrainingPlan("budget", ALL, 0, AMPLE) if way == KEPT else TrainingPlan(way, ALL)
            model, _ = apply_checkpoints(model, plan)
        reported = patch("headroom.host.measure.runs.is_reported", return_value=clock is None)
        with reported, saved_tensors_hooks(Tensor.clone, lambda saved: saved) if copies else nullcontext():
            train(self.node, model, self.family, self.latent, "fp32", **changes)
        return LOG.rows("", "")[-1]


def _kept(settings: Settings, name: str) -> list[list[str]]:
    """A section's rows of families that are not asked for."""
    there = settings.folder / "training.md"
    text = sections_of(there.read_text("utf-8")).get(TITLES[name], "") if there.is_file() else ""
    return [row for row in rows_of(text) if row[0] not in settings.families]


def _of_an_earlier_run(section: Section, kept: Sequence[Sequence[str]]) -> None:
    if kept:
        names = dict.fromkeys(row[0] for row in kept)
        section.parts.append(f"Of an earlier run on such a machine: {', '.join(names)}.")


def _in_order(rows: list[list[str]]) -> list[list[str]]:
    return sorted(rows, key=lambda row: FAMILIES.index(row[0]))


def _errors(rows: Sequence[Sequence[str]]) -> list[float]:
    """In percent, from the brackets of all cells."""
    return [abs(float(found)) for row in rows for cell in row for found in re.findall(r"\(([-+].*)%\)", cell)]


def memory(settings: Settings) -> Section:
    """Live bytes of a step by each way."""
    section, rows = Section(), _kept(settings, "memory")
    _of_an_earlier_run(section, rows)
    ways = ("without", *(f"depth {depth}" for depth in range(1, 6)))
    for name in settings.families:
        trained, cells = Trained(name), [name]
        live = dict[str, int]()
        for way in (*ways, *PLANS):
            try:
                row = trained.run(way)
            except Exception as error:  # what the host or a plan refuses is a cell
                cells.append(type(error).__name__)
                continue
            live[way] = row.live
            cells.append(f"{row.live / MIB:.0f}")
            if row.predicted is not None:
                cells[-1] += f" ({row.predicted.live / row.live - 1:+.1%})"
        rows.append([*cells, f"{live['depth 1'] / live['every block']:.1f}x"])
        print(rows[-1], flush=True)
    errors = _errors(rows)
    section.most("predicted against measured, largest error", 2.0, max(errors), "%")
    section.parts.append(
        f"MiB; in brackets the error of what the first step predicts ({len(errors)} cases, median"
        f" {statistics.median(errors):.1f} %). The last column: depth 1 over every block."
    )
    section.table(["family", *ways, *PLANS, "less"], _in_order(rows))
    return section


def beforehand(settings: Settings) -> Section:
    """What Will Training Fit? says, against what the training takes."""
    from headroom.host.prediction.stages import own_card
    from headroom.host.training.checkpointed import apply_checkpoints
    from headroom.host.training.estimate import forecast_training
    from headroom.host.training.plan import TrainingPlan
    from headroom.host.training.settings import TrainingSettings
    from headroom.host.training.without_data import Training

    section, rows = Section(), _kept(settings, "beforehand")
    _of_an_earlier_run(section, rows)
    asked = TrainingSettings(rank=2, training_dtype="fp32", lora_dtype="fp32")
    for name in settings.families:
        trained, cells = Trained(name), [name]
        for plan in PLANS:
            model, _ = apply_checkpoints(trained.model(), TrainingPlan(plan, ALL))
            training = Training(model, trained.latent, trained.family.conditioning(1), asked)
            found = forecast_training(training, own_card(model.load_device))
            said = found.peak(found.way) - found.weights - found.adapter
            live = trained.run(plan).live
            cells.append(f"{said / MIB:.1f} of {live / MIB:.1f} ({said / live - 1:+.1%})")
        rows.append(cells)
        print(cells, flush=True)
    errors = _errors(rows)
    section.most("said before against measured, largest error", 2.0, max(errors), "%")
    section.parts.append(
        f"MiB beyond weights and adapter, said before of measured. {sum(error <= 2 for error in errors)} of"
        f" {len(errors)} cases are within 2 %, the median is {statistics.median(errors):.1f} %."
    )
    section.table(["family", *PLANS], _in_order(rows))
    return section


def recipes(settings: Settings) -> Section:
    """Which plan fits which card, by prediction: models without data, read from headers."""
    from headroom.tests.host.full_fits import TRAININGS, write_files

    section, rows, less = Section(), [], list[float]()
    with tempfile.TemporaryDirectory() as place:
        write_files(Path(place), TRAININGS)
        for name, wish in TRAININGS.items():
            row, saved = _recipe(Path(place), name, wish)
            rows.append(row)
            less.append(saved)
            if "-" in row and wish.stored is None and "fp8" not in name:
                in_8_bits = replace(wish, stored=torch.float8_e4m3fn)
                rows.append(_recipe(Path(place), f"{name}, weights in fp8", in_8_bits)[0])
    section.least("activations: Train LoRA's own over every block, smallest", 2.0, min(less))
    section.parts.append(
        "By prediction, not measured: GB of 2^30 bytes, rank 16, AdamW, bfloat16, one picture, 85 % of the card. A CPU"
        " stands for the card, with its mixed precision, norms and what its kernels hold: on the emulated card the same"
        " comes out, to 2 MiB (11 models, once, by hand). On an H100 SD1.5 and SDXL took 1 to 5 % more than is said"
        " so ([gpu.md](gpu.md)). For each card the plan that computes least of the blocks' forward again; all weights"
        " on it. Less: what is beside the weights, of Train LoRA's own checkpoint over every block."
        " From RAM: every block with `checkpoints_in_ram`, and Train LoRA's `offloading`."
    )
    cards = (f"{vram} GB" for vram in CARDS)
    head = ["model", "weights", "Train LoRA's own", "every block", "less", *cards, "from RAM"]
    section.table(head, rows)
    return section


def _recipe(models: Path, name: str, wish: Any) -> tuple[list[str], float]:
    """Its row, and the activations of Train LoRA's own checkpoint over those of every block."""
    from headroom.host.training.checkpointed import apply_checkpoints
    from headroom.host.training.estimate import OWN, forecast_step, forecast_training, predicted_step
    from headroom.host.training.plan import EVERY_BLOCK, TrainingPlan
    from headroom.host.training.settings import TrainingSettings
    from headroom.host.training.without_data import Training
    from headroom.memory.prediction import named_card
    from headroom.memory.units import GB
    from headroom.tests.host import full_fits

    asked, cards = TrainingSettings(rank=16), [named_card("sm86", vram) for vram in CARDS]
    card = cards[0]
    made = full_fits.question(models, wish, card)
    given = made.latent["samples"], made.positive or ()
    training = Training(made.model, *given, asked)
    step = predicted_step(training, card)
    forecasts = [forecast_step(step, training, one) for one in cards]
    found, best = forecasts[0], [one.best for one in forecasts]
    cells = [
        "-" if way is None else f"{way.again:.0%} again, {one.peak(way) / GB:.1f}" for one, way in zip(forecasts, best)
    ]
    weights, peaks = found.weights, {way.name: found.peak(way) for way in found.ways}
    saved = (peaks[OWN] - weights) / (peaks[EVERY_BLOCK] - weights)
    sizes = (f"{size / GB:.1f}" for size in (weights, peaks[OWN], peaks[EVERY_BLOCK]))
    model, _ = apply_checkpoints(made.model, TrainingPlan(EVERY_BLOCK, ALL, in_ram=True))
    streamed = Training(model, *given, replace(asked, offloading=True))
    in_ram = forecast_training(streamed, card)
    row = [name, *sizes, f"{saved:.1f}x", *cells, f"{in_ram.peak(in_ram.way) / GB:.1f}"]
    print(row, flush=True)
    return row, saved


def cases(settings: Settings) -> Section:
    """Naive attention, memory-efficient attention, and checkpoints by block on top."""
    section, rows = Section(), []
    found: dict[str, list[float]] = {"A: naive attention": [], "B: fused attention": [], "C: B, every block": []}
    for name in settings.families:
        trained = Trained(name)
        live = [
            trained.run("without", "attention_basic").live,
            trained.run("without").live,
            trained.run("every block").live,
        ]
        for kind, bytes_ in zip(found, live):
            found[kind].append(bytes_ / live[0])
        rows.append([name, *(f"{bytes_ / MIB:.0f}" for bytes_ in live), *(f"{one / live[0]:.0%}" for one in live[1:])])
    section.table(["family", *(f"{kind}, MiB" for kind in found), "B of A", "C of A"], rows)
    _chart(settings, found)
    section.parts.append("![Live bytes of a step by family, as a share of naive attention's](training.png)")
    return section


def _chart(settings: Settings, found: Mapping[str, list[float]]) -> None:
    figure, axes = plt.subplots(figsize=(9, 3.6), facecolor=BACKGROUND)
    axes.set_facecolor(BACKGROUND)
    for number, (kind, shares) in enumerate(found.items()):
        places = [place + 0.27 * (number - 1) for place in range(len(shares))]
        axes.bar(places, [100 * share for share in shares], 0.25, label=kind)
    axes.set_xticks(range(len(settings.families)), settings.families, rotation=20, color=INK)
    axes.set_ylabel("live bytes, % of A", color=INK)
    axes.tick_params(colors=INK)
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    axes.legend(frameon=False, labelcolor=INK)
    figure.tight_layout()
    figure.savefig(settings.folder / "training.png", dpi=120)
    plt.close(figure)


def time(settings: Settings) -> Section:
    """CPU seconds of a step beside what its operations predict. Rows of families that are not asked for stay."""
    section, rows, clock = Section(), _kept(settings, "time"), StepClock()
    _of_an_earlier_run(section, rows)
    for name in settings.families:
        rows += [_timed(settings, name, bypass, clock) for bypass in (False, True)]
    rows = _in_order(rows)
    for what, first in (("operations", len(TIMED) - 5), ("a step and its forward once more", len(TIMED) - 4)):
        errors = [abs(float(row[column].strip("%"))) for row in rows for column in (first, first + 3)]
        section.most(f"CPU seconds against {what}, largest error", 5.0, max(errors), "%")
        section.parts.append(
            f"Against {what}: {sum(error <= 5 for error in errors)} of {len(errors)} within 5 %, the median is"
            f" {statistics.median(errors):.1f} %."
        )
    section.parts.append(
        "A step's CPU seconds over those without checkpoints, medians of pairs of steps beside each other. By"
        " operations: products of matrices, convolutions and attention, forward and backward. By its forward:"
        " the seconds of a step and of its forward once more over those of a step; what differs there is what"
        f" checkpoints themselves cost. Latents of {WIDE} x {WIDE} cells, of {', '.join(sorted(HEAVY))} {SIDE} x"
        f" {SIDE}. Memory is not followed, as it is on a CPU for a report. Families that write in place run without"
        " checkpoints by a budget that keeps every block."
    )
    section.table(TIMED, rows)
    return section


def _timed(settings: Settings, name: str, bypass: bool, clock: StepClock) -> list[str]:
    """A row of the table."""
    trained = Trained(name, side=SIDE if name in HEAVY else WIDE)
    ways = (KEPT if name in IN_PLACE else "without", "every block", "every k-th block")
    work, seconds = dict[str, int](), {way: list[tuple[float, float]]() for way in ways}
    for way in ways:
        with clock.counter:
            trained.run(way, clock=clock, bypass_mode=bypass, steps=3)
        work[way] = clock.take()[0][-1]
    for _ in range(settings.runs):
        for way in ways:
            trained.run(way, clock=clock, bypass_mode=bypass, steps=4)
            seconds[way] += [taken[:2] for taken in clock.take()]
    without = seconds[ways[0]]
    by_forward = statistics.median((step + forward) / step for step, forward in without)
    by_work = work[ways[1]] / work[ways[0]]
    kind, pairs = "bypass" if bypass else "weights", str(2 * settings.runs)
    row = [name, kind, pairs, f"{statistics.median(step for step, _ in without):.2f}"]
    row += [f"{by_work:.2f}x", f"{by_forward:.2f}x"]
    for way in ways[1:]:
        # Of runs beside each other: what slows one of them slows the other.
        took = statistics.median(one / other for (one, _), (other, _) in zip(seconds[way], without))
        row += [f"{took:.2f}x", f"{took * work[ways[0]] / work[way] - 1:+.1%}", f"{took / by_forward - 1:+.1%}"]
    print(row, flush=True)
    return row


SECTIONS = {"memory": memory, "beforehand": beforehand, "recipes": recipes, "cases": cases, "time": time}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5, help="of each way that is timed (default 5)")
    parser.add_argument("--only", metavar="NAME,...", default=",".join(SECTIONS), help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--families", metavar="NAME,...", default=",".join(FAMILIES), help="(default all)")
    parser.add_argument("--quick", action="store_true", help="two families, into output/: to see whether it runs")
    options = parser.parse_args()
    folder = ROOT / "output" / "bench" if options.quick else Path(__file__).resolve().parent
    folder.mkdir(parents=True, exist_ok=True)
    chosen = ("flux", "z_image") if options.quick else tuple(options.families.split(","))
    settings = Settings(1 if options.quick else options.runs, chosen, folder)
    logging.disable(logging.WARNING)
    enter_host("--cpu")
    import folder_paths

    for name in ("checkpoints", "diffusion_models", "vae"):
        folder_paths.add_model_folder_path(name, str(Path(os.environ["HEADROOM_MODELS"]) / "models" / name))
    torch.set_num_threads(1)
    report = Report(folder / "training.md", INTRODUCTION, TITLES)
    for name in options.only.split(","):
        report.measure(name, partial(SECTIONS[name], settings), settings.runs)


if __name__ == "__main__":
    main()
