"""Rows as a table, as a short text for an issue, and as JSON."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .rows import CheckOutcome, CheckRow

WIDTH, MARK, NAME = 100, 10, 23
FORMAT = 1  # of the JSON
TOGETHER = ("attention", "casting")  # parts with many rows, which the short text puts into a line if they held
MAY_HOLD = (CheckOutcome.HELD, CheckOutcome.BROKEN, CheckOutcome.FAILED, CheckOutcome.NOT_RUN)

RowsByPart = Mapping[str, Sequence[CheckRow]]  # rows by part


def table_row(row: CheckRow) -> str:
    """A row of the table: whether it held, what, and the result, wrapped under itself."""
    first = f"  {row.outcome.value:<{MARK}}{row.name:<{NAME}}"
    rest = " " * (2 + MARK + NAME)
    return "\n".join(
        textwrap.wrap(row.text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False)
    )


def verdict(found: RowsByPart, seconds: float, interrupted: bool) -> str:
    """How many promises held, what became of the others, and how long it took."""
    count = Counter(row.outcome for rows in found.values() for row in rows)
    parts = [f"{count[CheckOutcome.HELD]} of {sum(count[one] for one in MAY_HOLD)} promises held"]
    parts += [f"{count[one]} {word}" for one, word in OTHERS.items() if count[one]]
    stopped = ["stopped before the end"] * interrupted
    return ", ".join([*parts, *stopped, f"{seconds:.0f} s"])


OTHERS = {
    CheckOutcome.BROKEN: "did not", CheckOutcome.FAILED: "failed", CheckOutcome.NOT_RUN: "not looked at",
    CheckOutcome.NOT_HERE: "not for this machine",
}  # fmt: skip


def to_paste(head: Sequence[str], found: RowsByPart, seconds: float, interrupted: bool) -> str:
    """About 25 lines: what it ran on, how many held, and each row."""
    lines = [*head, verdict(found, seconds, interrupted)]
    for part, rows in found.items():
        lines += _together(part, rows) if part in TOGETHER else (_line(part, row) for row in rows)
    return "\n".join(lines)


def _line(part: str, row: CheckRow) -> str:
    return f"{row.outcome.value}: {part}, {row.name}: {row.text}"


def _together(part: str, rows: Sequence[CheckRow]) -> Iterator[str]:
    for outcome in (
        CheckOutcome.SEEN,
        CheckOutcome.HELD,
        CheckOutcome.NOT_HERE,
        CheckOutcome.BROKEN,
        CheckOutcome.FAILED,
        CheckOutcome.NOT_RUN,
    ):
        these = [row for row in rows if row.outcome is outcome]
        if outcome in (CheckOutcome.HELD, CheckOutcome.NOT_HERE) and these:
            yield f"{outcome.value}: {part}: " + ", ".join(map(_short, these))
        else:
            yield from (_line(part, row) for row in these)


def _short(row: CheckRow) -> str:
    db = row.numbers.get("db")
    if db is None:
        return row.name
    return f"{row.name} (the same)" if db == math.inf else f"{row.name} {db:.0f} dB"


def as_json(
    machine: dict[str, Any], sizes: dict[str, Any] | None, found: RowsByPart, seconds: float, interrupted: bool
) -> dict[str, Any]:
    """What `--json` writes: bytes, seconds and dB; an infinite number is null."""
    return {
        "format": FORMAT,
        "machine": machine,
        "sizes": sizes,
        "seconds": round(seconds, 1),
        "interrupted": interrupted,
        "held": not interrupted and all(row.outcome.is_good for rows in found.values() for row in rows),
        "rows": [
            {
                "part": part,
                "name": row.name,
                "outcome": row.outcome.value.lower(),
                "text": row.text,
                "numbers": _finite(row.numbers),
            }
            for part, rows in found.items()
            for row in rows
        ],
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
