"""The nodes: schemas, and one call each.

A node maps its widgets; what it asks for is done in host/.
"""

from __future__ import annotations

import logging

from comfy_api.latest import ComfyExtension, io

from ..host.core.compat import missing_features
from ..host.server.routes import install
from .attention import HeadroomAttention
from .cast import HeadroomCast, HeadroomCastCLIP
from .compare import HeadroomCompare
from .estimate import HeadroomEstimate
from .fit import HeadroomFit
from .local_attention import HeadroomLocalAttention
from .offload import HeadroomOffload
from .report import HeadroomReport
from .vae import HeadroomVAE, HeadroomVAEDecode, HeadroomVAEEncode

NODES: list[type[io.ComfyNode]] = [
    HeadroomAttention,
    HeadroomLocalAttention,
    HeadroomVAE,
    HeadroomVAEDecode,
    HeadroomVAEEncode,
    HeadroomCast,
    HeadroomCastCLIP,
    HeadroomOffload,
    HeadroomEstimate,
    HeadroomFit,
    HeadroomCompare,
    HeadroomReport,
]


class HeadroomExtension(ComfyExtension):
    """What ComfyUI asks for the pack's nodes."""

    async def on_load(self) -> None:
        for sentence in missing_features():
            logging.getLogger(__name__).warning("Headroom: %s", sentence)
        install()

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return NODES
