"""Writes the English of the nodes, `locales/en/nodeDefs.json`, from their schemas.

    python3 -m tools locales

The other languages are written by hand, beside it and with the same keys.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from ..setup.environment import PACK

LOCALES = PACK / "locales"
FILE = "nodeDefs.json"


def main() -> int:
    """Write the file, in the environment of the tools; the exit status."""
    host = importlib.import_module("cli.host")
    host.enter(host.find_comfyui())
    path = LOCALES / "en" / FILE
    path.write_text(as_json(english(importlib.import_module("headroom.nodes").NODES)), encoding="utf-8")
    print(path)
    return 0


def english(nodes: Sequence[Any]) -> dict[str, Any]:
    """What the frontend looks up for each node class, in the words of its schema."""
    schemas = [node.GET_SCHEMA() for node in nodes]
    return {schema.node_id: _english(schema) for schema in schemas}


def _english(schema: Any) -> dict[str, Any]:
    outputs = {str(i): _words(o.display_name or o.io_type, o.tooltip) for i, o in enumerate(schema.outputs)}
    return {
        "display_name": schema.display_name,
        "description": _paragraphs(schema.description),
        "inputs": {key(name): _words(name.rpartition(".")[2], i.tooltip) for name, i in every_input(schema.inputs)},
        "outputs": outputs,
    }


def _words(name: str, tooltip: str) -> dict[str, str]:
    return {"name": name, "tooltip": tooltip}


def every_input(inputs: Sequence[Any], parent: str = "") -> Iterator[tuple[str, Any]]:
    """Each input and its name in a workflow; those that a choice of a dynamic combo brings, as `combo.input`."""
    for one in inputs:
        yield parent + one.id, one
        for option in getattr(one, "options", None) or ():
            yield from every_input(getattr(option, "inputs", ()), f"{parent}{one.id}.")


def key(name: str) -> str:
    """How the frontend writes a name inside the path of a translation, where a dot means the next level."""
    return name.replace(".", "_")


def _paragraphs(text: str) -> str:
    """A docstring without the line breaks and the indentation of the source."""
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip()))


def as_json(translations: dict[str, Any]) -> str:
    """The text of a file."""
    return json.dumps(translations, ensure_ascii=False, indent=2) + "\n"


if __name__ == "__main__":
    sys.exit(main())
