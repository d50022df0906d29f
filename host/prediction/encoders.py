"""What encoding a prompt, or looking at a picture, would take, without data."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ...memory.prediction import (
    DOCUMENTED,
    Card,
    LiveBytes,
    Prediction,
    Workspaces,
    fake_copy,
    fake_mode,
    name_modules,
    predict,
)
from .host_answers import answering, card_answers, few_experts, free_memory_answer

PROMPT = "a photograph of a lighthouse on a rocky shore at dusk, waves, warm light in the windows"


def predict_text(clip: Any, card: Card, prompt: str = PROMPT, workspaces: Workspaces = DOCUMENTED) -> Prediction:
    """Predicts the encoding of one prompt.

    Raises:
        CannotPredict: the text encoder looks at its data.
    """
    tokens = clip.tokenize(prompt)
    found, _ = predict_encoding(
        clip, card, lambda stand_in: stand_in.encode_from_tokens_scheduled(tokens), workspaces=workspaces
    )
    return found


def predict_encoding(
    clip: Any,
    card: Card,
    encode: Callable[[Any], Any],
    mode: FakeTensorMode | None = None,
    workspaces: Workspaces = DOCUMENTED,
    given: Any = (),
) -> tuple[Prediction, Any]:
    """Predicts what ``encode`` takes, and gives its result without data.

    Args:
        clip: the CLIP.
        card: where it would run.
        encode: gets a CLIP without data.
        mode: what its result is faked in.
        given: pictures without data, in any structure, that are there before and are not counted.

    Raises:
        CannotPredict: the text encoder looks at its data.
    """
    stand_in = clip.clone()
    stand_in.patcher.load_device = card.device

    def with_network(network: Any) -> Any:
        stand_in.cond_stage_model = stand_in.patcher.model = network
        return stand_in

    encoder = _Encoder(clip.cond_stage_model, with_network, encode)
    return encoder.predicted(card, mode or fake_mode(), workspaces, given)


def predict_vision(
    vision: Any,
    card: Card,
    encode: Callable[[Any], Any],
    mode: FakeTensorMode | None = None,
    workspaces: Workspaces = DOCUMENTED,
    given: Any = (),
) -> tuple[Prediction, Any]:
    """As :func:`predict_encoding`, of a CLIP_VISION that looks at a picture."""
    stand_in = copy.copy(vision)
    stand_in.load_device = card.device

    def with_network(network: Any) -> Any:
        stand_in.model = network
        return stand_in

    return _Encoder(vision.model, with_network, encode).predicted(card, mode or fake_mode(), workspaces, given)


@dataclass(frozen=True)
class _Encoder:
    """An encoder of the host's.

    Attributes:
        network: its module.
        with_network: gives the encoder with another module in the place of this one.
        encode: gets the encoder.
    """

    network: nn.Module
    with_network: Callable[[nn.Module], Any]
    encode: Callable[[Any], Any]

    def predicted(self, card: Card, mode: FakeTensorMode, workspaces: Workspaces, given: Any) -> tuple[Prediction, Any]:
        running: list[str] = []
        results: list[Any] = []
        with answering({**card_answers(card), "load_models_gpu": lambda *_, **__: None}), few_experts():
            network = fake_copy(self.network, mode, card.device)
            encoder = self.with_network(network)
            name_modules(network, running)

            def run(tracker: LiveBytes) -> Any:
                tracker.modules = running
                with answering({"get_free_memory": free_memory_answer(card, tracker)}):
                    results.append(self.encode(encoder))

            weights = [*network.parameters(), *network.buffers()]
            found = predict(mode, card, weights, run, workspaces, given=given)
        return found, results[0]
