"""Rows of the run log as plain numbers, for programs."""

from __future__ import annotations

from typing import Any

from .peak import Peak
from .runlog import AttentionCounts, Row


def row_numbers(node: str, row: Row) -> dict[str, Any]:
    """One stretch of work as what can be written as JSON, bytes as integers; None where nothing is known.

    Args:
        node: its id.
        row: running or done.
    """
    return {
        "id": node,
        "work": row.work,
        "outcome": row.outcome,
        "seconds": row.seconds,
        "steps": row.steps or None,
        "step_seconds": row.step_seconds,
        "expected_step_seconds": row.expected,
        "measured": _peak_numbers(row.peak),
        "live_bytes": row.live,
        "paged_bytes": row.paged,
        "predicted": _predicted_numbers(row.predicted),
        "attention": _attention_numbers(row.attention),
        "lines": list(row.lines),
        "notices": list(row.notices),
    }


def _peak_numbers(peak: Peak | None) -> dict[str, Any] | None:
    if peak is None:
        return None
    return {"before": peak.before, "highest": peak.highest, "growth": peak.growth, "source": peak.source}


def _predicted_numbers(prediction: Any) -> dict[str, Any] | None:
    """Where ``bound`` is true the work stays within these numbers; otherwise they are what it takes."""
    if prediction is None:
        return None
    sizes = {name: int(getattr(prediction, name)) for name in ("activations", "live", "weights", "peak")}
    return sizes | {"bound": prediction.bound}


def _attention_numbers(counts: AttentionCounts | None) -> list[dict[str, Any]] | None:
    """An entry per block, backend and reason, in that order."""
    if counts is None:
        return None
    return [
        {
            "block": None if key.block is None else f"{key.block[0]}:{key.block[1]}",
            "backend": key.backend,
            "reason": key.reason,
            "calls": calls,
        }
        for key, calls in sorted(
            counts.snapshot().items(), key=lambda entry: (entry[0].block or ("", -1), *entry[0][1:])
        )
    ]
