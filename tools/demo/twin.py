"""The stock twin of a workflow: the same graph without Headroom's nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..server.client import Workflow

# The inputs that stand in for the first outputs when a node is bypassed.
BYPASSED: dict[str, tuple[str, ...]] = {
    "HeadroomAttention": ("model",),
    "HeadroomLocalAttention": ("model",),
    "HeadroomVAE": ("vae",),
    "HeadroomCast": ("model",),
    "HeadroomCastCLIP": ("clip",),
    "HeadroomOffload": ("model",),
    "HeadroomTraining": ("model",),
    "HeadroomTrainingEstimate": ("model",),
    "HeadroomEstimate": ("samples",),
    "HeadroomFit": ("model", "vae"),
    "HeadroomCompare": (),
    "HeadroomReport": ("anything",),
}
# The stock node, and the inputs that it shares with ours.
REPLACED = {
    "HeadroomVAEDecode": ("VAEDecode", ("samples", "vae")),
    "HeadroomVAEEncode": ("VAEEncode", ("pixels", "vae")),
}
# Nodes that several stock ones stand for: which of these gives the first output.
GIVES = {"HeadroomVAEDecodeVideo": "video", "HeadroomVAEEncodeVideo": "latent"}


def stock_twin(workflow: Workflow) -> Workflow:
    """A copy with stock nodes in place of Headroom's; whatever needs a report's text or chart is left out.

    Raises ValueError for a node of Headroom's that has no stock counterpart here.
    """
    twin = {
        stock_id: _rewired(stock, workflow)
        for node_id, node in workflow.items()
        if node["class_type"] not in BYPASSED
        for stock_id, stock in _stock_nodes(node_id, node)
    }
    while lost := [node_id for node_id, node in twin.items() if not _is_fed(node, twin)]:
        for node_id in lost:
            del twin[node_id]
    return twin


def _stock_nodes(node_id: str, node: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What stands in a node's place, with the ids."""
    given = node["inputs"]

    def made(name: str, kind: str, **inputs: Any) -> tuple[str, dict[str, Any]]:
        return f"{node_id}_{name}", {"class_type": kind, "_meta": {"title": kind}, "inputs": inputs}

    if node["class_type"] == "HeadroomVAEDecodeVideo":
        sound = {"audio": given["audio"]} if "audio" in given else {}
        saved = {"filename_prefix": given["filename_prefix"], "format": "auto", "codec": "auto"}
        yield made("images", "VAEDecode", samples=given["samples"], vae=given["vae"])
        yield made("video", "CreateVideo", images=[f"{node_id}_images", 0], fps=given["fps"], **sound)
        yield made("saved", "SaveVideo", video=[f"{node_id}_video", 0], **saved)
    elif node["class_type"] == "HeadroomVAEEncodeVideo":
        size = {name: given[name] for name in ("upscale_method", "width", "height", "crop")}
        yield made("frames", "GetVideoComponents", video=given["video"])
        yield made("scaled", "ImageScale", image=[f"{node_id}_frames", 0], **size)
        yield made("latent", "VAEEncode", pixels=[f"{node_id}_scaled", 0], vae=given["vae"])
    else:
        yield node_id, _stock_node(node)


def _stock_node(node: dict[str, Any]) -> dict[str, Any]:
    kind = node["class_type"]
    if kind not in REPLACED:
        if kind.startswith("Headroom"):
            raise ValueError(f"{kind} has no stock counterpart: add it to {__name__}")
        return node
    stock, shared = REPLACED[kind]
    return {"class_type": stock, "_meta": {"title": stock}, "inputs": {name: node["inputs"][name] for name in shared}}


def _rewired(node: dict[str, Any], workflow: Workflow) -> dict[str, Any]:
    inputs = {name: _origin(value, workflow) if is_link(value) else value for name, value in node["inputs"].items()}
    return {**node, "inputs": inputs}


def _origin(link: list[Any], workflow: Workflow) -> list[Any]:
    """Where a link comes from once the nodes on its way are bypassed; their other outputs have no origin."""
    while link[0] in workflow and link[1] < len(inputs := BYPASSED.get(workflow[link[0]]["class_type"], ())):
        link = workflow[link[0]]["inputs"][inputs[link[1]]]
    if link[0] in workflow and link[1] == 0 and (name := GIVES.get(workflow[link[0]]["class_type"])):
        return [f"{link[0]}_{name}", 0]
    return list(link)


def _is_fed(node: dict[str, Any], twin: Workflow) -> bool:
    return all(value[0] in twin for value in node["inputs"].values() if is_link(value))


def is_link(value: Any) -> bool:
    """Whether the value of an input in the API format comes from another node."""
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], int)
