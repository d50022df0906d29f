"""Where the links of the browser's format come from.

A link is followed as the browser does when a workflow is queued: through reroutes, bypassed nodes, subgraphs and pairs
of Set and Get, up to the node that computes the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .formats import BadWorkflow
from .litegraph import (
    BYPASSED,
    INPUTS,
    MUTED,
    NOTES,
    PRIMITIVE,
    SETTERS,
    VIRTUAL,
    Instance,
    Link,
    NodeData,
    UIWorkflow,
    first_value,
)

ANYTHING = ("*", "", "0")  # types that take anything


@dataclass(frozen=True)
class Origin:
    """An output that computes a value. The node is None for an input of a graph that is looked at by itself."""

    place: Instance
    node: NodeData | None
    slot: int


@dataclass(frozen=True)
class Widget:
    """A widget that gives a value: of a primitive node, or (node None) of a subgraph's input that has no link."""

    place: Instance
    node: NodeData | None
    slot: int = 0


@dataclass(frozen=True)
class _Hop:
    """A link on the way from an input to what it gets: where it is, its id, and the type that is wanted of it."""

    place: Instance
    number: Any
    wanted: str


class Sources:
    """Follows the links of a workflow.

    Args:
        workflow: whose links.
        slots: the inputs of a node in the order that counts for a bypass; as in the file if None.
        never_passed: kinds of nodes that a link ends at even where they are bypassed.
        closed: a link ends at a subgraph node and is not followed into it.
    """

    def __init__(
        self,
        workflow: UIWorkflow,
        slots: Callable[[NodeData], list[dict[str, Any]]] | None = None,
        never_passed: tuple[str, ...] = (),
        closed: bool = False,
    ) -> None:
        self.workflow = workflow
        self.slots = slots or (lambda node: node.get("inputs") or [])
        self.never_passed = never_passed
        self.closed = closed

    def of(self, place: Instance, entry: Mapping[str, Any]) -> Origin | Widget | None:
        """What an input of a node gets: an output, a widget, or None where nothing (that runs) is connected.

        Raises:
            BadWorkflow: the links go in a circle, or to an input or output that is not there.
        """
        seen: set[tuple[tuple[str, ...], int]] = set()
        found: _Hop | Origin | Widget | None = _Hop(place, entry.get("link"), str(entry.get("type")))
        while isinstance(found, _Hop):
            at = found
            link = at.place.graph.links.get(at.number)
            if link is None:
                return None
            if (at.place.path, link.number) in seen:
                raise BadWorkflow(f"link {link.number} goes in a circle: disconnect it")
            seen.add((at.place.path, link.number))
            found = self._origin(at, link)
        return found

    def _origin(self, at: _Hop, link: Link) -> _Hop | Origin | Widget | None:
        """Where a link begins: at what gives the value, or where another link ends that is to be followed."""
        if link.origin == INPUTS:
            return self._outside(at, link.slot)
        node = at.place.graph.nodes.get(link.origin)
        return None if node is None else self._output(at, node, link.slot)

    def _outside(self, at: _Hop, slot: int) -> _Hop | Origin | Widget:
        place = at.place
        if place.parent is None or place.node is None:
            return Origin(place, None, slot)
        name = place.graph.slot("inputs", slot)["name"]
        for entry in place.node.get("inputs") or ():
            if entry["name"] == name and entry.get("link") is not None:
                return _Hop(place.parent, entry["link"], at.wanted)
        return Widget(place, None, slot)

    def _output(self, at: _Hop, node: NodeData, slot: int) -> _Hop | Origin | Widget | None:
        place, kind, mode = at.place, node["type"], node.get("mode")
        if mode == MUTED or kind in NOTES:
            return None
        if mode == BYPASSED and kind not in self.never_passed and kind not in VIRTUAL:
            entry = passed_through(self.slots(node), _output_type(node, slot), slot, at.wanted)
            return _Hop(place, entry.get("link"), str(entry.get("type"))) if entry else None
        if kind in self.workflow.subgraphs and not self.closed:
            inside = self.workflow.child(place, node)
            numbers = inside.graph.slot("outputs", slot).get("linkIds") or [None]
            return _Hop(inside, numbers[0], at.wanted)
        if kind == PRIMITIVE:
            return Widget(place, node)
        if kind in VIRTUAL:
            place, node = _setter(place, node) if kind in SETTERS else (place, node)
            entries = node.get("inputs") or []
            return _Hop(place, entries[slot].get("link"), at.wanted) if 0 <= slot < len(entries) else None
        return Origin(place, node, slot)


def _setter(place: Instance, getter: NodeData) -> tuple[Instance, NodeData]:
    """The node that sets the same name, of the same pack if there is one, in this graph or around it."""
    name, own = first_value(getter), SETTERS[getter["type"]]
    around: Instance | None = place
    while around is not None:
        nodes = around.graph.nodes.values()
        found = [node for node in nodes if node["type"] in SETTERS.values() and first_value(node) == name]
        if found:
            return around, next((node for node in found if node["type"] == own), found[0])
        around = around.parent
    return place, getter


# ------------------------------------------------------------------------------------------------------------ bypass


def passed_through(entries: list[dict[str, Any]], given: str, slot: int, wanted: str) -> dict[str, Any] | None:
    """The input that a bypassed node hands on at an output: the one in the same place if its type fits, else the
    first of exactly the wanted type, else the first that fits.

    Args:
        entries: its inputs.
        given: type of the output.
        slot: the output's place.
        wanted: type of the input at the other end.
    """
    if wanted in ANYTHING:
        return (entries[slot] if 0 <= slot < len(entries) else entries[0]) if entries else None

    def fits(entry: dict[str, Any]) -> bool:
        kind = str(entry.get("type"))
        return types_fit(kind, given) and types_fit(kind, wanted)

    if 0 <= slot < len(entries) and fits(entries[slot]):
        return entries[slot]
    exact = (entry for entry in entries if str(entry.get("type")) == wanted)
    return next(exact, None) or next(filter(fits, entries), None)


def types_fit(one: str, other: str) -> bool:
    """Whether types can be connected: lists of names with commas, any case."""
    if one in ANYTHING or other in ANYTHING:
        return True
    return bool(set(one.lower().split(",")) & set(other.lower().split(",")))


def _output_type(node: Mapping[str, Any], slot: int) -> str:
    """The type of a node's output; ``*`` if the file does not say it."""
    outputs = node.get("outputs") or []
    return str(outputs[slot].get("type", "*")) if 0 <= slot < len(outputs) else "*"
