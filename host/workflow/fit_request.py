"""A workflow made to fit, as the server's route is asked for it."""

from __future__ import annotations

from typing import Any

from ...graph.fit.insert import Inserted, insert_fit, insert_remedy
from ...graph.fit.remedies import REMEDIES
from ...graph.fit.told import Told
from ...graph.formats import WORKFLOW, check_sent, is_ui
from ...graph.kinds import FIT
from ...graph.settings import SETTINGS, FitSettings, check_names


def fit_workflow(asked: dict[str, Any]) -> dict[str, Any]:
    """What a request asks for: ``workflow``, in either format, and optionally the settings of Make It Fit; or
    ``text_node``, whose text encoder is cast instead, or ``train_node``, whose model is put behind checkpoints.

    Returns:
        ``workflow`` in the format it came in, ``changed`` (a line per node that was added), ``notes`` (what was left
        alone, and why), ``summary`` (one sentence); ``told``: of each of these three the lines' codes and values.

    Raises:
        ValueError: something makes no sense, named with what to send instead.
    """
    check_sent(asked.get("workflow"), WORKFLOW)
    check_names(asked, ("workflow", *SETTINGS, *REMEDIES))
    settings = FitSettings(**{name: value for name, value in asked.items() if name in SETTINGS})
    settings.check()
    wanted = [name for name in REMEDIES if name in asked]
    if len(wanted) > 1:
        raise ValueError(f"{' and '.join(wanted)}: send one of them")
    if not wanted:
        inserted = insert_fit(asked["workflow"], settings)
    elif isinstance(number := asked[wanted[0]], str):
        inserted = insert_remedy(asked["workflow"], wanted[0], number)
    else:
        raise ValueError(f'{wanted[0]}: has to be a string, a node\'s id such as "6" or, in a subgraph, "12:5"')
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
