"""Nodes with a VAE: what decodes, what encodes, and what encodes pictures within."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ....graph.kinds import ENCODES
from ...prediction.stages import coding_stage, first_part, tiled_arguments
from ...prediction.vae import Coding
from ...vae.wrapper import LowMemoryVAE, low_memory_vae
from ..calling import Outputs
from ..findings import NOTHING, Findings
from ..inputs import Inputs, of_the_workflow, vae_settings


def code(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """Decodes to an IMAGE or encodes to a LATENT, in whichever way the node asks for."""
    vae, encodes = inputs.vae(), kind in ENCODES
    x = inputs.pixels() if encodes else inputs.latent("samples")["samples"]
    widgets = inputs.without("vae", "pixels", "samples")
    if kind.startswith("Headroom"):
        vae, widgets = low_memory_vae(vae, vae_settings(kind, widgets)), {}
    coding = Coding(vae, x, encodes)
    if "tile_size" in widgets and not isinstance(vae, LowMemoryVAE):
        with of_the_workflow(kind):
            coding = replace(coding, tiles=tiled_arguments(vae, encodes=encodes, **widgets))
    found.add(coding_stage(coding, found.card))
    with found.mode:
        return ({"samples": latent_like(vae, x)} if encodes else pixels_like(vae, x),)


def decode_to_file(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """Our decode to a video file, which gives nothing that is followed."""
    budget = inputs.number("vram_budget_gb") if "vram_budget_gb" in inputs else 0.0
    x = first_part(inputs.latent("samples")["samples"])
    found.add(coding_stage(Coding(inputs.vae(), x, file_budget_gb=budget), found.card))
    return NOTHING


def wrap(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """Our VAE that works within a budget."""
    return (low_memory_vae(inputs.vae(), vae_settings(kind, inputs.without("vae"))),)


class CountingVAE:
    """A VAE for nodes that encode pictures within: it tells what it encodes, and gives latents without data.

    Args:
        vae: whose shapes they have; for all else it is asked.
        encoded: gets the pixels (B, H, W, C) of each encode.
    """

    def __init__(self, vae: Any, encoded: Callable[[Tensor], None]) -> None:
        self._vae, self._encoded = vae, encoded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vae, name)

    def encode(self, pixel_samples: Tensor) -> Tensor:
        """As the VAE's."""
        self._encoded(pixel_samples)
        return latent_like(self._vae, pixel_samples)


@contextmanager
def encodes_counted(found: Findings, inputs: Inputs) -> Iterator[Inputs]:
    """Within it, a node may encode pictures by its VAE; each encode is a stage of its own, added afterwards."""
    if inputs.get("vae") is None:
        yield inputs
        return
    vae = inputs.vae()
    encoded: list[Tensor] = []
    yield Inputs(inputs.kind, {**inputs, "vae": CountingVAE(vae, encoded.append)})
    for pixels in encoded:
        found.add(coding_stage(Coding(vae, pixels, encodes=True), found.card))


# ------------------------------------------------------------------------- shapes, by a VAE's own ratios


def pixels_like(vae: Any, latent: Tensor) -> Tensor:
    """What a latent (B, C, [T,] h, w) decodes to: (B, H, W, C), frames in a row."""
    reach = vae.spacial_compression_decode()
    frames = 1
    if latent.ndim == 5:
        ratio = vae.upscale_ratio
        in_time = ratio[0] if isinstance(ratio, (tuple, list)) else 1
        frames = int(in_time(latent.shape[2]) if callable(in_time) else latent.shape[2] * in_time)
    height, width = (side * reach for side in latent.shape[-2:])
    return torch.empty(latent.shape[0] * frames, height, width, vae.output_channels)


def latent_like(vae: Any, pixels: Tensor) -> Tensor:
    """What pixels (B, H, W, C) encode to: (B, C, h, w), of a VAE for video (1, C, T, h, w)."""
    reach = vae.spacial_compression_encode()
    height, width = (side // reach for side in pixels.shape[1:3])
    if vae.latent_dim == 2:
        return torch.empty(pixels.shape[0], vae.latent_channels, height, width)
    ratio = vae.downscale_ratio
    in_time = ratio[0] if isinstance(ratio, (tuple, list)) else 1
    cells = int(in_time(pixels.shape[0]) if callable(in_time) else max(1, pixels.shape[0] // in_time))
    return torch.empty(1, vae.latent_channels, cells, height, width)
