"""Small JSON files that the pack keeps: written whole or not at all; one that is damaged counts as not there."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


def read_json(path: Path) -> Any:
    """What a file holds; None without one, and, with a line in the log, where it cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content is None:
            raise ValueError("there is nothing in it")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        log.warning("Headroom: %s cannot be read and is ignored: %s", path, error)
        return None
    return content


def write_json(path: Path, content: Any) -> None:
    """Writes a file in one go: a reader, or a crash, sees the one before or the whole new one.

    Raises:
        ValueError: numbers that are not finite, which no reader of JSON has to know.
        OSError: it cannot be written.
    """
    text = json.dumps(content, indent=1, sort_keys=True, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
