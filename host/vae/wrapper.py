"""A VAE of the host's whose encode and decode run within a byte budget."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import comfy.sd
from torch import Tensor

from ..attention.in_vae import with_attention_in_strips
from ..core.latents import first_part
from .coding import Coder
from .directions import Decode, Encode
from .geometry import least_cells
from .settings import VAESettings

STEREO = 2  # channels of a sound; a picture never has as many
PLANNED_BY_WORKERS = "the bands of several workers are planned by them, when they begin"


def low_memory_vae(vae: comfy.sd.VAE, settings: VAESettings) -> comfy.sd.VAE:
    """A shallow copy of ``vae`` that encodes and decodes by ``settings``; ``vae`` itself is not changed.

    Calls into ``first_stage_model`` are untouched. Settings of an earlier copy are replaced; those of a plan
    (:func:`planned_vae`) stay where the method is auto, and give way to what is set besides.

    Raises:
        ValueError: contradicting settings.
        RuntimeError: the host's own, for a checkpoint without a VAE.
    """
    settings.check()
    vae.throw_exception_if_invalid()
    planned: VAESettings | None = getattr(vae, "headroom_plan", None)
    if planned is not None and settings.method == "auto":
        changes = settings.explicit()
        if "vram_budget_gb" in changes:
            changes["budget_name"] = settings.budget_name
        settings = replace(planned, **changes)
    kind = type(vae) if isinstance(vae, LowMemoryVAE) else _low_memory_class(type(vae))  # type: ignore[arg-type]
    copy: comfy.sd.VAE = object.__new__(kind)
    copy.__dict__.update(vae.__dict__, headroom_settings=settings)
    copy.patcher = with_attention_in_strips(vae.patcher)
    return copy


def planned_vae(vae: comfy.sd.VAE, settings: VAESettings) -> comfy.sd.VAE:
    """Like :func:`low_memory_vae`, and VAE nodes behind it that leave the method to auto keep to ``settings``."""
    copy = low_memory_vae(vae, settings)
    copy.headroom_settings = copy.headroom_plan = settings
    return copy


@cache
def _low_memory_class(base: Any) -> Any:
    # A subclass and not bound functions on the copy: the host copies VAE objects too (to move them to another
    # device), and a function bound to the first copy would stay with the old device.
    return type(f"LowMemory{base.__name__}", (LowMemoryVAE, base), {})


class LowMemoryVAE:
    """Mixed into a class of the host's VAE by :func:`low_memory_vae`."""

    headroom_settings: VAESettings

    def decode(self, samples_in: Tensor, vae_options: dict[str, Any] | None = None) -> Tensor:
        """(B, C, [T,] h, w) latents to (B, [T,] H, W, C) pixels, like the host's."""
        base: Any = super()
        if not is_tileable(self):
            return base.decode(samples_in, **({"vae_options": vae_options} if vae_options else {}))
        return Coder(Decode(self, vae_options or {})).run(samples_in)

    def encode(self, pixel_samples: Tensor) -> Tensor:
        """(B, H, W, C) pixels (frames, for a video VAE) to (B, C, [T,] h, w) latents, like the host's."""
        base: Any = super()
        if not is_tileable(self):
            return base.encode(pixel_samples)
        return Coder(Encode(self)).run(pixel_samples)

    def decode_tiled(self, samples: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """As :meth:`decode`: this VAE's settings count, not those of the node that calls it."""
        base: Any = super()
        return self.decode(samples) if is_tileable(self) else base.decode_tiled(samples, *args, **kwargs)

    def encode_tiled(self, pixel_samples: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """As :meth:`encode`: this VAE's settings count, not those of the node that calls it."""
        base: Any = super()
        return self.encode(pixel_samples) if is_tileable(self) else base.encode_tiled(pixel_samples, *args, **kwargs)


def workers_of(vae: Any) -> str:
    """The name of who computes bands of what it encodes and decodes; empty for its own device alone."""
    settings: VAESettings | None = getattr(vae, "headroom_settings", None)
    return settings.workers if settings else ""


def encoder_of_frames(low: LowMemoryVAE, width: int, height: int) -> Encode:
    """What encodes frames of a size.

    Raises:
        ValueError: a VAE that does not.
    """
    if not is_tileable(low):
        raise ValueError("vae: this VAE encodes sound, or in tiles of its own; use Get Video Components and VAE Encode")
    encode = Encode(low)
    least = least_cells(encode.half) * encode.spatial
    if min(width, height) < least:
        raise ValueError(
            f"width, height: the frames would be {width} x {height}, smaller than the {least} px that"
            " this VAE needs; set larger ones, or 0 for the video's own"
        )
    return encode


def is_tileable(vae: Any) -> bool:
    """Images and video, unless the autoencoder brings tiling of its own. Audio goes the host's way."""
    return (
        vae.latent_dim in (2, 3)
        and getattr(vae, "extra_1d_channel", None) is None
        and getattr(vae, "output_channels", None) != STEREO
        and not getattr(vae, "handles_tiling", False)
    )


def works_in_less(vae: Any) -> bool:
    """Whether a VAE's work is ours: it keeps to a budget, and how a tiled node would cut it does not count."""
    return isinstance(vae, LowMemoryVAE) and is_tileable(vae)


def fits_in_one_piece(vae: Any, latent: Tensor) -> bool:
    """Whether a low-memory VAE with method auto would decode a latent in one piece, by the host's own estimate."""
    coder = Coder(Decode(vae, {}))
    return coder.tiles.plan_whole(coder.geometry.prepare(latent)).fits


def decode_latent(vae: Any, samples: dict[str, Any]) -> Tensor:
    """A LATENT to an IMAGE, as the stock decode node gives it: video frames in a row, the picture of a nested
    video-and-audio latent.

    Raises:
        ValueError: a latent that does not fit the VAE.
    """
    images = vae.decode(first_part(samples["samples"]))
    return images.reshape(-1, *images.shape[-3:]) if images.ndim == 5 else images
