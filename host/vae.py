"""A VAE of the host's whose encode and decode run tile by tile within a byte budget."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import comfy.model_management as model_management
import comfy.sd
import torch
from torch import Tensor

from ..memory import Row
from ..memory.report import format_bytes
from ..vae import Direction, TilePlan, TileRequest, feathered, pixels_per_cell, plan_tiles
from .compat import device_context, is_out_of_memory
from .device import memory_budget
from .preview import TilePreview
from .runs import measured

METHOD_CHOICES = ("auto", "exact", "feathered")
STORE_CHOICES = ("same", "float16")
SMALLEST_TILE_PIXELS = 128
EXACT_NOT_YET = (
    "method: 'exact' is not part of this version; choose 'auto', which decodes in one piece wherever that fits and"
    " is then exact, or 'feathered'"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class VAESettings:
    """What the VAE nodes ask for. Sizes are in pixels and frames of the picture; 0 leaves a choice to the budget.

    Attributes:
        method: auto = in one piece if that fits, else feathered; exact; feathered.
        vram_budget_gb: what one tile may need; 0 = the device's total minus the host's reserve.
        tile_size: side of a tile.
        overlap: shared by neighbouring tiles, at least.
        feather: cosine, linear or gaussian.
        temporal_size: frames of a tile; 0 = all, unless even the smallest tile does not fit.
        temporal_overlap: frames shared by neighbours in time.
        batch_slice: images computed together; 0 = one.
        store: dtype between strips of the exact method; has no part in the feathered one.
    """

    method: str = "auto"
    vram_budget_gb: float = 0.0
    tile_size: int = 0
    overlap: int = 64
    feather: str = "cosine"
    temporal_size: int = 0
    temporal_overlap: int = 16
    batch_slice: int = 0
    store: str = "same"

    def check(self) -> None:
        """Raises ValueError, with the input to change, for settings that contradict each other."""
        if self.method == "exact":
            raise ValueError(EXACT_NOT_YET)
        for size, overlap, name, shared in (
            (self.tile_size, self.overlap, "tile_size", "overlap"),
            (self.temporal_size, self.temporal_overlap, "temporal_size", "temporal_overlap"),
        ):
            if size and overlap >= size:
                raise ValueError(
                    f"{shared} ({overlap}) must be smaller than {name} ({size}): lower {shared} or raise {name}"
                )


def low_memory_vae(vae: comfy.sd.VAE, settings: VAESettings) -> comfy.sd.VAE:
    """A shallow copy of ``vae`` that encodes and decodes by ``settings``; ``vae`` itself is not changed.

    Calls into ``first_stage_model`` are untouched. Settings of an earlier copy are replaced.

    Raises:
        ValueError: contradicting settings.
        RuntimeError: the host's own, for a checkpoint without a VAE.
    """
    settings.check()
    vae.throw_exception_if_invalid()
    kind = type(vae) if isinstance(vae, LowMemoryVAE) else _low_memory_class(type(vae))  # type: ignore[arg-type]
    copy: comfy.sd.VAE = object.__new__(kind)
    copy.__dict__.update(vae.__dict__, headroom_settings=settings)
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
        if not _is_tileable(self):
            return base.decode(samples_in, **({"vae_options": vae_options} if vae_options else {}))
        return _Decode(self, vae_options or {}).run(samples_in)

    def encode(self, pixel_samples: Tensor) -> Tensor:
        """(B, H, W, C) pixels (frames, for a video VAE) to (B, C, [T,] h, w) latents, like the host's."""
        base: Any = super()
        if not _is_tileable(self):
            return base.encode(pixel_samples)
        return _Encode(self).run(pixel_samples)

    def decode_tiled(self, samples: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """As :meth:`decode`: this VAE's settings decide on tiles, not those of the node that calls it."""
        base: Any = super()
        return self.decode(samples) if _is_tileable(self) else base.decode_tiled(samples, *args, **kwargs)

    def encode_tiled(self, pixel_samples: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """As :meth:`encode`: this VAE's settings decide on tiles, not those of the node that calls it."""
        base: Any = super()
        return self.encode(pixel_samples) if _is_tileable(self) else base.encode_tiled(pixel_samples, *args, **kwargs)


def _is_tileable(vae: Any) -> bool:
    """Images and video, unless the autoencoder brings tiling of its own. Audio goes the host's way."""
    return (
        vae.latent_dim in (2, 3)
        and getattr(vae, "extra_1d_channel", None) is None
        and not getattr(vae, "handles_tiling", False)
    )


class _Pass:
    """One encode or decode of a batch: check, plan, run each slice of the batch, measure into the run log."""

    direction: Direction

    def __init__(self, vae: Any, ratio: Any, estimate: Callable[[Sequence[int], torch.dtype], float]) -> None:
        self.vae = vae
        self.settings: VAESettings = vae.headroom_settings
        # The host writes an int for images and (frames of n cells, rows, columns) for video.
        self.spatial = int(ratio[-1]) if isinstance(ratio, (tuple, list)) else int(ratio)
        self.estimate = estimate

    # What a direction defines.
    def prepare(self, x: Tensor) -> Tensor:
        """Checks the input and gives it as (B, C, [T,] H, W)."""
        raise NotImplementedError

    def cells(self, x: Tensor) -> tuple[int, ...]:
        """Latent cells of each tiled axis."""
        raise NotImplementedError

    def tile_shape(self, x: Tensor, cells: Sequence[int]) -> tuple[int, ...]:
        """The shape of a tile as the host's estimate wants it."""
        raise NotImplementedError

    def tile(self, x: Tensor) -> Tensor:
        """Runs the autoencoder on one tile; the result on the output device."""
        raise NotImplementedError

    def finish(self, out: Tensor) -> Tensor:
        """From the blended tensor to what the host returns."""
        raise NotImplementedError

    def run(self, x: Tensor) -> Tensor:
        x = self.prepare(x)
        with measured(self.direction.value, self.vae.device) as row, device_context(self.vae.device):
            least_tiles = 1
            while True:
                plan = self.plan(x, least_tiles)
                try:
                    out = self.blended(x, plan)
                    break
                except Exception as error:  # anything but a failure to allocate goes on
                    if not is_out_of_memory(error) or self.plan(x, plan.tiles + 1).tiles == plan.tiles:
                        raise
                # Retried outside the handler: the exception held every tensor of the failed tile.
                least_tiles = plan.tiles + 1
                model_management.soft_empty_cache()
                row.notices.append(f"out of memory with {plan.tiles} tiles: tried smaller ones")
                log.warning("Headroom: out of memory with %d tiles, trying smaller ones", plan.tiles)
            self.describe(row, plan)
        return self.finish(out)

    def plan(self, x: Tensor, least_tiles: int = 1) -> TilePlan:
        """Tiles for ``x``, at least ``least_tiles``: those that were asked for, unless memory ran out with them.

        Space is split before time, which is split only if the smallest tile over all frames does not fit.
        """
        budget = memory_budget(self.vae.device, self.settings.vram_budget_gb)
        slices = max(1, self.settings.batch_slice)

        def estimate(cells: Sequence[int]) -> float:
            return slices * self.estimate(self.tile_shape(x, cells), self.vae.vae_dtype)

        def plan_with(requests: Sequence[TileRequest]) -> TilePlan:
            return plan_tiles(requests, estimate, budget, least_tiles)

        lengths = self.cells(x)
        if self.settings.method == "auto" and least_tiles == 1:
            whole = plan_with([replace(r, tile=r.length) for r in self.requests(lengths)])
            if whole.fits:
                return whole
        requests = self.requests(lengths)
        if least_tiles > 1:
            requests = [replace(request, tile=0) for request in requests]
        if len(requests) == 3 and not requests[0].tile:
            plan = plan_with([replace(requests[0], tile=lengths[0]), *requests[1:]])
            if plan.fits and plan.tiles >= least_tiles:
                return plan
        return plan_with(requests)

    def requests(self, lengths: Sequence[int]) -> list[TileRequest]:
        """What the settings ask of each axis, in cells."""
        wanted = self.settings
        overlap = math.ceil(wanted.overlap / self.spatial)
        tile = max(wanted.tile_size // self.spatial, overlap + 1) if wanted.tile_size else 0
        smallest = max(4, SMALLEST_TILE_PIXELS // self.spatial)
        pixels = pixels_per_cell(self.spatial)
        in_space = [TileRequest(length, tile, overlap, pixels, smallest) for length in lengths[-2:]]
        return ([self.request_in_time(lengths[0])] if len(lengths) == 3 else []) + in_space

    def request_in_time(self, length: int) -> TileRequest:
        per_cell = max(1, self.frames(2) - self.frames(1))
        overlap = math.ceil(self.settings.temporal_overlap / per_cell)
        size = self.settings.temporal_size
        # As many cells as hold the frames that were asked for: the first cell is one frame, not per_cell.
        tile = max(math.ceil((size - self.frames(1)) / per_cell) + 1, overlap + 1) if size else 0
        return TileRequest(length, tile, overlap, self.frames, smallest=2, causal=self.causal)

    @property
    def causal(self) -> bool:
        """Video autoencoders are causal in time but for LTX-Video's decoder, which says that it is not."""
        half = "decoder" if self.direction is Direction.DECODE else "encoder"
        return bool(getattr(getattr(self.vae.first_stage_model, half, None), "causal", True))

    def frames(self, cells: int) -> int:
        """Frames that ``cells`` latent cells decode to."""
        ratio = self.vae.upscale_ratio
        in_time = ratio[0] if isinstance(ratio, (tuple, list)) else 1
        return int(in_time(cells) if callable(in_time) else cells * in_time)

    def blended(self, x: Tensor, plan: TilePlan) -> Tensor:
        """All slices of the batch, one after the other; asks the host for the memory of one tile."""
        model_management.load_models_gpu(
            [self.vae.patcher], memory_required=plan.bytes, force_full_load=getattr(self.vae, "disable_offload", False)
        )
        step = self.settings.batch_slice or 1
        progress = TilePreview(self.vae, plan.tiles * math.ceil(x.shape[0] / step), self.direction)

        out: Tensor | None = None
        for start in range(0, x.shape[0], step):
            part = feathered(
                x[start : start + step], self.tile, plan.axes, self.direction, self.settings.feather, progress
            )
            if out is None:
                shape = (x.shape[0], *part.shape[1:])
                out = part if shape == part.shape else torch.empty(shape, dtype=part.dtype, device=part.device)
            if out is not part:
                out[start : start + step] = part
        assert out is not None, "prepare() refuses an empty batch"
        return out.to(self.vae.vae_output_dtype())

    def describe(self, row: Row, plan: TilePlan) -> None:
        budget = memory_budget(self.vae.device, self.settings.vram_budget_gb)
        row.lines.append(
            f"budget {format_bytes(budget)}, the host's estimate for "
            f"{'the whole' if plan.tiles == 1 else 'one tile'} {format_bytes(plan.bytes)}"
        )
        if plan.tiles == 1:
            row.lines.append("in one piece: the same result as the host's own, untiled")
        else:
            row.lines.append(f"feathered (approximate): {self.describe_tiles(plan)}")
        if not plan.fits:
            row.notices.append(
                "even these tiles are estimated above the budget: raise vram_budget_gb, or set a smaller tile_size"
                " or temporal_size"
            )

    def describe_tiles(self, plan: TilePlan) -> str:
        """Their number and size, and what neighbours really share: even spacing may make it more than was asked."""
        size = " x ".join(str(axis.pixels(n)) for axis, n in zip(plan.axes, plan.tile_cells))
        parts = [f"{plan.tiles} tiles of {size} {'frames x px' if len(plan.axes) == 3 else 'px'}"]
        shared = [a.stop - b.start for axis in plan.axes[-2:] for a, b in pairwise(axis.cells)]
        if shared:
            parts.append(f"overlap {min(shared) * self.spatial} px, {self.settings.feather}")
        if len(plan.axes) == 3 and len(plan.axes[0].cells) > 1:
            joined = "joined" if plan.axes[0].causal else self.settings.feather
            parts.append(f"{len(plan.axes[0].cells)} in time, {joined}")
        return ", ".join(parts)


class _Decode(_Pass):
    direction = Direction.DECODE

    def __init__(self, vae: Any, options: dict[str, Any]) -> None:
        super().__init__(vae, vae.upscale_ratio, vae.memory_used_decode)
        self.options = options

    def prepare(self, x: Tensor) -> Tensor:
        vae = self.vae
        if vae.latent_dim == 2 and x.ndim == 5:
            x = x[:, :, 0]
        if x.ndim != vae.latent_dim + 2:
            raise ValueError(
                f"samples: this VAE decodes latents of {vae.latent_dim + 2} dims, not of shape {tuple(x.shape)};"
                f" connect the empty-latent node of the model's own family"
            )
        if x.shape[1] != vae.latent_channels:
            raise ValueError(
                f"samples: the latent has {x.shape[1]} channels, but this VAE decodes {vae.latent_channels};"
                " connect the VAE that belongs to the model"
            )
        if 0 in x.shape:
            raise ValueError(f"samples: the latent is empty (shape {tuple(x.shape)}); connect at least one image")
        return x

    def cells(self, x: Tensor) -> tuple[int, ...]:
        return tuple(x.shape[2:])

    def tile_shape(self, x: Tensor, cells: Sequence[int]) -> tuple[int, ...]:
        return (1, x.shape[1], *cells)

    def tile(self, x: Tensor) -> Tensor:
        model_management.throw_exception_if_processing_interrupted()
        vae, model = self.vae, self.vae.first_stage_model
        x = x.to(device=vae.device, dtype=vae.vae_dtype)
        if getattr(model, "comfy_has_chunked_io", False):
            # It writes frames out as they are done, so that they do not gather on the device.
            buffer = torch.empty(model.decode_output_shape(x.shape), device=vae.output_device, dtype=torch.float32)
            model.decode(x, output_buffer=buffer, **self.options)
            return buffer
        out = model.decode(x, **self.options)
        return out.to(device=vae.output_device, dtype=torch.float32, copy=True)

    def finish(self, out: Tensor) -> Tensor:
        return self.vae.process_output(out).movedim(1, -1)


class _Encode(_Pass):
    direction = Direction.ENCODE

    def __init__(self, vae: Any) -> None:
        super().__init__(vae, vae.downscale_ratio, vae.memory_used_encode)

    def prepare(self, x: Tensor) -> Tensor:
        vae = self.vae
        if x.ndim < 4 or 0 in x.shape:
            raise ValueError(f"pixels: the image is empty (shape {tuple(x.shape)}); connect at least one picture")
        smallest = min(x.shape[-3:-1])
        if smallest < self.spatial:
            raise ValueError(
                f"pixels: {x.shape[-2]} x {x.shape[-3]} is smaller than the {self.spatial} px this VAE needs;"
                " scale the image up"
            )
        x = vae.vae_encode_crop_pixels(x).movedim(-1, 1)
        if vae.latent_dim == 3 and x.ndim < 5:
            x = x.unsqueeze(2) if getattr(vae, "not_video", False) else x.movedim(1, 0).unsqueeze(0)
        # Frames that do not fill a cell are dropped, as the autoencoder itself drops them.
        return x[:, :, : self.frames(self.frame_cells(x))] if x.ndim == 5 else x

    def frame_cells(self, x: Tensor) -> int:
        ratio = self.vae.downscale_ratio
        in_time = ratio[0] if isinstance(ratio, (tuple, list)) else 1
        return int(in_time(x.shape[2]) if callable(in_time) else x.shape[2] // in_time)

    def cells(self, x: Tensor) -> tuple[int, ...]:
        in_time = (self.frame_cells(x),) if x.ndim == 5 else ()
        return (*in_time, *(size // self.spatial for size in x.shape[-2:]))

    def tile_shape(self, x: Tensor, cells: Sequence[int]) -> tuple[int, ...]:
        in_time = (self.frames(cells[0]),) if len(cells) == 3 else ()
        return (1, x.shape[1], *in_time, *(n * self.spatial for n in cells[-2:]))

    def tile(self, x: Tensor) -> Tensor:
        model_management.throw_exception_if_processing_interrupted()
        vae, model = self.vae, self.vae.first_stage_model
        x = vae.process_input(x).to(vae.vae_dtype)
        if getattr(model, "comfy_has_chunked_io", False):
            out = model.encode(x, device=vae.device)
        else:
            out = model.encode(x.to(vae.device))
        return out.to(device=vae.output_device, dtype=torch.float32)

    def finish(self, out: Tensor) -> Tensor:
        format_encoded = getattr(self.vae, "format_encoded", None)
        return out if format_encoded is None else format_encoded(out)


def decode_latent(vae: Any, samples: dict[str, Any]) -> Tensor:
    """A LATENT to an IMAGE, as the stock decode node gives it: video frames in a row, the picture of a nested
    video-and-audio latent.

    Raises:
        ValueError: a latent that does not fit the VAE.
    """
    latent = samples["samples"]
    if getattr(latent, "is_nested", False):
        latent = latent.unbind()[0]
    images = vae.decode(latent)
    return images.reshape(-1, *images.shape[-3:]) if images.ndim == 5 else images
