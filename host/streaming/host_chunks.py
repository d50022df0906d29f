"""Videos in chunks of frames: by the module itself where a chunk fits, else each chunk in exact strips, or in windows
where chunks look ahead; what is kept from one chunk to the next is the state."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import comfy.model_management as model_management
from torch import Tensor

from ...memory import Row
from ...vae.exact import ChunkedRun, ExactRun, PlannedChunks
from ..chunks.chunks import Chunks, chunk_at, gone_on, head_of, saved
from ..chunks.ltx import LTXDecode
from ..vae.coding import Coder
from ..vae.geometry import require_disk
from .source import Border, Onward, State, Take
from .strips import fits_as_module, growing, run_strips
from .windows import in_windows

FIRST = "chunks"  # what strips are cut along first: what is kept from chunk to chunk lies on the device


class HostChunks:
    """One video, chunk by chunk.

    Args:
        coder: of the VAE.
        latent: (1, C, T, h, w), prepared, in host memory.
        row: of the run log.
        kind_of_chunks: how the autoencoder is run in chunks.
    """

    def __init__(self, coder: Coder, latent: Tensor, row: Row, kind_of_chunks: type[Chunks]) -> None:
        self.coder, self.latent, self.row = coder, latent, row
        vae = coder.geometry.vae
        self.vae, self.model = vae, vae.first_stage_model
        self.chunks_of = kind_of_chunks
        self.count = self._begun().given
        self.whole = True  # chunks are computed as such, not in strips

    def _begun(
        self, done: int = 0, state: State | None = None, put: Callable[[str, Tensor], Any] | None = None
    ) -> Chunks:
        """The way through the video, from a border on; see :func:`gone_on`."""
        return gone_on(self.chunks_of, self.model, self.latent.shape[2], done, state, put)

    def _chunk_at(self, done: int) -> int:
        return chunk_at(self.chunks_of, self.model, self.latent.shape[2], done)

    @property
    def has_borders(self) -> bool:
        """Not in windows."""
        return self.whole or not self.chunks_of.looks_ahead

    def lower(self) -> bool:
        """Memory ran out in a chunk as a whole: from now on in strips."""
        was, self.whole = self.whole, False
        return was

    def run(self, take: Take, border: Border, done: int, state: State | None) -> None:
        """From any border on."""
        require_disk(self._begun().held(self.latent.shape), self.vae.vae_dtype)
        onward = Onward(take, border, done)
        begun = (0, State()) if state is None or not self._chunk_at(done) else (done, state)
        self.whole = self.whole and fits_as_module(self.coder, self.latent, self.row)
        if self.chunks_of.looks_ahead and begun[0] < done:
            self.whole = False  # windows need not begin with the video
        if self.whole:
            self._by_module(onward, *begun)
        elif self.chunks_of.looks_ahead:
            self._in_windows(onward, done)
        else:
            self._in_strips(onward, *begun)

    def _to_device(self, part: Tensor) -> Tensor:
        return part.to(device=self.vae.device, dtype=self.vae.vae_dtype)

    def _aside(self, x: Tensor) -> Tensor:
        return self.coder.geometry.hold(x.shape, x.dtype).copy_(x)

    def _by_module(self, onward: Onward, at: int, state: State) -> None:
        onward.begin(at)
        chunks = self._begun(at, state, lambda name, part: self._to_device(part))
        parts = head_of(chunks, self.latent, self._to_device, self._aside)
        for start, stop in chunks.borders[chunks.done :]:
            model_management.throw_exception_if_processing_interrupted()
            for piece in chunks.handed(*(self._to_device(part[:, :, start:stop]) for part in parts)):
                onward.take(piece)
                del piece  # else it lives until the next one is computed
            onward.border(partial(saved, chunks))
        self.row.lines[:] = [f"exact: {chunks.by_module}", *growing(self.coder, self.latent, self.row)]

    def _in_windows(self, onward: Onward, done: int) -> None:
        """From the first latent frame on that the next ones depend on: what is decoded of an earlier beginning is not
        the video's there, and is left out."""
        chunks, begun = self._begun(), 0
        for cells in range(1, self.latent.shape[2]):
            if chunks.frames_of(cells) + chunks.frames_of(chunks.reach + 2) <= done:
                begun = cells
        assert isinstance(chunks, LTXDecode)  # the only ones that look ahead
        (latent,) = head_of(chunks, self.latent, self._to_device, self._aside)
        onward.begin(chunks.frames_of(begun + 1) - chunks.frames_of(1))
        in_windows(self.coder, latent[:, :, begun:], self.row, onward, chunks.whole)

    def _in_strips(self, onward: Onward, at: int, state: State) -> None:
        self.coder.room.make(0)
        exact = self.coder.strips.exact_pass(self.latent, self.row)
        exact.along, exact.chunks, exact.handed_on = FIRST, self.chunks_of, True

        def code(run: ExactRun) -> Tensor:
            assert isinstance(run, ChunkedRun)
            own = weakref.proxy(run)  # which is not to hold itself
            onward.begin(at)
            run.begin = lambda frames: self._begun(at, state, lambda name, x: own.restored(x, self.vae.device))
            run.bring = self._to_device
            if not isinstance(run, PlannedChunks):
                run.after_chunk = lambda chunks: onward.border(partial(saved, chunks))
            run.stream(onward.take, self.model.decode, self.latent)
            return self.latent

        run_strips(self.coder, exact, code, self.latent, self.row)
