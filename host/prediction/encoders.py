"""What one of the host's networks beside models and VAEs would take: text encoders, and what looks, listens, scales up.
All of it without data."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import comfy.utils
import torch
from torch import Tensor, nn
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
from .host_answers import (
    answering,
    apply_by_exchange,
    attending,
    card_answers,
    few_experts,
    free_memory_answer,
    replaced,
)

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

    held = HeldNetwork(clip.cond_stage_model, with_network)
    return predict_network(held, card, encode, mode, workspaces, given)


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

    return predict_network(HeldNetwork(vision.model, with_network), card, encode, mode, workspaces, given)


@dataclass(frozen=True)
class HeldNetwork:
    """A network, and whatever of the host's holds it.

    Attributes:
        network: the module.
        with_network: gives the holder with another module in the place of this one.
        device: where the network runs, whatever the card; None: on the card.
        copied: copies it without data, as :func:`...memory.prediction.fake_copy` does.
    """

    network: nn.Module
    with_network: Callable[[Any], Any]
    device: torch.device | None = None
    copied: Callable[[Any, FakeTensorMode, torch.device], Any] = fake_copy


def predict_network(
    held: HeldNetwork,
    card: Card,
    work: Callable[[Any], Any],
    mode: FakeTensorMode | None = None,
    workspaces: Workspaces = DOCUMENTED,
    given: Any = (),
    assumptions: list[str] | None = None,
) -> tuple[Prediction, Any]:
    """Predicts what ``work`` takes, and gives its result without data.

    Args:
        held: the network.
        card: where it would run.
        work: gets its holder without data.
        mode: what its result is faked in.
        given: tensors without data, in any structure, that are there before and are not counted.
        assumptions: as for :func:`...memory.prediction.predict`.

    Raises:
        CannotPredict: the network looks at its data.
    """
    mode, running = mode or fake_mode(), list[str]()
    results: list[Any] = []
    moving = replaced(nn.Module, "_apply", apply_by_exchange)
    with (
        answering(card_answers(card)),
        attending(card),
        moving,
        few_experts(),
        resizing(),
    ):
        network = held.copied(held.network, mode, held.device or card.device)
        holder = held.with_network(network)
        name_modules(network, running)

        def run(tracker: LiveBytes) -> Any:
            tracker.modules = running
            with answering({"get_free_memory": free_memory_answer(card, tracker)}):
                results.append(work(holder))
            tracker.hand_on(results[0])  # a model may ask for a text's tokens

        weights = [*network.parameters(), *network.buffers()]
        found = predict(mode, card, weights, run, workspaces, given=given, assumptions=assumptions)
    return found, results[0]


def resizing() -> AbstractContextManager[None]:
    """Within it, the host's ``lanczos``, which works on data, gives pictures without data in another size."""
    return replaced(comfy.utils, "lanczos", _sized)


def _sized(samples: Tensor, width: int, height: int) -> Tensor:
    """(B, C, H, W) in another size."""
    return samples.new_empty((*samples.shape[:2], height, width))
