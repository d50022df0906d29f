"""A fit as text: what was chosen and why, what else there was, and what to do where nothing fits."""

from __future__ import annotations

from collections.abc import Iterator

from ..prediction.plans import QUALITIES, Fit, Loss, SamplingPlan, nearest
from ..units import format_bytes, format_seconds
from .time_text import stage_seconds

WORDS = {Loss.EXACT: "exact", Loss.NEAR_EXACT: "near-exact", Loss.APPROXIMATE: "approximate"}


def render_fit(fit: Fit) -> str:
    """Paragraphs: what was chosen for sampling and decoding, what that takes, the other ways."""
    lines = [f"Make it fit · {fit.card.title} · {fit.limit:.0%} of it: {format_bytes(fit.allowed)} · {fit.quality}"]
    lines += _sampling_lines(fit)
    lines += _vae_lines(fit)
    others = [plan for plan in fit.considered if plan is not fit.sampling]
    if others:
        lines += ["", "the other ways to sample:", *(f"  {_alternative(plan, fit)}" for plan in others)]
    return "\n".join([*lines, *(f"! {note}" for note in fit.notes)])


def why_nothing_fits(fit: Fit) -> str:
    """One sentence with the least that would do, and what to change."""
    parts = []
    if fit.sampling is None:
        plan = nearest(fit.considered)
        parts.append(
            f"sampling needs {format_bytes(plan.stage.peak if plan.fixed else plan.stage.least)} at least"
            f" ({plan.describe()})"
        )
    if fit.vae is None:
        tried = fit.vaes[-1]
        parts.append(
            f"decoding: {tried.refusal}" if tried.stage is None
            else f"decoding needs {format_bytes(tried.stage.peak)} ({tried.stage.method})"
        )  # fmt: skip
    advice = "make the picture, batch or video smaller"
    if QUALITIES[fit.quality] < Loss.APPROXIMATE:
        better = "near_exact" if fit.quality == "exact" else "any"
        advice = f"set quality to {better}, which allows more, or {advice}"
    return f"{format_bytes(fit.allowed)} are allowed and nothing fits: {'; '.join(parts)}. {advice.capitalize()}."


def _sampling_lines(fit: Fit) -> Iterator[str]:
    plan = fit.sampling
    if plan is None:
        return
    stage = plan.settled(fit.card, fit.allowed)
    yield f"sampling, {WORDS[plan.loss]}: {plan.describe()}"
    yield (
        f"  {format_bytes(stage.resident)} of {format_bytes(stage.weights)} weights {fit.card.place} +"
        f" {format_bytes(stage.activations)} = {format_bytes(stage.peak)}"
    )
    if plan.budget(fit.allowed) is not None:
        how = "layers copied ahead" if stage.staging else "by ComfyUI's own streaming"
        calls = stage.prediction.calls
        times = "" if calls == 1 else f" {calls} times"
        yield f"  {format_bytes(fit.forecast.streamed(stage))} streamed{times} per step, {how}"
    seconds = stage_seconds(fit.forecast, fit.forecast.stages[0])
    if seconds:
        yield f"  {seconds}, by {fit.card.speed.source}"
    yield f"  why: {_reason(plan, fit)}"
    if stage.doubt:
        yield f"  the host's own estimate, not a prediction: {stage.doubt}"


def _reason(plan: SamplingPlan, fit: Fit) -> str:
    plain = fit.considered[0]
    if plan is plain:
        return (
            "it fits as it is"
            if plan.budget(fit.allowed) is None
            else f"all weights {fit.card.place} would need {format_bytes(plain.stage.peak)}; no other way is faster"
        )
    if not plain.fits(fit.allowed):
        return f"as it is, sampling would need {format_bytes(plain.stage.least)} at least"
    ratio = plain.seconds(fit.card, fit.allowed) / fit.seconds
    return f"about {ratio:.2f} times as fast as streaming it as it is"


def _vae_lines(fit: Fit) -> Iterator[str]:
    plan = fit.vae
    if plan is None or plan.stage is None:
        return
    way = (plan.stage.method or "as it is").removeprefix(f"{WORDS[plan.loss]}, ")
    yield f"decoding, {WORDS[plan.loss]}: {way}, {format_bytes(plan.stage.peak)}"
    if plan.stage.peak > fit.allowed:  # a VAE that stays as it is
        yield "  more than is allowed: where it runs out of memory ComfyUI goes on in tiles, which give another result"
    larger = [other for other in fit.vaes if other is not plan]
    if larger:
        tried = larger[0]
        size = f"{tried.stage.method} would need {format_bytes(tried.stage.peak)}" if tried.stage else tried.refusal
        yield f"  why: {size}"


def _alternative(plan: SamplingPlan, fit: Fit) -> str:
    least = format_bytes(plan.stage.least)
    if not plan.fits(fit.allowed):
        return f"{plan.describe()}, {WORDS[plan.loss]}: does not fit, needs {least} at least"
    seconds = plan.seconds(fit.card, fit.allowed)
    slower = seconds / fit.seconds if fit.seconds > 0 else 1.0
    return (
        f"{plan.describe()}, {WORDS[plan.loss]}: fits from {least}, about {format_seconds(seconds)} a step,"
        f" {slower:.2f} times the time"
    )
