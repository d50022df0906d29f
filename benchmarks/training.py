"""A LoRA's training by ComfyUI's own node: memory of a step by checkpoints of its own and of Training Memory's plans.

Each section is written to ``training.md`` as soon as it is done; ``--only`` measures some of them anew.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import torch
from _harness import ROOT, enter_host, interleaved_cpu_seconds, load_package, median_ratio
from _sections import Report, Section
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
family with random weights, one thread. Memory is the live bytes of all tensors beyond the weights at most over both
steps, followed one by one. "Without": no checkpoints; families that write to what autograd has saved, which it
refuses, then save copies. "Depth": the node's own `gradient_checkpointing` at that `checkpoint_depth`, 1 by default.
Attention is torch's fused one in all columns but where it says so."""
FAMILIES = (
    "sd15", "sdxl", "sd3", "flux", "flux2", "chroma", "qwen_image", "z_image", "wan21", "ltxv", "hunyuan_video",
)  # fmt: skip
IN_PLACE = {"flux", "flux2", "chroma", "ltxv", "hunyuan_video", "qwen_image"}
SIDE = 32  # cells of the latent
PLANS = ("every block", "every k-th block", "attention", "feed-forward")
CARDS = (8, 12, 16, 24)


@dataclass(frozen=True)
class Settings:
    """What the command line asks for."""

    runs: int
    families: tuple[str, ...]
    folder: Path


class Trained:
    """A family's training by name: "without", "depth N", or a plan of the node."""

    def __init__(self, name: str) -> None:
        from headroom.tests.host.families import FAMILIES as FOUND
        from headroom.tests.host.training import training_node

        self.name, self.family, self.node = name, FOUND[name], training_node()
        shape = self.family.latent(SIDE * self.family.reach, SIDE * self.family.reach).shape
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

    def run(self, way: str, attention: str = "attention_pytorch") -> Any:
        """Two steps; the row of the run log."""
        from headroom.host.measure.runs import LOG
        from headroom.host.training.checkpointed import apply_checkpoints
        from headroom.host.training.plan import TrainingPlan
        from headroom.tests.host.training import train

        model, changes = self.model(attention), dict[str, Any](optimizer="AdamW", learning_rate=1e-4)
        copies = way == "without" and self.name in IN_PLACE
        if way.startswith("depth"):
            changes |= {"gradient_checkpointing": True, "checkpoint_depth": int(way.split()[1])}
        elif way != "without":
            model, _ = apply_checkpoints(model, TrainingPlan(way, ALL))
        with saved_tensors_hooks(Tensor.clone, lambda saved: saved) if copies else nullcontext():
            train(self.node, model, self.family, self.latent, "fp32", **changes)
        return LOG.rows("", "")[-1]


def memory(settings: Settings) -> Section:
    """Live bytes of a step by each way."""
    section, rows, saved, errors = Section(), [], [], list[float]()
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
                errors.append(row.predicted.live / row.live - 1)
                cells[-1] += f" ({errors[-1]:+.1%})"
        saved.append(live["depth 1"] / live["every block"])
        rows.append([*cells, f"{saved[-1]:.1f}x"])
        print(rows[-1], flush=True)
    section.most("predicted against measured, largest error", 2.0, 100 * max(map(abs, errors)), "%")
    section.parts.append(
        f"MiB; in brackets the error of what the first step predicts ({len(errors)} cases, median"
        f" {statistics.median(map(abs, errors)):.1%}). The last column: depth 1 over every block."
    )
    section.table(["family", *ways, *PLANS, "less"], rows)
    return section


def beforehand(settings: Settings) -> Section:
    """What Will Training Fit? says, against what the training takes."""
    from headroom.host.prediction.stages import own_card
    from headroom.host.training.checkpointed import apply_checkpoints
    from headroom.host.training.estimate import forecast_training
    from headroom.host.training.plan import TrainingPlan
    from headroom.host.training.settings import TrainingSettings
    from headroom.host.training.without_data import Training

    section, rows, errors = Section(), [], list[float]()
    asked = TrainingSettings(rank=2, training_dtype="fp32", lora_dtype="fp32")
    for name in settings.families:
        trained, cells = Trained(name), [name]
        for plan in PLANS:
            model, _ = apply_checkpoints(trained.model(), TrainingPlan(plan, ALL))
            training = Training(model, trained.latent, trained.family.conditioning(1), asked)
            found = forecast_training(training, own_card(model.load_device))
            said = found.peak(found.way) - found.weights - found.adapter
            live = trained.run(plan).live
            errors.append(said / live - 1)
            cells.append(f"{said / MIB:.1f} of {live / MIB:.1f} ({errors[-1]:+.1%})")
        rows.append(cells)
        print(cells, flush=True)
    section.most("said before against measured, largest error", 2.0, 100 * max(map(abs, errors)), "%")
    within = sum(abs(error) <= 0.02 for error in errors)
    section.parts.append(
        f"MiB beyond weights and adapter, said before of measured. {within} of {len(errors)} cases are within 2 %, the"
        f" median is {statistics.median(map(abs, errors)):.2%}."
    )
    section.table(["family", *PLANS], rows)
    return section


def recipes(settings: Settings) -> Section:
    """Which plan fits which card, by prediction: models without data, read from headers."""
    from headroom.host.training.estimate import OWN, forecast_training
    from headroom.host.training.plan import EVERY_BLOCK
    from headroom.host.training.settings import TrainingSettings
    from headroom.host.training.without_data import Training
    from headroom.memory.prediction import named_card
    from headroom.memory.units import GB
    from headroom.tests.host import full_fits

    wishes = {name: wish for name, wish in full_fits.WISHES.items() if "2048" not in name}
    in_8_bits = {f"{name}, weights in fp8": replace(wish, stored=torch.float8_e4m3fn) for name, wish in wishes.items()}
    section, rows = Section(), []
    with tempfile.TemporaryDirectory() as place:
        full_fits.write_files(Path(place))
        for name, wish in (wishes | {name: wish for name, wish in in_8_bits.items() if name[0] in "FW"}).items():
            cells, own = [name], None
            for vram in CARDS:
                card = named_card("sm86", vram)
                question = full_fits.question(Path(place), wish, card)
                asked = TrainingSettings(rank=16)
                training = Training(question.model, question.latent["samples"], question.positive or (), asked)
                found = forecast_training(training, card)
                sizes = {way.name: found.peak(way) / GB for way in found.ways}
                own = (sizes[OWN], sizes[EVERY_BLOCK], found.weights / GB)
                best = found.best
                cells.append("-" if best is None else f"{best.again:.0%} again, {found.peak(best) / GB:.1f}")
            assert own is not None
            saved = (own[0] - own[2]) / (own[1] - own[2])
            rows.append([name, f"{own[2]:.1f}", f"{own[0]:.1f}", f"{own[1]:.1f}", f"{saved:.1f}x", *cells[1:]])
            print(rows[-1], flush=True)
    section.parts.append(
        "By prediction, not measured: GB of 2^30 bytes, rank 16, AdamW, bfloat16, one picture, 85 % of the card; a"
        " CPU's kernels are followed in the backward. For each card the plan that computes least of the blocks' forward"
        " again. Less: what is beside the weights, of Train LoRA's own checkpoint over every block."
    )
    head = ["model", "weights", "Train LoRA's own", "every block", "less", *(f"{vram} GB" for vram in CARDS)]
    section.table(head, rows)
    return section


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
    """CPU seconds of two steps beside what operations predict."""
    section, rows = Section(), []
    for name in settings.families:
        trained = Trained(name)
        work: dict[str, Callable[[], object]] = {
            way: partial(trained.run, way) for way in ("without", "depth 1", "every block")
        }
        seconds = interleaved_cpu_seconds(work, settings.runs, warm_ups=1)
        rows.append([name, *(f"{median_ratio(seconds, way, 'without'):.2f}x" for way in list(work)[1:])])
    section.parts.append("CPU seconds over those without checkpoints, medians of interleaved runs, loading included.")
    section.table(["family", "depth 1", "every block"], rows)
    return section


SECTIONS = {"memory": memory, "beforehand": beforehand, "recipes": recipes, "cases": cases, "time": time}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5, help="of each way that is timed (default 5)")
    parser.add_argument("--only", metavar="NAME,...", default=",".join(SECTIONS), help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--quick", action="store_true", help="two families, into output/: to see whether it runs")
    options = parser.parse_args()
    folder = ROOT / "output" / "bench" if options.quick else Path(__file__).resolve().parent
    folder.mkdir(parents=True, exist_ok=True)
    chosen = ("flux", "z_image") if options.quick else FAMILIES
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
