"""A workflow made to fit, as the server's route is asked for it."""

from __future__ import annotations

from typing import Any

from ...graph.fit.insert import Inserted, insert_fit
from ...graph.formats import WORKFLOW, check_sent, is_ui
from ...graph.kinds import FIT
from ...graph.settings import SETTINGS, FitSettings, check_names


def fit_workflow(asked: dict[str, Any]) -> dict[str, Any]:
    """What a request asks for: ``workflow``, in either format, and optionally the settings of Make It Fit.

    Returns:
        ``workflow`` in the format it came in, ``changed`` (a line per node that was added), ``notes`` (what was left
        alone, and why), ``summary`` (one sentence).

    Raises:
        ValueError: something makes no sense, named with what to send instead.
    """
    check_sent(asked.get("workflow"), WORKFLOW)
    check_names(asked, ("workflow", *SETTINGS))
    settings = FitSettings(**{name: value for name, value in asked.items() if name != "workflow"})
    settings.check()
    inserted = insert_fit(asked["workflow"], settings)
    lines = {"changed": list(inserted.added), "notes": list(inserted.notes)}
    return {"workflow": inserted.workflow, **lines, "summary": _summary(inserted)}


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
    if not is_ui(workflow):
        return [{node["class_type"] for node in workflow.values()}]
    inner = (workflow.get("definitions") or {}).get("subgraphs") or ()
    return [{node["type"] for node in graph["nodes"]} for graph in (workflow, *inner)]
