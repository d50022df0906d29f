"""Strategies measured beside each other, as a table of text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..units import GB, MB

GAP = "  "
HEADER = ("strategy", "peak", "", "time", "", "predicted", "weights", "error", "", "")


@dataclass(frozen=True)
class Measured:
    """What one step took.

    Attributes:
        peak: bytes above what was there before it.
        seconds: wall time.
        weights: bytes of the model.
        noise: power of the difference to the reference's result, over the power of that result.
        predicted: seconds that were predicted; None: they were not.
    """

    peak: int
    seconds: float
    weights: int
    noise: float
    predicted: float | None = None

    @property
    def error(self) -> float:
        """Root mean square of the difference, relative to the reference's result."""
        return math.sqrt(self.noise)

    @property
    def db(self) -> float:
        """Signal to noise; infinite where both are equal, NaN where the result is not finite."""
        return math.inf if self.noise == 0 else -10 * math.log10(self.noise)


@dataclass(frozen=True)
class Outcome:
    """A strategy and what came of it.

    Attributes:
        name: of the strategy.
        measured: None where it did not run.
        remark: why not, or what ran in its place.
    """

    name: str
    measured: Measured | None = None
    remark: str = ""


@dataclass(frozen=True)
class Comparison:
    """Outcomes of the same work, the first of which is the reference.

    Attributes:
        head: lines on what was measured, and on what.
        outcomes: at least one.
    """

    head: Sequence[str]
    outcomes: Sequence[Outcome]

    @property
    def reference(self) -> Measured | None:
        """What the others are held against; None where it did not run."""
        return self.outcomes[0].measured

    def error_text(self, outcome: Outcome) -> tuple[str, str]:
        """Relative error and signal to noise of an outcome that was measured."""
        if outcome is self.outcomes[0]:
            return "reference", ""
        if self.reference is None:
            return "unknown", ""
        assert outcome.measured is not None
        noise = outcome.measured.noise
        if not math.isfinite(noise):
            return "not finite", ""
        return ("none", "") if noise == 0 else (f"{outcome.measured.error:.1e}", f"{outcome.measured.db:.1f} dB")


def render_comparison(comparison: Comparison) -> str:
    """The head, a line per strategy in columns, and what could not run behind its name."""
    lines = [_cells(comparison, outcome) for outcome in comparison.outcomes if outcome.measured is not None]
    rows = [HEADER, *lines]
    names = [outcome.name for outcome in comparison.outcomes]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    widths[0] = max(map(len, (*names, HEADER[0])))
    cells = iter(lines)
    table = [_line(HEADER, widths)]
    for outcome in comparison.outcomes:
        if outcome.measured is not None:
            table.append(_line(next(cells), widths))
        else:
            table.append(f"{outcome.name.ljust(widths[0])}{GAP}{outcome.remark}")
    return "\n".join([*comparison.head, "", *table])


def size_text(count: float) -> str:
    """Three digits of any size: the small models of a test have a few MB."""
    return f"{count / GB:.2f} GB" if count >= GB else f"{count / MB:.{1 if count >= 10 * MB else 2}f} MB"


def time_text(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def ratio_text(value: float, reference: float | None) -> str:
    """Of the reference's; empty where there is none."""
    return f"{value / reference:.2f}x" if reference else ""


def _cells(comparison: Comparison, outcome: Outcome) -> tuple[str, ...]:
    measured, reference = outcome.measured, comparison.reference
    assert measured is not None
    return (
        outcome.name,
        size_text(measured.peak),
        ratio_text(measured.peak, None if reference is None else reference.peak),
        time_text(measured.seconds),
        ratio_text(measured.seconds, None if reference is None else reference.seconds),
        "" if measured.predicted is None else time_text(measured.predicted),
        size_text(measured.weights),
        *comparison.error_text(outcome),
        outcome.remark,
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return GAP.join(_aligned(cells, widths)).rstrip()


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """Words to the left, numbers to the right."""
    for column, (cell, width) in enumerate(zip(cells, widths)):
        yield cell.ljust(width) if column in (0, len(widths) - 1) else cell.rjust(width)
