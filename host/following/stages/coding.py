"""Nodes with a VAE: what decodes, what encodes, and what encodes pictures within."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ....graph.kinds import ENCODES
from ...core.latents import first_part
from ...planning.decode_in_graph import tiled_arguments
from ...prediction.networks import ShapesOfVAE, latent_like, pixels_like
from ...prediction.vae import Coding
from ...vae.wrapper import low_memory_vae, works_in_less
from ...video.resizing import Resizing
from ..calling import Outputs
from ..files import Footage, footage_of
from ..findings import NOTHING, Findings
from ..inputs import Inputs, of_the_workflow, vae_settings
from .audio import latent_of_sound

VAES = ("vae", "audio_vae")  # inputs by which nodes encode within
SOUND_DIMENSIONS = COLOURS = 3


def code(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """Decodes to an IMAGE or encodes to a LATENT, in whichever way the node asks for."""
    vae, encodes = inputs.vae(), kind in ENCODES
    # Of a video and its sound the video is decoded, as by the host.
    x = inputs.pixels() if encodes else first_part(inputs.latent("samples")["samples"])
    widgets = inputs.without("vae", "pixels", "samples")
    if kind.startswith("Headroom"):
        vae, widgets = low_memory_vae(vae, vae_settings(kind, widgets)), {}
    coding = Coding(vae, x, encodes)
    if "tile_size" in widgets and not works_in_less(vae):
        with of_the_workflow(kind):
            coding = replace(coding, tiles=tiled_arguments(vae, encodes=encodes, **widgets))
    if found.predicts:
        found.add_coding(coding)
    with found.mode:
        return ({"samples": latent_like(vae, x)} if encodes else pixels_like(vae, x),)


def decode_to_file(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """Our decode to a video file: of that only the size is known."""
    vae, x = inputs.vae(), first_part(inputs.latent("samples")["samples"])
    form = str(inputs.get("format", ""))
    if found.predicts:
        found.add_coding(Coding(vae, x, file_budget_gb=_budget(inputs), file_format=form))
    with found.mode:
        frames, height, width, _ = pixels_like(vae, x).shape
    return Footage(frames, width, height, inputs.number("fps")), *NOTHING


def encode_from_file(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """Our encode of a video, which it reads window by window."""
    vae, video = inputs.vae(), footage_of(inputs)
    resizing = Resizing(int(inputs.number("width")), int(inputs.number("height")))
    with of_the_workflow(kind):
        width, height = resizing.size(video.width, video.height)
    with found.mode:
        pixels = torch.empty(video.frames, height, width, COLOURS)
    if found.predicts:
        found.add_coding(Coding(vae, pixels, encodes=True, file_budget_gb=_budget(inputs)))
    with found.mode:
        return {"samples": latent_like(vae, pixels)}, *NOTHING


def _budget(inputs: Inputs) -> float:
    return inputs.number("vram_budget_gb") if "vram_budget_gb" in inputs else 0.0


def wrap(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """Our VAE that works within a budget."""
    return (low_memory_vae(inputs.vae(), vae_settings(kind, inputs.without("vae"))),)


class CountingVAE(ShapesOfVAE):
    """A VAE for nodes that encode pictures or sounds within: it tells what it encodes, and gives latents without data.

    Args:
        kind: of the node.
        vae: whose shapes they have.
        encoded: gets the VAE and the pixels (B, H, W, C), or the sound (B, L, C), of each encode.
    """

    def __init__(self, kind: str, vae: Any, encoded: Callable[[Any, Tensor], None]) -> None:
        super().__init__(vae)
        self._kind, self._encoded = kind, encoded

    def encode(self, pixel_samples: Tensor) -> Tensor:
        """As the VAE's."""
        self._encoded(self.vae, pixel_samples)
        if pixel_samples.ndim == SOUND_DIMENSIONS:
            return latent_of_sound(self._kind, self.vae, pixel_samples)
        return super().encode(pixel_samples)


@contextmanager
def encodes_counted(found: Findings, inputs: Inputs) -> Iterator[Inputs]:
    """Within it, a node may encode by its VAEs; each encode is a stage of its own, added afterwards."""
    encoded: list[tuple[Any, Tensor]] = []

    def note(vae: Any, x: Tensor) -> None:
        encoded.append((vae, x))

    counted = {name: CountingVAE(inputs.kind, inputs.vae(name), note) for name in VAES if inputs.get(name) is not None}
    yield Inputs(inputs.kind, {**inputs, **counted})
    for vae, x in encoded:
        found.add_coding(Coding(vae, x, encodes=True))
