"""What workers say of a prompt, taken together: where it can go, and why not elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .plain import UNREACHABLE

SIZES = (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 80, 96, 141)  # GB of cards that there are
FITS, UNPREDICTED, TOO_BIG, TRIED = "fits", "unpredicted", "does_not_fit", "tried"


@dataclass
class Offers:
    """The answers to one kind of prompt, by worker.

    Attributes:
        answers: as the actors give them.
        unpredicted: it may go to workers that cannot predict all of it.
    """

    unpredicted: bool = False
    answers: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def seconds(self) -> dict[str, float | None]:
        """Workers it can go to, with what they predict."""
        good = (FITS, UNPREDICTED) if self.unpredicted else (FITS,)
        return {name: one.get("seconds") for name, one in self.answers.items() if one["status"] in good}

    def hear(self, worker: str, answer: Mapping[str, Any]) -> None:
        """A worker's answer, unless it has shown already that it is not so."""
        if self.answers.get(worker, {}).get("status") != TRIED:
            self.answers[worker] = answer

    def has_answer(self, worker: str) -> bool:
        """Whether a worker has said anything."""
        return self.answers.get(worker, {"status": UNREACHABLE})["status"] != UNREACHABLE

    def broke_off(self, worker: str) -> bool:
        """Whether a worker was asked, and did not come to answer."""
        return self.answers.get(worker, {}).get("status") == UNREACHABLE

    def note(self, worker: str) -> str:
        """What the user should know of running it there; empty if nothing."""
        answer = self.answers.get(worker, {})
        if answer.get("status") != UNPREDICTED:
            return ""
        return f"not predicted wholly: {answer.get('reason') or 'some of it was not followed'}"

    def take_back(self, worker: str, reason: str) -> None:
        """A worker could not, whatever it had said."""
        self.answers[worker] = {"status": TRIED, "reason": reason}

    @property
    def refusal(self) -> str:
        """Why it can go nowhere: each reason with the workers that have it, and which card would do."""
        told: dict[str, list[str]] = {}
        for name, answer in self.answers.items():
            told.setdefault(_reason(answer), []).append(_allowed(name, answer))
        parts = [f"{reason} ({', '.join(names)})" for reason, names in told.items()]
        least = [one for one in map(least_card, self.answers.values()) if one is not None]
        # Where a worker lacked no room the card is not what would help.
        if least and all(answer["status"] in (TOO_BIG, UNREACHABLE) for answer in self.answers.values()):
            parts.append(_card(min(least)))
        return "; ".join(parts)


def least_card(answer: Mapping[str, Any]) -> float | None:
    """GB that a card needs, of which the same share may be used as of the one that was asked about."""
    if answer["status"] != TOO_BIG or not answer.get("least_vram_gb"):
        return None
    share = answer["allowed_gb"] / answer["card_gb"] if answer.get("card_gb") else 1.0
    return float(answer["least_vram_gb"]) / max(share, 0.01)


def _card(needed: float) -> str:
    size = next((size for size in SIZES if size >= needed), None)
    return f"the least card that would do has {size} GB" if size else f"a card would need {needed:.0f} GB"


def _reason(answer: Mapping[str, Any]) -> str:
    if answer["status"] == TOO_BIG:
        return f"needs {answer['least_vram_gb']:.2f} GB at least, with all streamed that can be"
    if answer["status"] == UNPREDICTED:
        return f"cannot be predicted wholly: {answer.get('reason') or 'some of it was not followed'}; see --unpredicted"
    return str(answer.get("reason") or answer["status"])


def _allowed(name: str, answer: Mapping[str, Any]) -> str:
    """A worker, and what of its card may be used where that is the reason."""
    return f"{name}: {answer['allowed_gb']:.2f} GB may be used" if answer["status"] == TOO_BIG else name
