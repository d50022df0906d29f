"""Which groups of layers to keep in full, from what each costs the model's output when it alone is cast.

Errors of different groups add up like independent noise, so that each can be judged by itself: the model runs once per
group with only that group cast. Leaving one out of a model that is cast everywhere else asks the same question of a
difference between two large, nearly equal numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class GroupCost:
    """What casting one group does.

    Attributes:
        group: its name.
        noise: energy of the error in the model's output over the energy of the output, this group alone cast.
        saved: bytes.
    """

    group: str
    noise: float
    saved: int

    @property
    def per_byte(self) -> float:
        return self.noise / max(1, self.saved)


def ranked(costs: Iterable[GroupCost]) -> list[GroupCost]:
    """The most noise per byte first: those to keep in full."""
    return sorted(costs, key=lambda cost: cost.per_byte, reverse=True)


def output_db(costs: Iterable[GroupCost]) -> float:
    """Signal to noise of the output, in dB, that the sum of these groups' noise predicts."""
    noise = sum(cost.noise for cost in costs)
    return math.inf if noise == 0 else -10 * math.log10(noise)


def keep_for_error(
    costs: Sequence[GroupCost], target_db: float, measure: Callable[[frozenset[str]], float]
) -> frozenset[str]:
    """The fewest of the ranked groups with which the output reaches a signal to noise ratio.

    Args:
        target_db: wanted.
        measure: the model's output in dB with these groups kept; called about log2 of the number of groups times.

    Returns:
        All groups where even that does not reach it.
    """
    order = [cost.group for cost in ranked(costs)]
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        if measure(frozenset(order[:middle])) >= target_db:
            high = middle
        else:
            low = middle + 1
    return frozenset(order[:low])


def keep_for_size(costs: Sequence[GroupCost], smallest: int, limit: int) -> frozenset[str]:
    """As many of the ranked groups as fit; one that does not fit is passed over for smaller ones.

    Args:
        smallest: bytes of the model with every group cast.
        limit: bytes it may have.
    """
    kept, size = set(), smallest
    for cost in ranked(costs):
        if size + cost.saved <= limit:
            kept.add(cost.group)
            size += cost.saved
    return frozenset(kept)
