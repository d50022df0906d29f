"""Nodes that encode texts and look at pictures: a stage each, predicted as they run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import torch
from torch import Tensor

from ....memory.prediction import Card, Prediction, Stage
from ...core.device import CPU
from ...core.internals import find
from ...measure.calibrated import workspaces_for
from ...measure.speeds import kind_of
from ...offload.layers import least_on_card
from ...prediction.encoders import PROMPT, predict_encoding, predict_vision
from ...prediction.host_answers import SAME_EXPERTS, answering, has_experts, replaced
from ...prediction.kept import PLAIN, described, kept, text_key
from ..calling import Outputs, outputs
from ..findings import Findings
from ..inputs import Inputs
from .codes import codes_counted
from .coding import encodes_counted

FROM_A_FILE = "embedding:"  # in a text
WRITING = "comfy.text_encoders.llama"  # the host's module of text encoders that write
LISTENER = "comfy.text_encoders.gemma4:Gemma4_Tokenizer"
# Of the spectra that Gemma 4 hears: samples a second, what a sound is padded to a multiple of, from frame to frame,
# in a frame, and how many bands (the model's audio configuration).
HEARD_RATE, PADDED, HOP, WINDOW, BANDS = 16000, 128, 160, 321, 128


def encode_text(found: Findings, kind: str, inputs: Inputs, times: float = 1.0) -> Outputs:
    """CONDITIONING of a text, with the pictures that the node gives to the text encoder or encodes by a VAE; ``times``:
    how often what is predicted is done, 0 where that is not known."""
    clip = inputs.clip()

    def encoded() -> tuple[Prediction, Outputs]:
        with encodes_counted(found, inputs) as counted:
            encode = found.nodes.prepared(kind, counted)
            spaces, given = workspaces_for(found.card), list(inputs.values())
            return predict_encoding(
                clip, found.card, lambda one: outputs(kind, encode(clip=one)), found.mode, spaces, given
            )

    others = {name: value for name, value in inputs.items() if value is not clip}
    if all(isinstance(value, PLAIN) and FROM_A_FILE not in str(value) for value in others.values()):
        key = kind, text_key(clip, found.card), described(others)
        prediction, results = kept(clip.cond_stage_model, key, encoded)
    else:  # a picture that is encoded by a VAE is a stage of this run, and a file of an embedding may change
        prediction, results = encoded()
    found.add(replace(encoder_stage("text", prediction, found.card, clip.patcher, clip.cond_stage_model), times=times))
    found.notes += [SAME_EXPERTS] if has_experts(clip.cond_stage_model) else []
    return results


def encode_song(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """As :func:`encode_text`, of a text encoder that may sketch the sound as well."""
    with codes_counted():  # the first and the last of them alone
        return encode_text(found, kind, inputs, times=0.0)


def write_text(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """A text that a text encoder writes: its first word and its second, with room kept for as many as it may write.

    What it writes is not known; it is taken to be of usual length, which is told.
    """
    clip = inputs.clip()
    choosing = {"sampling_mode": "off"}  # of words: it takes no memory to speak of
    write = found.nodes.prepared(kind, Inputs(kind, {**inputs, **choosing}))

    def run(stand_in: Any) -> Outputs:
        for network in stand_in.cond_stage_model.modules():
            if hasattr(network, "sample_token"):
                _write_two_words(network)
        return outputs(kind, write(clip=stand_in))

    spaces, given = workspaces_for(found.card), list(inputs.values())
    with answering({}), _without_its_bar(), _listening():
        prediction, _ = predict_encoding(clip, found.card, run, found.mode, spaces, given)
    found.add(encoder_stage("text", prediction, found.card, clip.patcher, clip.cond_stage_model, method="written"))
    found.notes.append(f"what {kind} writes is taken to be of usual length")
    return (PROMPT,)


def _without_its_bar() -> AbstractContextManager[None]:
    """Within it, the host draws no bar of words in the terminal: nothing is written."""
    module = sys.modules.get(WRITING)
    return replaced(module, "tqdm", lambda words, **_: words) if hasattr(module, "tqdm") else nullcontext()


@contextmanager
def _listening() -> Iterator[None]:
    """Within it, Gemma 4 hears a sound without data, whose spectrum the host computes by numpy."""
    listener = find(LISTENER)
    if listener is None:  # an older host
        yield
        return
    with replaced(listener, "_extract_audio_features", _spectrum):
        yield


def _spectrum(tokenizer: Any, waveform: Tensor, rate: int) -> tuple[Tensor, Tensor]:
    """What Gemma 4 gets of a sound (..., L): its spectrum (T, 128), and which of its T frames end within the sound."""
    samples = -(-waveform.shape[-1] * HEARD_RATE // rate)
    frames = (-(-samples // PADDED) * PADDED + HOP - WINDOW) // HOP + 1
    return waveform.new_empty(frames, BANDS), torch.arange(frames) * HOP + WINDOW - 1 < HOP + samples


def _write_two_words(network: Any) -> None:
    """In the place of the host's choice of the next word: some word, then the one that ends a text. Who calls may have
    words of its own that end it."""
    ends = getattr(network.model.config, "stop_tokens", None) or [0]
    words, generate = chain([0 if ends[0] else 1], repeat(ends[0])), network.generate

    def sample_token(logits: Tensor, *_: Any, **__: Any) -> Tensor:
        return torch.full((1, 1), next(words), dtype=torch.long, device=logits.device)

    def to_its_end(*args: Any, **kwargs: Any) -> Any:
        own = {"stop_tokens": ends} if "stop_tokens" in kwargs else {}
        return generate(*args, **{**kwargs, **own})

    network.sample_token, network.generate = sample_token, to_its_end


def encode_vision(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """CLIP_VISION_OUTPUT of a picture."""
    vision, image = inputs.vision(), inputs.image()
    encode = found.nodes.prepared(kind, inputs)
    prediction, results = predict_vision(
        vision,
        found.card,
        lambda one: outputs(kind, encode(clip_vision=one)),
        found.mode,
        workspaces_for(found.card),
        [image],
    )
    found.add(encoder_stage("vision", prediction, found.card, vision.patcher, vision.model))
    return results


def encoder_stage(work: str, prediction: Prediction, card: Card, patcher: Any, network: Any, method: str = "") -> Stage:
    """A stage of one of the host's networks, which its patcher loads: to the card, or to the CPU beside it."""
    weights, least = int(patcher.model_size()), least_on_card(patcher)
    kind = kind_of(work, network, getattr(patcher, "model_dtype", str)())
    # How much of it is written is not known, so that nobody can say how long it takes.
    stage = Stage(
        work, prediction, weights, least, method=method, model=id(network), kind=kind, times=0.0 if method else 1.0
    )
    # What was loaded for this card is on the CPU where its loader was told so, also where this machine has no card.
    return stage.on_the_cpu() if card.has_own_memory and patcher.load_device == CPU else stage
