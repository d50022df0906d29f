"""If/Else switches of a prompt whose choice is in the prompt itself: the host runs one branch of each, and no other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .prompt import Prompt, is_link, parents, reached

SWITCHES = ("ComfySwitchNode", "ComfySoftSwitchNode")
BOOLEAN = "PrimitiveBoolean"
BRANCHES = {True: "on_true", False: "on_false"}


def without_switches(prompt: Prompt, ends: Iterable[str]) -> Prompt:
    """The nodes that run, connected to what the switches choose.

    Args:
        prompt: not changed. Switches whose choice is computed, or whose branch is not connected, stay.
        ends: nodes of it that run whoever reads them; of the others those run that they depend on.
    """
    chosen = {number: value for number in prompt if (value := _chosen(prompt, number)) is not None}
    result = {
        number: {**node, "inputs": {name: _through(value, chosen) for name, value in node["inputs"].items()}}
        for number, node in prompt.items()
    }
    return depended_on(result, ends)


def depended_on(prompt: Prompt, ends: Iterable[str]) -> Prompt:
    """These nodes of a prompt and all that they depend on."""
    running = set(reached(ends, lambda number: filter(prompt.__contains__, parents(prompt[number]))))
    return {number: node for number, node in prompt.items() if number in running}


def _chosen(prompt: Prompt, number: str) -> Any:
    """What a switch gives: a link or a value; None for other nodes, and where it is not known."""
    node = prompt[number]
    if node["class_type"] not in SWITCHES:
        return None
    given = node["inputs"]
    there = [name for name in BRANCHES.values() if name in given]
    if len(there) == 1:
        return given[there[0]] if node["class_type"] == SWITCHES[1] else None
    switch = _constant(prompt, given.get("switch"))
    return given.get(BRANCHES[switch]) if isinstance(switch, bool) else None


def _constant(prompt: Prompt, value: Any) -> Any:
    """A value, or that of the node for booleans which gives it."""
    if is_link(value) and value[0] in prompt and prompt[value[0]]["class_type"] == BOOLEAN:
        return prompt[value[0]]["inputs"].get("value")
    return value


def _through(value: Any, chosen: dict[str, Any]) -> Any:
    """A value of an input, past the switches that it comes through."""
    seen: set[str] = set()
    while is_link(value) and value[0] in chosen and value[0] not in seen:
        seen.add(value[0])
        value = chosen[value[0]]
    return value
