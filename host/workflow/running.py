"""Which nodes of a workflow the host runs: those that save or show something, and all that these depend on."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from ...graph.kinds import DECODES, ENCODES, SAMPLERS, TRAIN
from ...graph.prompt import Graph, Prompt, parents, prompt_of
from ...graph.switches import depended_on, without_switches
from ..core.nodes import node_classes

NO_ENDS = "nothing in this workflow is saved or shown, so that ComfyUI would not run it: all of it is counted"
WORK = (*SAMPLERS, TRAIN, *DECODES, *ENCODES)  # what is told by name where it does not run
MOST_TOLD = 4


def ends_of(prompt: Prompt, asked: Sequence[Any] | None = None, ours: Mapping[str, Any] | None = None) -> list[str]:
    """The nodes that run whoever reads them. One whose class nobody here knows may be such, if nothing reads it.

    Args:
        prompt: in the API format.
        asked: those of them that are to run, as a request names them; None or empty: all.
        ours: this pack's nodes by their ids, where the host has not loaded them.
    """
    known = {**node_classes(), **(ours or {})}
    wanted: Container[str] = {one for one in asked if isinstance(one, str)} if asked else prompt
    read = _read(prompt)

    def is_end(number: str) -> bool:
        kind = known.get(prompt[number]["class_type"])
        return number not in read if kind is None else bool(getattr(kind, "OUTPUT_NODE", False))

    return [number for number in prompt if is_end(number) and number in wanted]


def part_that_runs(prompt: Prompt, ends: Sequence[str] | None = None) -> Prompt:
    """The nodes that run, connected to what switches choose.

    Args:
        prompt: not changed.
        ends: as :func:`ends_of` gives them; None: all of the prompt's. Without any, as while a workflow is being made,
            all that nothing reads counts as one.
    """
    ends = ends_of(prompt) if ends is None else ends
    if not ends:
        read = _read(prompt)
        ends = [number for number in prompt if number not in read]
    # Where all nodes read each other there is a circle, which whoever goes through them tells of.
    return without_switches(prompt, ends) if ends else prompt


def around(node: str, graph: Graph | None) -> Prompt | None:
    """The part of the host's graph that runs, for a node that does; None where it runs by itself. All of it where that
    is a node which others expanded to, since what reads it is not in the graph."""
    if graph is None:
        return None
    prompt = prompt_of(graph)
    running = part_that_runs(prompt)
    return running if node in running else prompt


def lines_on_the_rest(prompt: Prompt, ends: Sequence[str]) -> Iterator[str]:
    """For people: what of a prompt is not counted, or counted although it would not run.

    Args:
        ends: as :func:`ends_of` gives them.
    """
    running = depended_on(prompt, ends)
    kinds = {number: node["class_type"] for number, node in prompt.items() if number not in running}
    idle = [f"{number} ({kind})" for number, kind in kinds.items() if kind in WORK]
    if idle and not ends:
        yield NO_ENDS
    elif idle:
        more = f" and {len(idle) - MOST_TOLD} more" if len(idle) > MOST_TOLD else ""
        named = f"node{'s' * (len(idle) > 1)} {', '.join(idle[:MOST_TOLD])}{more}"
        yield f"not counted, since nothing behind it is saved or shown and ComfyUI does not run it: {named}"


def _read(prompt: Prompt) -> set[str]:
    """The nodes that some node reads."""
    return {parent for node in prompt.values() for parent in parents(node)}
