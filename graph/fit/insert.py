"""Makes a workflow fit: puts Headroom's nodes into it and changes nothing else. JSON in, JSON out; needs no host."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from ..formats import WORKFLOW, Called, as_number, check_api, is_ui
from ..kinds import TITLES
from ..litegraph import UIWorkflow
from ..prompt import Prompt, links
from ..settings import FitSettings
from .insert_ui import insert_into_ui, insert_remedy_into_ui
from .plan import FitPlan, Seen, plan_fit
from .remedies import REMEDIES
from .told import Told


@dataclass(frozen=True)
class Inserted:
    """A workflow made to fit.

    Attributes:
        workflow: in the format it came in.
        added: one line for each node that was added.
        notes: what was left alone, and why.
    """

    workflow: dict[str, Any]
    added: tuple[Told, ...]
    notes: tuple[Told, ...]


def insert_fit(workflow: dict[str, Any], settings: FitSettings | None = None, called: Called = WORKFLOW) -> Inserted:
    """Puts a HeadroomFit before each sampler and low-memory VAEs where pictures are encoded or decoded.

    What is behind one already is left alone, so that fitting twice changes nothing.

    Args:
        workflow: in the API format (nodes by id) or the browser's; not changed.
        settings: the widgets of HeadroomFit.
        called: what the workflow is called in sentences.

    Raises:
        BadWorkflow: it is in neither format, or not whole.
        ValueError: it goes in a circle.
    """
    workflow = copy.deepcopy(workflow)
    settings = settings or FitSettings()
    if is_ui(workflow):
        plans = insert_into_ui(UIWorkflow(workflow, called), settings)
    else:
        check_api(workflow, called)
        plans = [_insert_into_api(workflow, settings)]
    return _inserted(workflow, plans)


def insert_remedy(workflow: dict[str, Any], asked: str, number: str, called: Called = WORKFLOW) -> Inserted:
    """Puts in what helps one node, and nothing where that is already: for ``text_node`` a HeadroomCastCLIP behind its
    text encoder's loader, for all that read it; for ``train_node`` a HeadroomTraining in front of it.

    Args:
        workflow: in the API format (nodes by id) or the browser's; not changed.
        asked: which of the two.
        number: the node that ran out of memory, as ComfyUI's error has it ("12:5" in a subgraph).
        called: what the workflow is called in sentences.

    Raises:
        BadWorkflow: it is in neither format, or not whole.
        ValueError: there is no such node, or it reads no text encoder or trains no model.
    """
    workflow = copy.deepcopy(workflow)
    if is_ui(workflow):
        return _inserted(workflow, insert_remedy_into_ui(UIWorkflow(workflow, called), asked, number))
    check_api(workflow, called)
    plan = REMEDIES[asked](_all_seen(workflow), number, _free(workflow))
    _write(workflow, plan)
    return _inserted(workflow, [plan])


def _inserted(workflow: dict[str, Any], plans: list[FitPlan]) -> Inserted:
    added = tuple(one.line for plan in plans for one in plan.added)
    return Inserted(workflow, added, tuple(note for plan in plans for note in plan.notes))


def _insert_into_api(prompt: Prompt, settings: FitSettings) -> FitPlan:
    """Changes the prompt; gives what was planned for it."""
    plan = plan_fit(_all_seen(prompt), settings, _free(prompt))
    _write(prompt, plan)
    return plan


def _all_seen(prompt: Prompt) -> dict[str, Seen]:
    return {number: _seen(node) for number, node in prompt.items()}


def _free(prompt: Prompt) -> int:
    """An id from which on none is taken."""
    taken = [int(start) for number in prompt if (start := number.partition(":")[0]).isdecimal()]
    return 1 + max(taken, default=0)


def _write(prompt: Prompt, plan: FitPlan) -> None:
    for one in plan.added:
        linked: dict[str, Any] = {name: list(link) for name, link in one.links.items()}
        prompt[one.number] = {
            "class_type": one.kind,
            "inputs": one.widgets | linked,
            "_meta": {"title": TITLES[one.kind]},
        }
    for (number, name), link in plan.moved.items():
        prompt[number]["inputs"][name] = list(link)


def _seen(node: dict[str, Any]) -> Seen:
    connected = links(node)
    return Seen(node["class_type"], connected, dict(connected), as_number(node["inputs"].get("cfg")))
