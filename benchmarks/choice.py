"""Make It Fit's choice on this CPU beside all ways that were measured: is what it chose the fastest that fits?

For each of ten models, with much and with little memory, every way to sample and to decode that is predicted to fit is
run, by turns; so is the plan of *Make It Fit*, which is one of them.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _harness import ROOT, load_package, measured_cpu
from _sections import Report, Section

load_package()

from headroom.memory.prediction import Card, SamplingPlan  # noqa: E402

STEPS, CFG, NEAR = 8, 5.0, 1.05
TITLES = {"choices": "Graphs"}
INTRODUCTION = f"""# Make It Fit: its choice beside all ways

What *Make It Fit* (exact) chooses on a CPU whose figures `cli/calibrate.py` measures, and the CPU seconds of {STEPS}
steps with guidance and of a decode, over those of the fastest of all measured ways that fit into the same memory:
attention as it is or by each backend, guidance together or in turns; decoded in one piece or in exact strips. What the
machine took before was not known to it. Much memory: all that there is. Little: half way between what sampling as it is
and the least of all ways take, or more where the decode needs more. Models are ComfyUI's own classes at a smaller
width, with random weights in float32. All ways take turns; medians of the runs. *Noise*: how far the medians of the odd
and of the even turns of the chosen way lie apart."""
ATTENTIONS = ("", "auto", "sdpa", "sdpa_flash", "sliced", "online")
# The VAE, the picture's side in pixels.
GRAPHS = {
    "sd15": ("sd", 256), "sdxl": ("sd", 256), "sd3": ("flux", 384), "flux": ("flux", 384), "flux2": ("flux2", 384),
    "wan21": ("wan21", 256), "ltxv": ("ltx", 512), "chroma": ("flux", 384), "qwen_image": ("wan21", 256),
    "z_image": ("flux", 384),
}  # fmt: skip


Ways = Mapping[str, Callable[[], object]]


@dataclass(frozen=True)
class Graph:
    """One of the twenty: ways to sample and to decode that fit, by their names, and those that were chosen."""

    name: str
    steps: Ways
    decodes: Ways
    chosen: tuple[str, str]


def graphs(names: list[str], card: Card) -> Iterator[Graph]:
    """Each model with much memory, then with little."""
    from headroom.host.planning.fit import changed, find_fit
    from headroom.host.prediction.stages import Question
    from headroom.tests.host.families import FAMILIES, load_vae
    from headroom.tests.host.one_step import one_call

    for name in names:
        family, (vae_name, side) = FAMILIES[name], GRAPHS[name]
        model, vae, latent = family.load(), load_vae(vae_name), family.latent(side, side)
        text = {"positive": family.conditioning(1), "negative": family.conditioning(2)}
        question = Question(model, {"samples": latent}, vae, **text, cfg=CFG)
        ways = {named(plan): plan for plan in sampling_ways(question, card)}
        peaks = [plan.stage.weights + plan.stage.activations for plan in ways.values()]
        little = (peaks[0] + min(peaks)) // 2
        while not (tight := find_fit(question, card, limit=little / card.total)).found:
            little = int(1.1 * little)
        for memory, fit in (("much", find_fit(question, card)), ("little", tight)):
            assert fit.sampling is not None
            steps = {
                way: one_call(changed(model, plan.attention, plan.in_turns), family, tuple(latent.shape), CFG)
                for way, plan in ways.items()
                if plan.fits(fit.allowed) and plan.budget(fit.allowed) is None
            }
            decodes, decoded = ways_to_decode(vae, latent, fit, card)
            yield Graph(f"{name}, {side} px, {memory}", steps, decodes, (named(fit.sampling), decoded))


def sampling_ways(question: Any, card: Card) -> Iterator[SamplingPlan]:
    """Every way to sample without loss."""
    from headroom.host.planning.fit import SamplingWays

    ways = SamplingWays(question, card)
    for turns in (False, True):
        for attention in ATTENTIONS:
            yield ways.plan(attention, turns)


def named(plan: SamplingPlan) -> str:
    return f"{plan.attention or 'as it is'}{', in turns' if plan.in_turns else ''}"


def ways_to_decode(vae: Any, latent: Any, fit: Any, card: Card) -> tuple[Ways, str]:
    """Ways to decode without loss in the memory of a fit, and the name of the one that it chose."""
    from headroom.host.prediction.stages import coding_stage
    from headroom.host.prediction.vae import Coding
    from headroom.host.vae.wrapper import planned_vae

    settings = fit.vae.settings
    found: dict[str, Callable[[], object]] = {}
    if coding_stage(Coding(vae, latent), card).peak <= fit.allowed:
        found["in one piece"] = partial(vae.decode, latent)
    found["exact strips"] = partial(planned_vae(vae, replace(settings, method="exact")).decode, latent)
    return found, "exact strips" if settings.method == "exact" else "in one piece"


def measured(graph: Graph, runs: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """CPU seconds of each way to sample and to decode; they take turns, and the first turn is a warm-up."""
    steps: dict[str, list[float]] = {way: [] for way in graph.steps}
    decodes: dict[str, list[float]] = {way: [] for way in graph.decodes}
    for turn in range(runs + 1):
        for works, kept in ((graph.steps, steps), (graph.decodes, decodes)):
            for way, work in works.items():
                start = time.process_time()
                work()
                if turn:
                    kept[way].append(time.process_time() - start)
    return steps, decodes


def compared(graph: Graph, runs: int) -> tuple[list[str], float]:
    """A row, and the seconds of what was chosen over those of the fastest."""
    steps, decodes = measured(graph, runs)
    (step, decode), total = graph.chosen, lambda turns: STEPS * median(turns[0]) + median(turns[1])
    fastest = tuple(min(found, key=lambda way: median(found[way])) for found in (steps, decodes))
    chosen, best = total((steps[step], decodes[decode])), total((steps[fastest[0]], decodes[fastest[1]]))
    odd, even = (total((steps[step][one::2], decodes[decode][one::2])) for one in (0, 1))
    cells = [graph.name, f"{len(steps)} x {len(decodes)}", f"{step}; {decode}", "; ".join(fastest), f"{best:.2f} s"]
    return [*cells, f"{chosen / best:.3f}x", f"{abs(odd / even - 1):.1%}"], chosen / best


def section(names: list[str], runs: int, threads: int, card: Card) -> Section:
    found = []
    for graph in graphs(names, card):
        found.append(compared(graph, runs))
        print("; ".join(found[-1][0]), file=sys.stderr, flush=True)
    result, ratios = Section(), [ratio for _, ratio in found]
    result.goal(
        f"within 5 % of the fastest, {threads} thread{'s' * (threads > 1)}",
        f"{len(found)} of {len(found)}",
        f"{sum(ratio <= NEAR for ratio in ratios)}",
        all(ratio <= NEAR for ratio in ratios),
    )
    result.most("worst", NEAR, max(ratios))
    result.table(
        ("graph", "ways", "chosen", "fastest", "seconds of it", "chosen over it", "noise"), [row for row, _ in found]
    )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=6, help="of each way (default 6)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--models", metavar="NAME,...", default=",".join(GRAPHS))
    parser.add_argument("--quick", action="store_true", help="one model, into output/: to see whether it runs")
    options = parser.parse_args()
    if options.runs < 2:
        parser.error("--runs: noise is told by two turns at least; give 2 or more")
    folder = ROOT / "output" / "bench" if options.quick else Path(__file__).resolve().parent
    folder.mkdir(parents=True, exist_ok=True)
    logging.disable(logging.WARNING)
    names = ["sd3"] if options.quick else options.models.split(",")
    card = measured_cpu(options.threads)
    with torch.inference_mode():
        Report(folder / "choice.md", INTRODUCTION, TITLES).measure(
            "choices", partial(section, names, options.runs, options.threads, card), options.runs
        )


if __name__ == "__main__":
    main()
