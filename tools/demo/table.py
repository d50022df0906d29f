"""The table of the demo: as text, as Markdown and as JSON."""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from .measure import MB, Run, Work, latent_psnr, picture_psnr

COLUMNS = (
    "workflow", "stock s", "Headroom s", "stock peak", "Headroom peak", "saved", "work measured", "work predicted",
    "latents dB", "picture dB",
)  # fmt: skip
FOOTNOTES = (
    "peak: highest resident memory of the host over that at the prompt's start, weights included;"
    " the same method for both.",
    "the host's allocator is told to give freed memory back at once, which costs both some time.",
    "dB: PSNR of Headroom against stock nodes without tiling.",
    "work: tensors alive at once beyond the weights, in the stage that has most; predicted without running it"
    " (at most: the plan of exact strips, which they stay within).",
)


@dataclass(frozen=True)
class Comparison:
    """A workflow with stock nodes and with Headroom's."""

    name: str
    title: str
    stock: Run
    headroom: Run

    @property
    def latent_db(self) -> float:
        return latent_psnr(self.headroom.latent, self.stock.latent)

    @property
    def picture_db(self) -> float:
        return picture_psnr(self.headroom.frames, self.stock.frames)

    @property
    def saved(self) -> float:
        """The share of the stock peak that Headroom does without."""
        return 1 - self.headroom.peak / max(1, self.stock.peak)

    @property
    def largest_work(self) -> Work | None:
        """The stretch of work that took most."""
        return max(self.headroom.work, key=lambda work: work.measured, default=None)

    @property
    def device_peak(self) -> str | None:
        """On a GPU, the highest peak of device memory in Headroom's report."""
        sizes = re.findall(r"peak ([\d.]+) (GB|MB) .*allocated on", self.headroom.report)
        largest = max(sizes, key=lambda size: float(size[0]) * (1024 if size[1] == "GB" else 1), default=None)
        return " ".join(largest) if largest else None


def describe_machine(stats: dict[str, Any]) -> str:
    """One line on what it ran, from the host's own statistics."""
    system, device = stats["system"], stats["devices"][0]
    versions = f"torch {system['pytorch_version']}, ComfyUI {system['comfyui_version']}"
    accelerator = "" if device["type"] == "cpu" else f", {device['name']}"
    return f"{_cpu()}{accelerator}, {psutil.cpu_count()} cores, {system['ram_total'] / 2**30:.0f} GB RAM, {versions}"


def _cpu() -> str:
    described = Path("/proc/cpuinfo")
    text = described.read_text(encoding="utf-8") if described.is_file() else ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1] if match else platform.processor() or platform.machine()


def format_db(value: float, unit: str = "") -> str:
    """A PSNR; infinite where nothing differs."""
    return "identical" if math.isinf(value) else f"{value:.1f}{unit}"


def format_table(comparisons: Sequence[Comparison], machine: str) -> str:
    """An aligned Markdown table, the machine above it and the notes below."""
    lines = [COLUMNS, *(_cells(item) for item in comparisons)]
    first, *others = (max(map(len, column)) for column in zip(*lines))
    head, *rows = (_row(cells[0].ljust(first), *map(str.rjust, cells[1:], others)) for cells in lines)
    rule = _row("-" * first, *("-" * (width - 1) + ":" for width in others))  # numbers to the right
    return "\n".join([machine, "", head, rule, *rows, "", *_footnotes(comparisons)])


def _footnotes(comparisons: Sequence[Comparison]) -> list[str]:
    on_device = [f"{item.title} {item.device_peak}" for item in comparisons if item.device_peak]
    notes = [*FOOTNOTES, "device memory with Headroom: " + ", ".join(on_device)] if on_device else FOOTNOTES
    return [f"- {note}" for note in notes]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(item: Comparison) -> tuple[str, ...]:
    work = item.largest_work
    return (
        item.title,
        f"{item.stock.seconds:.1f}",
        f"{item.headroom.seconds:.1f}",
        f"{item.stock.peak / MB:.0f} MB",
        f"{item.headroom.peak / MB:.0f} MB",
        f"{round(item.saved, 2) + 0.0:.0%}",  # the addition turns -0 into 0
        "–" if work is None else f"{work.measured / MB:.1f} MB ({work.name})",
        "–"
        if work is None
        else f"{work.predicted / MB:.1f} MB ({'at most' if work.bound else format(work.off, '+.1%')})",
        format_db(item.latent_db),
        format_db(item.picture_db),
    )


def as_json(comparisons: Sequence[Comparison], machine: str) -> dict[str, Any]:
    """The same numbers, sizes in bytes; a PSNR is null where both are identical."""
    return {"machine": machine, "workflows": {item.name: _numbers(item) for item in comparisons}}


def _numbers(item: Comparison) -> dict[str, Any]:
    runs = {"stock": item.stock, "headroom": item.headroom}
    measured = {name: {"seconds": round(run.seconds, 3), "peak_bytes": run.peak} for name, run in runs.items()}
    db = {"latent_psnr_db": item.latent_db, "picture_psnr_db": item.picture_db}
    finite = {name: None if math.isinf(value) else round(value, 2) for name, value in db.items()}
    work = [asdict(one) | {"off": round(one.off, 5)} for one in item.headroom.work]
    return {"title": item.title, **measured, **finite, "work": work, "device_peak": item.device_peak}
