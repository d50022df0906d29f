"""A benchmark's results as sections of one Markdown file: goals beside what was measured, and tables.

Each section is written as soon as it is measured; the others stay as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from _harness import machine, markdown_table


@dataclass
class Section:
    """What one section found: goals beside what was measured, and tables."""

    goals: list[tuple[str, str, str, str]] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)

    def goal(self, what: str, goal: str, measured: str, met: bool) -> None:
        self.goals.append((what, goal, measured, "met" if met else "**missed**"))

    def most(self, what: str, limit: float, measured: float, unit: str = "x") -> None:
        """A goal that is an upper limit."""
        self.goal(what, f"≤ {limit:g} {unit}", f"{measured:.3g} {unit}", measured <= limit)

    def least(self, what: str, limit: float, measured: float, unit: str = "x") -> None:
        """A goal that is a lower limit."""
        self.goal(what, f"≥ {limit:g} {unit}", f"{measured:.4g} {unit}", measured >= limit)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self.parts.append(markdown_table(header, rows))

    def markdown(self) -> str:
        goals = [markdown_table(("what", "goal", "measured", ""), self.goals)] if self.goals else []
        return "\n\n".join([*goals, *self.parts])


@dataclass(frozen=True)
class Report:
    """The file of a benchmark.

    Attributes:
        path: of the Markdown file.
        introduction: its head.
        titles: of the sections, by their names, in order.
        is_of_gpu: all of them are measured on one; else the one named "gpu" is, and where there is none it is said.
    """

    path: Path
    introduction: str
    titles: Mapping[str, str]
    is_of_gpu: bool = False

    def measure(self, name: str, work: Callable[[], Section], runs: int) -> None:
        """Runs one section and writes it in place of the one that was there."""
        start = time.time()
        body = work().markdown()
        card = f"{torch.cuda.get_device_name()}, " if self.is_of_gpu else ""
        where = f"Measured on: {card}{machine()}; {runs} runs; {(time.time() - start) / 60:.0f} minutes."
        self.write(name, f"{body}\n\n{where}")
        print(f"## {self.titles[name]}\n\n{body}\n\n{where}\n", flush=True)

    def write(self, name: str, text: str) -> None:
        kept = sections_of(self.path.read_text(encoding="utf-8")) if self.path.is_file() else {}
        kept[self.titles[name]] = text
        there = [f"## {title}\n\n{kept[title]}" for title in self.titles.values() if title in kept]
        if not self.is_of_gpu and self.titles.get("gpu", "") not in kept:
            there.insert(0, "Not measured on a GPU.")
        self.path.write_text("\n\n".join([self.introduction, *there]) + "\n", encoding="utf-8")


def sections_of(text: str) -> dict[str, str]:
    """The body of each section by its title."""
    parts = [part.partition("\n") for part in ("\n" + text).split("\n## ")[1:]]
    return {title: body.strip() for title, _, body in parts}


def rows_of(section: str) -> list[list[str]]:
    """Cells of a section's last table, without its head."""
    tables = f"\n\n{section}"
    lines = tables[tables.rfind("\n\n|") :].strip().partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:] if line.startswith("|")]


def on_gpu(work: Callable[[], object], runs: int) -> tuple[float, int]:
    """Median seconds after one call to warm up, and torch's peak of bytes allocated over what was there."""
    work()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds)[len(seconds) // 2], torch.cuda.max_memory_allocated() - before
