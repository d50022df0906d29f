"""A budget under dynamic VRAM: the watermark of a model's pages, above which none is kept.

Weights of pages above it stay in RAM and stream through the host's cast buffers. A watermark *limit* would be the
opposite: bytes that nobody else may evict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.internals import find
from .own_weights import PAGE as PLACE

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

PAGE_BYTES = 32 << 20  # Host: dynamic VRAM allots memory by pages of so much; a watermark between two is rounded up
WATERMARK = "comfy_aimdo.model_vbar:ModelVBAR.set_watermark"


def cannot_limit(model: ModelPatcher) -> str | None:
    """Why dynamic VRAM would not keep to a budget."""
    if model.is_dynamic() and find(WATERMARK) is None:
        return "no budget: this comfy-aimdo cannot limit the weights that dynamic VRAM keeps; update it"
    return None


def limit_pages(model: ModelPatcher, weights: int) -> None:
    """Frees what of a loaded model lies beyond ``weights`` bytes, and has no more kept until the host loads it anew.

    Whole pages alone are kept. Of the bytes go what lies outside the pages, and the buffer that the largest of the
    other layers streams through.
    """
    # Host: a patcher of dynamic VRAM has its memory by `_vbar_get`; every load gives all of its pages back to it.
    memory = getattr(model, "_vbar_get", lambda: None)()
    if memory is None or not hasattr(memory, "set_watermark"):
        return
    room = weights - int(model.model.model_loaded_weight_memory)  # Host: small layers and buffers, loaded at once
    sizes = _sizes_in_pages(model)
    if -(-sum(sizes) // PAGE_BYTES) * PAGE_BYTES > room:
        room -= max(sizes)
    memory.set_watermark(max(0, room) // PAGE_BYTES * PAGE_BYTES)


def _sizes_in_pages(model: ModelPatcher) -> list[int]:
    # Host: a layer's place is the memory, the address and the bytes.
    places = (getattr(module, PLACE, None) for module in model.model.modules())
    return [int(place[2]) for place in places if place is not None]
