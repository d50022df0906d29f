"""Videos whose autoencoder writes its frames out as they are done, and adds noise to its maps of all of them at once
(LTX-Video 0.9.1): handed on instead of gathered."""

from __future__ import annotations

from torch import Tensor

from ...memory import Row
from ..vae.coding import Coder
from ..video.sink import Sink
from .source import Border, Onward, State, Take
from .strips import fits_as_module
from .windows import in_windows


class HandedOn:
    """One video of such an autoencoder: by the module itself where that fits, else in exact windows of frames.

    The module keeps its first maps for all frames at once, so that what it takes grows with the video; windows do not.

    Args:
        coder: of the VAE.
        latent: (1, C, T, h, w), prepared, in host memory.
        row: of the run log.
    """

    has_borders = False

    def __init__(self, coder: Coder, latent: Tensor, row: Row) -> None:
        self.coder, self.latent, self.row = coder, latent, row
        vae = coder.geometry.vae
        self.vae, self.model = vae, vae.first_stage_model
        self.count = int(self.model.decode_output_shape(latent.shape)[2])
        self.whole = True

    def lower(self) -> bool:
        """Memory ran out in the module itself: from now on in windows."""
        was, self.whole = self.whole, False
        return was

    def run(self, take: Take, border: Border, done: int, state: State | None) -> None:
        """Always from the beginning: what the module carries in time cannot be had of it."""
        onward = Onward(take, border, done)
        onward.begin(0)
        self.whole = self.whole and fits_as_module(self.coder, self.latent, self.row)
        if self.whole:
            self._by_module(onward)
        else:
            in_windows(self.coder, self.latent, self.row, onward, self.model.decode)
        onward.border(dict)

    def _by_module(self, onward: Onward) -> None:
        geometry = self.coder.geometry
        x = self.latent.to(device=self.vae.device, dtype=self.vae.vae_dtype)
        watch = geometry.watch(1)

        def take(frames: Tensor) -> None:
            watch.on_strip(0.0, None)
            onward.take(frames)

        self.model.decode(x, output_buffer=Sink(take))
        self.row.lines[:] = ["exact: by the VAE's own module, frames handed on as they are done: the host's result"]
