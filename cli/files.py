"""Reads and writes workflow files, in both formats. What is well-formed in either is said in graph/formats.py."""

from __future__ import annotations

import importlib
import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from ..graph import formats
else:  # as a script
    import host

    host.load_pack()
    formats = importlib.import_module("headroom.graph.formats")


def read(path: Path) -> dict[str, Any]:
    """The JSON object of a file.

    Raises:
        BadWorkflow: it cannot be read, or is no workflow.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise formats.BadWorkflow(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise formats.BadWorkflow(f"{path} is no JSON: {error}") from error
    nodes = api_nodes(content)
    if formats.is_ui(content):
        formats.check_ui(content, formats.Called(str(path)))
    elif formats.is_api(nodes):
        formats.check_api(nodes, formats.Called(str(path)))
    else:
        raise formats.BadWorkflow(f"{path} is no ComfyUI workflow: every entry needs class_type and inputs")
    found: dict[str, Any] = content
    return found


def api_nodes(content: Any) -> Any:
    """The nodes of the API format, which may lie in a request to the host."""
    return content["prompt"] if formats.is_request(content) else content


def kinds(content: Any) -> set[str]:
    """The class names of all nodes of a file, those within subgraphs too, and whatever else it calls a type."""
    found: set[str] = set()
    left = [content]  # a list and no recursion: whoever wrote the file chose how deep it is
    while left:
        one = left.pop()
        if isinstance(one, list):
            left += one
        elif isinstance(one, dict):
            left += one.values()
            found |= {one[key] for key in ("class_type", "type") if isinstance(one.get(key), str)}
    return found


def as_api(content: dict[str, Any], ours: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The nodes of a file in the API format; that of the browser is converted, for which the host must be there.

    Args:
        ours: the pack's node classes by id.

    Raises:
        BadWorkflow: the browser's format cannot be converted.
    """
    if not formats.is_ui(content):
        return {str(number): node for number, node in api_nodes(content).items()}
    converted: dict[str, dict[str, Any]] = importlib.import_module("headroom.host.workflow.estimate").as_queued(
        content, ours
    )
    return converted


def write(path: Path, content: dict[str, Any]) -> None:
    """Writes a workflow. What was in the file stays there until all of it is written: it may be the one that was read.

    Raises:
        BadWorkflow: the file cannot be written.
    """
    target = path.resolve()
    whole = target.is_file() or not target.exists()  # else something that is written to, such as /dev/stdout
    written = target.with_name(f".{target.name}.part") if whole else target
    try:
        written.write_bytes(_encoded(content))
        if whole:
            if target.exists():
                shutil.copymode(target, written)
            written.replace(target)
    except OSError as error:
        if whole:
            with suppress(OSError):
                written.unlink()
        raise formats.BadWorkflow(f"{path} cannot be written: {error.strerror}") from error


def _encoded(content: dict[str, Any]) -> bytes:
    try:
        return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # half of a letter, as a text has that was cut within one: JSON can write it escaped
        return (json.dumps(content, indent=2) + "\n").encode()
