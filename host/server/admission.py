"""Refuses a prompt that says how much memory it may take and would take more, before it is queued."""

from __future__ import annotations

import json
import logging
from typing import Any

from ...graph.prompt import Prompt
from ...memory.prediction import Verdict
from ...memory.render import advise
from ..workflow.estimate import Terms, checked_prompt, estimate_beside
from ..workflow.running import ends_of

KEY = "headroom_limit"
DOES_NOT_FIT, BAD_LIMIT = "headroom_does_not_fit", "headroom_bad_limit"

log = logging.getLogger(__name__)


def asks_for_admission(body: bytes) -> bool:
    """Whether a request may hold the key, found without reading it as JSON."""
    return KEY.encode() in body


def refusal(body: bytes) -> dict[str, Any] | None:
    """Why the host should not queue a prompt, in the shape of its own errors; None where it should go on.

    To be called away from the server's loop: it reads the workflow and predicts it.

    Args:
        body: of a POST to /prompt.

    Returns:
        ``{"error": {…}, "node_errors": {}}``, as the host answers a prompt that it refuses.
    """
    content = _object(body)
    extra = content.get("extra_data")
    if not isinstance(extra, dict) or KEY not in extra:
        return None
    try:
        terms = terms_of(extra[KEY])
    except ValueError as error:
        return _error(BAD_LIMIT, f"extra_data.{KEY}: {error}")
    try:
        prompt = checked_prompt(content.get("prompt"))
    except ValueError:
        return None  # the host says what is wrong with it
    asked = content.get("partial_execution_targets")
    ends = ends_of(prompt, asked if isinstance(asked, list) else None)
    return _too_big(prompt, terms, ends) if ends else None  # nothing would run, and the host says so


def terms_of(value: Any) -> Terms:
    """The value of the key: a share of this machine's card, or an object.

    Raises:
        ValueError: anything else, or a card that is not known.
    """
    if isinstance(value, dict):
        terms = Terms.of(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        terms = Terms.of({"limit": value})
    else:
        raise ValueError(
            f"{value!r} is no limit; send a share of the card such as 0.85, or an object of limit, vram_gb, ram_gb, gpu"
        )
    terms.card()
    return terms


def _too_big(prompt: Prompt, terms: Terms, ends: list[str]) -> dict[str, Any] | None:
    try:
        answer = estimate_beside(prompt, terms, ends)
    except ValueError as error:
        log.info("Headroom admits a prompt without a prediction: %s", error)
        return None
    except Exception:
        # A prediction is a favour: whatever goes wrong with it, the prompt is the user's to run.
        log.exception("Headroom admits a prompt whose prediction failed")
        return None
    if not answer.stages_followed or answer.guessed:
        log.info("Headroom admits a prompt of which not all could be predicted: %s", answer.text)
        return None
    if answer.forecast.verdict is not Verdict.DOES_NOT_FIT:
        return None
    message = f"not queued, since it does not fit: {next(iter(advise(answer.forecast)))}"
    return _error(DOES_NOT_FIT, message, answer.text, answer.numbers)


def _error(kind: str, message: str, details: str = "", numbers: dict[str, Any] | None = None) -> dict[str, Any]:
    error = {"type": kind, "message": message, "details": details, "extra_info": numbers or {}}
    return {"error": error, "node_errors": {}}


def _object(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
