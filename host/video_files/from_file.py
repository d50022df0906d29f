"""A video file encoded to a latent: its frames are read window by window, and encoded so where the VAE allows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import comfy.model_management as model_management
import comfy.utils
import torch
from torch import Tensor

from ...memory import Row
from ...memory.units import format_frames
from ...vae import Direction
from ...vae.exact import ChunkedRun, ExactRun, PlannedChunks
from ..chunks.chunks import Chunks
from ..chunks.families import chunks_of
from ..core.cancel import AskedAtEachFunction
from ..core.compat import device_context, is_out_of_memory, show_on_node
from ..measure.runs import Following, measured, notice
from ..streaming.bands import computed
from ..streaming.gathered import exactly
from ..streaming.strips import fits_as_module, growing, run_strips
from ..vae.coding import Coder
from ..vae.geometry import require_disk
from ..vae.preview import Cancelling
from ..vae.room import free_others, give_back
from ..vae.settings import VAESettings
from ..vae.wrapper import encoder_of_frames, low_memory_vae, workers_of
from ..video.resizing import Resizing
from .host_video import Frames

AT_ONCE = 8  # frames that are read together


def encode_from_file(vae: Any, frames: Frames, resizing: Resizing, vram_budget_gb: float) -> tuple[Tensor, str]:
    """A LATENT's samples, and what ran.

    Raises:
        ValueError: a video that does not fit the VAE, a disk that is too small.
        BudgetTooSmall, OOM_EXCEPTION: as the VAE nodes do.
    """
    low = low_memory_vae(vae, VAESettings("exact", vram_budget_gb, workers=workers_of(vae)))
    coder = Coder(encoder_of_frames(low, *resizing.size(frames.width, frames.height)))
    coder.fallback.can_store = False
    coder.geometry.holds_on_disk = True
    encoding = _Encoding(coder, frames, resizing)
    with measured("encode", low.device) as row, Following(row, low.device) as following, device_context(low.device):
        coder.room.aside = following.loading
        following.begin(low.first_stage_model)
        coder.geometry.watch = lambda total: Cancelling()
        latent = encoding.run(row)
        row.lines.insert(0, _told(encoding.read, frames))
        for text in row.notices:
            show_on_node(text)
    return coder.geometry.finish(latent), "\n".join([*row.lines, *(f"! {text}" for text in row.notices)])


def _told(count: int, frames: Frames) -> str:
    at_once = f", {AT_ONCE} at a time" if count > AT_ONCE else ""
    return f"{format_frames(count)} of {frames.width} x {frames.height} read{at_once}"


class _Encoding:
    """A video on its way to a latent, with the progress of the node.

    Attributes:
        read: frames so far.
    """

    def __init__(self, coder: Coder, frames: Frames, resizing: Resizing) -> None:
        self.coder, self.frames, self.resizing = coder, frames, resizing
        self.vae, self.read = coder.geometry.vae, 0
        self.bar = comfy.utils.ProgressBar(frames.count)

    def run(self, row: Row) -> Tensor:
        """(B, C, [T,] h, w) in float32, by the way that suits the VAE."""
        chunks = chunks_of(self.vae.first_stage_model, Direction.ENCODE)
        if self.vae.latent_dim == 2 or getattr(self.vae, "not_video", False):
            return self._by_pictures(row)
        if chunks is None:
            return self._gathered(row)
        if self.coder.geometry.settings.workers:
            return self._in_bands(chunks, row)
        likeness = self._likeness()
        held = chunks(self.vae.first_stage_model, self.frames.count).held(likeness.shape)
        require_disk(held, self.vae.vae_dtype)
        if fits_as_module(self.coder, likeness, row):
            try:
                return self._in_chunks(chunks, row)
            except Exception as error:  # anything but a failure to allocate goes on
                if not is_out_of_memory(error):
                    raise
            # Outside the handler: the exception held every tensor of the failed chunk.
            give_back()
            free_others(self.vae.patcher)
            notice(row, "out of memory in a chunk of frames: begun again in strips")
        return self._in_strips(chunks, row)

    def _windows(self) -> Iterator[Tensor]:
        """All frames in their new size, (n, H, W, C)."""
        self.read = 0
        for window in self.frames.windows(AT_ONCE):
            model_management.throw_exception_if_processing_interrupted()
            yield self.resizing.of(window)
            self.read += window.shape[0]
            self.bar.update_absolute(self.read)

    def _by_pictures(self, row: Row) -> Tensor:
        """Each frame by itself: a batch of latents."""
        parts = []
        for window in self._windows():
            for frame in window.split(1):
                row.lines.clear()
                parts.append(exactly(self.coder, self.coder.geometry.prepare(frame), row))
        return torch.cat(parts)

    def _gathered(self, row: Row) -> Tensor:
        """All frames at once: they lie in a file of the host's temp folder."""
        width, height = self.resizing.size(self.frames.width, self.frames.height)
        pixels = self.coder.geometry.hold((self.frames.count, height, width, 3), torch.float32)
        done = 0
        for window in self._windows():
            pixels[done : done + window.shape[0]] = window[..., :3]
            done += window.shape[0]
        return exactly(self.coder, self.coder.geometry.prepare(pixels[:done]), row)

    # ---------------------------------------------------------------- in the host's chunks

    def _prepared(self, chunks: Chunks) -> Iterator[Tensor]:
        """What each chunk takes, (1, C, t, H, W), scaled as the VAE wants it, in host memory."""
        waiting: list[Tensor] = []
        borders = iter(chunks.borders)
        start, stop = next(borders)
        for window in self._windows():
            waiting.append(self.vae.vae_encode_crop_pixels(window[..., :3]))
            there = sum(part.shape[0] for part in waiting)
            while there >= stop - start:
                together = torch.cat(waiting)
                part, rest = together[: stop - start], together[stop - start :]
                waiting, there = [rest], rest.shape[0]
                yield self.vae.process_input(part.movedim(-1, 0)[None].clone()).to(self.vae.vae_dtype)
                start, stop = next(borders, (0, there + 1))

    def _likeness(self) -> Tensor:
        """A video of this size without its values, (1, 3, T, H, W)."""
        width, height = self.resizing.size(self.frames.width, self.frames.height)
        cropped = self.vae.vae_encode_crop_pixels(torch.empty(1, height, width, 3, device="meta")).shape
        return torch.empty(1, 3, 1, *cropped[1:3]).expand(-1, -1, self.frames.count, -1, -1)

    def _in_chunks(self, kind: type[Chunks], row: Row) -> Tensor:
        chunks, vae = kind(self.vae.first_stage_model, self.frames.count), self.vae
        parts: list[Tensor] = []
        gathered: Tensor | None = None
        done = 0
        for x in self._prepared(chunks):
            for piece in chunks.step(x.to(vae.device)):
                if not chunks.has_tail:
                    parts.append(piece.to(vae.output_device, torch.float32))
                    continue
                if gathered is None:
                    shape = (*piece.shape[:2], chunks.given, *piece.shape[3:])
                    gathered = self.coder.geometry.hold(shape, piece.dtype)
                gathered[:, :, done : done + piece.shape[2]] = piece
                done += piece.shape[2]
        if gathered is not None:
            with AskedAtEachFunction():
                out = chunks.tail(gathered.to(device=vae.device, dtype=vae.vae_dtype))
            parts.append(out.to(vae.output_device, torch.float32))
        row.lines += [f"exact: {chunks.by_module}", *growing(self.coder, self._likeness(), row)]
        return torch.cat(parts, 2).to(vae.vae_output_dtype())

    def _in_bands(self, kind: type[Chunks], row: Row) -> Tensor:
        """By several workers, to each of which its band of every chunk goes."""
        likeness, watch = self._likeness(), self.coder.geometry.watch(1)
        out = computed(
            self.coder,
            lambda banded: replace(
                banded.task("encode", likeness, {}, lambda share: watch.on_strip(share, None)),
                brings=lambda: self._prepared(kind(self.vae.first_stage_model, self.frames.count)),
            ),
            likeness,
            row,
        )
        return torch.cat(out, -2).to(self.vae.vae_output_dtype())

    def _in_strips(self, kind: type[Chunks], row: Row) -> Tensor:
        self.coder.room.make(0)
        likeness = self._likeness()
        exact = self.coder.strips.exact_pass(likeness, row)
        exact.along, exact.chunks, exact.handed_on = "chunks", kind, True
        parts: list[Tensor] = []

        def code(run: ExactRun) -> Tensor:
            assert isinstance(run, ChunkedRun)
            parts.clear()
            run.begin = partial(kind, self.vae.first_stage_model)
            run.bring = lambda part: part.to(self.vae.device, self.vae.vae_dtype)
            if not isinstance(run, PlannedChunks):
                coming = self._prepared(kind(self.vae.first_stage_model, self.frames.count))
                run.fetch = lambda part, start, stop: next(coming).to(self.vae.device)
            run.stream(parts.append, self.vae.first_stage_model.encode, likeness)
            return likeness

        run_strips(self.coder, exact, code, likeness, row)
        return torch.cat(parts, 2).to(self.vae.vae_output_dtype())
