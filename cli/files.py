"""Reads and writes workflow files, in both formats."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any


class BadWorkflow(ValueError):
    """A file that is no workflow; the message says what to do."""


def read(path: Path) -> dict[str, Any]:
    """The JSON object of a file.

    Raises:
        BadWorkflow: it cannot be read, or is no workflow.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadWorkflow(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadWorkflow(f"{path} is no JSON: {error}") from error
    if not (isinstance(content, dict) and (is_ui(content) or _is_api(api_nodes(content)))):
        raise BadWorkflow(f"{path} is no ComfyUI workflow: every entry needs class_type and inputs")
    return content


def is_ui(content: dict[str, Any]) -> bool:
    """Whether it is in the browser's format."""
    return isinstance(content.get("nodes"), list)


def api_nodes(content: dict[str, Any]) -> Any:
    """The nodes of the API format, which may lie in a request to the host."""
    return content.get("prompt", content)


def as_api(content: dict[str, Any], ours: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The nodes of a file in the API format; that of the browser is converted, for which the host must be there.

    Args:
        ours: the pack's node classes by id.

    Raises:
        ValueError: the browser's format cannot be converted.
    """
    if not is_ui(content):
        return {str(number): node for number, node in api_nodes(content).items()}
    converted: dict[str, dict[str, Any]] = importlib.import_module("headroom.host.workflow.estimate").as_queued(
        content, ours
    )
    return converted


def _is_api(nodes: Any) -> bool:
    return isinstance(nodes, dict) and all(
        isinstance(node, dict) and "class_type" in node and isinstance(node.get("inputs"), dict)
        for node in nodes.values()
    )


def write(path: Path, content: dict[str, Any]) -> None:
    """Writes a workflow.

    Raises:
        BadWorkflow: the file cannot be written.
    """
    try:
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadWorkflow(f"{path} cannot be written: {error.strerror}") from error
