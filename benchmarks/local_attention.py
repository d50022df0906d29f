"""Local attention against dense: CPU time, peak memory and error of every pattern, one thread; and a chart.

Each section is written to ``local_attention.md`` as soon as it is done; ``--only`` measures some of them anew.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib
import torch
from _harness import ROOT, interleaved_cpu_seconds, load_package, median_ratio, peak_bytes
from _sections import Report, Section, on_gpu
from torch import Tensor
from torch.nn import functional

load_package()
matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import LogLocator  # noqa: E402
from matplotlib.transforms import Bbox  # noqa: E402

from headroom.attention.local import (  # noqa: E402
    LSH,
    BigBird,
    BlockSparse,
    KMeans,
    KVPool,
    LinearElu,
    LocalGlobal,
    LocalPool,
    Pattern,
    Performer,
    Strided,
    TokenGrid,
    Window,
)
from headroom.attention.local.dense import dense as exact_attention  # noqa: E402
from headroom.memory.render.chart import BACKGROUND, FAINT, INK  # noqa: E402

MIB = 2**20
DENSE, AUTO = "dense", "exact by `auto`"
TEXT = 77  # tokens of a CLIP prompt
OFFERED_INK, MEASURED_ONLY_INK = "#5aa9e6", "#e6865a"
NODE_MAX_ERROR = 0.1  # the node's default
TITLES = {"time": "Time and memory", "error": "Error", "gpu": "On a GPU"}
INTRODUCTION = """# Local attention: time, memory and error

Every pattern of `attention/local` against dense `F.scaled_dot_product_attention` of the same call: self-attention,
8 heads of 40 channels, operands strided as a model's linear layers leave them, float32 and batch 1 where nothing else
is said. Times on a CPU are process CPU seconds at one thread, medians of interleaved runs of dense and all patterns
after one call to warm up. "exact by `auto`" is the same attention by the exact backend that the patterns compute with:
what is faster than dense by more than that is the pattern's own. Peak = most live bytes in torch's CPU allocator during
the call, output included, operands not. The patterns are described in
[`docs/local_attention.md`](../docs/local_attention.md).

Operands are synthetic feature maps, not a trained model's: sums of smooth random fields (correlation lengths of 2, 6
and 16 tokens), with or without sinusoidal positions, taken to queries, keys and values by random matrices and scaled
to a standard deviation of the scores. They have less fine detail than a trained model's, which favours pooled and
strided keys, and rank gross failures only. Pictures of a small trained model are in [`painting.md`](painting.md)."""


@dataclass(frozen=True)
class Plan:
    """What the command line asks for.

    Attributes:
        sides: rows and columns of the square grids that are timed.
        side: of the grid whose errors are measured, and where slow patterns are timed.
        heads: attention heads.
        runs: interleaved runs per case.
        folder: gets what is written.
    """

    sides: Sequence[int]
    side: int
    heads: int
    runs: int
    folder: Path


@dataclass(frozen=True)
class Entry:
    """A pattern with its parameters, as tables and the chart call it."""

    label: str
    pattern: Pattern
    offered: bool = True


DEFAULTS = (
    Entry("window r8", Window()),
    Entry("kv_pool 2", KVPool()),
    Entry("strided 2", Strided()),
    Entry("local_pool r8, 4", LocalPool()),
    Entry("block_sparse 25 %", BlockSparse()),
    Entry("local_global r8", LocalGlobal()),
    Entry("bigbird r8", BigBird()),
)
SLOW = (
    Entry("kmeans 4 of 32", KMeans()),
    Entry("LSH, 2 rounds", LSH(), offered=False),
    Entry("Performer 256", Performer(), offered=False),
)
LINEAR = Entry("linear (elu)", LinearElu(), offered=False)
WIDER = Entry("window r16", Window(radius=16))
VARIANTS = (
    WIDER,
    Entry("window r8, block 8", Window(block=8)),
    Entry("kv_pool 4", KVPool(4)),
    Entry("strided 4", Strided(4)),
    Entry("local_pool r4, 4", LocalPool(radius=4)),
    Entry("block_sparse 50 %", BlockSparse(keep=0.5)),
    Entry("kmeans 8 of 32", KMeans(top=8)),
    Entry("LSH, 8 rounds", LSH(rounds=8), offered=False),
    Entry("Performer 1024", Performer(features=1024), offered=False),
)
MAIN = (DEFAULTS[0], WIDER, DEFAULTS[1])  # with text in front too, and on a GPU
EVERY = (*DEFAULTS, *SLOW, LINEAR, *VARIANTS)
# Parameters that leave nothing out.
EXACT = (
    Entry("window", Window(radius=10**6)),
    Entry("kv_pool", KVPool(1)),
    Entry("strided", Strided(1)),
    Entry("local_pool", LocalPool(radius=10**6)),
    Entry("block_sparse", BlockSparse(keep=1.0)),
    Entry("local_global", LocalGlobal(radius=10**6)),
    Entry("bigbird", BigBird(radius=10**6)),
    Entry("kmeans", KMeans(top=32)),
)


# ------------------------------------------------------------------------------------------------------ operands


@dataclass(frozen=True)
class Call:
    """A self-attention call over a grid; ``q``, ``k`` and ``v`` are (B, H, N, D) views of (B, N, H, D)."""

    q: Tensor
    k: Tensor
    v: Tensor
    grid: TokenGrid

    @property
    def scale(self) -> float:
        return float(self.q.shape[3] ** -0.5)

    def dense(self) -> Tensor:
        return functional.scaled_dot_product_attention(self.q, self.k, self.v, scale=self.scale)

    def exact(self) -> Tensor:
        """By the backend that the patterns compute with: what a pattern gains beyond it is the pattern's own."""
        return exact_attention(self.q, self.k, self.v, self.scale)

    def by(self, entry: Entry) -> Tensor:
        return entry.pattern.attend(self.q, self.k, self.v, self.scale, self.grid)

    def to(self, target: torch.dtype | str) -> Call:
        return Call(self.q.to(target), self.k.to(target), self.v.to(target), self.grid)

    def with_text(self, tokens: int) -> Call:
        """With text in front: random, as large as what is there."""
        rng = torch.Generator().manual_seed(5)

        def prepend(x: Tensor) -> Tensor:
            batch, heads, _, channels = x.shape
            text = torch.randn(batch, tokens, heads, channels, generator=rng) * x.std()
            return torch.cat((text.to(x.dtype), x.transpose(1, 2)), 1).transpose(1, 2)

        grid = TokenGrid(self.grid.height, self.grid.width, before=tokens)
        return Call(prepend(self.q), prepend(self.k), prepend(self.v), grid)


@dataclass(frozen=True)
class Maps:
    """How a synthetic feature map is made.

    Attributes:
        deviation: standard deviation of the scores.
        position: amplitude of the sinusoidal positions.
        shared: queries and keys by one matrix, so that a token scores best with those like it.
        smooth: made of smooth fields; otherwise q, k and v are independent noise.
    """

    deviation: float = 3.0
    position: float = 1.0
    shared: bool = True
    smooth: bool = True

    def call(self, side: int, heads: int, channels: int = 40, batch: int = 1) -> Call:
        """Self-attention over side x side tokens, the same at every call."""
        rng = torch.Generator().manual_seed(0)
        grid = TokenGrid(side, side)
        if self.smooth:
            q, k, v = self._projected(side, heads, channels, rng)
        else:
            q, k, v = (torch.randn(grid.cells, heads, channels, generator=rng) for _ in range(3))
        sample = q.movedim(1, 0)[:, :: max(1, grid.cells // 256)]
        scores = sample @ k.permute(1, 2, 0) / math.sqrt(channels)
        factor = (self.deviation / scores.std()).sqrt()
        q, k, v = (x.expand(batch, -1, -1, -1).contiguous().transpose(1, 2) for x in (q * factor, k * factor, v))
        return Call(q, k, v, grid)

    def _projected(self, side: int, heads: int, channels: int, rng: torch.Generator) -> list[Tensor]:
        """Queries, keys and values (N, H, D) of the features."""
        fields = [smooth_fields(24, side, length, rng) for length in (2, 6, 16)]
        features = torch.cat([*fields, self.position * positions(side)]).flatten(1).T
        features = features / features.std()
        shape = (features.shape[1], heads * channels)
        matrices = [torch.randn(shape, generator=rng) / math.sqrt(shape[0]) for _ in range(3)]
        if self.shared:
            matrices[1] = matrices[0]
        return [(features @ matrix).unflatten(1, (heads, channels)) for matrix in matrices]


def smooth_fields(count: int, side: int, length: float, rng: torch.Generator) -> Tensor:
    """(count, side, side) noise of unit variance, blurred by a Gaussian of this many tokens."""
    frequency = torch.fft.fftfreq(side)
    square = frequency[:, None] ** 2 + frequency**2
    blur = torch.exp(-2 * (math.pi * length) ** 2 * square)
    fields = torch.fft.ifft2(torch.fft.fft2(torch.randn(count, side, side, generator=rng)) * blur).real
    return fields / fields.std()


def positions(side: int, frequencies: int = 8) -> Tensor:
    """(4 * frequencies, side, side): sines and cosines of row and column."""
    phase = torch.linspace(0, math.pi, side) * torch.arange(1, frequencies + 1)[:, None]
    along = torch.cat((phase.sin(), phase.cos()))
    return torch.cat((along[:, :, None].expand(-1, -1, side), along[:, None, :].expand(-1, side, -1)))


MAPS = {
    "std 3, positions": Maps(),
    "std 3": Maps(position=0.0),
    "std 1": Maps(deviation=1.0),
    "Wq ≠ Wk": Maps(shared=False),
    "noise": Maps(smooth=False),
}
SMOOTH = [name for name, maps in MAPS.items() if maps.smooth]


# ---------------------------------------------------------------------------------------------------------- time

# (side, text in front) -> pattern and the least speed-up that is wanted of it.
WANTED = {
    (64, False): (("window r8", 3.3), ("kv_pool 2", 3.5)),
    (64, True): (("window r8", 3.0),),
    (128, False): (("window r8", 12.0),),
    (128, True): (("window r8", 11.0),),
}


def time_section(plan: Plan) -> Section:
    """Every pattern at its defaults beside dense: sizes, text in front, bfloat16."""
    section = Section()
    for side in plan.sides:
        call, what = Maps().call(side, plan.heads), f"{side} x {side} = {side**2} tokens"
        entries = (*DEFAULTS, WIDER, LINEAR, *(SLOW if side == plan.side else ()))
        seconds = timed(section, what, call, entries, plan.runs)
        judge(section, seconds, side, text=False)
        seconds = timed(section, f"{what}, {TEXT} text tokens in front", call.with_text(TEXT), MAIN, plan.runs)
        judge(section, seconds, side, text=True)
    call = Maps().call(plan.side, plan.heads).to(torch.bfloat16)
    timed(section, f"{plan.side} x {plan.side}, bfloat16", call, DEFAULTS[:2], plan.runs)
    return section


def timed(section: Section, title: str, call: Call, entries: Sequence[Entry], runs: int) -> dict[str, list[float]]:
    """Adds a table of dense and ``entries``, fastest first; the seconds of every run."""
    works = works_of(call, entries)
    seconds = interleaved_cpu_seconds(works, runs, warm_ups=1)
    peaks = {name: peak_bytes(work) for name, work in works.items()}
    rows = [
        (
            name,
            f"{statistics.median(times) * 1000:.0f}",
            f"{speed_up(seconds, name):.2f}x",
            f"{peaks[name] / MIB:.1f}",
            f"{peaks[name] / peaks[DENSE]:.2f}",
        )
        for name, times in sorted(seconds.items(), key=lambda item: statistics.median(item[1]))
    ]
    for row in rows:
        print(title, *row, flush=True)
    section.parts.append(f"### {title}")
    section.table(("pattern", "CPU ms", "faster than dense", "peak MiB", "peak / dense"), rows)
    return seconds


def works_of(call: Call, entries: Sequence[Entry]) -> dict[str, Callable[[], Tensor]]:
    return {DENSE: call.dense, AUTO: call.exact} | {entry.label: partial(call.by, entry) for entry in entries}


def speed_up(seconds: Mapping[str, Sequence[float]], name: str) -> float:
    return median_ratio(seconds, DENSE, name)


def judge(section: Section, seconds: Mapping[str, Sequence[float]], side: int, *, text: bool) -> None:
    for name, wanted in WANTED.get((side, text), ()):
        what = f"{name} at {side**2} tokens" + (f" and {TEXT} of text" if text else "")
        section.least(f"{what}: faster than dense", wanted, speed_up(seconds, name))


# --------------------------------------------------------------------------------------------------------- error


def error_section(plan: Plan) -> Section:
    """Errors on every kind of map, time beside, and what is exact where nothing is left out."""
    section = Section()
    errors, baselines = measure_errors(plan)
    seconds = interleaved_cpu_seconds(works_of(Maps().call(plan.side, plan.heads), EVERY), plan.runs, warm_ups=1)
    section.parts.append(ABOUT_ERRORS.format(side=plan.side))
    ranked = sorted(EVERY, key=lambda entry: typical(errors[entry.label]))
    rows = [
        (
            entry.label,
            "yes" if entry.offered else "**no**",
            *(f"{errors[entry.label][name]:.3f}" for name in MAPS),
            f"{1 / speed_up(seconds, entry.label):.2f}",
        )
        for entry in ranked
    ]
    rows += [(name, "", *(f"{found[maps]:.3f}" for maps in MAPS), "") for name, found in baselines.items()]
    section.table(("pattern", "offered", *MAPS, "time / dense"), rows)
    exactness(plan, section)
    draw_chart(plan, errors, {name: speed_up(seconds, name) for name in seconds})
    section.parts.append(ABOUT_CHART)
    return section


ABOUT_ERRORS = """Relative error, norm of the difference over norm of dense attention in float64, over all rows and
heads of {side} x {side} tokens. Sorted by the median of the four smooth maps. In "Wq ≠ Wk" queries and keys come of
different matrices, with standard deviation 3 and positions; in "noise" q, k and v are independent. An output of zeros
has the error 1. Time: float32 on "std 3, positions"."""
ABOUT_CHART = "![Error against speed of every pattern](local_attention.png)"


def measure_errors(plan: Plan) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Errors by label and map: of every pattern, and of outputs that take no attention at all."""
    errors: dict[str, dict[str, float]] = {entry.label: {} for entry in EVERY}
    baselines: dict[str, dict[str, float]] = {"mean of all values": {}, "no attention: own value": {}}
    for name, maps in MAPS.items():
        call = maps.call(plan.side, plan.heads)
        truth = call.to(torch.float64).dense()
        for entry in EVERY:
            errors[entry.label][name] = relative_error(call.by(entry).transpose(1, 2), truth)
            print(name, entry.label, f"{errors[entry.label][name]:.3f}", flush=True)
        baselines["mean of all values"][name] = relative_error(call.v.mean(2, keepdim=True), truth)
        baselines["no attention: own value"][name] = relative_error(call.v, truth)
    return errors, baselines


def relative_error(result: Tensor, truth: Tensor) -> float:
    return float((result.double() - truth).norm() / truth.norm())


def typical(errors: Mapping[str, float]) -> float:
    """The median of the smooth maps; noise says nothing about pictures."""
    return statistics.median(errors[name] for name in SMOOTH)


def exactness(plan: Plan, section: Section) -> None:
    """Patterns whose parameters leave nothing out, and dense itself, against float64; with text in front too."""
    rows, worst = [], 0.0
    plain = Maps().call(plan.side, plan.heads)
    calls = (plain, plain.with_text(TEXT))
    truths = [call.to(torch.float64).dense() for call in calls]
    own = [relative_error(call.dense(), truth) for call, truth in zip(calls, truths)]
    rows.append((DENSE, *(f"{error:.1e}" for error in own)))
    for entry in EXACT:
        found = [relative_error(call.by(entry).transpose(1, 2), truth) for call, truth in zip(calls, truths)]
        worst = max(worst, *found)
        rows.append((entry.label, *(f"{error:.1e}" for error in found)))
    what = "patterns that leave nothing out, such as a window that covers all: largest relative error to float64"
    section.goal(what, "≤ 1e-6", f"{worst:.1e}", worst <= 1e-6)
    section.parts.append("### Nothing left out: against float64")
    section.table(("pattern", f"{plan.side} x {plan.side}", f"and {TEXT} text tokens in front"), rows)


# --------------------------------------------------------------------------------------------------------- chart


def draw_chart(plan: Plan, errors: Mapping[str, Mapping[str, float]], speed_ups: Mapping[str, float]) -> None:
    """Error against speed: a point per pattern, the line behind it from its best to its worst smooth map."""
    inks = dict.fromkeys(("text.color", "xtick.color", "ytick.color", "axes.labelcolor"), INK)
    with plt.rc_context({**inks, "axes.edgecolor": FAINT, "figure.facecolor": BACKGROUND, "font.size": 11}):
        figure, axes = plt.subplots(figsize=(9, 7))
        axes.set_facecolor(BACKGROUND)
        axes.set(xscale="log", yscale="log")
        draw_points(axes, errors, speed_ups)
        label_axes(axes, f"Local attention at {plan.side**2} tokens")
        figure.tight_layout()
        draw_references(axes, speed_ups[AUTO])
        put_labels(axes, errors, speed_ups)
        figure.savefig(plan.folder / "local_attention.png", dpi=100)
        plt.close(figure)


def draw_points(axes: plt.Axes, errors: Mapping[str, Mapping[str, float]], speed_ups: Mapping[str, float]) -> None:
    for entry in EVERY:
        ink = OFFERED_INK if entry.offered else MEASURED_ONLY_INK
        best, worst = extremes(errors[entry.label])
        height = speed_ups[entry.label]
        axes.plot([best, worst], [height, height], color=ink, alpha=0.35, linewidth=2.5)
        axes.plot(typical(errors[entry.label]), height, "o", color=ink, markersize=7)
    for ink, meaning in ((OFFERED_INK, "offered by the node"), (MEASURED_ONLY_INK, "measured only")):
        axes.plot([], [], "o", color=ink, label=meaning)


def label_axes(axes: plt.Axes, title: str) -> None:
    axes.set_xlabel("relative error on synthetic maps: median of four, line from best to worst (less is better)")
    axes.set_ylabel("times faster than dense, one CPU thread")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}x")
    axes.yaxis.set_minor_formatter("")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.margins(x=0.08)
    axes.set_title(title, loc="left", fontsize=14, pad=12)
    axes.legend(loc="lower right", bbox_to_anchor=(1.01, 1.0), ncols=2, frameon=False, borderpad=0.2)


def draw_references(axes: plt.Axes, auto: float) -> None:
    """Lines for dense, for exact attention by the patterns' own backend, and for the node's default bound."""
    style: dict[str, Any] = {"color": FAINT, "fontsize": 9}
    for name, height in ((DENSE, 1.0), (AUTO.replace("`", ""), auto)):
        axes.axhline(height, color=FAINT, linewidth=1, linestyle=":", zorder=0)
        axes.text(0.006, height, name, transform=axes.get_yaxis_transform(), va="bottom", **style)
    axes.axvline(NODE_MAX_ERROR, color=FAINT, linewidth=1, linestyle=":", zorder=0)
    where = axes.get_xaxis_transform()
    axes.text(NODE_MAX_ERROR, 0.01, "max_error of the node ", transform=where, ha="right", va="bottom", **style)


# Directions from a point, the best first: horizontal and vertical, and how the text is aligned.
DIRECTIONS = (
    (0.0, 1.0, "center", "bottom"),
    (0.0, -1.0, "center", "top"),
    (1.0, 0.0, "left", "center"),
    (-1.0, 0.0, "right", "center"),
    (0.8, 0.8, "left", "bottom"),
    (-0.8, 0.8, "right", "bottom"),
    (0.8, -0.8, "left", "top"),
    (-0.8, -0.8, "right", "top"),
)
DISTANCES = (6, 14, 24, 36)


def put_labels(axes: plt.Axes, errors: Mapping[str, Mapping[str, float]], speed_ups: Mapping[str, float]) -> None:
    """Names near their points, each at the nearest place where it covers nothing."""
    axes.figure.canvas.draw()
    taken = [text.get_window_extent() for text in axes.texts]
    for entry in EVERY:
        ends = [(error, speed_ups[entry.label]) for error in extremes(errors[entry.label])]
        (left, y), (right, _) = axes.transData.transform(ends)
        x, _ = axes.transData.transform((typical(errors[entry.label]), speed_ups[entry.label]))
        taken += [Bbox.from_extents(left, y - 2, right, y + 2), Bbox.from_extents(x - 6, y - 6, x + 6, y + 6)]
    for entry in sorted(EVERY, key=lambda entry: speed_ups[entry.label]):
        point = typical(errors[entry.label]), speed_ups[entry.label]
        taken.append(put_label(axes, entry.label, point, taken))


def put_label(axes: plt.Axes, name: str, point: tuple[float, float], taken: Sequence[Bbox]) -> Bbox:
    for distance, (right, up, horizontal, vertical) in product(DISTANCES, DIRECTIONS):
        offset = distance * right, distance * up
        style: dict[str, Any] = {"ha": horizontal, "va": vertical, "fontsize": 9.5}
        text = axes.annotate(name, point, offset, textcoords="offset points", **style)
        box = text.get_window_extent()
        if axes.bbox.x0 < box.x0 and box.x1 < axes.bbox.x1 and box.count_overlaps(taken) == 0:
            if distance > DISTANCES[1]:
                leader = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 3}
                axes.annotate("", point, offset, textcoords="offset points", arrowprops=leader)
            return box
        text.remove()
    return axes.annotate(name, point, (8, 0), textcoords="offset points", va="center", fontsize=9.5).get_window_extent()


def extremes(errors: Mapping[str, float]) -> tuple[float, float]:
    """Error on the best and on the worst smooth map."""
    found = [errors[name] for name in SMOOTH]
    return min(found), max(found)


# ----------------------------------------------------------------------------------------------------------- GPU

GPU_CALLS = {  # side, text in front, batch, heads, channels per head
    "SDXL, 1024 px": (64, 0, 2, 10, 64),
    "SDXL, 2048 px": (128, 0, 2, 10, 64),
    "Flux, 1024 px": (64, 512, 1, 24, 128),
    "Flux, 2048 px": (128, 512, 1, 24, 128),
}


def gpu_section(plan: Plan) -> Section:
    """Dense, windows and pooled keys in bfloat16; time on the clock, peak of torch's CUDA allocator."""
    section = Section()
    rows = []
    for name, (side, text, batch, heads, channels) in GPU_CALLS.items():
        plain = Maps().call(side, heads, channels, batch)
        call = (plain.with_text(text) if text else plain).to(torch.bfloat16).to("cuda")
        found = {label: on_gpu(work, plan.runs) for label, work in works_of(call, MAIN).items()}
        dense, _ = found[DENSE]
        for label, (seconds, peak) in found.items():
            rows.append((name, label, f"{seconds * 1000:.2f}", f"{dense / seconds:.2f}x", f"{peak / MIB:.0f}"))
    section.parts.append(f"{torch.cuda.get_device_name()}, bfloat16; milliseconds on the clock.")
    section.table(("call", "pattern", "ms", "faster than dense", "peak MiB"), rows)
    return section


# ------------------------------------------------------------------------------------------------------- command

SECTIONS: dict[str, Callable[[Plan], Section]] = {"time": time_section, "error": error_section, "gpu": gpu_section}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs per case (default 5)")
    parser.add_argument("--only", metavar="NAME,...", help=f"of {', '.join(SECTIONS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="small, into output/: to see whether it runs")
    options = parser.parse_args()
    devices = [name for name in SECTIONS if name != "gpu" or torch.cuda.is_available()]
    options.only = options.only.split(",") if options.only else devices
    if unknown := [name for name in options.only if name not in SECTIONS]:
        parser.error(f"unknown section: {', '.join(unknown)}")
    if "gpu" in options.only and not torch.cuda.is_available():
        parser.error("section gpu: torch sees no CUDA device here")
    return options


def plan_of(options: argparse.Namespace) -> Plan:
    if options.quick:
        folder = ROOT / "output" / "bench"
        folder.mkdir(parents=True, exist_ok=True)
        return Plan([56, 60], 56, 2, 1, folder)
    return Plan([64, 96, 128], 64, 8, options.runs, Path(__file__).resolve().parent)


def main() -> None:
    options = arguments()
    plan = plan_of(options)
    report = Report(plan.folder / "local_attention.md", INTRODUCTION, TITLES)
    torch.set_num_threads(1)
    with torch.inference_mode():
        for name in options.only:
            report.measure(name, partial(SECTIONS[name], plan), plan.runs)


if __name__ == "__main__":
    main()
