"""Where Layerwise Casting goes for a text that ran out of memory: behind its text encoder; needs no host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..kinds import CAST_CLIP
from ..prompt import Output
from .plan import Added, FitPlan, Seen
from .told import added, left_alone

CLIP = "clip"
WIDGETS: dict[str, Any] = {"storage": "float8_e4m3fn_scaled", "compute": "auto", "skip": "auto", "cache_file": ""}


def plan_cast(seen: Mapping[str, Seen], number: str, free: int, where: str = "") -> FitPlan:
    """Plans one graph: whatever reads the same text encoder reads the cast one.

    Args:
        seen: its nodes by id.
        number: the node whose text it was.
        free: an id for the node to add.
        where: the name of the subgraph that the graph is; empty: it is none.

    Raises:
        ValueError: that node is not there, or reads no text encoder.
    """
    node = seen.get(number)
    if node is None:
        raise ValueError(f"text_node: there is no node {number} that runs; send the id of one that encodes a text")
    origin = node.origins.get(CLIP)
    if origin is None:
        raise ValueError(
            f"text_node: node {number} ({node.kind}) reads no text encoder; send the id of one that encodes a text"
        )
    if _is_cast(seen, origin):
        why = "its text encoder is cast already"
        return FitPlan(notes=[left_alone("cast_already", why, node=number, kind=node.kind, subgraph=where)])
    line = added(node=str(free), kind=CAST_CLIP, other=number, other_kind=node.kind, subgraph=where)
    cast = Added(str(free), CAST_CLIP, number, {CLIP: node.links[CLIP]}, dict(WIDGETS), line)
    readers = [(other, name) for other, one in seen.items() for name, at in one.origins.items() if at == origin]
    return FitPlan([cast], dict.fromkeys(readers, (cast.number, 0)))


def _is_cast(seen: Mapping[str, Seen], origin: Output | None) -> bool:
    """Whether a text encoder comes through a casting, whatever is between."""
    passed: set[str] = set()
    while origin is not None and origin[0] in seen and origin[0] not in passed:
        node = seen[origin[0]]
        if node.kind == CAST_CLIP:
            return True
        passed.add(origin[0])
        origin = node.origins.get(CLIP)
    return False
