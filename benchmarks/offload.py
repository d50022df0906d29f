"""Block offload on a virtual clock: which blocks stay, how many slots, and what streaming costs; and a chart.

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

from headroom.memory.chart import BACKGROUND, FAINT, INK  # noqa: E402
from headroom.offload.schedule import BlockCost, least_budget, spread_residents  # noqa: E402
from headroom.offload.virtual_clock import efficiency, simulate, total_seconds  # noqa: E402

SLOTS = 2
TITLES = {"schedule": "Schedule", "cards": "Models on cards"}
INTRODUCTION = """# Block offload: schedule

**Nothing here was measured on a GPU.** Every number is computed by the virtual clock of `offload/virtual_clock.py`:
blocks run one after the other, transfers share one link in order, a transfer waits until its staging slot is free, and
a block waits for its transfer. Latencies, launch overhead, fragmentation and a link shared with other work are left
out, and so are text encoders, the VAE and activations. The cards' figures below are assumptions, not measurements.

Efficiency = ideal time of a step over its time on the clock; ideal = the longer one of all compute and all transfers of
the same plan. "Synchronous" copies a block, then computes it. "First N" streams the first N blocks and keeps the rest,
as common block-swap nodes do. "Headroom" spreads the resident blocks between the streamed ones
(`spread_residents`), without being told the bandwidth where nothing else is said. Staging slots count towards the
budget."""


# -------------------------------------------------------------------------------------------------------- models


@dataclass(frozen=True)
class Work:
    """A block's weights, and the floating point operations of a step, the whole batch included."""

    weights: float
    flops: float

    def __add__(self, other: Work) -> Work:
        return Work(self.weights + other.weights, self.flops + other.flops)

    def times(self, batch: int) -> Work:
        return Work(self.weights, self.flops * batch)


@dataclass(frozen=True)
class Model:
    """The blocks of a diffusion model in the order in which they run."""

    name: str
    batch: int
    blocks: tuple[Work, ...]

    @property
    def weights(self) -> float:
        return sum(block.weights for block in self.blocks)

    @property
    def flops_per_sample(self) -> float:
        return sum(block.flops for block in self.blocks) / self.batch

    def costs(self, card: Card, bytes_per_weight: int) -> list[BlockCost]:
        return [BlockCost(int(block.weights * bytes_per_weight), block.flops / card.flops) for block in self.blocks]


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

    def model(self, name: str, batch: int, *, by_layer: bool = False) -> Model:
        blocks = [[layer] for block in self.blocks() for layer in block] if by_layer else self.blocks()
        return Model(name, batch, tuple(sum(block, Work(0, 0)).times(batch) for block in blocks))


def flux() -> Model:
    """1024 px: 4096 tokens of the picture and 512 of text; in a double block each half of them has its own weights."""
    width, tokens = 3072, 4096 + 512
    core = attention(tokens, tokens, width)
    double = Work(340e6, 340e6 * 2 * tokens * 0.5) + core  # 0.5 and 0.8: the rest are modulations, once per picture
    single = Work(141e6, 141e6 * 2 * tokens * 0.8) + core
    return Model("Flux, 1024 px", 1, (double,) * 19 + (single,) * 38)


def wan(batch: int) -> Model:
    """14B, 832 x 480, 81 frames: 21 latent frames of 30 x 52 tokens; self-, cross-attention and feed-forward."""
    width, inner, text, tokens = 5120, 13824, 512, 21 * 30 * 52
    block = linear((4 + 2) * width**2 + 2 * width * inner, tokens) + linear(2 * width**2, text)
    block += attention(tokens, tokens, width) + attention(tokens, text, width)
    return Model(f"Wan 14B, 480p, 81 frames, batch {batch}", batch, (block.times(batch),) * 40)


SD15 = UNet((320, 640, 1280, 1280), (1, 1, 1, 0), 1, 768, 64)
SDXL = UNet((320, 640, 1280), (0, 2, 10), 10, 2048, 128)
FLUX = flux()
MODELS = (
    SD15.model("SD1.5, 512 px, batch 2", 2),
    SDXL.model("SDXL, 1024 px, batch 2", 2),
    SDXL.model("SDXL by layer", 2, by_layer=True),
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


def first_swapped(costs: Sequence[BlockCost], budget: int, slots: int) -> frozenset[int] | None:
    """Resident blocks if the first blocks are swapped, as few as the budget allows; None if it allows no plan."""
    for count in range(len(costs) + 1):
        largest = max((cost.bytes for cost in costs[:count]), default=0)
        if sum(cost.bytes for cost in costs[count:]) + slots * largest <= budget:
            return frozenset(range(count, len(costs)))
    return None


def spread(
    costs: Sequence[BlockCost], budget: int, slots: int, bandwidth: float | None = None
) -> frozenset[int] | None:
    """Resident blocks by the pack's own plan; None if the budget allows none."""
    if budget < least_budget(costs, slots):
        return None
    return spread_residents(costs, budget, slots, bandwidth).resident


@dataclass(frozen=True)
class Way:
    """A way to offload within a budget: who chooses the resident blocks, and the slots."""

    name: str
    choose: Callable[[Sequence[BlockCost], int, int], frozenset[int] | None]
    slots: int

    def step(self, costs: Sequence[BlockCost], budget: int, bandwidth: float) -> float | None:
        """Seconds, or None if the budget allows no plan."""
        resident = self.choose(costs, budget, self.slots)
        return None if resident is None else simulate(costs, resident, bandwidth, self.slots).step_seconds


WAYS = (
    Way("synchronous", spread, 0),
    Way("first N, 2 slots", first_swapped, SLOTS),
    Way("Headroom", spread, SLOTS),
)


# ------------------------------------------------------------------------------------------------------ schedule

EQUAL, SIZE = 24, 1000
RATIOS, KEPT = (0.5, 1.0, 1.5, 2.0, 4.0), (0, 12, 18)
EVERY_RATIO = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
FINE_RATIOS = tuple(0.25 + 0.05 * step for step in range(76))


def schedule_section() -> Section:
    """Equal blocks, where it is plain to see what the order does."""
    section = Section()
    worst = {slots: least_equal(EVERY_RATIO, slots) for slots in (SLOTS, SLOTS + 1)}
    fine = {slots: least_equal(FINE_RATIOS, slots) for slots in (SLOTS, SLOTS + 1)}
    ratios = ", ".join(f"{ratio:g}" for ratio in EVERY_RATIO)
    section.least(f"equal blocks, 2 slots, every budget, ratios {ratios}: efficiency", 98, 100 * worst[2][0], "%")
    section.least("the same, ratios from 0.25 to 4 in steps of 0.05", 98, 100 * fine[2][0], "%")
    section.least("the same with 3 slots", 98, 100 * fine[3][0], "%")
    section.parts.append(ABOUT_SCHEDULE.format(blocks=EQUAL))
    rows = [(f"{ratio:g}", kept, *equal_row(ratio, kept)) for ratio in RATIOS for kept in KEPT]
    header = (
        "transfer / compute",
        "resident",
        "synchronous",
        "spread, 1 slot",
        "spread, 2",
        "first N, 2",
        "first N, 4",
    )
    section.table(header, rows)
    _, ratio, kept = fine[SLOTS]
    section.parts.append(ABOUT_HARD.format(ratio=ratio, kept=kept, blocks=EQUAL))
    return section


ABOUT_SCHEDULE = """Efficiency in percent, {blocks} equal blocks; transfer / compute of one block. Every column has the
same resident blocks, slots come on top."""
ABOUT_HARD = """Two slots are not enough where a few resident blocks stand between many streamed ones and compute just
balances the link; the worst is {kept} of {blocks} resident at a ratio of {ratio:.2f}. There the link has to wait at
each resident block for want of a third slot. It is the slots, not the choice: the unit tests try every choice of one to
three resident blocks of twelve, and none is faster."""


def equal_row(ratio: float, kept: int) -> list[str]:
    costs, bandwidth = [BlockCost(SIZE, 1.0)] * EQUAL, SIZE / ratio
    spreads = [spread(costs, (kept + slots) * SIZE, slots) for slots in (1, SLOTS)]
    last = frozenset(range(EQUAL - kept, EQUAL))
    cases = ((spreads[0], 0), (spreads[0], 1), (spreads[1], SLOTS), (last, SLOTS), (last, 2 * SLOTS))
    found = []
    for resident, slots in cases:
        assert resident is not None
        assert len(resident) == kept
        found.append(f"{100 * efficiency(costs, resident, bandwidth, slots):.0f}")
    return found


def least_equal(ratios: Sequence[float], slots: int) -> tuple[float, float, int]:
    """The least efficiency of equal blocks at any budget, its ratio, and the resident blocks."""
    costs = [BlockCost(SIZE, 1.0)] * EQUAL
    plans = [spread_residents(costs, blocks * SIZE, slots).resident for blocks in range(slots, EQUAL)]
    return min((efficiency(costs, plan, SIZE / ratio, slots), ratio, len(plan)) for plan in plans for ratio in ratios)


# ------------------------------------------------------------------------------------------------- models on cards


def cards_section() -> Section:
    """Four models on four cards at budgets of their weights; Flux at every budget."""
    section = Section()
    check_totals(section)
    lows = mixed_lows()
    section.least("Flux at 25, 50 and 75 % on every card: efficiency", 95, 100 * quarters(), "%")
    section.least("Flux at every budget from a quarter on, in steps of 1 %", 95, 100 * min(low[2] for low in lows), "%")
    section.least("Flux at every budget from the least on, in steps of 1 %", 95, 100 * min(low[1] for low in lows), "%")
    section.parts.append("### What is assumed")
    section.table(
        ("card", "link", "TFLOP/s", "GB/s"),
        [(card.name, card.link, f"{card.flops / 1e12:g}", f"{card.bandwidth / 1e9:g}") for card in CARDS],
    )
    section.table(("model", "blocks", "weights", "TFLOP per sample"), [totals_row(model) for model in MODELS])
    section.parts += ["### Weights that can be streamed for free", ABOUT_FREE]
    section.table(("model", *(card.name for card in CARDS)), [free_row(model) for model in MODELS])
    for model in MODELS:
        section.parts.append(f"### {model.name}")
        section.table(STEP_HEADER, list(step_rows(model)))
    section.parts += ["### Flux at every budget", ABOUT_MIXED]
    section.table(MIXED_HEADER, [mixed_row(low) for low in lows])
    section.parts.append("![Step time of Flux over the budget](offload.png)")
    return section


ABOUT_FREE = """The most bytes that a step's compute can hide, over the bytes of all weights: bf16 (8 bits). Compute is
taken to be the same for both."""
STEP_HEADER = ("card", "weights", "budget", *(way.name for way in WAYS), "efficiency of Headroom")
ABOUT_MIXED = """Double blocks take longer to transfer for their compute than single blocks. Least efficiency over all
budgets in steps of 1 % of the weights, from the least budget on, and which budgets are below 95 %. What a plan with
most of the blocks streamed can reach is limited: where all is streamed there is nothing to choose."""
MIXED_HEADER = (
    "card",
    "weights",
    "transfer / compute",
    "from the least",
    "from 25 %",
    "below 95 %",
    "from 25 %, bandwidth known",
    "from 25 %, 3 slots",
)


def check_totals(section: Section) -> None:
    for model in MODELS:
        if model.name in PUBLISHED:
            weights, flops = PUBLISHED[model.name]
            off = max(abs(model.weights / weights - 1), abs(model.flops_per_sample / flops - 1))
            section.most(f"{model.name}: totals off what is published", 100 * TOTALS_WITHIN, 100 * off, "%")


def totals_row(model: Model) -> tuple[object, ...]:
    return model.name, len(model.blocks), f"{model.weights / 1e9:.2f} G", f"{model.flops_per_sample / 1e12:.4g}"


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
                steps = [way.step(costs, budget, card.bandwidth) for way in WAYS]
                cells = [f"{step / total_seconds(costs):.2f}x" if step else "too small" for step in steps]
                resident = spread(costs, budget, SLOTS)
                least = f"needs {100 * least_budget(costs, SLOTS) / total_bytes(costs):.0f} %"
                reached = least if resident is None else reach(costs, resident, card.bandwidth)
                yield card.name, storage, f"{percent} %", *cells, reached


def reach(costs: Sequence[BlockCost], resident: frozenset[int], bandwidth: float) -> str:
    return f"{100 * efficiency(costs, resident, bandwidth, SLOTS):.1f} %"


def total_bytes(costs: Sequence[BlockCost]) -> int:
    return sum(cost.bytes for cost in costs)


def quarters() -> float:
    """The least efficiency of Flux at the tables' budgets."""
    return min(
        found
        for card in CARDS
        for size in STORAGES.values()
        for found in flux_reach(card, size, SLOTS, BUDGETS).values()
    )


def flux_reach(
    card: Card, size: int, slots: int, percents: Sequence[int], *, informed: bool = False
) -> dict[int, float]:
    """Efficiency of Flux by budget; budgets that are too small are left out."""
    costs = FLUX.costs(card, size)
    found = {}
    for percent in percents:
        resident = spread(costs, total_bytes(costs) * percent // 100, slots, card.bandwidth if informed else None)
        if resident is not None:
            found[percent] = efficiency(costs, resident, card.bandwidth, slots)
    return found


Low = tuple[tuple[str, ...], float, float, str, float, float]


def mixed_lows() -> list[Low]:
    """Per card and storage: names; least of all, least from a quarter on, where below 95 %, and two comparisons."""
    lows: list[Low] = []
    for card in CARDS:
        for storage, size in STORAGES.items():
            costs = FLUX.costs(card, size)
            ratio = total_bytes(costs) / card.bandwidth / total_seconds(costs)
            found = flux_reach(card, size, SLOTS, range(1, 100))
            larger = range(25, 100)
            quarter = min(found[percent] for percent in larger)
            below = [percent for percent, value in found.items() if value < 0.95]
            known = min(flux_reach(card, size, SLOTS, larger, informed=True).values())
            third = min(flux_reach(card, size, SLOTS + 1, larger).values())
            names = card.name, storage, f"{ratio:.2f}"
            lows.append((names, min(found.values()), quarter, spans(below), known, third))
    return lows


def mixed_row(low: Low) -> tuple[str, ...]:
    names, least, quarter, below, known, third = low
    return (
        *names,
        *(f"{100 * value:.1f} %" for value in (least, quarter)),
        below,
        f"{100 * known:.1f} %",
        (f"{100 * third:.1f} %"),
    )


def spans(numbers: Sequence[int]) -> str:
    """Percentages such as "6-14, 47 %"; empty if there are none."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return ", ".join(parts) + " %" if parts else ""


# --------------------------------------------------------------------------------------------------------- chart

INKS = {"synchronous": "#8b919c", "first N, 2 slots": "#e6865a", "Headroom": "#5aa9e6"}
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
    percents = [percent / 2 for percent in range(4, 201)]
    budgets = [int(total_bytes(costs) * percent / 100) for percent in percents]
    for way in WAYS:
        steps = [way.step(costs, budget, card.bandwidth) for budget in budgets]
        shown = [(percent, step / resident) for percent, step in zip(percents, steps) if step]
        axes.plot(*zip(*shown), color=INKS[way.name], linewidth=2, label=way.name)
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
    return {"schedule": schedule_section, "cards": partial(cards_with_chart, folder)}


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
