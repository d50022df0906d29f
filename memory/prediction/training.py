"""What a training takes by each plan of checkpoints, and on several devices; numbers alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .card import Card

# Bytes that an optimizer keeps of each byte of its parameters, by the names of torch's classes.
STATES = {"AdamW": 2, "Adam": 2, "RMSprop": 1, "SGD": 0}
# Adam's two states in eight bits: a byte of each parameter, and a scale of four bytes for 2,048 of them. Source:
# Dettmers, Lewis, Shleifer & Zettlemoyer, "8-bit optimizers via block-wise quantization" (arXiv 2110.02861), section 2.
EIGHT_BITS, BYTES_IN_EIGHT_BITS = "AdamW in 8 bits", 2 * (1 + 4 / 2048)
DEVICES, STAGES = (1, 2, 4, 8), (0, 1, 2, 3)


@dataclass(frozen=True)
class TrainingWay:
    """One plan of checkpoints.

    Attributes:
        name: of the plan, for people.
        activations: bytes that the blocks take at most, their gradients among them.
        again: share of the blocks' forward that is computed again.
        operations: of the blocks in a step, as a multiple of those without checkpoints.
    """

    name: str
    activations: int
    again: float = 0.0
    operations: float = 1.0


@dataclass(frozen=True)
class TrainingForecast:
    """A training on a card.

    Attributes:
        card: where.
        limit: share of the card's memory that may be used.
        weights, adapter, gradients, states: bytes of the model, of what is trained, and of what the optimizer keeps.
        outside: bytes that the network saves outside of its blocks, and of pictures and texts.
        constant: bytes that libraries keep throughout.
        parameters: that are trained.
        blocks: of the network.
        optimizer: by its class.
        ways: plans of checkpoints.
        chosen: the number of the plan that the training would take.
    """

    card: Card
    limit: float
    weights: int
    adapter: int
    gradients: int
    states: int
    outside: int
    constant: int
    parameters: int
    blocks: int
    optimizer: str
    ways: tuple[TrainingWay, ...]
    chosen: int

    @property
    def allowed(self) -> int:
        """Bytes of the card that may be used."""
        return int(self.limit * self.card.total)

    @property
    def way(self) -> TrainingWay:
        """The chosen one."""
        return self.ways[self.chosen]

    @property
    def held(self) -> int:
        """Bytes beside the blocks' activations."""
        return self.weights + self.adapter + self.gradients + self.states + self.outside + self.constant

    def peak(self, way: TrainingWay) -> int:
        """Bytes at most."""
        return self.held + way.activations

    def fits(self, way: TrainingWay) -> bool:
        return self.peak(way) <= self.allowed

    @property
    def best(self) -> TrainingWay | None:
        """The plan that fits and computes least."""
        fitting = [way for way in self.ways if self.fits(way)]
        return min(fitting, key=lambda way: (way.operations, way.activations), default=None)

    @property
    def least(self) -> TrainingWay:
        """The plan that takes least memory."""
        return min(self.ways, key=lambda way: way.activations)

    def optimizers(self) -> Iterator[tuple[str, int]]:
        """Bytes of the states of each optimizer."""
        yield from ((name, states * self.adapter) for name, states in STATES.items())
        yield EIGHT_BITS, int(BYTES_IN_EIGHT_BITS * self.parameters)

    def on_each(self, devices: int, stage: int) -> int:
        """Bytes on each of several devices, by the formulas of ZeRO; activations are each one's own.

        Args:
            devices: that take part.
            stage: what is divided among them: 1 the optimizer's states, 2 gradients too, 3 all weights too.

        Source: Rajbhandari, Rasley, Ruwase & He, "ZeRO: memory optimizations toward training trillion parameter models"
        (arXiv 1910.02054), section 5; here most weights are frozen, and only what is trained has gradients and states.
        """
        divided = self.states * (stage >= 1) + self.gradients * (stage >= 2)
        divided += (self.weights + self.adapter) * (stage >= 3)
        return self.peak(self.way) - divided + -(-divided // devices)
