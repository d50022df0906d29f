"""Writes the templates of the browser, `workflows/*.json`, from their API twins in `workflows/api`.

    python3 -m tools.templates

What each changes in its twin, and what its note says, is in template_specs.py. Everything else here follows from the
twin and the host's definitions of its nodes: slots, widgets, links, places, groups.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .layout import around, place
from .template_specs import MODELS, TEMPLATES, Node, Template

WORKFLOWS = Path(__file__).resolve().parent.parent / "workflows"
Workflow = dict[str, Any]
ROW, WIDGET = 20, 24  # heights of a slot and of a widget
ROOM = 1.4  # the newer look needs that much more height for both
WIDTH, TEXT_WIDTH, FACE = 340, 400, (560, 380)  # of nodes; of those with a text to write; of those that show one
TEXT, PICTURE = 120, 340  # heights of a text to write, and of a picture on a node
SHOWING_TEXT = ("Report", "Estimate", "Fit", "Compare", "Cast", "CastCLIP", "Offload")
SHOWING_PICTURES = ("LoadImage", "SaveImage", "PreviewImage", "ImageCompare", "SaveVideo")
NOTE, NOTE_WIDTH, NOTE_LINE, LETTERS = "MarkdownNote", 480, 24, 58  # letters in a line of a note
NOTE_COLOURS = {"color": "#432", "bgcolor": "#653"}
GROUP_COLOUR = "#3f789e"
ANYTHING = "COMFY_MATCHTYPE_V3"
CONTROL = "randomize"  # what the widget behind a seed says
LINE = 120


def main() -> int:
    """Write the files, in the environment of the tools; the exit status."""
    if "HEADROOM_COMFYUI" not in os.environ:
        return _in_environment()
    host = importlib.import_module("cli.host")
    host.enter(host.find_comfyui())
    ours = {node.GET_SCHEMA().node_id: node for node in importlib.import_module("headroom.nodes").NODES}
    for name in TEMPLATES:
        path = WORKFLOWS / f"{name}.json"
        path.write_text(as_json(template(name, ours)), encoding="utf-8")
        print(path)
    return 0


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


def is_link(value: Any) -> bool:
    """Whether the value of an input in the API format comes from another node."""
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


# ------------------------------------------------------------------------------------------------------- definitions


@dataclass(frozen=True)
class Input:
    """An input as a node with certain values has it."""

    name: str
    kind: str
    options: Mapping[str, Any]
    optional: bool

    @property
    def entry(self) -> tuple[str, str, Mapping[str, Any]]:
        return self.name, self.kind, self.options

    @property
    def default(self) -> Any:
        """What a widget says that the graph leaves out."""
        first = [one["key"] for one in self.options["options"][:1]] if self.kind == _ui().DYNAMIC else [None]
        return self.options.get("default", first[0])

    @property
    def is_widget(self) -> bool:
        return bool(_ui().is_widget(self.entry))

    @property
    def has_control(self) -> bool:
        return bool(_ui().has_control(self.entry))


@cache
def _ui() -> Any:
    return importlib.import_module("headroom.graph.to_api")


def inputs_of(kind: Any, given: Mapping[str, Any]) -> list[Input]:
    """The inputs of a node class in their order, those that its values bring included."""
    return list(_inputs(kind.INPUT_TYPES(), given))


def _inputs(definition: Mapping[str, Any], given: Mapping[str, Any], prefix: str = "") -> Iterator[Input]:
    for group in ("required", "optional"):
        for name, spec in (definition.get(group) or {}).items():
            options = spec[1] if len(spec) > 1 else {}
            kind = "COMBO" if isinstance(spec[0], list) else str(spec[0])
            yield Input(prefix + name, "*" if kind == ANYTHING else kind, options, group == "optional")
            choices = list(options.get("options") or ()) if kind == _ui().DYNAMIC else []
            if choices:  # the first one where no other is given
                chosen = given.get(prefix + name, choices[0]["key"])
                inputs = next(choice["inputs"] for choice in choices if choice["key"] == chosen)
                yield from _inputs(inputs, given, f"{prefix}{name}.")


# ----------------------------------------------------------------------------------------------------------- drawing


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
        rooms = {number: (width, round(height * ROOM)) for number, (width, height) in self.sizes.items()}
        self.rooms = rooms
        self.corners = place(rooms, [(start, end) for _, start, _, end, _, _ in self.links], [*self.stages.values()])

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
            "pos": [*self.corners[number]],
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
        models = [_model(name) for name in files_of(node)]
        return {"Node name for S&R": node["class_type"], "cnr_id": pack, **({"models": models} if models else {})}

    def _values(self, node: Node) -> Iterator[Any]:
        """In the order of the definition, not of the slots."""
        for one in inputs_of(self.known[node["class_type"]], node["inputs"]):
            if one.is_widget and one.kind != _ui().COMPARE:
                yield node["inputs"].get(one.name, one.default)
                yield from [CONTROL] if one.has_control else []
                yield from ["image"] if one.options.get("image_upload") else []

    def _size(self, number: str) -> tuple[int, int]:
        kind = self.graph[number]["class_type"]
        inputs = self._inputs(number)
        widgets = [one for one in inputs if one.is_widget]
        shown = len(widgets) + sum(one.has_control for one in widgets)
        texts = sum(bool(one.options.get("multiline")) for one in widgets)
        rows = max(len(inputs) - len(widgets), len(self._outputs(number)))
        height = 6 + ROW * rows + (8 + WIDGET * shown if shown else 0) + (TEXT - WIDGET) * texts
        if kind in SHOWING_PICTURES:
            return WIDTH, height + PICTURE
        if kind.startswith("Headroom") and kind.removeprefix("Headroom") in SHOWING_TEXT:
            return FACE[0], max(FACE[1], height + TEXT)
        return TEXT_WIDTH if texts else WIDTH, height

    def _group(self, number: int, title: str) -> Node:
        inside = self.stages[title]
        bounding = around([self.corners[one] for one in inside], [self.rooms[one] for one in inside])
        return {"id": number, "title": title, "bounding": bounding, "color": GROUP_COLOUR, "font_size": 24, "flags": {}}

    def _note(self, number: int) -> Node:
        text = note_of(self.spec, self.graph)
        height = NOTE_LINE * sum(2 + len(line) // LETTERS for line in _without_addresses(text).splitlines() if line)
        left = min(x for x, _ in self.corners.values()) - NOTE_WIDTH - 120
        return {
            "id": number, "type": NOTE, "pos": [left, 0], "size": [NOTE_WIDTH, height], "flags": {}, "order": 0,
            "mode": 0, "inputs": [], "outputs": [], "title": self.spec.title, "properties": {},
            "widgets_values": [text], **NOTE_COLOURS,
        }  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- note


def files_of(node: Node) -> list[str]:
    """The model files that a node loads."""
    return [value for value in node["inputs"].values() if isinstance(value, str) and value in MODELS]


def note_of(spec: Template, graph: Workflow) -> str:
    """The text of a template's note, in Markdown."""
    files = dict.fromkeys(name for node in graph.values() for name in files_of(node))
    lines = [f"- `models/{MODELS[name][0]}/` [{name}]({MODELS[name][1]}/{name})" for name in files]
    return "\n".join(
        [
            _unwrapped(spec.about), "", "## Files", *lines, "", "## How much memory",
            "It depends on your card. **Will It Fit?** before the sampler predicts it without running anything"
            " (template *will_it_fit*); **Memory Report** shows what was measured beside what was predicted.",
        ]
    )  # fmt: skip


def _unwrapped(text: str) -> str:
    """A line for each paragraph and each point of a list: the note breaks lines itself."""
    lines: list[str] = []
    for line in text.strip().splitlines():
        if line and lines and lines[-1] and not line.startswith("- "):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    return "\n".join(lines)


def _without_addresses(text: str) -> str:
    return "\n".join(line.partition("](")[0] for line in text.splitlines())


def _model(name: str) -> dict[str, str]:
    folder, address = MODELS[name]
    return {"name": name, "url": f"{address}/{name}", "directory": folder}


# -------------------------------------------------------------------------------------------------------------- text


def as_json(value: Any) -> str:
    """The text of a file: what fits in a line is in one, so that a difference shows what changed."""
    return _as_json(value, 0) + "\n"


def _as_json(value: Any, indent: int) -> str:
    line = json.dumps(value, ensure_ascii=False)
    if not value or not isinstance(value, (dict, list)) or len(line) + indent <= LINE:
        return line
    pairs = value.items() if isinstance(value, dict) else ((None, one) for one in value)
    names = (("" if name is None else f"{json.dumps(name)}: ", one) for name, one in pairs)
    lines = (" " * (indent + 2) + name + _as_json(one, indent + 2) for name, one in names)
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n" + ",\n".join(lines) + f"\n{' ' * indent}{last}"


def _in_environment() -> int:
    from .environment import prepare

    found = prepare(None)
    command: list[str | Path] = [found.python, "-m", "tools.templates"]
    return subprocess.run(command, cwd=found.pack, env={**os.environ, **found.variables()}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
