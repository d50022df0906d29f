"""Reads a workflow in the browser's format (litegraph): graphs within graphs, and where a link comes from.

A link is followed as the browser does when a workflow is queued: through reroutes, bypassed nodes, subgraphs and
pairs of Set and Get, up to the node that computes the value. Needs no host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Node = dict[str, Any]
MUTED, BYPASSED = 2, 4
INPUTS, OUTPUTS = "-10", "-20"  # what stands in a subgraph for its own inputs and outputs
REROUTE, PRIMITIVE, SET, GET = "Reroute", "PrimitiveNode", "SetNode", "GetNode"
NOTES = ("Note", "MarkdownNote")
VIRTUAL = (REROUTE, PRIMITIVE, SET, GET, *NOTES)  # in the browser only
ANYTHING = ("*", "", "0")


@dataclass(frozen=True)
class Link:
    """From an output to an input; both spellings of the format."""

    number: int
    origin: str
    slot: int
    target: str
    target_slot: int

    @classmethod
    def read(cls, data: Any) -> Link:
        if isinstance(data, Mapping):
            names = ("id", "origin_id", "origin_slot", "target_id", "target_slot")
            data = [data[name] for name in names]
        number, origin, slot, target, target_slot = data[:5]
        return cls(int(number), str(origin), int(slot or 0), str(target), int(target_slot or 0))


class Level:
    """One graph: the workflow's own, or a subgraph's. ``data`` is the JSON object itself, not a copy."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.nodes: dict[str, Node] = {str(node["id"]): node for node in data["nodes"]}
        self.links: dict[int, Link] = {link.number: link for link in map(Link.read, _rows(data.get("links")))}

    def targets(self, slot: int) -> Iterator[tuple[Node, dict[str, Any]]]:
        """The nodes that an input of this subgraph leads to, with the input there."""
        for number in self.data["inputs"][slot].get("linkIds") or ():
            link = self.links.get(number)
            node = self.nodes.get(link.target) if link else None
            for entry in (node or {}).get("inputs") or ():
                if node and entry.get("link") == number:
                    yield node, entry


def _rows(links: Any) -> list[Any]:
    rows = list(links.values()) if isinstance(links, Mapping) else list(links or ())
    return [row for row in rows if row]


@dataclass
class Place:
    """A graph where it is used: the same subgraph at two places is two of these.

    Attributes:
        path: ids of the subgraph nodes around it.
        named: values that the subgraph node itself gives to its inputs.
        inner: values that it gives to widgets of nodes in it, by (id, widget).
    """

    level: Level
    path: tuple[str, ...] = ()
    parent: Place | None = None
    node: Node | None = None
    named: dict[str, Any] = field(default_factory=dict)
    inner: dict[tuple[str, str], Any] = field(default_factory=dict)

    def number(self, node: Node) -> str:
        """The id in the API format, e.g. 12:3."""
        return ":".join((*self.path, str(node["id"])))


@dataclass(frozen=True)
class Source:
    """An output that computes a value. The node is None for an input of a graph that is looked at by itself."""

    place: Place
    node: Node | None
    slot: int


@dataclass(frozen=True)
class Widget:
    """A widget that gives a value: of a primitive node, or (node None) of a subgraph's input that has no link."""

    place: Place
    node: Node | None
    slot: int = 0


class Workflow:
    """A workflow in the browser's format.

    Args:
        data: the JSON object.
        slots: the inputs of a node in the order that counts for a bypass; as in the file if None.
        never_passed: kinds of nodes that a link ends at even where they are bypassed.
        closed: a link ends at a subgraph node and is not followed into it.

    Raises:
        ValueError: it uses group nodes, or is not in this format.
    """

    def __init__(
        self,
        data: dict[str, Any],
        slots: Callable[[Node], list[dict[str, Any]]] | None = None,
        never_passed: tuple[str, ...] = (),
        closed: bool = False,
    ) -> None:
        self.root = _checked(Level, data)
        self.slots = slots or (lambda node: node.get("inputs") or [])
        self.never_passed = never_passed
        self.closed = closed
        self.subgraphs: dict[str, Level] = {}
        self._collect(data)

    def _collect(self, data: Mapping[str, Any]) -> None:
        for subgraph in (data.get("definitions") or {}).get("subgraphs") or ():
            self.subgraphs[str(subgraph["id"])] = _checked(Level, subgraph)
            self._collect(subgraph)

    def places(self) -> Iterator[tuple[Place, Node]]:
        """All nodes that are neither muted, bypassed nor in a subgraph that is, with where they are.

        Raises:
            ValueError: a subgraph that holds itself.
        """
        yield from self._inside(Place(self.root))

    def _inside(self, place: Place) -> Iterator[tuple[Place, Node]]:
        for node in place.level.nodes.values():
            kind = str(node["type"])
            if kind.startswith(("workflow>", "workflow/")):
                raise ValueError(
                    f"node {place.number(node)} is a group node, which is no longer supported: in ComfyUI right-click"
                    " it, choose Convert to Subgraph or Convert to nodes, and save the workflow again"
                )
            if node.get("mode") in (MUTED, BYPASSED):
                continue
            if kind in self.subgraphs:
                yield from self._inside(self.child(place, node))
            else:
                yield place, node

    def child(self, place: Place, node: Node) -> Place:
        """The graph that a subgraph node stands for."""
        number, kind = str(node["id"]), str(node["type"])
        level = self.subgraphs[kind]
        around, parts = place, [kind]
        while around.node is not None and around.parent is not None:
            parts.append(str(around.node["type"]))
            around = around.parent
        if kind in parts[1:]:
            raise ValueError(f"subgraph {level.data.get('name', kind)} holds itself: take it out of itself")
        named, inner = _given(level, node)
        named |= {name: value for (owner, name), value in place.inner.items() if owner == number}
        return Place(level, (*place.path, number), place, node, named, inner)

    # ---------------------------------------------------------------------------------------------- following links

    def source(self, place: Place, entry: Mapping[str, Any]) -> Source | Widget | None:
        """What an input of a node gets: an output, a widget, or None where nothing (that runs) is connected.

        Raises:
            ValueError: the links go in a circle.
        """
        return self._follow(place, entry.get("link"), str(entry.get("type")), set())

    def _follow(
        self, place: Place, number: Any, wanted: str, seen: set[tuple[tuple[str, ...], int]]
    ) -> Source | Widget | None:
        link = place.level.links.get(number) if number is not None else None
        if link is None:
            return None
        if (place.path, link.number) in seen:
            raise ValueError(f"link {link.number} goes in a circle: disconnect it")
        seen.add((place.path, link.number))
        if link.origin == INPUTS:
            return self._outside(place, link.slot, wanted, seen)
        node = place.level.nodes.get(link.origin)
        return None if node is None else self._output(place, node, link.slot, wanted, seen)

    def _outside(self, place: Place, slot: int, wanted: str, seen: Any) -> Source | Widget | None:
        if place.parent is None or place.node is None:
            return Source(place, None, slot)
        name = place.level.data["inputs"][slot]["name"]
        for entry in place.node.get("inputs") or ():
            if entry["name"] == name and entry.get("link") is not None:
                return self._follow(place.parent, entry["link"], wanted, seen)
        return Widget(place, None, slot)

    def _output(self, place: Place, node: Node, slot: int, wanted: str, seen: Any) -> Source | Widget | None:
        kind, mode = str(node["type"]), node.get("mode")
        if mode == MUTED or kind in NOTES:
            return None
        if mode == BYPASSED and kind not in self.never_passed and kind not in VIRTUAL:
            entry = passed_through(self.slots(node), _output_type(node, slot), slot, wanted)
            return self._follow(place, entry.get("link"), str(entry.get("type")), seen) if entry else None
        if kind in self.subgraphs and not self.closed:
            inside = self.child(place, node)
            numbers = inside.level.data["outputs"][slot].get("linkIds") or [None]
            return self._follow(inside, numbers[0], wanted, seen)
        if kind == PRIMITIVE:
            return Widget(place, node)
        if kind in VIRTUAL:
            place, node = _setter(place, node) if kind == GET else (place, node)
            entries = node.get("inputs") or [{}]
            return self._follow(place, entries[0].get("link"), wanted, seen)
        return Source(place, node, slot)


def _checked(read: Callable[[dict[str, Any]], Level], data: dict[str, Any]) -> Level:
    try:
        return read(data)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ValueError("this is no workflow in the browser's format: save it again from ComfyUI") from error


def _given(level: Level, node: Node) -> tuple[dict[str, Any], dict[tuple[str, str], Any]]:
    """The values that a subgraph node gives: to its inputs, and to widgets of nodes in it."""
    values = node.get("widgets_values") or []
    if isinstance(values, Mapping):
        return dict(values), {}
    shown = (node.get("properties") or {}).get("proxyWidgets") or []
    if not shown:
        names = [
            entry["name"]
            for slot, entry in enumerate(level.data.get("inputs") or ())
            if any("widget" in target for _, target in level.targets(slot))
        ]
        return {name: value for name, value in zip(names, values, strict=False) if value is not None}, {}
    pairs = [(entry, value) for entry, value in zip(shown, values, strict=False) if value is not None]
    named = {entry[1]: value for entry, value in pairs if str(entry[0]) == "-1"}
    return named, {(str(entry[0]), entry[1]): value for entry, value in pairs if str(entry[0]) != "-1"}


def _setter(place: Place, getter: Node) -> tuple[Place, Node]:
    """The node SetNode of the same name, in this graph or around it."""
    name = (getter.get("widgets_values") or [None])[0]
    around: Place | None = place
    while around is not None:
        for node in around.level.nodes.values():
            if node["type"] == SET and (node.get("widgets_values") or [None])[0] == name:
                return around, node
        around = around.parent
    return place, getter


# ------------------------------------------------------------------------------------------------------------ bypass


def passed_through(entries: list[dict[str, Any]], given: str, slot: int, wanted: str) -> dict[str, Any] | None:
    """The input that a bypassed node hands on at an output: the one in the same place if its type fits, else the
    first of exactly the wanted type, else the first that fits.

    Args:
        entries: its inputs.
        given: type of the output.
        slot: its place.
        wanted: type of the input at the other end.
    """
    if wanted in ANYTHING:
        return (entries[slot] if slot < len(entries) else entries[0]) if entries else None

    def fits(entry: dict[str, Any]) -> bool:
        kind = str(entry.get("type"))
        return types_fit(kind, given) and types_fit(kind, wanted)

    if slot < len(entries) and fits(entries[slot]):
        return entries[slot]
    exact = (entry for entry in entries if str(entry.get("type")) == wanted)
    return next(exact, None) or next(filter(fits, entries), None)


def types_fit(one: str, other: str) -> bool:
    """Whether types can be connected: lists of names with commas, any case."""
    if one in ANYTHING or other in ANYTHING:
        return True
    return bool(set(one.lower().split(",")) & set(other.lower().split(",")))


def _output_type(node: Node, slot: int) -> str:
    outputs = node.get("outputs") or []
    return str(outputs[slot].get("type", "*")) if slot < len(outputs) else "*"
