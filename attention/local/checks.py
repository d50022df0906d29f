"""Sentences about parameters that cannot be."""

from __future__ import annotations


def whole(name: str, value: int, low: int, high: int | None = None) -> None:
    """
    Raises:
        ValueError: ``value`` is no whole number from ``low`` to ``high`` (None: no upper end).
    """
    if isinstance(value, int) and low <= value and (high is None or value <= high):
        return
    allowed = f"of {low} or more" if high is None else f"from {low} to {high}"
    raise ValueError(f"{name} is {value!r}: write a whole number {allowed}")


def check_seed(value: int) -> None:
    """
    Raises:
        ValueError: torch's generator does not take ``value``.
    """
    whole("seed", value, 0, 2**63 - 1)
