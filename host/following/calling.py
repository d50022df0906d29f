"""Runs a node as the host would: its class, its inputs in the form that it takes, its outputs in whichever it gives."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...graph.to_api import DYNAMIC
from ..core.nodes import node_classes
from .inputs import FileMissing, Inputs, NotFollowed

Outputs = tuple[Any, ...]
NOT_FOUND = re.compile(r"Model in folder '(.+)' with filename '(.+)' not found")  # as the host says it
GROWING = "COMFY_AUTOGROW_V3"  # the type of an input that has as many values as are connected


@dataclass(frozen=True)
class Nodes:
    """The classes of nodes that there are.

    Attributes:
        ours: this pack's by their ids, where the host has not loaded them.
    """

    ours: Mapping[str, Any]

    def check(self, kind: str, inputs: Inputs, constants: Collection[str]) -> None:
        """Checks the inputs of a node as the host does before it runs one: numbers of all, types and choices of ours.

        Args:
            constants: the names of those that the workflow itself gives; what is connected may be any number.

        Raises:
            NotFollowed: an input that this node does not take.
        """
        node = self._class(kind)
        if node is None:
            return
        definition = node.INPUT_TYPES()
        inputs.cast(definition, constants)
        inputs.check_ranges(definition, constants)
        if is_ours(kind):
            inputs.check(definition)

    def call(self, kind: str, inputs: Inputs) -> Outputs:
        """Runs a node.

        Raises:
            NotFollowed: this host has no such node, it does not take these inputs, or it fails on them.
        """
        run = self.prepared(kind, inputs)
        if is_ours(kind):
            return outputs(kind, run())
        try:
            return outputs(kind, run())
        except NotFollowed:
            raise
        except FileNotFoundError as error:
            raise file_missing(kind, error) from error
        except Exception as error:
            # Code of others, on tensors without data and inputs that nobody has checked: it may raise anything.
            raise NotFollowed(f"{kind}: {first_line(error)}") from error

    def prepared(self, kind: str, inputs: Inputs) -> Callable[..., Any]:
        """What runs a node on its inputs, of which some may be exchanged by their names.

        Raises:
            NotFollowed: this host has no such node, or it does not take these inputs.
        """
        node = self._class(kind)
        if node is None:
            raise NotFollowed(f"{kind} is not in this ComfyUI")
        function: Callable[..., Any] = getattr(node, "execute", None) or getattr(node(), node.FUNCTION)
        given = with_choices(node, _that_it_has(node, inputs))
        try:
            inspect.signature(function).bind(**given)
        except TypeError as error:
            raise NotFollowed(f"{kind}: {error}") from error
        return partial(function, **given)

    def _class(self, kind: str) -> Any:
        return self.ours.get(kind) or node_classes().get(kind)


def _that_it_has(node: Any, inputs: Inputs) -> dict[str, Any]:
    """Without those that the node does not have, which the host leaves out too: a newer one's, in a workflow of its."""
    known = {name for group in node.INPUT_TYPES().values() for name in group}
    return {name: value for name, value in inputs.items() if name.partition(".")[0] in known}


def is_ours(kind: str) -> bool:
    """Whether a node is this pack's, by its id."""
    return kind.startswith("Headroom")


def with_choices(node: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """As the host hands them to a node: a dynamic list's choice and the inputs that it brings are one dictionary, and
    so are those of a list that grows."""
    result = dict(inputs)
    for group in node.INPUT_TYPES().values():
        for name in [name for name, spec in group.items() if spec[0] == GROWING]:
            given = {key: result.pop(key) for key in inputs if key.startswith(f"{name}.")}
            result[name] = {key.partition(".")[2]: value for key, value in given.items()}
        for name in [name for name, spec in group.items() if spec[0] == DYNAMIC and name in inputs]:
            brought = {key: result.pop(key) for key in inputs if key.startswith(f"{name}.")}
            result[name] = {name: inputs[name], **{key.partition(".")[2]: value for key, value in brought.items()}}
    return result


def file_missing(kind: str, error: FileNotFoundError) -> FileMissing:
    """What is said where the host does not find one of its models."""
    found = NOT_FOUND.search(first_line(error))
    if found is None:
        return FileMissing(f"{kind}: {first_line(error)}")
    folder, name = found.groups()
    return FileMissing(f"{kind}: {name} is not there, nor in the catalogue: download it into models/{folder}")


def outputs(kind: str, result: Any) -> Outputs:
    """What a node gives, from whichever of the host's forms.

    Raises:
        NotFollowed: it is in none of them.
    """
    if isinstance(result, dict):  # what is shown alone is no output
        result = result.get("result", () if "ui" in result else None)
    found = getattr(result, "args", result)
    if not isinstance(found, tuple):
        raise NotFollowed(f"{kind} gives nothing that is known")
    return found


def first_line(error: Exception) -> str:
    """What an error says, in one line; its type where it says nothing."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
