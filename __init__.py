"""Headroom: run it in the memory you have, get the same picture, and know before you press Queue whether it fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .nodes import HeadroomExtension

WEB_DIRECTORY = "./web"


async def comfy_entrypoint() -> HeadroomExtension:
    """Called by ComfyUI. Imported here and not above, so that the engines are usable without ComfyUI."""
    from .nodes import HeadroomExtension

    return HeadroomExtension()
