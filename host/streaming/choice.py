"""Which way a latent's frames are decoded one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...memory import Row
from ...vae import Direction
from ..chunks.families import chunks_of, strips_of
from ..core.latents import first_part
from ..vae.coding import Coder
from ..vae.directions import Decode
from ..vae.preview import Watch
from ..vae.settings import VAESettings
from ..vae.wrapper import is_tileable, low_memory_vae, workers_of
from .bands import InBands
from .gathered import Gathered
from .handed_on import HandedOn
from .host_chunks import HostChunks
from .pictures import Pictures
from .several import Several
from .source import FrameSource


@dataclass(frozen=True)
class Decoding:
    """A latent on its way to frames.

    Attributes:
        coder: of a low-memory copy of the VAE.
        latent: prepared: (B, C, [T,] h, w) in host memory.
    """

    coder: Coder
    latent: Tensor

    @classmethod
    def of(cls, vae: Any, samples: dict[str, Any], vram_budget_gb: float) -> Decoding:
        """Of a LATENT; of a video-and-audio latent the video. Workers that the VAE has compute it.

        Raises:
            ValueError: a VAE that has its own way, a latent that is not of this VAE.
        """
        latent = first_part(samples["samples"])
        settings = VAESettings("exact", vram_budget_gb, frames_on_disk=True, workers=workers_of(vae))
        low = low_memory_vae(vae, settings)
        if not is_tileable(low):
            raise ValueError(
                "vae: this VAE decodes sound, or in tiles of its own, and cannot hand its frames on; use VAE Decode and"
                " Save Video"
            )
        coder = Coder(Decode(low, {}))
        coder.fallback.can_store = False
        return cls(coder, coder.geometry.prepare(latent))

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows of a frame."""
        width, height, *_ = self.coder.geometry.picture_size(self.latent)
        return width, height

    @property
    def may_go_on(self) -> bool:
        """Whether a decode that begins anew gives the same frames: not if it adds noise of its own."""
        return not self.coder.geometry.adds_noise

    def source(self, row: Row, watch: Watch) -> FrameSource:
        """Its frames.

        Args:
            row: of the run log.
            watch: told of the work; may raise to stop it.
        """
        coder, x = self.coder, self.latent
        coder.geometry.watch = lambda total: watch
        model = coder.geometry.vae.first_stage_model
        if x.ndim == 4:
            as_time = x.shape[0] > 1 and coder.geometry.slice_step(x) >= x.shape[0]
            return Gathered(coder, x, row) if as_time else Pictures(coder, x, row)
        chunks, in_strips = chunks_of(model, Direction.DECODE), strips_of(model, Direction.DECODE)

        def of_video(number: int) -> FrameSource:
            video = x[number : number + 1]
            if coder.geometry.settings.workers:
                return Gathered(coder, video, row) if in_strips is None else InBands(coder, video, row, in_strips)
            if chunks is not None:
                return HostChunks(coder, video, row, chunks)
            if getattr(model, "comfy_has_chunked_io", False):
                return HandedOn(coder, video, row)
            return Gathered(coder, video, row)

        return Several(of_video, x.shape[0])
