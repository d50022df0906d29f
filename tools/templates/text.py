"""JSON whose differences show what changed."""

from __future__ import annotations

import json
from typing import Any

LINE = 120


def as_json(value: Any) -> str:
    """The text of a file: what fits in a line is in one, so that a difference shows what changed."""
    return _as_json(value, 0) + "\n"


def _as_json(value: Any, indent: int) -> str:
    line = json.dumps(value, ensure_ascii=False)
    if not value or not isinstance(value, (dict, list)) or len(line) + indent <= LINE:
        return line
    pairs = value.items() if isinstance(value, dict) else ((None, one) for one in value)
    names = (("" if name is None else f"{json.dumps(name)}: ", one) for name, one in pairs)
    lines = (" " * (indent + 2) + name + _as_json(one, indent + 2) for name, one in names)
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n" + ",\n".join(lines) + f"\n{' ' * indent}{last}"
