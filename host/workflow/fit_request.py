"""A workflow made to fit, as the server's route is asked for it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ...graph.insert_fit import FIT, FitSettings, Inserted, insert_fit
from ...memory.prediction import QUALITIES
from .estimate import Terms

LEAST_LIMIT = 0.1  # as the node's widget has it
SETTINGS = tuple(field.name for field in fields(FitSettings))


def fit_workflow(asked: dict[str, Any]) -> dict[str, Any]:
    """What a request asks for: ``workflow``, in either format, and optionally the settings of Make It Fit.

    Returns:
        ``workflow`` in the format it came in, ``changed`` (a line per node that was added), ``notes`` (what was left
        alone, and why), ``summary`` (one sentence).

    Raises:
        ValueError: something makes no sense, named with what to send instead.
    """
    settings = dict(asked)
    workflow = settings.pop("workflow", None)
    if not isinstance(workflow, dict) or not workflow:
        raise ValueError("workflow: send a workflow as saved by ComfyUI, in the browser's format or the API format")
    return _answer(workflow, _settings(settings))


def _answer(workflow: dict[str, Any], settings: FitSettings) -> dict[str, Any]:
    try:
        inserted = insert_fit(workflow, settings)
        summary = _summary(inserted)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError("workflow: an entry of it is not as ComfyUI writes it; save it again from ComfyUI") from error
    lines = {"changed": list(inserted.added), "notes": list(inserted.notes)}
    return {"workflow": inserted.workflow, **lines, "summary": summary}


def _settings(values: dict[str, Any]) -> FitSettings:
    for name in values:
        if name not in SETTINGS:
            raise ValueError(f"'{name}' is not known; choose from workflow, {', '.join(SETTINGS)}")
    quality = values.get("quality", "exact")
    if not isinstance(quality, str) or quality not in QUALITIES:
        raise ValueError(f"quality: {quality!r} is not known; choose one of {', '.join(QUALITIES)}")
    terms = Terms.of({name: value for name, value in values.items() if name != "quality"})
    if terms.limit < LEAST_LIMIT:
        raise ValueError(f"limit: {terms.limit:g} is too small a share of a card; choose from {LEAST_LIMIT:g} to 1")
    return FitSettings(quality, terms.vram_gb, terms.gpu, terms.limit)


def _summary(inserted: Inserted) -> str:
    count = len(inserted.added)
    if count:
        return f"{count} node{'s' if count > 1 else ''} inserted"
    if inserted.notes:
        return "nothing inserted"
    if any(FIT in kinds for kinds in _kinds(inserted.workflow)):
        return "nothing to insert: this workflow is fitted already"
    return "nothing to fit: no sampler and no VAE for pictures in this workflow"


def _kinds(workflow: dict[str, Any]) -> list[set[str]]:
    """The node classes of each graph in a workflow."""
    if not isinstance(workflow.get("nodes"), list):
        return [{node["class_type"] for node in workflow.values()}]
    inner = (workflow.get("definitions") or {}).get("subgraphs") or ()
    return [{node["type"] for node in graph["nodes"]} for graph in (workflow, *inner)]
