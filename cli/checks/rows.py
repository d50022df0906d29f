"""What a check found, a row each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class CheckOutcome(Enum):
    """What came of a row.

    HELD, BROKEN: a promise of the pack's, with its limit. SEEN: a number without one. FAILED: it raised. NOT_HERE:
    this machine or this ComfyUI has not what it takes. NOT_RUN: time was up, or the user stopped it.
    """

    HELD = "held"
    BROKEN = "NOT HELD"
    SEEN = "seen"
    FAILED = "FAILED"
    NOT_HERE = "not here"
    NOT_RUN = "not run"

    @property
    def is_good(self) -> bool:
        return self in (CheckOutcome.HELD, CheckOutcome.SEEN, CheckOutcome.NOT_HERE)


@dataclass(frozen=True)
class CheckRow:
    """One thing that was looked at.

    Attributes:
        name: of the thing, a few words.
        outcome: what came of it.
        text: the result in a sentence, for people.
        numbers: the same for programs: bytes, seconds, dB.
    """

    name: str
    outcome: CheckOutcome
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)


Found = tuple[CheckOutcome, str, dict[str, Any]]


@dataclass(frozen=True)
class Check:
    """Something to look at: one of them may fail without ending the others."""

    name: str
    look: Callable[[], Found]


def held(condition: bool) -> CheckOutcome:
    """Whether a promise was kept."""
    return CheckOutcome.HELD if condition else CheckOutcome.BROKEN
