"""A prompt: a workflow in the API format, as it is submitted. What a link in it is, and walks along the links.

The walks take a function that gives the neighbours of a node, so that they serve prompts, the host's graphs and what a
fit is planned from alike. None of them recurses: a chain of any length is walked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, Protocol

from .formats import BadWorkflow

Prompt = dict[str, dict[str, Any]]  # nodes by their ids: class_type, inputs
Output = tuple[str, int]  # a node and which of its outputs
Neighbours = Callable[[str], Iterable[str]]


class Graph(Protocol):
    """The host's dynamic prompt: the submitted graph and the nodes that were expanded into it."""

    def get_node(self, node_id: str) -> dict[str, Any]:
        """The node of an id, as in a prompt."""

    def has_node(self, node_id: str) -> bool:
        """Whether there is a node of this id."""

    def all_node_ids(self) -> Iterable[str]:
        """The ids of all nodes."""


def is_link(value: Any) -> bool:
    """Whether the value of an input comes from another node: ``[id, number of the output]``."""
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], int)


def links(node: Mapping[str, Any]) -> dict[str, Output]:
    """The connected inputs of a node, by their names."""
    return {name: (value[0], value[1]) for name, value in node["inputs"].items() if is_link(value)}


def parents(node: Mapping[str, Any]) -> list[str]:
    """The ids of the nodes that a node reads, in the order of its inputs."""
    return [number for number, _ in links(node).values()]


def parents_in(prompt: Prompt) -> Neighbours:
    """Gives the parents of a prompt's nodes.

    Returns:
        A function of an id that raises BadWorkflow where a link leads to a node that is not in the prompt.
    """

    def of(number: str) -> list[str]:
        found = parents(prompt[number])
        for parent in found:
            if parent not in prompt:
                raise BadWorkflow(f"the workflow links to node {parent}, which is not in it")
        return found

    return of


def prompt_of(graph: Graph) -> Prompt:
    """The host's graph as a prompt."""
    return {number: graph.get_node(number) for number in graph.all_node_ids()}


def readers(prompt: Prompt) -> dict[str, list[str]]:
    """The nodes that read each node, in the order of their ids."""
    found: dict[str, list[str]] = {}
    for number in sorted(prompt):
        for parent in parents(prompt[number]):
            found.setdefault(parent, []).append(number)
    return found


def in_order(numbers: Iterable[str], parents_of: Neighbours, several: Container[str] = ()) -> list[str]:
    """Nodes and all that they depend on, each after its parents: depth first, in the order in which they are given.

    Args:
        numbers: their ids.
        parents_of: gives the parents of one.
        several: those that stand for several nodes, as a subgraph does. A circle through one of these need be none of
            the nodes in it; it is cut somewhere.

    Raises:
        BadWorkflow: they depend on each other in a circle.
    """
    order: list[str] = []
    finished: dict[str, bool] = {}  # False while what a node depends on is being walked
    for start in numbers:
        path = [] if start in finished else [_entered(start, finished, parents_of)]
        on_path = {start: 0}  # how many of ``several`` are on the path before a node
        while path:
            number, remaining = path[-1]
            inside = on_path[number] + (number in several)
            parent = next(remaining, None)
            if parent is None:
                finished[number] = True
                order.append(number)
                path.pop()
            elif parent not in finished:
                path.append(_entered(parent, finished, parents_of))
                on_path[parent] = inside
            elif not finished[parent] and inside == on_path[parent]:
                raise BadWorkflow(f"the workflow has a circle through node {parent}", "circle", node=parent)
    return order


def _entered(number: str, finished: dict[str, bool], parents_of: Neighbours) -> tuple[str, Iterator[str]]:
    finished[number] = False
    return number, iter(parents_of(number))


def upstream(number: str, parents_of: Neighbours) -> list[str]:
    """Every node that a node depends on, dependencies first.

    Raises:
        BadWorkflow: they depend on each other in a circle.
    """
    return in_order([number], parents_of)[:-1]


def reached(numbers: Iterable[str], neighbours: Neighbours) -> Iterator[str]:
    """Nodes and all that neighbours lead to from there, the nearest first. Circles are walked once."""
    pending = deque(dict.fromkeys(numbers))
    seen = set(pending)
    while pending:
        number = pending.popleft()
        yield number
        for neighbour in neighbours(number):
            if neighbour not in seen:
                seen.add(neighbour)
                pending.append(neighbour)
