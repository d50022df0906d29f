"""How a VAE's work sees a tensor, whichever its direction: its size in latent cells, its tiles, its slices.

Cells are counted along the tiled axes, slowest first: (rows, columns), or (time, rows, columns) for video.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import folder_paths
import torch
from torch import Tensor

from ...memory.on_disk import on_disk, require_room
from ...vae import Direction
from ...vae.exact import ExactRun
from .preview import PassPreview, Watch
from .settings import VAESettings


class Geometry:
    """One direction of a VAE; a subclass each, for a low-memory VAE of the host's.

    Attributes:
        direction: which of the two.
        vae: the VAE.
        settings: its own.
        spatial: pixels of a cell, along rows and columns.
        estimate: the host's own: shape of an input, dtype of the module -> bytes.
        watch: (tiles or slices of all work) -> what tells of it while it runs.
        holds_on_disk: what is computed of all frames of a video, but is no result, lies in a file of the host's temp
            folder.
    """

    direction: Direction

    def __init__(self, vae: Any, ratio: Any, estimate: Callable[[Sequence[int], torch.dtype], float]) -> None:
        self.vae = vae
        self.settings: VAESettings = vae.headroom_settings
        # The host writes an int for images and (frames of n cells, rows, columns) for video.
        self.spatial = int(ratio[-1]) if isinstance(ratio, (tuple, list)) else int(ratio)
        self.estimate = estimate
        self.holds_on_disk = self.settings.frames_on_disk
        self.watch: Callable[[int], Watch] = lambda total: PassPreview(vae, total, self.direction)

    def prepare(self, x: Tensor) -> Tensor:
        """The input as (B, C, [T,] H, W). Raises ValueError, with the input to change, for one that does not fit."""
        raise NotImplementedError

    def cells(self, x: Tensor) -> tuple[int, ...]:
        """Latent cells of each tiled axis of a prepared input."""
        raise NotImplementedError

    def tile_shape(self, x: Tensor, cells: Sequence[int]) -> tuple[int, ...]:
        """The shape (1, C, [T,] H, W) of a tile of so many cells, as the host's estimate wants it."""
        raise NotImplementedError

    def whole_cells(self, x: Tensor) -> Tensor:
        """The part of a prepared input that tiles are cut from."""
        return x

    def tile(self, x: Tensor) -> Tensor:
        """Runs the module on one tile, or on a whole slice: (B, C, [T,] H, W) to float32 on the output device."""
        raise NotImplementedError

    def recorded(self, run: ExactRun, x: Tensor) -> Tensor:
        """As :meth:`tile`, by the exact engine."""
        raise NotImplementedError

    def strip_rows(self) -> int:
        """Rows of the result in a strip; 0 = by the budget."""
        raise NotImplementedError

    def output_bytes(self, x: Tensor) -> int:
        """Bytes of the whole batch's result in float32, as far as it is known beforehand."""
        raise NotImplementedError

    def picture_size(self, x: Tensor) -> tuple[int, ...]:
        """Columns, rows and, for video, frames of the picture."""
        raise NotImplementedError

    def finish(self, out: Tensor) -> Tensor:
        """From the gathered result to what the host's method returns."""
        raise NotImplementedError

    def result(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Zeros for the gathered result (B, C, [T,] H, W): the picture so far is shown while it is made."""
        return torch.zeros(tuple(shape), dtype=dtype, device=device)

    @staticmethod
    def hold(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Room in a file for a map of all frames. Raises DiskTooSmall."""
        return on_disk(_held_in(), shape, dtype)

    def slice_step(self, x: Tensor) -> int:
        """Images computed together. Stable Video Diffusion's decoder takes the batch as time: all of it."""
        if any(hasattr(module, "time_stack") for module in self.vae.first_stage_model.modules()):
            return int(x.shape[0])
        return self.settings.batch_slice or 1

    def slices(self, x: Tensor) -> int:
        """How many slices a batch is computed in."""
        return math.ceil(x.shape[0] / self.slice_step(x))

    def by_slices(self, x: Tensor, code: Callable[[Tensor], Tensor]) -> Tensor:
        """The results of all slices of a batch, computed one after the other.

        Args:
            x: a prepared input.
            code: of a slice (b, C, [T,] H, W) to its result (b, C', [T',] H', W').

        Returns:
            (B, C', [T',] H', W') in the dtype of the host's results; a single slice is not copied.
        """
        step = self.slice_step(x)
        out: Tensor | None = None
        for start in range(0, x.shape[0], step):
            part = code(x[start : start + step])
            if out is None:
                shape = (x.shape[0], *part.shape[1:])
                alone = step >= x.shape[0]
                out = part if alone else self.result(shape, part.dtype, part.device)
            if out is not part:
                out[start : start + step] = part
        assert out is not None, "prepare() refuses an empty batch"
        return out if self.settings.frames_on_disk else out.to(self.vae.vae_output_dtype())

    @property
    def causal(self) -> bool:
        """Video autoencoders are causal in time but for LTX-Video's decoder, which says that it is not."""
        return bool(getattr(self.half, "causal", True))

    @property
    def half(self) -> Any:
        """Of the module, that which this direction runs; None where it has no such part."""
        return getattr(self.vae.first_stage_model, "decoder" if self.direction is Direction.DECODE else "encoder", None)

    @property
    def adds_noise(self) -> bool:
        """Whether the result depends on random numbers: LTX-Video's decoders that are conditioned on a timestep."""
        conditioned = getattr(self.vae.first_stage_model, "timestep_conditioning", False)
        return self.direction is Direction.DECODE and bool(conditioned)

    def frames(self, cells: int) -> int:
        """Frames that ``cells`` latent cells in time decode to."""
        ratio = self.vae.upscale_ratio
        in_time = ratio[0] if isinstance(ratio, (tuple, list)) else 1
        return int(in_time(cells) if callable(in_time) else cells * in_time)


def least_cells(half: Any) -> int:
    """Rows and columns of cells that a half of a module needs: a convolution that mirrors what lies at an edge needs
    more than the edge."""
    modules = () if half is None else half.modules()
    mirrored = [module.padding[-1] for module in modules if getattr(module, "padding_mode", "") == "reflect"]
    return 1 + max(mirrored, default=0)


def require_disk(shapes: Iterable[Sequence[int]], dtype: torch.dtype) -> None:
    """Asks for room for maps of all frames, as :meth:`Geometry.hold` makes it, before any work. Raises DiskTooSmall."""
    needed = dtype.itemsize * sum(map(math.prod, shapes))
    if needed:
        require_room(_held_in(), needed, "what this VAE computes of all frames")


def _held_in() -> Path:
    """The folder of maps in files."""
    return Path(folder_paths.get_temp_directory()) / "headroom"
