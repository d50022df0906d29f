"""Where Layerwise Casting goes for a text that ran out of memory: behind its text encoder's loader; needs no host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..kinds import CAST_CLIP, SAVES_CLIP
from .plan import Added, FitPlan, Seen
from .told import added, left_alone

CLIP = "clip"
WIDGETS: dict[str, Any] = {"storage": "float8_e4m3fn_scaled", "compute": "auto", "skip": "auto", "cache_file": ""}


def plan_cast(
    seen: Mapping[str, Seen], number: str, first_number: int, outside: str = "", where: str = "", name: str = CLIP
) -> FitPlan:
    """Plans one graph: whatever reads the text encoder, LoRAs too, reads the cast one, and only what saves it does not.

    A text encoder that comes out of a subgraph is cast behind that; what reads it in there stays as it is.

    Args:
        seen: its nodes by id.
        number: the node whose text it was, or the subgraph in which that is.
        first_number: a free id.
        outside: the id that stands for what is around a subgraph; what comes from there is cast there (``wanted``).
        where: the name of the subgraph that it is; empty: it is none.
        name: the input with the text encoder.

    Raises:
        ValueError: that node is not there, or reads no text encoder.
    """
    node = seen.get(number)
    if node is None:
        raise ValueError(f"text_node: there is no node {number} that runs; send the id of one that encodes a text")
    if name not in node.origins:
        raise ValueError(
            f"text_node: node {number} ({node.kind}) reads no text encoder; send the id of one that encodes a text"
        )
    called = node.title or node.kind
    reader, link, passed = node, name, {number}
    while (before := reader.origins[link][0]) in seen and before not in passed:
        if seen[before].kind == CAST_CLIP:
            why = "its text encoder is cast already"
            return FitPlan(notes=[left_alone("cast_already", why, node=number, kind=called, subgraph=where)])
        if CLIP not in seen[before].origins:
            break
        passed.add(before)
        reader, link = seen[before], CLIP
    origin = reader.origins[link]
    if origin[0] == outside:
        return FitPlan(wanted={origin[1]})
    line = added(node=str(first_number), kind=CAST_CLIP, other=number, other_kind=called, subgraph=where)
    cast = Added(str(first_number), CAST_CLIP, number, {CLIP: reader.links[link]}, dict(WIDGETS), line)
    readers = [
        (other, input_)
        for other, one in seen.items()
        for input_, at in one.origins.items()
        if at == origin and one.kind not in SAVES_CLIP
    ]
    return FitPlan([cast], dict.fromkeys(readers, (cast.number, 0)))
