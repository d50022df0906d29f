"""One step of a plan, measured before the rest runs: what deviates from its prediction is planned again."""

from __future__ import annotations

from dataclasses import dataclass

from ...memory import Row
from ...memory.accelerator import is_here
from ...memory.prediction import Card, Fit, SamplingPlan
from ...memory.speed.kept import device_key, kept_share, save_share
from ...memory.units import format_bytes, format_seconds
from ..core.compat import is_out_of_memory, unload_with_clones
from ..core.device import GB
from ..core.latents import is_nested
from ..core.wrapper_kinds import OUTER_SAMPLE
from ..measure.speeds import note_run, speed_path, steps_as_predicted
from ..measure.wrappers import WRAPPER_KEY, wrap
from ..offload.block_offload import apply_offload
from ..prediction.stages import Question, as_sampled, step_of
from ..prediction.step import SAMPLER_LATENTS
from ..sampling.one_step import sample_one_step
from .compare import CollectAttention, streams
from .fit import changed, find_fit
from .step_meter import StepMeter

DEVIATION = 0.05  # from which on a plan is made anew
ROOM = 4.0  # times the predicted activations that a step gets which may have been predicted wrongly
MOST_PILOTS = 3


@dataclass(frozen=True)
class Pilot:
    """What a step took beside what was predicted.

    Attributes:
        least, most: bytes beyond the weights; where some are copied, those copies may be among them.
        predicted: bytes.
        seconds: of the step; None where weights were copied, which a plan with more room does less.
        expected: seconds, by the prediction.
    """

    least: int
    most: int
    predicted: int
    seconds: float | None
    expected: float

    @property
    def ratio(self) -> float:
        """By how much more a step takes than was predicted; 1 where that lies between what was measured."""
        nearest = min(max(self.predicted, self.least), self.most)
        return nearest / max(1, self.predicted)

    @property
    def holds(self) -> bool:
        return abs(self.ratio - 1) <= DEVIATION

    def describe(self) -> str:
        """Measured beside predicted."""
        size = format_bytes(self.most)
        size = size if self.least == self.most else f"{format_bytes(self.least)} to {size}"
        text = f"a step took {size} beyond the weights ({format_bytes(self.predicted)} predicted)"
        if self.seconds is None:
            return text
        return f"{text}, {format_seconds(self.seconds)} ({format_seconds(self.expected)} predicted)"


def find_verified_fit(question: Question, card: Card, quality: str, limit: float) -> tuple[Fit, tuple[str, ...]]:
    """As :func:`find_fit`, with a step of each plan measured, until one holds; what was learnt is kept for next time.

    The step runs with room for :data:`ROOM` times what is predicted, so that it keeps to the budget even where the
    prediction is wrong.

    Returns:
        The fit, and a line for each step that was measured.

    Raises:
        ValueError: an unknown quality.
    """
    if not is_here(card.device) or card.stands_for is not None:
        return find_fit(question, card, quality, limit), ("not verified: this machine has no such card",)
    if is_nested(question.latent["samples"]):
        return find_fit(question, card, quality, limit), ("not verified: a latent of video and sound together",)
    key, lines = device_key(card.device), list[str]()
    fit = find_fit(question, card, quality, limit)
    if fit.sampling is None:
        return fit, ()
    kind = fit.sampling.stage.kind
    share = kept_share(speed_path(), key, kind)
    fit = find_fit(question, card, quality, limit, share)
    for _ in range(MOST_PILOTS):
        if fit.sampling is None:
            break
        try:
            pilot = run_pilot(question, fit, fit.sampling)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            pilot = None
        share *= 2.0 if pilot is None else pilot.ratio
        lines.append("a step ran out of memory: planned again for twice as much" if pilot is None else pilot.describe())
        if pilot is not None and pilot.holds:
            break
        save_share(speed_path(), key, kind, share)
        if pilot is not None:
            lines.append("planned again by what was measured")
        fit = find_fit(question, card, quality, limit, share)
    return fit, tuple(lines)


def run_pilot(question: Question, fit: Fit, plan: SamplingPlan) -> Pilot:
    """Runs a step as planned, but for the weights, of which no more are on the card than is safe.

    Raises:
        OOM_EXCEPTION: it has no room.
    """
    asked, stage = as_sampled(question), plan.stage
    model = changed(asked.model, plan.attention, plan.in_turns, plan.storage)
    room = max(fit.allowed - int(ROOM * stage.activations), stage.least_weights)
    limited = fit.card.has_own_memory and not plan.fixed and room < stage.weights
    if limited:
        model, _ = apply_offload(model, max(room - stage.beside, stage.least_weights) / GB)
    wrap(model, OUTER_SAMPLE, WRAPPER_KEY, CollectAttention(Row("pilot")))  # no row of the report's
    step = step_of(asked)
    latent = step.latent.float()
    meter = StepMeter(model)
    try:
        sample_one_step(model, meter, latent, step.positive, step.negative, asked.cfg)
        copies = streams(model)
    finally:
        if plan.storage or limited:
            unload_with_clones(model)
    # The latents were there before; so was what libraries keep, which is no part of it.
    taken = meter.peak + (SAMPLER_LATENTS + 1) * latent.nbytes
    # Buffers for copies may have been there before, or come while it ran.
    more = max(stage.least_weights, plan.staging or 0) if copies else 0
    expected = fit.card.speed.seconds(stage.prediction.work, stage.kind)
    if not copies and steps_as_predicted(model):
        note_run(fit.card, stage.kind, stage.prediction.work, meter.seconds)
    found = stage.prediction.activations
    return Pilot(max(0, taken - more), taken + more, found, None if copies else meter.seconds, expected)
