"""A prompt: the graph as it is submitted."""

from __future__ import annotations

from typing import Any, Protocol


class Graph(Protocol):
    """The host's dynamic prompt: the submitted graph and the nodes that were expanded into it."""

    def get_node(self, node_id: str) -> dict[str, Any]: ...

    def has_node(self, node_id: str) -> bool: ...
