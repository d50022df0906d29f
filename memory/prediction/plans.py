"""Ways to sample and decode on a card; of those that fit, the one with the least loss that takes the least time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from .card import Card
from .forecast import Forecast, Stage


class Loss(IntEnum):
    """EXACT: up to float rounding. NEAR_EXACT: 30 dB or more on the weights. APPROXIMATE: visible in comparison."""

    EXACT = 0
    NEAR_EXACT = 1
    APPROXIMATE = 2


QUALITIES = {"exact": Loss.EXACT, "near_exact": Loss.NEAR_EXACT, "any": Loss.APPROXIMATE}


@dataclass(frozen=True)
class SamplingPlan:
    """One way to sample.

    Attributes:
        stage: what it takes; its ``weights`` are those of the storage.
        attention: backend; empty: as it is.
        in_turns: whether conditionings are computed one after the other.
        storage: that weights are cast to; empty: as they are.
        loss: what the storage does to the picture.
        staging: bytes of weights to set aside so that blocks can be prefetched; None: they cannot be.
        fixed: whether the budget was set by a node, and stays, or the host was started to stream everything.
    """

    stage: Stage
    attention: str = ""
    in_turns: bool = False
    storage: str = ""
    loss: Loss = Loss.EXACT
    staging: int | None = None
    fixed: bool = False

    def fits(self, allowed: int) -> bool:
        """Whether it can run in so many bytes."""
        return (self.stage.peak if self.fixed else self.stage.least) <= allowed

    def budget(self, allowed: int) -> int | None:
        """Bytes that the weights may take; None: all of them fit, or a node has set the budget."""
        room = allowed - self.stage.activations
        return None if self.fixed or room >= self.stage.weights else room

    def prefetches(self, card: Card, allowed: int) -> bool:
        """Whether copying blocks ahead of their use is at least as fast as copying them when they are due."""
        return self._ahead(card, allowed) <= self._between(card, allowed)

    def seconds(self, card: Card, allowed: int) -> float:
        """What a step of the sampling takes, by the card's roofline."""
        return min(self._ahead(card, allowed), self._between(card, allowed))

    def settled(self, card: Card, allowed: int) -> Stage:
        """The stage, limited to the plan's budget."""
        budget = self.budget(allowed)
        if budget is None:
            return self.stage
        staging = (self.staging or 0) if self.prefetches(card, allowed) else 0
        return replace(self.stage, budget=budget, staging=staging)

    def _ahead(self, card: Card, allowed: int) -> float:
        budget = self.budget(allowed)
        if budget is None:
            return self._compute(card)
        if self.staging is None or budget < self.stage.least_weights + self.staging:
            return float("inf")
        return card.with_copies(self._compute(card), self._copies(card, budget - self.staging), prefetched=True)

    def _between(self, card: Card, allowed: int) -> float:
        budget = self.budget(allowed)
        held = self.stage.resident if budget is None else budget
        return card.with_copies(self._compute(card), self._copies(card, held), prefetched=False)

    def _compute(self, card: Card) -> float:
        return card.speed.seconds(self.stage.prediction.work, self.stage.kind)

    def _copies(self, card: Card, held: int) -> float:
        streamed = max(0, self.stage.weights - held) * self.stage.prediction.calls
        return card.speed.copied(streamed)

    def describe(self) -> str:
        """Its choices in words."""
        attention = f"attention {self.attention}" if self.attention else "attention as it is"
        guidance = "guidance in turns" if self.in_turns else "guidance together"
        storage = f"weights cast to {self.storage}" if self.storage else "weights as they are"
        return f"{attention}, {guidance}, {storage}"


def choose(plans: Sequence[SamplingPlan], card: Card, allowed: int) -> SamplingPlan | None:
    """The plan that fits with the least loss, and of those the fastest; None where none fits."""
    fitting = [plan for plan in plans if plan.fits(allowed)]
    return min(fitting, key=lambda plan: (plan.loss, plan.seconds(card, allowed)), default=None)


def nearest(plans: Sequence[SamplingPlan]) -> SamplingPlan:
    """The plan that can do with the least memory."""
    return min(plans, key=lambda plan: plan.stage.least)


@dataclass(frozen=True)
class VAEPlan:
    """One way to decode.

    Attributes:
        stage: what it takes; None where the budget is below the least that can be predicted.
        settings: of the VAE, for the host's side alone; None: as its own node says.
        loss: what they do to the picture.
        refusal: why it does not fit, from the planner of strips.
    """

    stage: Stage | None
    settings: Any
    loss: Loss
    refusal: str = ""

    def fits(self, allowed: int) -> bool:
        """Whether it can run in so many bytes; one that stays as it is runs where the host would go on in tiles."""
        if self.stage is None:
            return False
        return self.stage.peak <= allowed or (self.settings is None and self.stage.or_tiles)


@dataclass(frozen=True)
class Fit:
    """What was considered and chosen.

    Attributes:
        card, limit, quality: what was asked.
        sampling, vae: the chosen ways; None where none fits.
        considered: ways to sample, the chosen one among them.
        vaes: ways to decode, tried in order.
        notes: what was left as it is, and why.
    """

    card: Card
    limit: float
    quality: str
    sampling: SamplingPlan | None
    vae: VAEPlan | None
    considered: tuple[SamplingPlan, ...]
    vaes: tuple[VAEPlan, ...]
    notes: tuple[str, ...] = ()

    @property
    def allowed(self) -> int:
        return int(self.limit * self.card.total)

    @property
    def found(self) -> bool:
        return self.sampling is not None and self.vae is not None

    @property
    def loss(self) -> Loss:
        return max((plan.loss for plan in (self.sampling, self.vae) if plan is not None), default=Loss.EXACT)

    @property
    def seconds(self) -> float:
        return float("inf") if self.sampling is None else self.sampling.seconds(self.card, self.allowed)

    @property
    def summary(self) -> str:
        """What was chosen, in a line; empty where nothing fits."""
        if self.sampling is None or self.vae is None:
            return ""
        method = self.vae.stage.method if self.vae.stage is not None else ""
        return f"{self.sampling.describe()}; decode {method or 'as it is'}"

    @property
    def forecast(self) -> Forecast:
        """Of what was chosen, or of what needs least."""
        plan = self.sampling or nearest(self.considered)
        sampling = replace(plan.settled(self.card, self.allowed), times=0.0)
        tried = [plan.stage for plan in self.vaes if plan.stage is not None]
        vae = self.vae.stage if self.vae is not None else min(tried, key=lambda stage: stage.peak, default=None)
        return Forecast(self.card, tuple(stage for stage in (sampling, vae) if stage is not None), self.limit)
