"""The predictions of a workflow's stages together: what fits on a card, what is streamed, what does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from .card import Card
from .predict import Prediction

# How far a prediction may be off, as a share: allocators and kernels differ a little from what is documented, most of
# all a GPU's kernels.
SPREAD_CPU, SPREAD_GPU = 0.02, 0.1


class Verdict(Enum):
    """RESIDENT: all weights of a stage stay on the card. STREAMS: some come over the bus at every step."""

    RESIDENT = "resident"
    STREAMS = "streams"
    DOES_NOT_FIT = "does_not_fit"


@dataclass(frozen=True)
class Stage:
    """One part of a workflow that has the card to itself.

    Attributes:
        work: "text", "vision", "sound", "encode", "sampling", "decode" or "upscale".
        prediction: its bytes.
        weights: of its model, as it is stored, and of the networks that run beside it.
        least_weights: bytes of weights without which it cannot run: what cannot be streamed, and the largest layer.
        budget: bytes its weights may take, where a node limits them; None: no limit.
        method: how it is done, where there is a choice; otherwise empty.
        doubt: why the activations are the host's estimate and not a prediction; empty where they are predicted.
        model: which one it is, by any number: stages of one model share its weights. 0: told apart by their work.
        beside: bytes of the weights that are those of networks beside its model, which no budget of a node limits.
        node: the id of the node in a workflow that does it; empty where it is not of one.
        kind: of its model, by which is known how long such a one took here: its class, its work and its dtype.
        times: how often it is done, as of a sampling's step; 0: nobody has said.
        staging: bytes of its budget that weights go through when they are copied ahead; 0: by the host's own streaming.
        frames: bytes of the decoded pictures that it leaves in RAM.
        disk: bytes of disk that it takes at most: a file that it writes, pictures or maps that lie there.
        up_to: bytes that it takes where the card has them, if that is more than it is predicted with; 0: no more.
        ram: bytes of RAM that it takes on the machine's CPU, if it runs there beside a card, of which it takes none.
        or_tiles: whether the host, once a card's memory has run out in it, does it again in tiles, with another result.
        cuts: of a VAE's work: whether Low-Memory VAE can do it in less.
    """

    work: str
    prediction: Prediction
    weights: int
    least_weights: int
    budget: int | None = None
    method: str = ""
    doubt: str = ""
    model: int = 0
    beside: int = 0
    node: str = ""
    kind: str = ""
    times: float = 1.0
    staging: int = 0
    frames: int = 0
    disk: int = 0
    up_to: int = 0
    ram: int = 0
    or_tiles: bool = False
    cuts: bool = True

    def on_the_cpu(self) -> Stage:
        """What the card sees of a stage that is predicted for the machine's CPU and runs there: nothing."""
        nothing = Prediction(0, 0)
        return replace(self, prediction=nothing, weights=0, least_weights=0, budget=None, frames=0, ram=self.peak)

    @property
    def activations(self) -> int:
        """Bytes beside the weights, those that libraries keep included."""
        return self.prediction.activations + self.prediction.constant

    @property
    def resident(self) -> int:
        """Bytes of weights on the card, if only the budget limits them."""
        return self.weights if self.budget is None else max(self.least_weights, min(self.weights, self.budget))

    @property
    def peak(self) -> int:
        """Bytes at most."""
        return self.resident + self.activations

    @property
    def least(self) -> int:
        """Bytes at most with everything streamed that can be."""
        return self.least_weights + self.activations

    def spread(self, card: Card) -> tuple[int, int]:
        """Bytes between which the activations are expected: tensors alone, and with all that kernels may add."""
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
        disk_free: bytes that may be written where its disk is needed; 0: unknown.
    """

    card: Card
    stages: tuple[Stage, ...]
    limit: float = 0.85
    ram: int = 0
    disk_free: int = 0

    @property
    def allowed(self) -> int:
        """Bytes of the card that may be used."""
        return int(self.limit * self.card.total)

    @property
    def peak(self) -> int:
        """Bytes at most, with all of each stage's weights on the card, or as many as its budget allows."""
        return max((stage.peak for stage in self.stages), default=0)

    @property
    def least(self) -> int:
        """Bytes at most with everything streamed that can be."""
        return max((stage.least for stage in self.stages), default=0)

    @property
    def activations(self) -> int:
        return max((stage.activations for stage in self.stages), default=0)

    @property
    def ram_needed(self) -> int:
        """Bytes: the weights of all models, and the activations too where they are on a device without memory of its
        own, as a CPU."""
        weights = sum(stage.weights + stage.ram for stage in self._models())
        return weights if self.card.has_own_memory else weights + self.activations

    @property
    def ram_frames(self) -> int:
        """Bytes of decoded pictures in RAM, which stay there to the end; on a CPU the activations hold them."""
        return sum(stage.frames for stage in self.stages) if self.card.has_own_memory else 0

    @property
    def lacks_ram(self) -> bool:
        """Whether weights and pictures are more than the machine's memory."""
        return bool(self.ram) and self.ram_needed + self.ram_frames > self.ram

    @property
    def disk(self) -> int:
        """Bytes of disk at most, of all stages together."""
        return sum(stage.disk for stage in self.stages)

    def _models(self) -> Iterator[Stage]:
        """The stage of each model with most weights: an encode and a decode share one, and so do two samplings with
        one, of which the second may have a ControlNet beside it."""
        found: dict[tuple[str, int], Stage] = {}
        for stage in self.stages:
            model = ("vae" if stage.work in ("encode", "decode") else stage.work, stage.model)
            if model not in found or stage.weights + stage.ram > found[model].weights + found[model].ram:
                found[model] = stage
        return iter(found.values())

    @property
    def fullest(self) -> Stage | None:
        """The stage that needs most."""
        return max(self.stages, key=lambda stage: stage.peak, default=None)

    def streamed(self, stage: Stage) -> int:
        """Bytes of weights that are copied to the card each time the stage's model runs."""
        room = max(self.allowed - stage.activations, 0)
        resident = min(stage.resident, room) if stage.least <= self.allowed else stage.resident
        return max(0, stage.weights - max(0, resident - stage.staging))

    def computing(self, stage: Stage) -> float:
        """Seconds that a stage computes, each time; 0 where its kernels are not known."""
        return self.card.speed.seconds(stage.prediction.work, stage.kind)

    def copying(self, stage: Stage) -> float:
        """Seconds in which its weights come over the link, each time."""
        return self.card.speed.copied(self.streamed(stage) * stage.prediction.calls)

    def seconds_each(self, stage: Stage) -> float:
        """Seconds that a stage takes, each time it is done."""
        computing, copying = self.computing(stage), self.copying(stage)
        return self.card.with_copies(computing, copying, prefetched=stage.staging > 0)

    @property
    def seconds(self) -> float:
        """Of all stages whose kernels are known, and of which is known how often each is done; reading files is left
        out."""
        return sum(self.seconds_each(stage) * stage.times for stage in self.stages if stage.prediction.work)

    @property
    def timed(self) -> bool:
        """Whether the kernels of all stages are known, and how often each is done."""
        return all(stage.prediction.work and stage.times for stage in self.stages)

    @property
    def streamed_per_step(self) -> int:
        return sum(self.streamed(stage) for stage in self.stages if stage.work == "sampling")

    @property
    def verdict(self) -> Verdict:
        if self.least > self.allowed or self.lacks_ram:
            return Verdict.DOES_NOT_FIT
        streams = self.peak > self.allowed or any(stage.resident < stage.weights for stage in self.stages)
        return Verdict.STREAMS if streams else Verdict.RESIDENT

    def too_big(self) -> Sequence[Stage]:
        """Stages that do not fit, whatever is streamed."""
        return [stage for stage in self.stages if stage.least > self.allowed]

    @property
    def or_tiles(self) -> bool:
        """Whether it does not fit and would run nevertheless, with another result: all that is too big is done in
        tiles, which are not predicted."""
        too_big = () if self.lacks_ram else self.too_big()
        return bool(too_big) and all(stage.or_tiles for stage in too_big)
