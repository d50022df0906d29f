"""The nodes: schemas, and one call each.

A node maps its widgets; what it asks for is done in host/.
"""

from __future__ import annotations

import importlib
import logging

from comfy_api.latest import ComfyExtension, io

from ..host.core.internals import TESTED, missing, withheld

log = logging.getLogger(__name__)

# Files and the nodes in them, in the order of the menu. Each is imported by itself: what one of them lacks in a host
# costs no other.
FILES = {
    "HeadroomAttention": "attention",
    "HeadroomLocalAttention": "local_attention",
    "HeadroomVAE": "vae",
    "HeadroomVAEDecode": "vae",
    "HeadroomVAEEncode": "vae",
    "HeadroomVAEDecodeVideo": "video",
    "HeadroomVAEEncodeVideo": "video",
    "HeadroomCast": "cast",
    "HeadroomCastCLIP": "cast",
    "HeadroomOffload": "offload",
    "HeadroomTraining": "training",
    "HeadroomTrainingEstimate": "training_estimate",
    "HeadroomEstimate": "estimate",
    "HeadroomFit": "fit",
    "HeadroomCompare": "compare",
    "HeadroomReport": "report",
}


def load() -> tuple[list[type[io.ComfyNode]], list[str]]:
    """The nodes that this host can have, and a sentence for all that is lost."""
    lacking = missing()
    without = withheld(lacking)
    nodes, sentences = [], [internal.sentence for internal in lacking]
    for node, file in FILES.items():
        if node in without:
            continue
        try:
            nodes.append(getattr(importlib.import_module(f".{file}", __name__), node))
        except (ImportError, AttributeError) as error:
            log.debug("Headroom: %s", node, exc_info=True)
            sentences.append(f"{node} cannot be offered: {error}; {TESTED}")
    return nodes, sentences


NODES, MISSING = load()


class HeadroomExtension(ComfyExtension):
    """What ComfyUI asks for the pack's nodes."""

    async def on_load(self) -> None:
        for sentence in MISSING:
            log.warning("Headroom: %s", sentence)
        try:
            from ..host.server.routes import install
        except (ImportError, AttributeError) as error:
            log.warning("Headroom: its routes are not there: %s; %s", error, TESTED)
        else:
            install()

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return NODES
