"""A workflow made to fit, as the server's route is asked for it."""

from __future__ import annotations

from typing import Any

from ...graph.fit.insert import Inserted, insert_cast, insert_fit
from ...graph.fit.told import Told
from ...graph.formats import WORKFLOW, check_sent, is_ui
from ...graph.kinds import FIT
from ...graph.settings import SETTINGS, FitSettings, check_names

TEXT_NODE = "text_node"


def fit_workflow(asked: dict[str, Any]) -> dict[str, Any]:
    """What a request asks for: ``workflow``, in either format, and optionally the settings of Make It Fit; or
    ``text_node``, whose text encoder is cast instead.

    Returns:
        ``workflow`` in the format it came in, ``changed`` (a line per node that was added), ``notes`` (what was left
        alone, and why), ``summary`` (one sentence); ``told``: of each of these three the lines' codes and values.

    Raises:
        ValueError: something makes no sense, named with what to send instead.
    """
    check_sent(asked.get("workflow"), WORKFLOW)
    check_names(asked, ("workflow", *SETTINGS, TEXT_NODE))
    settings = FitSettings(**{name: value for name, value in asked.items() if name not in ("workflow", TEXT_NODE)})
    settings.check()
    if TEXT_NODE not in asked:
        inserted = insert_fit(asked["workflow"], settings)
    elif isinstance(number := asked[TEXT_NODE], str):
        inserted = insert_cast(asked["workflow"], number)
    else:
        raise ValueError(f'{TEXT_NODE}: has to be a string, a node\'s id such as "6" or, in a subgraph, "12:5"')
    lines: dict[str, tuple[Told, ...]] = {
        "summary": (_summary(inserted),), "changed": inserted.added, "notes": inserted.notes,
    }  # fmt: skip
    told = {name: [line.parts for line in found] for name, found in lines.items()}
    return {"workflow": inserted.workflow, **lines, "summary": lines["summary"][0], "told": told}


def _summary(inserted: Inserted) -> Told:
    count = len(inserted.added)
    if count:
        return Told(f"{count} node{'s' if count > 1 else ''} inserted", "inserted", count=str(count))
    if inserted.notes:
        return Told("nothing inserted", "nothing_inserted")
    if any(FIT in kinds for kinds in _kinds(inserted.workflow)):
        return Told("nothing to insert: this workflow is fitted already", "fitted_already")
    return Told("nothing to fit: no sampler and no VAE for pictures in this workflow", "nothing_to_fit")


def _kinds(workflow: dict[str, Any]) -> list[set[str]]:
    """The node classes of each graph in a workflow."""
    if not is_ui(workflow):
        return [{node["class_type"] for node in workflow.values()}]
    inner = (workflow.get("definitions") or {}).get("subgraphs") or ()
    return [{node["type"] for node in graph["nodes"]} for graph in (workflow, *inner)]
