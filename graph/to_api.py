"""A workflow in the browser's format, as the browser would queue it: in the API format.

The host's definitions say which inputs of a node are widgets and in which order; the file has only their values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .formats import WORKFLOW, Called
from .litegraph import VIRTUAL, Instance, NodeData, UIWorkflow, first_value
from .prompt import Prompt
from .sources import Origin, Sources, Widget

# Types of inputs that the browser shows as widgets.
WIDGETS = frozenset(
    (
        "INT", "FLOAT", "BOOLEAN", "STRING", "COMBO", "MARKDOWN", "COLOR", "IMAGECOMPARE", "BOUNDING_BOX", "CHART",
        "GALLERIA", "PAINTER", "TEXTAREA", "CURVE", "RANGE", "BOUNDING_BOXES", "COLORS", "COMFY_DYNAMICCOMBO_V3",
        "WEBCAM", "LOAD_3D", "LOAD_3D_ANIMATION",
    )
)  # fmt: skip
DYNAMIC = "COMFY_DYNAMICCOMBO_V3"
CONTROLS = ("fixed", "increment", "decrement", "randomize", "increment-wrap")
COMPARE, LOAD_3D = "IMAGECOMPARE", ("LOAD_3D", "LOAD_3D_ANIMATION")
BUTTONS = ("upload3dmodel", "uploadExtraResources", "clear")  # before the view of a 3D model, saved as its values
CUSTOM_COMBO = "CustomCombo"  # the browser gives it more widgets than its definition has
EMPTY = {"INT": 0, "FLOAT": 0.0, "BOOLEAN": False, "STRING": ""}
Entry = tuple[str, str, dict[str, Any]]  # name, type, options


def to_api(
    workflow: dict[str, Any],
    known: Mapping[str, Any],
    names: Mapping[str, str] | None = None,
    called: Called = WORKFLOW,
) -> Prompt:
    """Converts a workflow in the browser's format.

    A node that is not known keeps what is linked to it and loses its widgets, whose names are not in the
    file.

    Args:
        workflow: the JSON object; not changed.
        known: classes of nodes by their ids.
        names: what people read on nodes whose classes do not say it.
        called: what it is called in sentences.

    Returns:
        The nodes by id (in a subgraph e.g. 12:3): ``{"class_type": …, "inputs": {…}, "_meta": {"title": …}}``.

    Raises:
        BadWorkflow: it is not in this format or not whole, uses group nodes, or goes in a circle.
    """
    return _Conversion(UIWorkflow(workflow, called), known, names or {}).run()


class _Conversion:
    def __init__(self, workflow: UIWorkflow, known: Mapping[str, Any], names: Mapping[str, str]) -> None:
        self.workflow, self.known, self.names = workflow, known, names
        self.definitions: dict[str, list[Entry] | None] = {}
        self.sources = Sources(workflow, slots=self._slots)

    def run(self) -> Prompt:
        return {
            place.number(node): {
                "class_type": node["type"],
                "inputs": self._inputs(place, node),
                "_meta": {"title": node.get("title") or self._display_name(node["type"])},
            }
            for place, node in self.workflow.places()
            if node["type"] not in VIRTUAL
        }

    def _display_name(self, kind: str) -> str:
        schema = getattr(self.known.get(kind), "GET_SCHEMA", None)
        ours = schema().display_name if schema else None
        return str(self.names.get(kind) or ours or kind)

    def _inputs(self, place: Instance, node: NodeData) -> dict[str, Any]:
        inputs = {name: _boxed(value) for name, value in self._widgets(place, node).items()}
        for entry in node.get("inputs") or ():
            found = self.sources.of(place, entry)
            if isinstance(found, Origin) and found.node is not None:
                inputs[entry["name"]] = [found.place.number(found.node), found.slot]
            elif isinstance(found, Widget):
                has_value, value = self._value(found)
                if has_value:
                    inputs[entry["name"]] = _boxed(value)
        return inputs

    # --------------------------------------------------------------------------------------------- values of widgets

    def _widgets(self, place: Instance, node: NodeData) -> dict[str, Any]:
        """The values of a node's widgets by name, those given by the subgraph around it included."""
        entries = self._definition(node["type"])
        values = node.get("widgets_values")
        found = dict(_read(self._shown(entries, node), values)) if entries is not None else {}
        if node["type"] == CUSTOM_COMBO and isinstance(values, list):
            found |= dict(_custom_combo(values))
        given = {name: value for (owner, name), value in place.inner.items() if owner == str(node["id"])}
        return found | {name: value for name, value in given.items() if name in found}

    def _value(self, widget: Widget) -> tuple[bool, Any]:
        """Whether a widget has a value, and which."""
        place, node = widget.place, widget.node
        if node is not None:
            given = place.inner.get((str(node["id"]), "value"))
            return (True, given) if given is not None else (bool(node.get("widgets_values")), first_value(node))
        name = place.graph.slot("inputs", widget.slot)["name"]
        if name in place.named:
            return True, place.named[name]
        for inner, entry in place.graph.targets(widget.slot):
            if "widget" in entry:
                return self._inner_value(place, inner, entry)
        return False, None

    def _inner_value(self, place: Instance, node: NodeData, entry: Mapping[str, Any]) -> tuple[bool, Any]:
        name = (entry.get("widget") or {}).get("name", entry["name"])
        if node["type"] not in self.workflow.subgraphs:
            widgets = self._widgets(place, node)
            return name in widgets, widgets.get(name)
        inside = self.workflow.child(place, node)
        names = [one["name"] for one in inside.graph.data.get("inputs") or ()]
        return (
            self._value(Widget(inside, None, names.index(entry["name"]))) if entry["name"] in names else (False, None)
        )

    # ------------------------------------------------------------------------------------------ the host's definitions

    def _definition(self, kind: str) -> list[Entry] | None:
        if kind not in self.definitions:
            node = self.known.get(kind)
            self.definitions[kind] = None if node is None else list(entries_of(node.INPUT_TYPES()))
        return self.definitions[kind]

    def _shown(self, entries: list[Entry], node: NodeData) -> list[Entry]:
        """The inputs whose values the file has: those that are widgets here, or were where it was written."""
        marked = {(entry.get("widget") or {}).get("name") for entry in node.get("inputs") or ()}
        values = node.get("widgets_values")
        flags = [flag for entry in entries for flag in _slots_of_forced(entry, marked)]
        # A widget that was later forced to be an input still has its value in old files.
        if any(flags) and isinstance(values, list) and len(values) == len(flags):
            return [entry for entry in entries if is_widget(entry, marked) or entry[2].get("forceInput")]
        return [entry for entry in entries if is_widget(entry, marked)]

    def _slots(self, node: NodeData) -> list[dict[str, Any]]:
        """The inputs of a node as the browser orders them: links first, then widgets, then what it does not know."""
        written = {entry["name"]: entry for entry in node.get("inputs") or ()}
        entries = self._definition(node["type"])
        if entries is None:
            return list(written.values())
        ordered = sorted(entries, key=is_widget)
        known = [written.get(name, {"name": name, "type": kind, "link": None}) for name, kind, _ in ordered]
        return known + [entry for name, entry in written.items() if name not in {one[0] for one in entries}]


def is_widget(entry: Entry, marked: Any = ()) -> bool:
    """Whether an input is a widget: by its type, or because the file marks it as one."""
    name, kind, options = entry
    if options.get("forceInput"):
        return False
    return options.get("widgetType", kind) in WIDGETS or name in marked


def _slots_of_forced(entry: Entry, marked: Any) -> list[bool]:
    forced = bool(entry[2].get("forceInput"))
    if not forced and not is_widget(entry, marked):
        return []
    return [forced, False] if entry[2].get("control_after_generate") else [forced]


def entries_of(definition: Mapping[str, Any], prefix: str = "") -> Iterator[Entry]:
    """The inputs of a definition: required ones, then optional ones. Lists of choices are of type COMBO.

    Args:
        definition: what a node's ``INPUT_TYPES()`` gives.
        prefix: before their names.
    """
    for group in ("required", "optional"):
        for name, spec in (definition.get(group) or {}).items():
            kind, options = spec[0], dict(spec[1]) if len(spec) > 1 and spec[1] else {}
            if isinstance(kind, (list, tuple)):
                kind, options = "COMBO", {**options, "options": list(kind)}
            yield prefix + name, str(kind), options


def _read(entries: list[Entry], values: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of widgets, in the order in which the file lists the values."""
    if isinstance(values, Mapping):
        yield from _named(entries, values)
    else:
        yield from _listed(entries, list(values or ()))


def _named(entries: list[Entry], values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for entry in entries:
        value = values.get(entry[0])
        value = _default(entry) if value is None else value
        if value is not None:
            yield entry[0], value
            yield from _named(chosen(entry, value), values)


def _listed(entries: list[Entry], values: list[Any]) -> Iterator[tuple[str, Any]]:
    """Takes from the front of ``values``."""
    for entry in entries:
        while entry[1] in LOAD_3D and values and values[0] in BUTTONS:
            del values[0]
        value = values.pop(0) if values and entry[1] != COMPARE else None
        value = _default(entry) if value is None else value
        if has_control(entry) and values and values[0] in CONTROLS:
            del values[: 2 if entry[1] == "COMBO" else 1]  # a list has a filter behind its control
        if value is not None:
            yield entry[0], value
            yield from _listed(chosen(entry, value), values)


def _custom_combo(values: list[Any]) -> Iterator[tuple[str, Any]]:
    """What is behind the choice: which of the options it is, and the options."""
    for number, value in enumerate(values[1:]):
        yield (f"option{number}" if number else "index"), value


def has_control(entry: Entry) -> bool:
    """Whether the browser adds a widget that changes this one after each run."""
    name, kind, options = entry
    said = options.get("control_after_generate")
    return bool(said) if said is not None else kind == "INT" and name in ("seed", "noise_seed")


def chosen(entry: Entry, value: Any) -> list[Entry]:
    """The inputs that the choice of a dynamic list brings, e.g. ``pattern.radius``; those that are widgets."""
    name, kind, options = entry
    if kind != DYNAMIC:
        return []
    inputs: Mapping[str, Any] = next((one["inputs"] for one in options.get("options", ()) if one["key"] == value), {})
    return [one for one in entries_of(inputs, f"{name}.") if is_widget(one)]


def _default(entry: Entry) -> Any:
    """What the browser puts where the file has no value; None if it puts nothing."""
    _, kind, options = entry
    if options.get("default") is not None:
        return options["default"]
    choices = options.get("options")
    if kind == DYNAMIC:
        return choices[0]["key"] if choices else None
    if kind == "COMBO":
        return choices[0] if choices else None
    return ["", ""] if kind == COMPARE else EMPTY.get(kind)  # two pictures, which no file keeps


def _boxed(value: Any) -> Any:
    """A list in a box: as it is, the host takes it for a link."""
    return {"__value__": value} if isinstance(value, list) else value
