"""The two directions of a VAE: what goes in, how the module is called, what comes out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import comfy.model_management as model_management
import torch
from torch import Tensor

from ...vae import Direction
from ...vae.exact import ExactRun, PlannedRun
from .geometry import Geometry, least_cells

FRAMES = 4  # that are scaled at a time where they lie in a file


class Decode(Geometry):
    """Latents (B, C, [T,] h, w) to pixels (B, [T,] H, W, C).

    Args:
        options: the host's further arguments of the module's decode.
    """

    direction = Direction.DECODE

    def __init__(self, vae: Any, options: dict[str, Any]) -> None:
        super().__init__(vae, vae.upscale_ratio, vae.memory_used_decode)
        self.options = options

    def prepare(self, x: Tensor) -> Tensor:
        """Latents as they are; of a video's, for a VAE of images, those of the first frame."""
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
        width, height, least = (self.spatial * cells for cells in (x.shape[-1], x.shape[-2], least_cells(self.half)))
        if min(width, height) < least:
            raise ValueError(
                f"samples: a latent of {width} x {height} px is smaller than the {least} px this VAE needs; raise the"
                " width and height of the empty latent"
            )
        return x

    def cells(self, x: Tensor) -> tuple[int, ...]:
        """A latent's own sizes."""
        return tuple(x.shape[2:])

    def tile_shape(self, x: Tensor, cells: Sequence[int]) -> tuple[int, ...]:
        """Of latents."""
        return (1, x.shape[1], *cells)

    def tile(self, x: Tensor) -> Tensor:
        """Latents to pixels (B, C, [T,] H, W) in float32, not yet scaled."""
        model_management.throw_exception_if_processing_interrupted()
        vae, model = self.vae, self.vae.first_stage_model
        x = x.to(device=vae.device, dtype=vae.vae_dtype)
        if getattr(model, "comfy_has_chunked_io", False):
            # It writes frames out as they are done, so that they do not gather on the device.
            buffer = self.result(model.decode_output_shape(x.shape), torch.float32, vae.output_device)
            model.decode(x, output_buffer=buffer, **self.options)
            return buffer
        out = model.decode(x, **self.options)
        return self.result(out.shape, torch.float32, vae.output_device).copy_(out)

    def recorded(self, run: ExactRun, x: Tensor) -> Tensor:
        """As :meth:`tile`; what is copied for it counts in the run's budget."""
        vae, model = self.vae, self.vae.first_stage_model
        given, x = x, x.to(device=vae.device, dtype=vae.vae_dtype)
        run.beside = _copied(given, x)
        if not getattr(model, "comfy_has_chunked_io", False):
            return run.run(model.decode, x, **self.options)
        room = run.new if isinstance(run, PlannedRun) else self.result
        buffer = room(model.decode_output_shape(x.shape), torch.float32, vae.output_device)
        if buffer.device.type == vae.device.type:
            run.beside.append(buffer.nbytes)
        return run.run(model.decode, x, output_buffer=buffer, **self.options)

    def result(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """In host memory, or, if that was asked for, in a file of the host's temp folder, its channels last as they
        will be handed on. Raises DiskTooSmall."""
        if not self.settings.frames_on_disk or device.type != "cpu":
            return super().result(shape, dtype, device)
        batch, channels, *sizes = shape
        return self.hold((batch, *sizes, channels), torch.float32).movedim(-1, 1)

    def strip_rows(self) -> int:
        """Rows of pixels."""
        return self.settings.tile_size

    def output_bytes(self, x: Tensor) -> int:
        """As of four channels, the most that a picture has."""
        return 4 * 4 * x.shape[0] * math.prod(self.picture_size(x))

    def picture_size(self, x: Tensor) -> tuple[int, ...]:
        """Of what the latents decode to."""
        frames = (self.frames(x.shape[2]),) if x.ndim == 5 else ()
        return (x.shape[-1] * self.spatial, x.shape[-2] * self.spatial, *frames)

    def finish(self, out: Tensor) -> Tensor:
        """Scaled as the VAE does it, channels last; what lies in a file is scaled there, some frames at a time."""
        if not self.settings.frames_on_disk or out.device.type != "cpu":
            return self.vae.process_output(out).movedim(1, -1)
        for picture in out:
            parts = picture.split(FRAMES, 1) if out.ndim == 5 else (picture,)
            for part in parts:
                part.copy_(self.vae.process_output(part[None].clone())[0])
        return out.movedim(1, -1)


class Encode(Geometry):
    """Pixels (B, H, W, C), for a video VAE its frames, to latents (B, C, [T,] h, w)."""

    direction = Direction.ENCODE

    def __init__(self, vae: Any) -> None:
        super().__init__(vae, vae.downscale_ratio, vae.memory_used_encode)

    def prepare(self, x: Tensor) -> Tensor:
        """Pixels without those that fill no cell; for a video VAE the batch becomes time, or gets one of length 1."""
        vae = self.vae
        if x.ndim < 4 or 0 in x.shape:
            raise ValueError(f"pixels: the image is empty (shape {tuple(x.shape)}); connect at least one picture")
        least = least_cells(self.half) * self.spatial
        if min(x.shape[-3:-1]) < least:
            raise ValueError(
                f"pixels: {x.shape[-2]} x {x.shape[-3]} is smaller than the {least} px this VAE needs;"
                " scale the image up"
            )
        x = vae.vae_encode_crop_pixels(x).movedim(-1, 1)
        if vae.latent_dim == 3 and x.ndim < 5:
            x = x.unsqueeze(2) if getattr(vae, "not_video", False) else x.movedim(1, 0).unsqueeze(0)
        return x

    def whole_cells(self, x: Tensor) -> Tensor:
        """Without the frames that fill no cell of their own, which tiles have no place for."""
        return x[:, :, : self.frames(self._cells_in_time(x))] if x.ndim == 5 else x

    def _cells_in_time(self, x: Tensor) -> int:
        ratio = self.vae.downscale_ratio
        in_time = ratio[0] if isinstance(ratio, (tuple, list)) else 1
        return int(in_time(x.shape[2]) if callable(in_time) else x.shape[2] // in_time)

    def cells(self, x: Tensor) -> tuple[int, ...]:
        """As many as the pixels fill."""
        in_time = (self._cells_in_time(x),) if x.ndim == 5 else ()
        return (*in_time, *(size // self.spatial for size in x.shape[-2:]))

    def tile_shape(self, x: Tensor, cells: Sequence[int]) -> tuple[int, ...]:
        """Of pixels and frames."""
        in_time = (self.frames(cells[0]),) if len(cells) == 3 else ()
        return (1, x.shape[1], *in_time, *(n * self.spatial for n in cells[-2:]))

    def tile(self, x: Tensor) -> Tensor:
        """Pixels in [0, 1] to latents (B, C, [T,] h, w) in float32."""
        model_management.throw_exception_if_processing_interrupted()
        vae, model = self.vae, self.vae.first_stage_model
        x = vae.process_input(x).to(vae.vae_dtype)
        chunked = getattr(model, "comfy_has_chunked_io", False)  # it brings its input to the device part by part
        out = model.encode(x, device=vae.device) if chunked else model.encode(x.to(vae.device))
        return out.to(device=vae.output_device, dtype=torch.float32)

    def recorded(self, run: ExactRun, x: Tensor) -> Tensor:
        """As :meth:`tile`; what is copied for it counts in the run's budget."""
        vae, model = self.vae, self.vae.first_stage_model
        given, x = x, vae.process_input(x).to(vae.vae_dtype)
        if getattr(model, "comfy_has_chunked_io", False):
            run.beside = _copied(given, x) if x.device.type == vae.device.type else []
            return run.run(model.encode, x, device=vae.device)
        x = x.to(vae.device)
        run.beside = _copied(given, x)
        return run.run(model.encode, x)

    def strip_rows(self) -> int:
        """Rows of cells."""
        return self.settings.tile_size // self.spatial

    def output_bytes(self, x: Tensor) -> int:
        """Of the latents."""
        return 4 * x.shape[0] * self.vae.latent_channels * math.prod(self.cells(x))

    def picture_size(self, x: Tensor) -> tuple[int, ...]:
        """Of the pixels that are encoded."""
        return (x.shape[-1], x.shape[-2], *x.shape[2:-2])

    def finish(self, out: Tensor) -> Tensor:
        """As the module formats its latents, if it does."""
        format_encoded = getattr(self.vae, "format_encoded", None)
        return out if format_encoded is None else format_encoded(out)


def _copied(given: Tensor, x: Tensor) -> list[int]:
    """Bytes of what was made of an input; nothing where it is the input itself, which is the host's."""
    return [] if x.untyped_storage()._cdata == given.untyped_storage()._cdata else [int(x.nbytes)]
