"""A Make It Fit that several samplers stand behind: their latents, and the one that takes most."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...graph.fit.behind import latents_alone, sampled_behind
from ...graph.prompt import Prompt
from ...memory.prediction import Card
from ..core.latents import is_nested
from ..prediction.networks import pixels_like
from ..prediction.stages import Question, as_sampled, sampling_stage

OutputsOf = Callable[[Prompt], Mapping[str, tuple[Any, ...]]]


def for_all_sizes(
    question: Question, card: Card, prompt: Prompt, fit: str, follow: OutputsOf
) -> tuple[Question, tuple[str, ...]]:
    """The question for the latent that takes most of those that are sampled behind a Make It Fit.

    Args:
        question: with the latent that it is given.
        prompt: that it is in.
        fit: its id.
        follow: goes through a prompt without data, and gives the outputs of what it could follow by their nodes.

    Returns:
        The question, and a line for people on each latent that was looked at; none where there is only the one given.
    """
    asked = sampled_behind(prompt, fit)
    if not asked:
        return question, ()
    results, lines = follow(latents_alone(prompt, asked.values())), list[str]()
    most, of_most, sizes = question, "", dict.fromkeys([_size(question)])
    for sampler, source in asked.items():
        samples = _samples(results, *source)
        if samples is None:
            lines.append(f"how large node {sampler} samples could not be told beforehand: it is not planned for")
            continue
        other = replace(question, latent={"samples": samples}, decode=None)
        try:
            larger = _activations(other, card) > _activations(most, card)
        except ValueError:  # not of this model: the sampler will say so
            continue
        sizes[_size(other)] = None
        if larger:
            most, of_most = other, f" (node {sampler})"
    if len(sizes) > 1:
        among = ", ".join(sizes)
        lines.insert(0, f"planned for {_size(most)}{of_most}, the most that is sampled behind it: {among}")
    return most, tuple(lines)


def _samples(results: Mapping[str, tuple[Any, ...]], node: str, output: int) -> Tensor | None:
    """The latent that a node gives, without data."""
    outputs = results.get(node, ())
    latent = outputs[output] if output < len(outputs) else None
    samples = latent.get("samples") if isinstance(latent, Mapping) else None
    if not isinstance(samples, Tensor) or is_nested(samples):
        return None
    return torch.zeros(()).expand(samples.shape)


def _activations(question: Question, card: Card) -> int:
    return sampling_stage(as_sampled(question), card).activations


def _size(question: Question) -> str:
    """In pixels, with the frames and the batch where there are several."""
    samples = question.latent["samples"]
    if is_nested(samples):
        return "the latent that it is given"
    with torch.device("meta"):
        frames, height, width, _ = pixels_like(question.vae, samples).shape
    frames //= samples.shape[0]
    of_frames = f", {frames} frames" if frames > 1 else ""
    return f"{width} x {height}{of_frames}" + (f", {samples.shape[0]} of them" if samples.shape[0] > 1 else "")
