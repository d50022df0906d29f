"""The two formats of workflow files: which one a file is in, and whether it is whole.

The browser's format (litegraph) has a list of nodes and is saved by the menu's Save; the API format has nodes by their
ids and is what Export (API) saves and what is submitted. What passes the checks here can be read and fitted without
looking whether an entry has the form that the readers rely on.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

LONGEST = 400  # characters of a sentence about a workflow
NOT_UI = "this is no workflow in the browser's format: save it again from ComfyUI"
NOT_API = "this is no workflow in the API format: every entry needs class_type and inputs"
AS_WRITTEN = "an entry of it is not as ComfyUI writes it; save it again from ComfyUI"
AS_EXPORTED = "node {} needs class_type and inputs, as Export (API) writes them"
PLAIN = (str, bytes, bool, int, float, list, dict)  # what JSON can hold
LINK_NAMES = ("id", "origin_id", "origin_slot", "target_id", "target_slot")


class BadWorkflow(ValueError):
    """What is no workflow, or not a whole one; the message says what to do, in one line: ids and names in it are the
    file's, and can be anything.

    Attributes:
        code, values: which sentence it is and what stands in it, for whoever says it in another language; often none.
    """

    def __init__(self, text: str, code: str = "", **values: str) -> None:
        self.code, self.values = code, values
        line = " ".join(text.split())
        super().__init__(line if len(line) <= LONGEST else f"{line[:LONGEST]} ...")


def broken(what: str, name: str = "workflow") -> BadWorkflow:
    """The error for a part of a workflow that is not as the browser writes it.

    Args:
        what: the part.
        name: what the workflow is called by whoever hands it in.
    """
    return BadWorkflow(f"{name}: {AS_WRITTEN}: {what}")


@dataclass(frozen=True)
class Called:
    """What a workflow is called by whoever hands it in, for the sentences that refuse it.

    Attributes:
        name: the input of a request, or the path of a file.
        node: said of a node in the API format that is not whole; ``{}`` stands for its id.
        wanted: said where nothing came that could be a workflow.
    """

    name: str
    node: str = AS_EXPORTED
    wanted: str = "send a workflow as saved by ComfyUI, in the browser's format or the API format"


WORKFLOW = Called("workflow", f"{AS_WRITTEN}: node {{}}")
PROMPT = Called("prompt", wanted="send a workflow in the API format (menu: Export (API)), an object of nodes")


def is_ui(content: Any) -> bool:
    """Whether a workflow is in the browser's format: an object with a list of nodes."""
    return isinstance(content, dict) and isinstance(content.get("nodes"), list)


def is_api(content: Any) -> bool:
    """Whether something can be a workflow in the API format: an object of objects. They need not be whole nodes."""
    return isinstance(content, dict) and not is_ui(content) and all(isinstance(node, dict) for node in content.values())


def is_request(content: Any) -> bool:
    """Whether something is a request to the host, which holds its workflow as ``prompt``."""
    return isinstance(content, dict) and not is_ui(content) and "prompt" in content


def check_sent(content: Any, called: Called) -> None:
    """Checks that there is something that could be a workflow.

    Raises:
        BadWorkflow: it is no object, or an empty one.
    """
    if not isinstance(content, dict) or not content:
        raise BadWorkflow(f"{called.name}: {called.wanted}")


def check_api(content: Any, called: Called = WORKFLOW) -> None:
    """Checks a workflow in the API format: an object of nodes by their ids, each with ``class_type`` and ``inputs``.

    Raises:
        BadWorkflow: it is another object, a node is not whole, or has an empty id.
    """
    if not is_api(content):
        raise BadWorkflow(NOT_API)
    if "" in content:
        raise BadWorkflow(f"{called.name}: a node has an empty id; give it a number that no other has")
    for number, node in content.items():
        if not isinstance(node.get("class_type"), str) or not isinstance(node.get("inputs"), dict):
            raise BadWorkflow(f"{called.name}: {called.node.format(number)}")


def check_ui(content: Any, called: Called = WORKFLOW) -> None:
    """Checks a workflow in the browser's format, its subgraphs included.

    Raises:
        BadWorkflow: it has no list of nodes with ids and types, or an entry has not the form that the browser writes.
    """
    if not is_ui(content):
        raise BadWorkflow("this is no workflow in the browser's format: it has no list of nodes")
    for graph in _graphs(content):
        if not (is_ui(graph) and all(map(_is_node, graph["nodes"]))):
            raise BadWorkflow(NOT_UI)
        for what in _not_whole(graph):
            raise broken(what, called.name)


def as_number(value: Any) -> float | None:
    """A number of a file; None for what is none."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return None


def shortened(value: Any) -> str:
    """A value of a workflow for a sentence: it may have thousands of digits, or be something that a node gave."""
    if not isinstance(value, (*PLAIN, type(None))):
        return f"a {type(value).__name__}"
    try:
        return reprlib.repr(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a number of thousands of digits"


def _graphs(content: dict[str, Any]) -> Iterator[Any]:
    """The graph of a workflow, then its subgraphs and theirs."""
    pending: list[Any] = [content]
    while pending:
        graph = pending.pop()
        yield graph
        definitions = graph.get("definitions") or {}
        if not (isinstance(definitions, dict) and _is_list(definitions.get("subgraphs"), _is_subgraph)):
            raise BadWorkflow(NOT_UI)
        pending += definitions.get("subgraphs") or ()


def _not_whole(graph: dict[str, Any]) -> Iterator[str]:
    """What of a graph has not the form that readers rely on."""
    for node in graph["nodes"]:
        if not (_is_list(node.get("inputs"), _is_input) and _is_list(node.get("outputs"), _is_output)):
            yield f"inputs and outputs of node {node['id']}"
        if not _is_none_or(node.get("widgets_values"), list, dict) or not _has_properties(node):
            yield f"widgets of node {node['id']}"
    links = graph.get("links")
    if not _is_list(list(links.values()) if isinstance(links, dict) else links, _is_link_row):
        yield "links"
    if not _has_extras(graph):
        yield "reroutes or counters"


def _is_node(node: Any) -> bool:
    return isinstance(node, dict) and _is_id_of(node) and isinstance(node.get("type"), str)


def _is_id_of(holder: dict[str, Any]) -> bool:
    return isinstance(holder.get("id"), (int, str)) and holder["id"] != ""


def _is_subgraph(graph: Any) -> bool:
    return (
        isinstance(graph, dict)
        and _is_id_of(graph)
        and isinstance(graph.get("name"), (str, type(None)))
        and all(_is_list(graph.get(name), _is_slot) for name in ("inputs", "outputs"))
    )


def _is_slot(slot: Any) -> bool:
    """An input or output of a subgraph."""
    return isinstance(slot, dict) and isinstance(slot.get("name"), str) and _is_list(slot.get("linkIds"), _is_id)


def _is_input(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        return False
    widget = entry.get("widget")
    named = isinstance(widget.get("name"), (str, type(None))) if isinstance(widget, dict) else not widget
    return named and _is_none_or(entry.get("link"), int, str)


def _is_output(entry: Any) -> bool:
    return isinstance(entry, dict) and _is_list(entry.get("links"), _is_id)


def _is_id(value: Any) -> bool:
    return isinstance(value, (int, str))


def _has_properties(node: dict[str, Any]) -> bool:
    """Whether its properties are an object; those that name widgets of nodes within have two entries."""
    properties = node.get("properties") or {}
    return isinstance(properties, dict) and _is_list(properties.get("proxyWidgets"), _is_pair)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) >= 2 and isinstance(value[1], str)


def _is_link_row(row: Any) -> bool:
    """A link in either spelling, or the empty place of one."""
    if not row:
        return True
    if isinstance(row, dict):
        row = [row[name] for name in LINK_NAMES if name in row]
    return isinstance(row, list) and len(row) >= 5 and all(map(_is_number, (row[0], row[2] or 0, row[4] or 0)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and value.removeprefix("-").isdecimal())


def _has_extras(graph: dict[str, Any]) -> bool:
    """Whether the counters and the points that links are drawn through can be brought up to date."""
    extra = graph.get("extra") or {}
    if not isinstance(extra, dict) or not _is_none_or(graph.get("state"), dict):
        return False
    return all(
        _is_list(holder.get("reroutes"), _is_reroute) and _is_list(holder.get("linkExtensions"), _is_object)
        for holder in (graph, extra)
    )


def _is_reroute(value: Any) -> bool:
    return isinstance(value, dict) and _is_list(value.get("linkIds"), _is_id)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_none_or(value: Any, *types: type) -> bool:
    return value is None or isinstance(value, types)


def _is_list(value: Any, holds: Callable[[Any], bool]) -> bool:
    """Whether a value is missing, or a list of what ``holds`` says."""
    return value is None or (isinstance(value, list) and all(map(holds, value)))
