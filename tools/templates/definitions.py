"""The inputs of a node, as the host defines them and as the values of a graph unfold them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

Workflow = dict[str, Any]
ANYTHING = "COMFY_MATCHTYPE_V3"


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
        first = [one["key"] for one in self.options["options"][:1]] if self.kind == in_browser().DYNAMIC else [None]
        return self.options.get("default", first[0])

    @property
    def is_widget(self) -> bool:
        return bool(in_browser().is_widget(self.entry))

    @property
    def has_control(self) -> bool:
        return bool(in_browser().has_control(self.entry))


@cache
def in_browser() -> Any:
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
            choices = list(options.get("options") or ()) if kind == in_browser().DYNAMIC else []
            if choices:  # the first one where no other is given
                chosen = given.get(prefix + name, choices[0]["key"])
                inputs = next(choice["inputs"] for choice in choices if choice["key"] == chosen)
                yield from _inputs(inputs, given, f"{prefix}{name}.")
