"""How a graph decodes a latent: in one piece, in ComfyUI's tiles, or by one of our nodes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ...graph.kinds import DECODE, OUR_DECODE, TILED_DECODE, TO_FILE
from ...graph.prompt import Prompt, is_link, reached, readers
from ..core.latents import first_part
from ..prediction.vae import Coding
from ..vae.settings import VAESettings
from ..vae.wrapper import low_memory_vae, works_in_less


def decode_in_graph(node: str, running: Prompt | None, vae: Any, latent: dict[str, Any]) -> Coding | None:
    """How the nearest decode behind a node will do it; None where there is none, or it decodes in one piece.

    Args:
        node: its id.
        running: the nodes that run with it; None: it runs by itself.
    """
    if running is None:
        return None
    behind = readers(running)
    for found in reached([node], lambda number: behind.get(number, ())):
        inputs, kind = running[found]["inputs"], running[found]["class_type"]
        x = first_part(latent["samples"])
        if kind == OUR_DECODE:
            return Coding(low_memory_vae(vae, VAESettings(**_widgets(inputs, VAESettings))), x)
        if kind == TILED_DECODE and not works_in_less(vae) and not is_link(inputs.get("tile_size")):
            return Coding(vae, x, tiles=tiled_arguments(vae, **_widgets(inputs, tiled_arguments)))
        if kind == TO_FILE:
            budget, form = inputs.get("vram_budget_gb", 0.0), inputs.get("format", "")
            budget, form = 0.0 if is_link(budget) else float(budget), "" if is_link(form) else str(form)
            return Coding(vae, x, file_budget_gb=budget, file_format=form)
        if kind in (DECODE, TILED_DECODE):
            return None
    return None


def _widgets(inputs: Mapping[str, Any], taken: Callable[..., Any]) -> dict[str, Any]:
    """The values of a node's widgets that a function takes; a prompt may hold others, which the host ignores."""
    names = inspect.signature(taken).parameters
    return {name: value for name, value in inputs.items() if name in names and not is_link(value)}


def tiled_arguments(
    vae: Any,
    tile_size: int,
    overlap: int = 64,
    temporal_size: int = 64,
    temporal_overlap: int = 8,
    encodes: bool = False,
) -> dict[str, Any]:
    """What the stock tiled nodes ask of a VAE, from their widgets in pixels and frames."""
    if encodes:
        tile = {"tile_x": tile_size, "tile_y": tile_size, "overlap": overlap}
        return tile | {"tile_t": temporal_size, "overlap_t": temporal_overlap}
    overlap = min(overlap, tile_size // 4)
    if temporal_size < temporal_overlap * 2:
        temporal_overlap //= 2
    in_space, in_time = vae.spacial_compression_decode(), vae.temporal_compression_decode()
    side = tile_size // in_space
    arguments: dict[str, Any] = {"tile_x": side, "tile_y": side, "overlap": overlap // in_space}
    if in_time is not None:
        frames = max(2, temporal_size // in_time)
        arguments |= {"tile_t": frames, "overlap_t": max(1, min(frames // 2, temporal_overlap // in_time))}
    return arguments
