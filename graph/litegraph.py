"""A workflow in the browser's format (litegraph): graphs within graphs, their nodes and links.

Where a link comes from is told by :mod:`.sources`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .formats import LINK_NAMES, WORKFLOW, BadWorkflow, Called, broken, check_ui

NodeData = dict[str, Any]  # a node as the file has it
MUTED, BYPASSED = 2, 4
INPUTS, OUTPUTS = "-10", "-20"  # what stands in a subgraph for its own inputs and outputs
REROUTE, PRIMITIVE = "Reroute", "PrimitiveNode"
NOTES = ("Note", "MarkdownNote")
# What is set under a name is got by it: KJNodes' and Easy Use's, by the kind of node that gets.
SETTERS = {"GetNode": "SetNode", "easy getNode": "easy setNode"}
# Of other packs; links go through them from an input to the output in the same place, as through a reroute.
RGTHREE = tuple(
    f"{name} (rgthree)"
    for name in (
        "Reroute", "Bookmark", "Label", "Fast Muter", "Fast Bypasser", "Fast Groups Muter", "Fast Groups Bypasser",
        "Fast Actions Button", "Node Collector", "Node Combiner", "Mute / Bypass Relay", "Mute / Bypass Repeater",
        "Random Unmuter", "Power Conductor",
    )
)  # fmt: skip
OTHERS = (*RGTHREE, "easy bookmark")
VIRTUAL = (REROUTE, PRIMITIVE, *SETTERS, *SETTERS.values(), *NOTES, *OTHERS)  # in the browser only
# What a file may hold, far above what people draw. Subgraphs within subgraphs multiply: a file of a few kilobytes can
# stand for more nodes than there is memory for.
MOST_NESTED = 50  # subgraphs within each other
MOST_NODES = 50_000  # with every subgraph unpacked
MOST_SECONDS = 20.0  # to go through them all


@dataclass(frozen=True)
class Link:
    """From an output to an input."""

    number: int
    origin: str
    slot: int
    target: str
    target_slot: int

    @classmethod
    def read(cls, data: Any) -> Link:
        """A link in either spelling of the format: a list, or an object."""
        if isinstance(data, Mapping):
            data = [data[name] for name in LINK_NAMES]
        number, origin, slot, target, target_slot = data[:5]
        return cls(int(number), str(origin), int(slot or 0), str(target), int(target_slot or 0))


class UIGraph:
    """One graph: the workflow's own, or a subgraph's.

    Attributes:
        data: the JSON object itself, not a copy.
        nodes: by their ids.
        links: by theirs.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.nodes: dict[str, NodeData] = {str(node["id"]): node for node in data["nodes"]}
        self.links: dict[int, Link] = {link.number: link for link in map(Link.read, _rows(data.get("links")))}

    @property
    def name(self) -> str:
        """What people read on a subgraph."""
        return str(self.data.get("name") or self.data.get("id"))

    def slot(self, side: str, number: int) -> dict[str, Any]:
        """An input or output of this subgraph.

        Args:
            side: ``inputs`` or ``outputs``.
            number: its place among them.

        Raises:
            BadWorkflow: there is none.
        """
        return slot_of(self.data, side, number, f"subgraph {self.name}")

    def targets(self, slot: int) -> Iterator[tuple[NodeData, dict[str, Any]]]:
        """The nodes that an input of this subgraph leads to, with the input there."""
        for number in self.slot("inputs", slot).get("linkIds") or ():
            link = self.links.get(number)
            node = self.nodes.get(link.target) if link else None
            for entry in (node or {}).get("inputs") or ():
                if node and entry.get("link") == number:
                    yield node, entry


def slot_of(owner: Mapping[str, Any], side: str, number: int, name: str) -> dict[str, Any]:
    """An input or output of a node or a subgraph, as the file has it.

    Args:
        owner: what has it.
        side: ``inputs`` or ``outputs``.
        number: its place among them.
        name: of the owner, for the sentence.

    Raises:
        BadWorkflow: there is none.
    """
    slots: list[dict[str, Any]] = owner.get(side) or []
    if not 0 <= number < len(slots):
        raise broken(f"a link at {side}[{number}] of {name}, which is not there")
    return slots[number]


def _rows(links: Any) -> list[Any]:
    rows = list(links.values()) if isinstance(links, Mapping) else list(links or ())
    return [row for row in rows if row]


@dataclass
class Instance:
    """A graph where it is used: the same subgraph at two places is two of these.

    Attributes:
        graph: which it is.
        path: ids of the subgraph nodes around it.
        parent: the graph around it; None for the workflow's own.
        node: the subgraph node there that stands for it.
        named: values that the subgraph node itself gives to its inputs.
        inner: values that it gives to widgets of nodes in it, by (id, widget).
    """

    graph: UIGraph
    path: tuple[str, ...] = ()
    parent: Instance | None = None
    node: NodeData | None = None
    named: dict[str, Any] = field(default_factory=dict)
    inner: dict[tuple[str, str], Any] = field(default_factory=dict)

    def number(self, node: NodeData) -> str:
        """The id in the API format, e.g. 12:3."""
        return ":".join((*self.path, str(node["id"])))


class UIWorkflow:
    """A workflow in the browser's format.

    Args:
        data: the JSON object.
        called: what it is called in sentences.

    Attributes:
        root: its own graph.
        subgraphs: the definitions of its subgraphs, by their ids; these are the kinds of nodes that stand for them.

    Raises:
        BadWorkflow: it is not in this format, or not whole.
    """

    def __init__(self, data: dict[str, Any], called: Called = WORKFLOW) -> None:
        check_ui(data, called)
        self.root = UIGraph(data)
        self.subgraphs = {str(one["id"]): UIGraph(one) for one in _subgraphs(data)}

    def places(self) -> Iterator[tuple[Instance, NodeData]]:
        """All nodes that are neither muted, bypassed nor in a subgraph that is, with where they are.

        Raises:
            BadWorkflow: a group node, a subgraph that holds itself, or more than anybody draws.
        """
        root, began, seen = Instance(self.root), time.monotonic(), 0
        pending = [(root, node) for node in reversed(root.graph.nodes.values())]
        while pending:
            place, node = pending.pop()
            kind = node["type"]
            seen += 1
            if seen > MOST_NODES:
                raise BadWorkflow(f"with its subgraphs unpacked it has more than {MOST_NODES:,} nodes: unpack fewer")
            if time.monotonic() - began > MOST_SECONDS:
                raise BadWorkflow(f"going through its links took more than {MOST_SECONDS:g} s: split it")
            if kind.startswith(("workflow>", "workflow/")):
                raise BadWorkflow(
                    f"node {place.number(node)} is a group node, which is no longer supported: in ComfyUI right-click"
                    " it, choose Convert to Subgraph or Convert to nodes, and save the workflow again"
                )
            if node.get("mode") in (MUTED, BYPASSED):
                continue
            if kind in self.subgraphs:
                inside = self.child(place, node)
                pending += [(inside, one) for one in reversed(inside.graph.nodes.values())]
            else:
                yield place, node

    def child(self, place: Instance, node: NodeData) -> Instance:
        """The graph that a subgraph node stands for.

        Raises:
            BadWorkflow: it holds itself, or too many are nested.
        """
        number, kind = str(node["id"]), node["type"]
        graph = self.subgraphs[kind]
        around, kinds = place, []
        while around.node is not None and around.parent is not None:
            kinds.append(around.node["type"])
            around = around.parent
        if kind in kinds:
            raise BadWorkflow(f"subgraph {graph.name} holds itself: take it out of itself")
        if len(kinds) >= MOST_NESTED:
            raise BadWorkflow(f"more than {MOST_NESTED} subgraphs are nested: unpack {graph.name}")
        named, inner = _given(graph, node)
        named |= {name: value for (owner, name), value in place.inner.items() if owner == number}
        return Instance(graph, (*place.path, number), place, node, named, inner)


def first_value(node: NodeData) -> Any:
    """The first of a node's saved widgets; None if it has none."""
    values = node.get("widgets_values") or ()
    return next(iter(values.values() if isinstance(values, Mapping) else values), None)


def _subgraphs(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The definitions of subgraphs, those within others included."""
    pending = [data]
    while pending:
        found = (pending.pop().get("definitions") or {}).get("subgraphs") or ()
        yield from found
        pending += found


def _given(graph: UIGraph, node: NodeData) -> tuple[dict[str, Any], dict[tuple[str, str], Any]]:
    """The values that a subgraph node gives: to its inputs, and to widgets of nodes in it."""
    values = node.get("widgets_values") or []
    if isinstance(values, Mapping):
        return dict(values), {}
    shown = (node.get("properties") or {}).get("proxyWidgets") or []
    if not shown:
        names = [
            entry["name"]
            for slot, entry in enumerate(graph.data.get("inputs") or ())
            if any("widget" in target for _, target in graph.targets(slot))
        ]
        return {name: value for name, value in zip(names, values, strict=False) if value is not None}, {}
    pairs = [(entry, value) for entry, value in zip(shown, values, strict=False) if value is not None]
    named = {entry[1]: value for entry, value in pairs if str(entry[0]) == "-1"}
    return named, {(str(entry[0]), entry[1]): value for entry, value in pairs if str(entry[0]) != "-1"}
