"""What encoding a prompt would take, without data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from .host_answers import answering, card_answers, free_memory_answer

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
    mode = mode or fake_mode()
    running: list[str] = []
    results: list[Any] = []
    with answering({**card_answers(card), "load_models_gpu": lambda *_, **__: None}):
        stand_in = clip.clone()
        stand_in.cond_stage_model = fake_copy(clip.cond_stage_model, mode, card.device)
        stand_in.patcher.model = stand_in.cond_stage_model
        stand_in.patcher.load_device = card.device
        name_modules(stand_in.cond_stage_model, running)

        def run(tracker: LiveBytes) -> Any:
            tracker.modules = running
            with answering({"get_free_memory": free_memory_answer(card, tracker)}):
                results.append(encode(stand_in))

        weights = [*stand_in.cond_stage_model.parameters(), *stand_in.cond_stage_model.buffers()]
        found = predict(mode, card, weights, run, workspaces, given=given)
    return found, results[0]
