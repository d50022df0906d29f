"""Whether a report will read what a stretch of work took beyond the weights.

On a CPU that is found by following every tensor, which costs time; an accelerator's allocator counts by itself.
"""

from __future__ import annotations

import sys
from typing import Any

REPORT = "HeadroomReport"


def is_reported(prompt: str) -> bool:
    """Whether a prompt has a Memory Report in it; true where nothing tells, as in a program without a server.

    Args:
        prompt: its id, as the host's executing context has it; empty outside a prompt.
    """
    graph = _running(prompt)
    return graph is None or any(node.get("class_type") == REPORT for node in graph.values())


def a_prompt_runs() -> bool:
    """Whether the host's server runs one; true where nothing tells."""
    running = _currently_running()
    return running is None or bool(running)


def _currently_running() -> dict[Any, Any] | None:
    """What the host's server runs; None where there is no server, or it does not say.

    The queue's items are (number, id, nodes, …) from 0.18.2 to 0.33.0.
    """
    server = getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)
    running = getattr(getattr(server, "prompt_queue", None), "currently_running", None)
    return running if isinstance(running, dict) else None


def _running(prompt: str) -> dict[str, Any] | None:
    """The nodes of a prompt that the host's server runs."""
    for item in list((_currently_running() or {}).values()):
        if len(item) > 2 and item[1] == prompt and isinstance(item[2], dict):
            return item[2]
    return None
