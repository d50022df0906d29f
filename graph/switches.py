"""If/Else switches of a prompt whose choice is in the prompt itself: the host runs one branch of each, and no other."""

from __future__ import annotations

from typing import Any

from .prompt import Prompt, is_link, parents, reached

SWITCHES = ("ComfySwitchNode", "ComfySoftSwitchNode")
BOOLEAN = "PrimitiveBoolean"
BRANCHES = {True: "on_true", False: "on_false"}


def without_switches(prompt: Prompt) -> Prompt:
    """The nodes that run, connected to what the switches choose.

    Args:
        prompt: not changed. Switches whose choice is computed, or whose branch is not connected, stay.
    """
    chosen = {number: value for number in prompt if (value := _chosen(prompt, number)) is not None}
    if not chosen:
        return prompt
    ends = set(prompt).difference(*(parents(node) for node in prompt.values()))
    result = {
        number: {**node, "inputs": {name: _through(value, chosen) for name, value in node["inputs"].items()}}
        for number, node in prompt.items()
    }
    running = set(reached(ends, lambda number: [one for one in parents(result[number]) if one in result]))
    return {number: node for number, node in result.items() if number in running}


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
