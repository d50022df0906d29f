"""What helps a node that Make It Fit does not plan, a text or a training, once memory ran out; needs no host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..kinds import CAST_CLIP, SAVES_CLIP, TRAIN, TRAINING, TRAINING_ESTIMATE
from .plan import Added, FitPlan, Seen
from .told import added, left_alone

TEXT_NODE, TRAIN_NODE = "text_node", "train_node"  # as a request names them
CLIP, MODEL = "clip", "model"
CASTING: dict[str, Any] = {"storage": "float8_e4m3fn_scaled", "compute": "auto", "skip": "auto", "cache_file": ""}
CHECKPOINTS: dict[str, Any] = {"plan": "every block", "blocks": "all", "checkpoints_in_ram": False}


class Helps(NamedTuple):
    """What a remedy puts in, to know it where it is already.

    Attributes:
        kind: the class of its node.
        name: the input whose way that node is on.
        code, why: said of a node that is behind one.
    """

    kind: str
    name: str
    code: str
    why: str


HELPS = {
    TEXT_NODE: Helps(CAST_CLIP, CLIP, "cast_already", "its text encoder is cast already"),
    TRAIN_NODE: Helps(TRAINING, MODEL, "checkpoints_already", "its model is behind checkpoints already"),
}


def helped_already(asked: str, number: str, kind: str, where: str) -> FitPlan:
    """Nothing but the note that a node is left alone.

    Args:
        asked: one of :data:`REMEDIES`.
        number, kind: the node's id, and what people read on it.
        where: the name of the subgraph that it is in; empty: it is in none.
    """
    _, _, code, why = HELPS[asked]
    return FitPlan(notes=[left_alone(code, why, node=number, kind=kind, subgraph=where)])


def plan_cast(
    seen: Mapping[str, Seen], number: str, first_number: int, outside: str = "", where: str = "", name: str = CLIP
) -> FitPlan:
    """Casts a text encoder behind its loader: all that read it read the cast one, LoRAs too; what saves it does not.

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
        raise ValueError(f"{TEXT_NODE}: there is no node {number} that runs; send the id of one that encodes a text")
    if name not in node.origins:
        raise ValueError(
            f"{TEXT_NODE}: node {number} ({node.kind}) reads no text encoder; send the id of one that encodes a text"
        )
    called = node.title or node.kind
    reader, link, passed = node, name, {number}
    while (before := reader.origins[link][0]) in seen and before not in passed:
        if seen[before].kind == CAST_CLIP:
            return helped_already(TEXT_NODE, number, called, where)
        if CLIP not in seen[before].origins:
            break
        passed.add(before)
        reader, link = seen[before], CLIP
    origin = reader.origins[link]
    if origin[0] == outside:
        return FitPlan(wanted={origin[1]})
    line = added(node=str(first_number), kind=CAST_CLIP, other=number, other_kind=called, subgraph=where)
    cast = Added(str(first_number), CAST_CLIP, number, {CLIP: reader.links[link]}, dict(CASTING), line)
    readers = [
        (other, input_)
        for other, one in seen.items()
        for input_, at in one.origins.items()
        if at == origin and one.kind not in SAVES_CLIP
    ]
    return FitPlan([cast], dict.fromkeys(readers, (cast.number, 0)))


def plan_checkpoints(
    seen: Mapping[str, Seen], number: str, first_number: int, outside: str = "", where: str = ""
) -> FitPlan:
    """Puts the blocks of the model that a node trains behind checkpoints; what else reads the model stays as it is.

    A prediction of that training comes behind them too: it is to know the plan.

    Args:
        seen: its nodes by id.
        number: the node that trains.
        first_number: a free id.
        outside: taken as :func:`plan_cast` takes it; a model that comes from there is behind checkpoints here.
        where: the name of the subgraph that it is; empty: it is none.

    Raises:
        ValueError: that node is not there, or trains nothing.
    """
    node = seen.get(number)
    if node is None:
        raise ValueError(f"{TRAIN_NODE}: there is no node {number} that runs; send the id of one that trains a LoRA")
    if node.kind != TRAIN or MODEL not in node.origins:
        raise ValueError(
            f"{TRAIN_NODE}: node {number} ({node.kind}) trains no model; send the id of one that trains a LoRA"
        )
    way = [number]
    while (before := seen[way[-1]].origins[MODEL][0]) in seen and before not in way:
        if seen[before].kind == TRAINING:
            return helped_already(TRAIN_NODE, number, node.kind, where)
        if MODEL not in seen[before].origins:
            break
        way.append(before)
    first = next((at for at, one in enumerate(way[1:]) if seen[one].kind != TRAINING_ESTIMATE), len(way) - 1)
    line = added(node=str(first_number), kind=TRAINING, other=number, other_kind=node.kind, subgraph=where)
    link = {MODEL: seen[way[first]].links[MODEL]}
    one = Added(str(first_number), TRAINING, number, link, dict(CHECKPOINTS), line)
    return FitPlan([one], {(way[first], MODEL): (one.number, 0)})


#: By what a request names.
REMEDIES = {TEXT_NODE: plan_cast, TRAIN_NODE: plan_checkpoints}
