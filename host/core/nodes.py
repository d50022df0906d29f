"""ComfyUI's own nodes, by its module ``nodes``: the one importer of it.

Imported when asked: the module brings every node of the host's, and the host may be importing us just then.
"""

from __future__ import annotations

from typing import Any


def node_classes() -> dict[str, type[Any]]:
    """Classes by the ids that prompts name them by: stock nodes and those of all packs that are loaded."""
    from nodes import NODE_CLASS_MAPPINGS

    known: dict[str, type[Any]] = NODE_CLASS_MAPPINGS
    return known


def display_names() -> dict[str, str]:
    """What people read on a node, by its id; without those that say it in their schema."""
    from nodes import NODE_DISPLAY_NAME_MAPPINGS

    names: dict[str, str] = NODE_DISPLAY_NAME_MAPPINGS
    return names
