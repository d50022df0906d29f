"""A template of the browser, made of its API twin in `workflows/api`.

What each changes in its twin, and what its note says, is in specs.py. Everything else here follows from the twin and
the host's definitions of its nodes: slots, widgets, links, places, groups.
"""

from __future__ import annotations

import importlib
import json
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..demo.twin import is_link
from ..setup.environment import PACK
from .definitions import ANYTHING, Input, Workflow, in_browser, inputs_of
from .layout import around, place
from .note import files_of, model_of, note_of, without_addresses
from .parts import Node, Template
from .specs import TEMPLATES

WORKFLOWS = PACK / "workflows"
ROW, WIDGET = 20, 24  # heights of a slot and of a widget
ROOM = 1.15  # the newer look needs that much more height for both
WIDTH, TEXT_WIDTH = 264, 340  # of nodes; of those with a text to write
TEXT, PICTURE, VIDEO = 110, 220, 226  # heights of a text to write, of a picture and of a video on a node
SIZE_LINE = 10  # below a picture in the newer look
# The row with the name of its pack below a node, in the newer look; the host's own have one if they are experimental.
BADGE = 26
# Of nodes that show a text: what a face with a table needs, with a plan and what it took, with some sentences, and with
# a wide table and its chart; the text alone below other widgets.
TABLE, PLAN, SENTENCES, CHART = (560, 380), (560, 470), (390, 330), (640, 740)
FACE_TEXT, LITTLE = 130, dict.fromkeys(("Training", "TrainingEstimate", "VAEEncodeVideo", "VAEDecodeVideo"), 90)
FACES = (
    {"Fit": PLAN, "Compare": CHART}
    | dict.fromkeys(("Estimate", "TrainingEstimate"), TABLE)
    | dict.fromkeys(("Cast", "CastCLIP", "Offload"), SENTENCES)
    | {"Report": (480, 380), "Training": (390, 250), "VAEEncodeVideo": (290, 0), "VAEDecodeVideo": (310, 0)}
)
SHOWING_PICTURES = ("LoadImage", "SaveImage", "PreviewImage", "SaveVideo")
# What does not get narrower, by the names of its widgets or its own.
WIDTHS = {"HeadroomLocalAttention": TEXT_WIDTH, "HeadroomVAEDecode": 290}
NOTE, NOTE_WIDTH, NOTE_LINE, LETTERS = "MarkdownNote", 390, 15, 50  # letters in a line of a note
NOTE_COLOURS = {"color": "#432", "bgcolor": "#653"}
GROUP_COLOUR = "#3f789e"
CONTROL = "randomize"  # what the widget behind a seed says


def template(name: str, ours: Mapping[str, Any]) -> Workflow:
    """A template in the browser's format.

    Args:
        name: of it and its twin.
        ours: this pack's node classes by id; the host's must have been imported.

    Raises:
        KeyError: its specification names something that its twin or the host does not have.
    """
    spec = TEMPLATES[name]
    host = importlib.import_module("nodes")
    return _Drawing(name, spec, with_public_files(twin(name), spec), {**host.NODE_CLASS_MAPPINGS, **ours}).workflow()


def path_of(name: str) -> Path:
    """Its file, which is called as the browser shows it."""
    return WORKFLOWS / f"{TEMPLATES[name].title}.json"


def twin(name: str) -> Workflow:
    """The graph on generated models, in the API format."""
    return json.loads((WORKFLOWS / "api" / f"{name}.json").read_text(encoding="utf-8"))


def with_public_files(graph: Workflow, spec: Template) -> Workflow:
    """The graph of a template in the API format."""
    kept = {number: node for number, node in graph.items() if number not in spec.without.split()}
    result = {number: {**node, "inputs": _relinked(node["inputs"], spec)} for number, node in kept.items()}
    result |= spec.nodes
    for key, value in spec.values.items():
        number, _, name = key.partition(".")
        before = result[number]["inputs"]
        result[number] = {**result[number], "inputs": {**before, name: value}}
    return result


def _relinked(inputs: Mapping[str, Any], spec: Template) -> dict[str, Any]:
    def origin(link: list[Any]) -> list[Any]:
        number, _, slot = spec.links.get(f"{link[0]}:{link[1]}", f"{link[0]}:{link[1]}").partition(":")
        return [number, int(slot)]

    return {name: origin(value) if is_link(value) else value for name, value in inputs.items()}


class _Drawing:
    """One template on the canvas."""

    def __init__(self, name: str, spec: Template, graph: Workflow, known: Mapping[str, Any]) -> None:
        self.name, self.spec, self.known = name, spec, known
        self.stages = {title: numbers.split() for title, numbers in spec.stages.items()}
        self.numbers = [number for numbers in self.stages.values() for number in numbers]
        if sorted(self.numbers) != sorted(graph):
            raise KeyError(f"{name}: the stages hold {sorted(self.numbers)}, the graph has {sorted(graph)}")
        self.graph = {number: graph[number] for number in self.numbers}
        self.links = list(self._links())
        self.sizes = {number: self._size(number) for number in self.numbers}
        self.rooms = {number: self._size(number, ROOM) for number in self.numbers}
        self.text = note_of(spec, self.graph)
        lines = [line for line in without_addresses(self.text).splitlines() if line]
        self.note = NOTE_WIDTH, NOTE_LINE * sum(2 + len(line) // LETTERS for line in lines)
        links = [(start, end) for _, start, _, end, _, _ in self.links]
        self.layout = place(self.rooms, links, [*self.stages.values()], self.note)

    def workflow(self) -> Workflow:
        note = self._note(max(map(int, self.numbers)) + 1)
        return {
            "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"headroom/{self.name}")),
            "revision": 0,
            "last_node_id": note["id"],
            "last_link_id": len(self.links),
            "nodes": [note, *(self._node(order, number) for order, number in enumerate(self._in_order(), 1))],
            "links": [[n, int(start), out, int(end), slot, kind] for n, start, out, end, slot, kind in self.links],
            "groups": [self._group(number, title) for number, title in enumerate(self.stages, 1)],
            "config": {},
            "extra": {},
            "version": 0.4,
        }

    def _inputs(self, number: str) -> list[Input]:
        """First those that are links, as the browser orders them."""
        node = self.graph[number]
        return sorted(inputs_of(self.known[node["class_type"]], node["inputs"]), key=lambda one: one.is_widget)

    def _outputs(self, number: str) -> list[tuple[str, str]]:
        """Their names and types."""
        kind = self.known[self.graph[number]["class_type"]]
        types = ["*" if str(one) == ANYTHING else str(one) for one in kind.RETURN_TYPES]
        return list(zip(getattr(kind, "RETURN_NAMES", None) or types, types))

    def _links(self) -> Iterator[tuple[int, str, int, str, int, str]]:
        """Number, origin, its output, target, its input, type."""
        count = 0
        for number, node in self.graph.items():
            for slot, one in enumerate(self._inputs(number)):
                if is_link(value := node["inputs"].get(one.name)):
                    count += 1
                    yield count, value[0], value[1], number, slot, self._outputs(value[0])[value[1]][1]

    def _in_order(self) -> list[str]:
        """Each node behind those that lead to it."""
        done: list[str] = []
        while waiting := [number for number in self.numbers if number not in done]:
            done.append(
                next(n for n in waiting if {start for _, start, _, end, *_ in self.links if end == n} <= {*done})
            )
        return done

    def _node(self, order: int, number: str) -> Node:
        node = self.graph[number]
        return {
            "id": int(number),
            "type": node["class_type"],
            "pos": [*self.layout.corners[number]],
            "size": [*self.sizes[number]],
            "flags": {},
            "order": order,
            "mode": 0,
            "inputs": [self._entry(number, slot, one) for slot, one in enumerate(self._inputs(number))],
            "outputs": [
                {"name": name, "type": kind, "links": [n for n, s, o, *_ in self.links if (s, o) == (number, slot)]}
                for slot, (name, kind) in enumerate(self._outputs(number))
            ],
            **self._title(node),
            "properties": self._properties(node),
            "widgets_values": list(self._values(node)),
        }

    def _entry(self, number: str, slot: int, one: Input) -> Node:
        link = next((n for n, _, _, end, place, _ in self.links if (end, place) == (number, slot)), None)
        shape = {"shape": 7} if one.optional else {}
        widget = {"widget": {"name": one.name}} if one.is_widget else {}
        return {"name": one.name, "type": one.kind, **shape, **widget, "link": link}

    def _title(self, node: Node) -> Node:
        """Where it is not the node's own, which the browser translates."""
        schema = getattr(self.known[node["class_type"]], "GET_SCHEMA", None)
        names = importlib.import_module("nodes").NODE_DISPLAY_NAME_MAPPINGS
        usual = names.get(node["class_type"]) or (schema().display_name if schema else None) or node["class_type"]
        return {} if node["_meta"]["title"] == usual else {"title": node["_meta"]["title"]}

    def _properties(self, node: Node) -> Node:
        pack = "headroom" if node["class_type"].startswith("Headroom") else "comfy-core"
        models = [model_of(name) for name in files_of(node)]
        return {"Node name for S&R": node["class_type"], "cnr_id": pack, **({"models": models} if models else {})}

    def _values(self, node: Node) -> Iterator[Any]:
        """In the order of the definition, not of the slots."""
        for one in inputs_of(self.known[node["class_type"]], node["inputs"]):
            if one.is_widget and one.kind != in_browser().COMPARE:
                value = node["inputs"].get(one.name, one.default)
                yield (one.default or 0) if is_link(value) else value  # behind a link the widget keeps its own
                yield from [CONTROL] if one.has_control else []
                yield from ["image"] if one.options.get("image_upload") else []

    def _size(self, number: str, room: float = 1.0) -> tuple[int, int]:
        """Of a node; ``room``: times what its slots and widgets need in the older look."""
        kind = self.graph[number]["class_type"]
        face = FACES.get(kind.removeprefix("Headroom")) if kind.startswith("Headroom") else None
        room = room if face is None else ROOM  # what a face's widgets leave is its text's, in both looks
        inputs = self._inputs(number)
        widgets = [one for one in inputs if one.is_widget]
        shown = len(widgets) + sum(one.has_control for one in widgets)
        texts = sum(bool(one.options.get("multiline")) for one in widgets)
        rows = max(len(inputs) - len(widgets), len(self._outputs(number)))
        height = round(room * (6 + ROW * rows + (8 + WIDGET * shown if shown else 0))) + (TEXT - WIDGET) * texts
        width = WIDTHS.get(kind, TEXT_WIDTH if texts else WIDTH)
        if room > 1 and (kind.startswith("Headroom") or getattr(self.known[kind], "EXPERIMENTAL", False)):
            height += BADGE
        height += VIDEO if kind == "HeadroomVAEDecodeVideo" else 0
        if kind in SHOWING_PICTURES or number in self.spec.previews.split():
            return width, height + PICTURE + (SIZE_LINE if room > 1 else 0)
        if face is not None:
            return face[0], max(face[1], height + LITTLE.get(kind.removeprefix("Headroom"), FACE_TEXT))
        return width, height

    def _group(self, number: int, title: str) -> Node:
        inside = self.stages[title]
        bounding = around([self.layout.corners[one] for one in inside], [self.rooms[one] for one in inside])
        return {"id": number, "title": title, "bounding": bounding, "color": GROUP_COLOUR, "font_size": 24, "flags": {}}

    def _note(self, number: int) -> Node:
        return {
            "id": number, "type": NOTE, "pos": [*self.layout.note], "size": [*self.note], "flags": {}, "order": 0,
            "mode": 0, "inputs": [], "outputs": [], "title": self.spec.title, "properties": {},
            "widgets_values": [self.text], **NOTE_COLOURS,
        }  # fmt: skip
