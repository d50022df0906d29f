"""Whether saved workflows still run: compares the nodes' contract before and after a change.

    python3 -m tools.contract_diff BEFORE.json AFTER.json

Both are a ``tests/host/contract.json``: nodes as /object_info serves them, without their prose. Exit status: 0 for
additions alone, 1 where something breaks, with a line for each, 2 for files that cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPATIBLE, BREAKS, UNREADABLE = 0, 1, 2
Node = dict[str, Any]
# Their values stand in a workflow of the browser's format by position, not by name.
WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO", "COMFY_DYNAMICCOMBO_V3")
WITHOUT_WIDGET = ("forceInput", "socketless")


@dataclass(frozen=True)
class Input:
    """An input of a node; those of a dynamic combo's option are called ``combo[option].input``."""

    name: str
    parent: str
    required: bool
    kind: str
    options: dict[str, Any]


def breaks(before: dict[str, Node], after: dict[str, Node]) -> list[str]:
    """What a workflow saved with the nodes ``before`` may rely on and does not find ``after``, a sentence each."""
    lines = []
    for name, node in sorted(before.items()):
        if name in after:
            lines += [f"{name}: {line}" for line in _node_breaks(node, after[name])]
        else:
            lines.append(f"{name}: the node is gone")
    return lines


def _node_breaks(before: Node, after: Node) -> Iterator[str]:
    old, new = inputs(before), inputs(after)
    for name, item in old.items():
        if name not in new:
            if item.parent not in _lost(old, new):
                yield f"{name}: the input is gone"
        else:
            yield from (f"{name}: {line}" for line in _input_breaks(item, new[name]))
    for name, item in new.items():
        if name not in old and item.required and _there(item.parent, old):
            yield f"{name}: a new input that is required, which saved prompts lack: make it optional"
    widgets, now = _widgets(before), _widgets(after)
    kept = [name for name in widgets if name in new]
    if now[: len(kept)] != kept:
        yield f"widgets: {', '.join(now)} have another order than {', '.join(widgets)}: put new ones last"
    if after["output"][: len(before["output"])] != before["output"]:
        yield f"outputs: {', '.join(after['output'])} do not begin with {', '.join(before['output'])}"


def _input_breaks(before: Input, after: Input) -> Iterator[str]:
    if after.kind != before.kind:
        yield f"it was of type {before.kind} and is {after.kind}"
        return
    if after.required and not before.required:
        yield "it was optional and is required"
    if _default(before) != _default(after):
        yield f"its default was {_default(before)!r} and is {_default(after)!r}"
    for choice in _choices(before):
        if choice not in _choices(after):
            yield f"the choice {choice!r} is gone"
    for bound, narrower in (("min", max), ("max", min)):
        old, new = before.options.get(bound), after.options.get(bound)
        if new is not None and (old is None or (new != old and narrower(old, new) == new)):
            yield f"its {bound} was {old} and is {new}"


def inputs(node: Node) -> dict[str, Input]:
    """The inputs of a node by name, with those inside its dynamic combos."""
    return {item.name: item for item in _inputs(node["input"], "")}


def _inputs(groups: dict[str, Any], parent: str) -> Iterator[Input]:
    for group in ("required", "optional"):
        for name, (kind, options) in groups.get(group, {}).items():
            path = f"{parent}.{name}" if parent else name
            yield Input(path, parent, group == "required", kind, options)
            for option in options.get("options", ()):
                if isinstance(option, dict):
                    yield from _inputs(option["inputs"], f"{path}[{option['key']}]")


def _choices(item: Input) -> list[Any]:
    """What can be chosen: the words of a combo, the keys of a dynamic one."""
    return [choice["key"] if isinstance(choice, dict) else choice for choice in item.options.get("options", ())]


def _default(item: Input) -> Any:
    """What a new node starts with: of choices the first, unless another is named."""
    return item.options.get("default", next(iter(_choices(item)), None))


def _there(parent: str, among: dict[str, Input]) -> bool:
    """Whether a node, "", or an option of a dynamic combo, ``combo[option]``, exists."""
    combo, _, option = parent.rpartition("[")
    return not parent or (combo in among and option.removesuffix("]") in _choices(among[combo]))


def _lost(before: dict[str, Input], after: dict[str, Input]) -> set[str]:
    """Options that are gone, whose inputs need no line of their own."""
    return {item.parent for item in before.values() if not _there(item.parent, after)}


def _widgets(node: Node) -> list[str]:
    """The inputs whose values the browser keeps by position, in its order."""
    named = inputs(node)
    order = [name for group in ("required", "optional") for name in node["input_order"].get(group, ())]
    return [name for name in order if named[name].kind in WIDGETS and not _is_socket(named[name])]


def _is_socket(item: Input) -> bool:
    return any(item.options.get(flag) for flag in WITHOUT_WIDGET)


def main(arguments: Sequence[str]) -> int:
    """Compare two files; the exit status."""
    command = argparse.ArgumentParser(prog="contract_diff", description=(__doc__ or "").partition("\n")[0])
    command.add_argument("before", type=Path)
    command.add_argument("after", type=Path)
    options = command.parse_args(arguments)
    try:
        before, after = (json.loads(path.read_text(encoding="utf-8")) for path in (options.before, options.after))
    except (OSError, ValueError) as error:
        print(f"contract_diff: {error}", file=sys.stderr)
        return UNREADABLE
    lines = breaks(before, after)
    print("\n".join(lines or ["Workflows saved before this change still run."]))
    return BREAKS if lines else COMPATIBLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
