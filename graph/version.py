"""Which version of the pack this is, as its metadata says: servers tell it, and whoever works with several asks."""

from __future__ import annotations

import re
from pathlib import Path

METADATA = Path(__file__).parents[1] / "pyproject.toml"


def pack_version() -> str:
    """Such as "0.7.0"; "of unknown version" where the file is missing or holds none."""
    try:
        found = re.search(r'^version = "(.+)"$', METADATA.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else "of unknown version"
