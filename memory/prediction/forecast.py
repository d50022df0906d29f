"""Predictions of a workflow's stages put together: what fits on a card, what streams, what does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from .card import Card
from .predict import Prediction

# Allocators and kernels differ a little from what is documented: how far a prediction may be off, as a share. What a
# GPU's kernels hold inside is known least.
SPREAD_CPU, SPREAD_GPU = 0.02, 0.1


class Verdict(Enum):
    """RESIDENT: all weights of a stage stay on the card. STREAMS: some come over the bus at every step."""

    RESIDENT = "resident"
    STREAMS = "streams"
    DOES_NOT_FIT = "does_not_fit"


@dataclass(frozen=True)
class Stage:
    """One stretch of a workflow that has the card to itself.

    Attributes:
        work: "text", "encode", "sampling" or "decode".
        prediction: its bytes.
        weights: of its model, as it is stored.
        least_weights: bytes of weights without which it cannot run: what cannot be streamed, and the largest layer.
        budget: bytes its weights may take, if a node says so.
        method: how it is done, where there is a choice.
        doubt: why the activations are the host's estimate and not a prediction; empty where they are predicted.
    """

    work: str
    prediction: Prediction
    weights: int
    least_weights: int
    budget: int | None = None
    method: str = ""
    doubt: str = ""

    @property
    def activations(self) -> int:
        return self.prediction.activations + self.prediction.constant

    @property
    def resident(self) -> int:
        """Weights on the card where nothing else limits them."""
        return self.weights if self.budget is None else max(self.least_weights, min(self.weights, self.budget))

    @property
    def peak(self) -> int:
        return self.resident + self.activations

    @property
    def least(self) -> int:
        return self.least_weights + self.activations

    def spread(self, card: Card) -> tuple[int, int]:
        """Between which bytes the activations are expected: tensors alone, and all with what kernels may add."""
        share = SPREAD_CPU if card.device.type == "cpu" else SPREAD_GPU
        low = min(self.prediction.live, self.prediction.activations) + self.prediction.constant
        return low, int(self.activations * (1 + share))


@dataclass(frozen=True)
class Forecast:
    """What the stages of a workflow take on a card.

    Attributes:
        card: where.
        stages: in the order in which they run.
        limit: share of the card's memory that may be used.
        ram: bytes of the machine's memory; 0: unknown.
    """

    card: Card
    stages: tuple[Stage, ...]
    limit: float = 0.85
    ram: int = 0

    @property
    def allowed(self) -> int:
        return int(self.limit * self.card.total)

    @property
    def peak(self) -> int:
        """With each stage's own weights on the card whole (or up to their budget)."""
        return max((stage.peak for stage in self.stages), default=0)

    @property
    def least(self) -> int:
        """With all streamed that can be."""
        return max((stage.least for stage in self.stages), default=0)

    @property
    def activations(self) -> int:
        return max((stage.activations for stage in self.stages), default=0)

    @property
    def ram_needed(self) -> int:
        """The weights of all models; the work as well on a device that has no memory of its own, such as a CPU."""
        weights = sum(stage.weights for stage in self._models())
        return weights if self.card.has_own_memory else weights + self.activations

    def _models(self) -> Iterator[Stage]:
        """A stage a model: encode and decode share theirs."""
        seen = set()
        for stage in self.stages:
            model = "vae" if stage.work in ("encode", "decode") else stage.work
            if model not in seen:
                seen.add(model)
                yield stage

    @property
    def fullest(self) -> Stage | None:
        """The stage that needs most."""
        return max(self.stages, key=lambda stage: stage.peak, default=None)

    def streamed(self, stage: Stage) -> int:
        """Bytes that come over the bus each time the stage's model runs."""
        room = max(self.allowed - stage.activations, 0)
        resident = min(stage.resident, room) if stage.least <= self.allowed else stage.resident
        return max(0, stage.weights - resident)

    @property
    def streamed_per_step(self) -> int:
        return sum(self.streamed(stage) for stage in self.stages if stage.work == "sampling")

    @property
    def verdict(self) -> Verdict:
        if self.least > self.allowed or (self.ram and self.ram_needed > self.ram):
            return Verdict.DOES_NOT_FIT
        streams = self.peak > self.allowed or any(stage.resident < stage.weights for stage in self.stages)
        return Verdict.STREAMS if streams else Verdict.RESIDENT

    def too_big(self) -> Sequence[Stage]:
        """Stages that do not fit, whatever is streamed."""
        return [stage for stage in self.stages if stage.least > self.allowed]
