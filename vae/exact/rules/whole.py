"""Functions that need a whole map before their first row: group norm and attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..operations.graph import Node
from ..operations.whole import Attention, GroupNorm
from ..recording.probe import row_by_row
from ..recording.record import Recorded, Recorder
from .registry import Rule, rule
from .rows import same_rows


@rule("group_norm")
def _group_norm(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    names = ("input", "num_groups", "weight", "bias", "eps")
    given = {"weight": None, "bias": None, "eps": 1e-5} | dict(zip(names, args)) | kwargs
    node = args[0].node
    if node.rows.dim < 2:
        return NotImplemented
    op = GroupNorm(given["num_groups"], _kept(recorder, given["weight"]), _kept(recorder, given["bias"]), given["eps"])
    return Recorded(Node(op, (node,), node.shape, node.dtype, node.device, node.rows), recorder)


@rule("scaled_dot_product_attention")
def _attention(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given = dict(zip(names, args)) | kwargs
    maps = [given[key] for key in names[:3]]
    unusual = given.get("attn_mask") is not None or given.get("dropout_p") or given.get("is_causal")
    if unusual or given.get("enable_gqa") or not all(isinstance(item, Recorded) for item in maps):
        return NotImplemented
    nodes = [item.node for item in maps]
    last = len(nodes[0].shape)
    scale = given.get("scale")
    if all(node.rows.dim < last - 2 for node in nodes):
        made = row_by_row(function, tuple(maps), {"scale": scale}) if same_rows(maps, {}) else None
        return NotImplemented if made is None else Recorded(made, recorder)
    if any(node.rows.dim != last - 2 for node in nodes):
        return NotImplemented
    query, _, value = nodes
    shape = (*query.shape[:-1], value.shape[-1])
    op = Attention(recorder.attend, scale)
    return Recorded(Node(op, nodes, shape, query.dtype, query.device, query.rows), recorder)


def _kept(recorder: Recorder, weight: Tensor | None) -> Tensor | None:
    return None if weight is None else recorder.keep(weight)
