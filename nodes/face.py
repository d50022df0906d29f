"""What a node sends to its face in the browser."""

from __future__ import annotations

import json
from typing import Any

from comfy_api.latest import ui

from ..memory.render import MemoryBar


def face(text: str, bar: MemoryBar) -> dict[str, Any]:
    """A report and, as JSON, the numbers of the bar above it. A string: the host counts objects as files."""
    shown: dict[str, Any] = ui.PreviewText(text).as_dict()
    return {**shown, "headroom_bar": (json.dumps(bar.numbers()),)}
