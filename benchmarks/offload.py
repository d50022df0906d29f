"""Block offload on a virtual clock: which layers stay, how large a ring, and what streaming costs; and a chart.

Each section is written to ``offload.md`` as soon as it is done; ``--only`` computes some of them anew.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
from _harness import ROOT, load_package
from _sections import Report, Section

load_package()
matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
from _offload_clock import (  # noqa: E402
    efficiency,
    evenly_spaced,
    plain_step,
    simulate,
    total_bytes,
    total_seconds,
)

from headroom.memory.render.chart import BACKGROUND, FAINT, INK  # noqa: E402
from headroom.offload.costs import LayerCost  # noqa: E402
from headroom.offload.schedule import Plan, PlanSearch, least_budget, spread_residents  # noqa: E402

TITLES = {"cards": "Models on cards"}
INTRODUCTION = """# Block offload: schedule

**Nothing here was measured on a GPU** ([gpu.md](gpu.md) is). Samplings by the real code on an emulated card, beside the
host's own streaming:
[offload_grid.md](offload_grid.md). The numbers of the models on cards are computed by the virtual clock of
`benchmarks/_offload_clock.py`: layers run one after the other, transfers share one link in order, a transfer waits
until its bytes of the ring are free, and a layer waits for its transfer. Latencies, launch overhead, fragmentation and
a link shared with other work are left out, and so are text encoders, the VAE and activations. The cards' figures below
are assumptions, not measurements.

Reached = ideal time of a step over its time on the clock; ideal = the longer one of all compute and all transfers of
the same plan. "Synchronous" copies a layer, then computes it. "Plain streaming" is the host's own without dynamic VRAM:
the largest layers stay, the others go through two buffers. "Headroom" spreads the streamed layers between the resident
ones (`spread_residents`) and is not told how fast card or link are where nothing else is said. The ring and the buffers
count towards the budget. What layers kept in the ring gain during a run (`layers_to_keep`) is left out here."""


# -------------------------------------------------------------------------------------------------------- models


@dataclass(frozen=True)
class Work:
    """A layer's weights, and the floating point operations of a step, the whole batch included."""

    weights: float
    flops: float

    def __add__(self, other: Work) -> Work:
        return Work(self.weights + other.weights, self.flops + other.flops)

    def times(self, batch: int) -> Work:
        return Work(self.weights, self.flops * batch)


@dataclass(frozen=True)
class Model:
    """The layers of a diffusion model in the order in which they run, and the number of its blocks."""

    name: str
    batch: int
    blocks: int
    layers: tuple[Work, ...]

    @property
    def weights(self) -> float:
        return sum(layer.weights for layer in self.layers)

    @property
    def flops_per_sample(self) -> float:
        return sum(layer.flops for layer in self.layers) / self.batch

    def costs(self, card: Card, bytes_per_weight: int) -> list[LayerCost]:
        return [LayerCost(int(layer.weights * bytes_per_weight), layer.flops / card.flops) for layer in self.layers]


def linear(weights: float, tokens: int) -> Work:
    """Weights that every token (or pixel) is multiplied with."""
    return Work(weights, 2 * weights * tokens)


def attention(queries: int, keys: int, channels: int) -> Work:
    return Work(0, 4 * queries * keys * channels)


@dataclass(frozen=True)
class UNet:
    """The published structure of a Stable Diffusion UNet.

    Attributes:
        channels: of each level.
        depths: transformer blocks in each attention block of each level.
        middle: transformer blocks in the middle.
        text: channels of the prompt.
        side: rows of the latent.
    """

    channels: tuple[int, ...]
    depths: tuple[int, ...]
    middle: int
    text: int
    side: int
    text_tokens: int = 77

    def blocks(self) -> Iterator[list[Work]]:
        """Input, middle and output blocks, each as its layers."""
        kept, now, top = [self.channels[0]], self.channels[0], len(self.channels) - 1
        yield [linear(9 * 4 * now, self.pixels(0))]
        for level, width in enumerate(self.channels):
            for _ in range(2):
                yield [self.residual(now, width, level), *self.transformer(width, self.depths[level], level)]
                now = width
                kept.append(now)
            if level < top:
                yield [linear(9 * now * now, self.pixels(level + 1))]
                kept.append(now)
        ends = self.residual(now, now, top)
        yield [ends, *self.transformer(now, self.middle, top), ends]
        for level in range(top, -1, -1):
            width = self.channels[level]
            for number in range(3):
                layers = [self.residual(now + kept.pop(), width, level)]
                layers += self.transformer(width, self.depths[level], level)
                if level and number == 2:
                    layers.append(linear(9 * width * width, self.pixels(level - 1)))
                yield layers
                now = width

    def residual(self, before: int, after: int, level: int) -> Work:
        """Two convolutions, the time embedding, and a shortcut where the channels change."""
        shortcut = before * after if before != after else 0
        embedding = linear(4 * self.channels[0] * after, 1)
        return linear(9 * before * after + 9 * after * after + shortcut, self.pixels(level)) + embedding

    def transformer(self, width: int, depth: int, level: int) -> list[Work]:
        """Entrance, blocks of self-attention, cross-attention and a gated feed-forward, exit."""
        tokens = self.pixels(level)
        block = linear((4 + 2 + 12) * width**2, tokens) + linear(2 * width * self.text, self.text_tokens)
        block += attention(tokens, tokens, width) + attention(tokens, self.text_tokens, width)
        ends = linear(width**2, tokens)
        return [ends, *[block] * depth, ends] if depth else []

    def pixels(self, level: int) -> int:
        return (self.side >> level) ** 2

    def model(self, name: str, batch: int) -> Model:
        blocks = list(self.blocks())
        layers = tuple(layer.times(batch) for block in blocks for layer in block)
        return Model(name, batch, len(blocks), layers)


def flux() -> Model:
    """1024 px: 4096 tokens of the picture and 512 of text; in a double block each half of them has its own weights."""
    width, picture, text = 3072, 4096, 512
    square, both = width**2, picture + text
    core = attention(both, both, width)
    double = [linear(6 * square, 1), linear(6 * square, 1), linear(3 * square, picture), linear(3 * square, text), core]
    double += [linear(square, picture), linear(4 * square, picture), linear(4 * square, picture)]
    double += [linear(square, text), linear(4 * square, text), linear(4 * square, text)]
    single = [linear(3 * square, 1), linear(7 * square, both), core, linear(5 * square, both)]
    return Model("Flux, 1024 px", 1, 57, (*double * 19, *single * 38))


def wan(batch: int) -> Model:
    """14B, 832 x 480, 81 frames: 21 latent frames of 30 x 52 tokens; self-, cross-attention and feed-forward."""
    width, inner, text, tokens = 5120, 13824, 512, 21 * 30 * 52
    square = linear(width**2, tokens)
    block = [square, square, square, attention(tokens, tokens, width), square]
    block += [square, linear(width**2, text), linear(width**2, text), attention(tokens, text, width), square]
    block += [linear(width * inner, tokens), linear(width * inner, tokens)]
    layers = tuple(layer.times(batch) for layer in block) * 40
    return Model(f"Wan 14B, 480p, 81 frames, batch {batch}", batch, 40, layers)


SD15 = UNet((320, 640, 1280, 1280), (1, 1, 1, 0), 1, 768, 64)
SDXL = UNet((320, 640, 1280), (0, 2, 10), 10, 2048, 128)
FLUX = flux()
MODELS = (
    SD15.model("SD1.5, 512 px, batch 2", 2),
    SDXL.model("SDXL, 1024 px, batch 2", 2),
    FLUX,
    wan(2),
)
# Weights, and floating point operations of a sample, as published or commonly counted.
PUBLISHED = {MODELS[0].name: (0.86e9, 0.8e12), MODELS[1].name: (2.57e9, 6e12)}
TOTALS_WITHIN = 0.15


# --------------------------------------------------------------------------------------------------------- cards


@dataclass(frozen=True)
class Card:
    """Assumed sustained figures: floating point operations and bytes from pinned memory, per second."""

    name: str
    link: str
    flops: float
    bandwidth: float


CARDS = (
    Card("3060", "PCIe 3", 25e12, 12e9),
    Card("4070 Ti", "PCIe 4", 80e12, 24.5e9),
    Card("4090", "PCIe 4", 150e12, 24.5e9),
    Card("5090", "PCIe 5", 190e12, 50e9),
)
STORAGES = {"bf16": 2, "8 bits": 1}
BUDGETS = (25, 50, 75)  # percent of the weights


def synchronous_step(costs: Sequence[LayerCost], budget: int, bandwidth: float) -> float | None:
    """Of as many resident layers as leave room for the largest."""
    largest = max(cost.bytes for cost in costs)
    if budget < largest:
        return None
    return total_seconds(costs) + max(0, total_bytes(costs) - (budget - largest)) / bandwidth


def plain(costs: Sequence[LayerCost], budget: int, bandwidth: float) -> float | None:
    step = plain_step(costs, budget, bandwidth)
    return None if step == float("inf") else step


def headroom_step(costs: Sequence[LayerCost], budget: int, bandwidth: float) -> float | None:
    """By the pack's own plan; None if the budget allows none."""
    plan = planned(costs, budget)
    return None if plan is None else step_by(costs, plan, bandwidth)


def planned(costs: Sequence[LayerCost], budget: int) -> Plan | None:
    return None if budget < least_budget(costs) else spread_residents(costs, budget)


def informed(costs: Sequence[LayerCost], budget: int, bandwidth: float) -> Plan:
    """Planned for a link that is known."""
    return PlanSearch(tuple(costs), budget, budget, (bandwidth,)).best()


WAYS: dict[str, Callable[[Sequence[LayerCost], int, float], float | None]] = {
    "synchronous": synchronous_step,
    "plain streaming": plain,
    "Headroom": headroom_step,
}


# ------------------------------------------------------------------------------------------------- models on cards


def cards_section() -> Section:
    """Four models on four cards at budgets of their weights; Flux at every budget."""
    section = Section()
    check_totals(section)
    lows = flux_lows()
    section.least("Flux at 25, 50 and 75 % on every card: reached", 95, 100 * quarters(), "%")
    section.least(
        "Flux at every budget from a quarter on, in steps of 10 %", 95, 100 * min(low[1] for low in lows), "%"
    )
    section.most("Flux at every budget from 5 % on: over plain streaming", 1, max(low[2] for low in lows))
    section.parts.append("### What is assumed")
    section.table(
        ("card", "link", "TFLOP/s", "GB/s"),
        [(card.name, card.link, f"{card.flops / 1e12:g}", f"{card.bandwidth / 1e9:g}") for card in CARDS],
    )
    section.table(("model", "blocks", "layers", "weights", "TFLOP per sample"), [totals_row(model) for model in MODELS])
    section.parts += ["### Weights that can be streamed for free", ABOUT_FREE]
    section.table(("model", *(card.name for card in CARDS)), [free_row(model) for model in MODELS])
    for model in MODELS:
        section.parts.append(f"### {model.name}")
        section.table(STEP_HEADER, list(step_rows(model)))
    section.parts += ["### Flux at every budget", ABOUT_FLUX]
    section.table(FLUX_HEADER, [low[0] for low in lows])
    section.parts += ["### What the search for a plan gains", ABOUT_EVEN]
    section.table(EVEN_HEADER, [even_row(model) for model in MODELS])
    section.parts.append("![Step time of Flux over the budget](offload.png)")
    return section


ABOUT_FREE = """The most bytes that a step's compute can hide, over the bytes of all weights: bf16 (8 bits). Compute is
taken to be the same for both."""
STEP_HEADER = ("card", "weights", "budget", *WAYS, "reached by Headroom", "ring")
ABOUT_FLUX = """The least that is reached, and the most of a step over a step of plain streaming in the same memory and
over one that is planned with the card known; budgets in steps of 10 % of the weights from 5 % on. The layers of double
blocks take longer to transfer for their compute than those of single blocks: where nearly all is streamed and compute
just balances the link, nothing can make up for that, and a plan with less to stream would not be faster."""
FLUX_HEADER = (
    "card", "weights", "transfer / compute", "reached, from 25 %", "over plain streaming, from 5 %", "over a known card"
)  # fmt: skip

ABOUT_EVEN = """A step with evenly spaced streamed layers and a ring for the two largest, over a step by the pack's own
plan: on all cards, in both storages, budgets in steps of 10 % of the weights from 5 % on. Points: where the even plan
has room."""
EVEN_HEADER = "model", "points", "least", "mean", "most"


def check_totals(section: Section) -> None:
    for model in MODELS:
        if model.name in PUBLISHED:
            weights, flops = PUBLISHED[model.name]
            off = max(abs(model.weights / weights - 1), abs(model.flops_per_sample / flops - 1))
            section.most(f"{model.name}: totals off what is published", 100 * TOTALS_WITHIN, 100 * off, "%")


def totals_row(model: Model) -> tuple[object, ...]:
    return (
        model.name,
        model.blocks,
        len(model.layers),
        f"{model.weights / 1e9:.2f} G",
        f"{model.flops_per_sample / 1e12:.4g}",
    )


def free_row(model: Model) -> tuple[str, ...]:
    cells = []
    for card in CARDS:
        shares = []
        for size in STORAGES.values():
            costs = model.costs(card, size)
            shares.append(min(1.0, total_seconds(costs) * card.bandwidth / total_bytes(costs)))
        cells.append(f"{100 * shares[0]:.0f} % ({100 * shares[1]:.0f})")
    return model.name, *cells


def step_rows(model: Model) -> Iterator[tuple[str, ...]]:
    """Step times relative to all weights resident."""
    for card in CARDS:
        for storage, size in STORAGES.items():
            costs = model.costs(card, size)
            for percent in BUDGETS:
                budget = total_bytes(costs) * percent // 100
                steps = [way(costs, budget, card.bandwidth) for way in WAYS.values()]
                cells = [f"{step / total_seconds(costs):.2f}x" if step else "too small" for step in steps]
                plan = planned(costs, budget)
                assert plan is not None
                reached = f"{100 * reach(costs, plan, card.bandwidth):.1f} %"
                yield card.name, storage, f"{percent} %", *cells, reached, f"{plan.staging >> 20} MB"


def reach(costs: Sequence[LayerCost], plan: Plan, bandwidth: float) -> float:
    return efficiency(costs, plan.resident, bandwidth, plan.staging)


def quarters() -> float:
    """The least that Flux reaches at the tables' budgets."""
    found = []
    for card in CARDS:
        for size in STORAGES.values():
            costs = FLUX.costs(card, size)
            for percent in BUDGETS:
                plan = planned(costs, total_bytes(costs) * percent // 100)
                assert plan is not None
                found.append(reach(costs, plan, card.bandwidth))
    return min(found)


def flux_lows() -> list[tuple[tuple[str, ...], float, float]]:
    """Per card and storage: a row, the least reached from a quarter on, and the most over plain streaming."""
    lows = []
    for card in CARDS:
        for storage, size in STORAGES.items():
            costs = FLUX.costs(card, size)
            reached, over, known = [], [], []
            for percent in range(5, 100, 10):
                budget = total_bytes(costs) * percent // 100
                plan, told = planned(costs, budget), informed(costs, budget, card.bandwidth)
                assert plan is not None
                step = step_by(costs, plan, card.bandwidth)
                over.append(round(step / plain_step(costs, budget, card.bandwidth), 9))  # rounding apart
                known.append(step / step_by(costs, told, card.bandwidth))
                reached += [reach(costs, plan, card.bandwidth)] if percent >= 25 else []
            ratio = total_bytes(costs) / card.bandwidth / total_seconds(costs)
            shown = f"{100 * min(reached):.1f} %", f"{max(over):.3f}x", f"{max(known):.3f}x"
            lows.append(((card.name, storage, f"{ratio:.2f}", *shown), min(reached), max(over)))
    return lows


def even_row(model: Model) -> tuple[str, ...]:
    ratios = [
        step_by(costs, even, card.bandwidth) / step_by(costs, plan, card.bandwidth)
        for card in CARDS
        for size in STORAGES.values()
        for costs in [model.costs(card, size)]
        for percent in range(5, 100, 10)
        for budget in [total_bytes(costs) * percent // 100]
        if (even := evenly_spaced(costs, budget)) and (plan := planned(costs, budget))
    ]
    cells = (min(ratios), sum(ratios) / len(ratios), max(ratios))
    return model.name, str(len(ratios)), *(f"{ratio:.3f}x" for ratio in cells)


def step_by(costs: Sequence[LayerCost], plan: Plan, bandwidth: float) -> float:
    return simulate(costs, plan.resident, bandwidth, plan.staging).step_seconds


# --------------------------------------------------------------------------------------------------------- chart

INKS = {"synchronous": "#8b919c", "plain streaming": "#e6865a", "Headroom": "#5aa9e6"}
FLOOR, FLOOR_INK = "floor: perfect overlap, no staging", "#7bc47f"


def draw_chart(folder: Path) -> None:
    """Step time of Flux in bf16 over the budget, relative to all weights resident, on two cards."""
    inks: dict[Any, Any] = dict.fromkeys(("text.color", "xtick.color", "ytick.color", "axes.labelcolor"), INK)
    with plt.rc_context({**inks, "axes.edgecolor": FAINT, "figure.facecolor": BACKGROUND, "font.size": 11}):
        figure, panels = plt.subplots(1, 2, figsize=(11, 5), sharey=True)
        for axes, card in zip(panels, (CARDS[2], CARDS[0])):
            draw_panel(axes, card)
        panels[0].set_ylabel("step time / all resident (less is better)")
        panels[0].legend(loc="upper right", frameon=False)
        figure.suptitle("Flux, 1024 px, bf16: what a VRAM budget costs (computed, not measured)", x=0.02, ha="left")
        figure.tight_layout()
        figure.savefig(folder / "offload.png", dpi=100)
        plt.close(figure)


def draw_panel(axes: plt.Axes, card: Card) -> None:
    costs = FLUX.costs(card, STORAGES["bf16"])
    resident = total_seconds(costs)
    percents = list(range(2, 101, 2))
    budgets = [int(total_bytes(costs) * percent / 100) for percent in percents]
    for name, way in WAYS.items():
        steps = [way(costs, budget, card.bandwidth) for budget in budgets]
        shown = [(percent, step / resident) for percent, step in zip(percents, steps) if step]
        axes.plot(*zip(*shown), color=INKS[name], linewidth=2, label=name)
    floor = [max(1.0, (total_bytes(costs) - budget) / card.bandwidth / resident) for budget in budgets]
    axes.plot(percents, floor, color=FLOOR_INK, linestyle=":", linewidth=2, label=FLOOR)
    axes.set_facecolor(BACKGROUND)
    axes.set_title(
        f"{card.name}, {card.link}, {card.bandwidth / 1e9:g} GB/s, {card.flops / 1e12:g} TFLOP/s", fontsize=11
    )
    axes.set_xlabel("budget, % of the weights")
    axes.grid(color=FAINT, alpha=0.2)
    axes.yaxis.set_major_formatter("{x:g}x")


# ------------------------------------------------------------------------------------------------------- command


def cards_with_chart(folder: Path) -> Section:
    section = cards_section()
    draw_chart(folder)
    return section


def sections(folder: Path) -> dict[str, Callable[[], Section]]:
    return {"cards": partial(cards_with_chart, folder)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", metavar="NAME,...", help=f"of {', '.join(TITLES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="into output/: to see whether it runs")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(TITLES)
    if unknown := [name for name in names if name not in TITLES]:
        parser.error(f"unknown section: {', '.join(unknown)}")
    folder = ROOT / "output" / "bench" if options.quick else Path(__file__).resolve().parent
    folder.mkdir(parents=True, exist_ok=True)
    report = Report(folder / "offload.md", INTRODUCTION, TITLES)
    for name in names:
        report.measure(name, sections(folder)[name], 1)


if __name__ == "__main__":
    main()
