"""The note of a template: what it shows, which files it needs and where they are offered."""

from __future__ import annotations

import re

from .definitions import Workflow
from .parts import MODELS, Node, Template

FORETOLD = {
    "HeadroomTrainingEstimate": "**Will Training Fit?** predicts it",
    "HeadroomEstimate": "**Will It Fit?** predicts it",
}
BEFOREHAND = "*Will this run here?* (menu *Edit*) tells before a download"


def files_of(node: Node) -> list[str]:
    """The model files that a node loads."""
    return [value for value in node["inputs"].values() if isinstance(value, str) and value in MODELS]


def note_of(spec: Template, graph: Workflow) -> str:
    """The text of a template's note, in Markdown."""
    files = dict.fromkeys(name for node in graph.values() for name in files_of(node))
    lines = [f"- *models/{MODELS[name][0]}/* [{name}]({MODELS[name][1]}/{name})" for name in files]
    kinds = {node["class_type"] for node in graph.values()}
    foretold = next((sentence for kind, sentence in FORETOLD.items() if kind in kinds), BEFOREHAND)
    return "\n".join(
        [
            _legible(_unwrapped(spec.about)), "", "## Files", *lines, "", "## How much memory",
            f"{foretold}; **Memory Report** shows what it took.",
        ]
    )  # fmt: skip


def _legible(text: str) -> str:
    """Code as italics: the newer look writes it in blue, on a note hard to read."""
    return re.sub(r"`([^`]+)`", r"*\1*", text)


def _unwrapped(text: str) -> str:
    """A line for each paragraph and each point of a list: the note breaks lines itself."""
    lines: list[str] = []
    for line in text.strip().splitlines():
        if line and lines and lines[-1] and not line.startswith("- "):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    return "\n".join(lines)


def without_addresses(text: str) -> str:
    return "\n".join(line.partition("](")[0] for line in text.splitlines())


def model_of(name: str) -> dict[str, str]:
    folder, address = MODELS[name]
    return {"name": name, "url": f"{address}/{name}", "directory": folder}
