"""One encode or decode of a batch: check, plan, run each slice of the batch, measure into the run log."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import comfy.model_management as model_management
import torch
from torch import Tensor

from ...memory import Row
from ...memory.accelerator import has_own_memory
from ...memory.blocks import uncut_bytes
from ...memory.units import format_bytes
from ...vae import Direction, TilePlan, TileRequest, feathered, pixels_per_cell, plan_tiles
from ...vae.exact import DoesNotFit, ExactRun
from ..core.compat import device_context, is_out_of_memory, show_on_node
from ..core.device import GB, memory_budget
from ..measure.questions import coding_question
from ..measure.runs import Following, measured
from .preview import PassPreview
from .settings import VAESettings
from .strips import ExactPass, NoRoom, NotExact, free_others, give_back

SMALLEST_TILE_PIXELS = 128

log = logging.getLogger(__name__)


class BudgetTooSmall(ValueError):
    """A budget below the least that works.

    Attributes:
        least: bytes, weights included.
    """

    def __init__(self, least: float, text: str) -> None:
        super().__init__(text)
        self.least = least


class CannotBeExact(ValueError):
    """Strips cannot follow a module, and nothing else was allowed."""


class VAEPass:
    """One encode or decode of a batch; a subclass a direction."""

    direction: Direction

    def __init__(self, vae: Any, ratio: Any, estimate: Callable[[Sequence[int], torch.dtype], float]) -> None:
        self.vae = vae
        self.settings: VAESettings = vae.headroom_settings
        # The host writes an int for images and (frames of n cells, rows, columns) for video.
        self.spatial = int(ratio[-1]) if isinstance(ratio, (tuple, list)) else int(ratio)
        self.estimate = estimate
        self.following: Following | None = None

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
        asked, x = x, self.prepare(x)
        device = self.vae.device
        with measured(self.direction.value, device) as row, Following(row, device) as following, device_context(device):
            row.question = coding_question(self.vae, asked, encodes=self.direction is Direction.ENCODE)
            self.following = following
            following.begin(self.vae.first_stage_model, given=[asked])
            out = self.by_method(x, row)
            for notice in row.notices:
                show_on_node(notice)
        return self.finish(out)

    def by_method(self, x: Tensor, row: Row) -> Tensor:
        """In one piece where that is asked for and fits, else in strips, else in tiles; says which and why."""
        method = self.settings.method
        if method == "auto" and (out := self.in_one_piece(x, row)) is not None:
            return out
        if method != "feathered":
            try:
                return self.in_strips(x, row)
            except NotExact as error:
                self.may_feather_unrecorded(row, error)
            except DoesNotFit as error:
                self.may_feather(x, row, error)
            except NoRoom as error:
                self.may_feather_without_room(x, row, error)
        return self.in_tiles(x, row)

    def in_one_piece(self, x: Tensor, row: Row) -> Tensor | None:
        """None where it does not fit, by the host's estimate or in fact."""
        whole = self.plan_whole(x)
        alone = False
        while whole.fits:
            try:
                out = self.blended(x, whole)
                self.describe(row, whole)
                return out
            except Exception as error:  # anything but a failure to allocate goes on
                if not is_out_of_memory(error):
                    raise
            # Outside the handler: the exception held every tensor of the failed run.
            give_back()
            if alone or not free_others(self.vae.patcher):
                self.notice(row, "out of memory in one piece: tried in strips")
                break
            alone = True
            self.notice(row, "out of memory in one piece: tried again without the other models on the device")
        return None

    def load(self, needed: float, whole: bool = True) -> None:
        """Has the host bring the weights, and free ``needed`` bytes beside them; no part of the work."""
        with self.following.loading() if self.following is not None else nullcontext():
            try:
                model_management.load_models_gpu([self.vae.patcher], memory_required=needed, force_full_load=whole)
                return
            except Exception as error:  # anything but a failure to allocate goes on
                if not is_out_of_memory(error):
                    raise
            # Outside the handler: the exception held what had been loaded.
            free_others(self.vae.patcher)
            try:
                model_management.load_models_gpu([self.vae.patcher], memory_required=needed, force_full_load=whole)
            except Exception as error:  # anything but a failure to allocate goes on
                if not is_out_of_memory(error):
                    raise
                raise model_management.OOM_EXCEPTION(
                    f"vae: its weights ({_gb(self.weights(), up=True)}) do not fit into {self.vae.device}, nothing else"
                    " of ComfyUI's there; end what else uses it, or start ComfyUI with --bf16-vae (half the weights) or"
                    " --cpu-vae"
                ) from error

    def notice(self, row: Row, text: str) -> None:
        row.notices.append(text)
        log.warning("Headroom: %s", text)

    def work_budget(self) -> float:
        """Bytes that the work may take: the budget without the VAE's weights on the same device."""
        return memory_budget(self.vae.device, self.settings.vram_budget_gb) - self.weights()

    def weights(self) -> int:
        """Bytes that the VAE's weights take on its device, with what the allocator leaves uncut of their blocks."""
        whole = int(self.vae.patcher.model_size())
        if not has_own_memory(self.vae.device):
            return whole
        sizes = (one.nbytes for one in self.vae.first_stage_model.parameters())
        return whole + uncut_bytes(sorted(sizes, reverse=True))  # as the host brings them

    # ---------------------------------------------------------------- in strips

    def in_strips(self, x: Tensor, row: Row) -> Tensor:
        """Each slice of the batch by the exact engine."""
        vae, settings = self.vae, self.settings
        self.load(0)
        step = self.slice_step(x)
        slices = math.ceil(x.shape[0] / step)
        exact = self.exact_pass(x, row)
        preview = PassPreview(vae, slices, self.direction)
        out: Tensor | None = None
        for start in range(0, x.shape[0], step):
            part = exact.run(partial(self.recorded, x=x[start : start + step]), preview.on_strip)
            preview.slice_done()
            if out is None:
                out = (
                    part
                    if slices == 1
                    else torch.empty((x.shape[0], *part.shape[1:]), dtype=part.dtype, device=part.device)
                )
            if slices > 1:
                out[start : start + step] = part
        assert out is not None, "prepare() refuses an empty batch"
        row.lines.append(f"budget {format_bytes(memory_budget(vae.device, settings.vram_budget_gb))}")
        row.lines += exact.describe()
        if self.adds_noise:
            row.lines.append("this VAE adds noise of its own, by the host's random numbers, as untiled it would")
        return out.to(vae.vae_output_dtype())

    def exact_pass(self, x: Tensor, row: Row) -> ExactPass:
        """What the slices of a batch share, with what their results leave of the budget."""
        vae = self.vae
        store = torch.float16 if self.settings.store == "float16" and vae.vae_dtype.itemsize > 2 else None
        return ExactPass(vae, self.work_budget() - self.gathered_bytes(x), store, self.strip_rows(), row, self.load)

    def gathered_bytes(self, x: Tensor) -> int:
        """Results of all slices gather where the output goes; a single slice's is counted by the engine."""
        several = x.shape[0] > self.slice_step(x)
        return self.output_bytes(x) if several and self.vae.output_device.type == self.vae.device.type else 0

    def recorded(self, run: ExactRun, x: Tensor) -> Tensor:
        """Runs the autoencoder on one slice by the exact engine; the result on the output device."""
        raise NotImplementedError

    def strip_rows(self) -> int:
        """Rows of the result in a strip; 0 = by the budget."""
        raise NotImplementedError

    def output_bytes(self, x: Tensor) -> int:
        raise NotImplementedError

    @property
    def adds_noise(self) -> bool:
        return self.direction is Direction.DECODE and bool(
            getattr(self.vae.first_stage_model, "timestep_conditioning", False)
        )

    def slice_step(self, x: Tensor) -> int:
        """Images computed together. Stable Video Diffusion's decoder takes the batch as time: all of it."""
        if any(hasattr(module, "time_stack") for module in self.vae.first_stage_model.modules()):
            return int(x.shape[0])
        return self.settings.batch_slice or 1

    def may_feather_unrecorded(self, row: Row, error: NotExact) -> None:
        """Raises, with the cause, unless the method is auto, which has found no room for the whole by now."""
        if self.settings.method != "auto":
            raise CannotBeExact(
                f"method: exact strips cannot follow this VAE ({error}); set method to auto, which decodes in one piece"
                " where that fits and else in feathered tiles (approximate), or to feathered"
            ) from error
        self.notice(row, f"feathered (approximate), because exact strips are not possible: {error}")

    def may_feather(self, x: Tensor, row: Row, error: DoesNotFit) -> None:
        """Raises, with the least budget, unless the method is auto and tiles do fit."""
        budget = memory_budget(self.vae.device, self.settings.vram_budget_gb)
        least = error.least + self.weights()
        sizes = " x ".join(str(size) for size in self.picture_size(x))
        if self.settings.method == "auto":
            plan = self.plan(x)
            if plan.fits:
                self.notice(
                    row,
                    f"feathered (approximate): exact strips of {sizes} need {_gb(least, up=True)} at least, the"
                    f" budget is {_gb(budget)}; raise vram_budget_gb for the exact result",
                )
                return
            if not self.settings.vram_budget_gb:
                return
            least = min(least, plan.bytes + self.weights())
        advice = "" if self.settings.store == "float16" else ", or set store to float16"
        needed = f"the {_gb(least, up=True)} that {sizes} needs at least (weights {_gb(self.weights())} included)"
        if not self.settings.vram_budget_gb:
            raise BudgetTooSmall(
                least,
                f"{self.vae.device} has {_gb(max(0, budget))} beside what ComfyUI reserves, less than {needed}; lower"
                f" the size of the picture{advice}",
            )
        raise BudgetTooSmall(
            least,
            f"vram_budget_gb: {_gb(budget)} is less than {needed}; raise vram_budget_gb{advice}, or lower the size of"
            " the picture",
        )

    def may_feather_without_room(self, x: Tensor, row: Row, error: NoRoom) -> None:
        """Raises the host's own kind of out-of-memory error, with the least, unless the method is auto."""
        sizes = " x ".join(str(size) for size in self.picture_size(x))
        if math.isinf(error.least):
            needed = f"there was no room to begin exact strips of {sizes} (weights {_gb(self.weights())})"
        else:
            least = _gb(error.least + self.weights(), up=True)
            needed = f"exact strips of {sizes} need {least} at least (weights {_gb(self.weights())} included)"
        if self.settings.method == "auto":
            self.notice(row, f"feathered (approximate), because memory ran out: {needed}")
            return
        raise model_management.OOM_EXCEPTION(
            f"method: {needed}, and {self.vae.device} had less to give: end what else uses it, lower the size of the"
            " picture, or set method to auto, which may go on in feathered tiles"
        )

    def picture_size(self, x: Tensor) -> tuple[int, ...]:
        """Columns, rows and, for video, frames of the picture."""
        raise NotImplementedError

    # ---------------------------------------------------------------- in tiles

    def in_tiles(self, x: Tensor, row: Row) -> Tensor:
        """Feathered tiles, smaller ones if memory runs out."""
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
            give_back()
            self.notice(row, f"out of memory with {plan.tiles} tiles: tried smaller ones")
        self.describe(row, plan)
        return out

    def plan_whole(self, x: Tensor) -> TilePlan:
        """Everything in one piece."""
        requests = [replace(request, tile=request.length) for request in self.requests(self.cells(x))]
        return plan_tiles(requests, self.tile_bytes(x), self.work_budget())

    def tile_bytes(self, x: Tensor) -> Callable[[Sequence[int]], float]:
        """The host's estimate for the tiles of a slice of the batch."""
        images = min(self.slice_step(x), x.shape[0])
        return lambda cells: images * self.estimate(self.tile_shape(x, cells), self.vae.vae_dtype)

    def plan(self, x: Tensor, least_tiles: int = 1) -> TilePlan:
        """Tiles for ``x``, at least ``least_tiles``: those that were asked for, unless memory ran out with them.

        Space is split before time, which is split only if the smallest tile over all frames does not fit.
        """
        budget, estimate = self.work_budget(), self.tile_bytes(x)

        def plan_with(requests: Sequence[TileRequest]) -> TilePlan:
            return plan_tiles(requests, estimate, budget, least_tiles)

        lengths = self.cells(x)
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
        self.load(plan.bytes, whole=getattr(self.vae, "disable_offload", False))
        step = self.slice_step(x)
        preview = PassPreview(self.vae, plan.tiles * math.ceil(x.shape[0] / step), self.direction)

        out: Tensor | None = None
        for start in range(0, x.shape[0], step):
            part = self.one_slice(x[start : start + step], plan, preview)
            if out is None:
                shape = (x.shape[0], *part.shape[1:])
                out = part if shape == part.shape else torch.empty(shape, dtype=part.dtype, device=part.device)
            if out is not part:
                out[start : start + step] = part
        assert out is not None, "prepare() refuses an empty batch"
        return out.to(self.vae.vae_output_dtype())

    def describe(self, row: Row, plan: TilePlan) -> None:
        row.lines.append(self.against_budget("the whole" if plan.tiles == 1 else "one tile", plan))
        if plan.tiles == 1:
            row.lines.append("in one piece: the same result as the host's own, untiled")
        else:
            row.lines.append(f"feathered (approximate): {self.describe_tiles(plan)}")
        if not plan.fits:
            row.notices.append(
                "even these tiles are estimated above the budget: raise vram_budget_gb, or set a smaller tile_size"
                " or temporal_size"
            )

    def one_slice(self, x: Tensor, plan: TilePlan, preview: PassPreview) -> Tensor:
        if plan.tiles == 1:
            out = self.tile(x)
            preview.on_tile(out)
            return out
        x = self.whole_cells(x)
        return feathered(x, self.tile, plan.axes, self.direction, self.settings.feather, preview.on_tile)

    def whole_cells(self, x: Tensor) -> Tensor:
        """What tiles can be cut from."""
        return x

    def against_budget(self, what: str, plan: TilePlan) -> str:
        budget = memory_budget(self.vae.device, self.settings.vram_budget_gb)
        return (
            f"budget {format_bytes(budget)}, weights {format_bytes(self.weights())}, the host's estimate for {what}"
            f" {format_bytes(plan.bytes)}"
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


class Decode(VAEPass):
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

    def recorded(self, run: ExactRun, x: Tensor) -> Tensor:
        vae, model = self.vae, self.vae.first_stage_model
        given, x = x, x.to(device=vae.device, dtype=vae.vae_dtype)
        run.beside = _copied(given, x)
        if not getattr(model, "comfy_has_chunked_io", False):
            return run.run(model.decode, x, **self.options)
        buffer = torch.zeros(model.decode_output_shape(x.shape), device=vae.output_device, dtype=torch.float32)
        if buffer.device.type == vae.device.type:
            run.beside.append(buffer.nbytes)
        return run.run(model.decode, x, output_buffer=buffer, **self.options)

    def strip_rows(self) -> int:
        return self.settings.tile_size

    def output_bytes(self, x: Tensor) -> int:
        return 4 * 4 * x.shape[0] * math.prod(self.picture_size(x))

    def picture_size(self, x: Tensor) -> tuple[int, ...]:
        frames = (self.frames(x.shape[2]),) if x.ndim == 5 else ()
        return (x.shape[-1] * self.spatial, x.shape[-2] * self.spatial, *frames)

    def finish(self, out: Tensor) -> Tensor:
        return self.vae.process_output(out).movedim(1, -1)


class Encode(VAEPass):
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
        return x

    def whole_cells(self, x: Tensor) -> Tensor:
        """Without the frames that fill no cell of their own, which tiles have no place for."""
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

    def recorded(self, run: ExactRun, x: Tensor) -> Tensor:
        vae, model = self.vae, self.vae.first_stage_model
        given, x = x, vae.process_input(x).to(vae.vae_dtype)
        if getattr(model, "comfy_has_chunked_io", False):
            run.beside = _copied(given, x) if x.device.type == vae.device.type else []
            return run.run(model.encode, x, device=vae.device)
        x = x.to(vae.device)
        run.beside = _copied(given, x)
        return run.run(model.encode, x)

    def strip_rows(self) -> int:
        return self.settings.tile_size // self.spatial

    def output_bytes(self, x: Tensor) -> int:
        return 4 * x.shape[0] * self.vae.latent_channels * math.prod(self.cells(x))

    def picture_size(self, x: Tensor) -> tuple[int, ...]:
        return (x.shape[-1], x.shape[-2], *x.shape[2:-2])

    def finish(self, out: Tensor) -> Tensor:
        format_encoded = getattr(self.vae, "format_encoded", None)
        return out if format_encoded is None else format_encoded(out)


def _copied(given: Tensor, x: Tensor) -> list[int]:
    """Bytes of what was made of an input; nothing where it is the input itself, which is the host's."""
    return [] if x.untyped_storage()._cdata == given.untyped_storage()._cdata else [int(x.nbytes)]


def _gb(size: float, up: bool = False) -> str:
    """Three digits behind the point; ``up`` for a size that shall suffice."""
    thousandths = size / GB * 1000
    return f"{(math.ceil(thousandths) if up else round(thousandths)) / 1000:.3f} GB"
