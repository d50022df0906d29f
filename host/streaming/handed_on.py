"""Videos whose autoencoder writes its frames out as they are done (LTX-Video): handed on instead of gathered."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor

from ...memory import Row
from ...memory.prediction import CannotPredict
from ...vae.exact import CannotRecord, ExactRun
from ..prediction.host_answers import replaced
from ..prediction.stages import own_card
from ..prediction.vae import predict_work
from ..vae.coding import Coder
from .source import Border, Onward, State, Take
from .strips import run_strips

CHUNK = "get_max_chunk_size"  # bytes of a map above which the module cuts it in time
WINDOW = 16  # frames of a window of strips


class HandedOn:
    """One video of such an autoencoder: by the module itself where that fits, else in exact windows of frames.

    The module keeps the latent's first maps for all frames at once, a few per cent of the whole, so that what it takes
    grows with the video; windows do not grow.

    Args:
        coder: of the VAE.
        latent: (1, C, T, h, w), prepared, in host memory.
        row: of the run log.
    """

    def __init__(self, coder: Coder, latent: Tensor, row: Row) -> None:
        self.coder, self.latent, self.row = coder, latent, row
        vae = coder.geometry.vae
        self.vae, self.model = vae, vae.first_stage_model
        self.count = int(self.model.decode_output_shape(latent.shape)[2])
        self.kind = "by the VAE's own module, frames handed on as they are done"
        self.whole = True

    def lower(self) -> bool:
        """Memory ran out in the module itself: from now on in windows."""
        was, self.whole = self.whole, False
        return was

    def run(self, take: Take, border: Border, done: int, state: State | None) -> None:
        """Always from the beginning: what the module carries in time cannot be had of it."""
        onward = Onward(take, border, done)
        onward.begin(0)
        self.whole = self.whole and self._fits()
        if self.whole:
            self._by_module(onward)
        else:
            self._in_windows(onward)
        onward.border(dict)

    def _fits(self) -> bool:
        try:
            found = predict_work(self.vae, self.latent, own_card(self.vae.device), self._followed)
        except CannotPredict:
            return False
        if found.activations > self.coder.room.for_work():
            return False
        self.row.predicted = found
        self.coder.room.make(found.activations)
        return True

    def _followed(self, module: Any, x: Tensor) -> None:
        module.decode(x, output_buffer=Sink(_drop))

    def _by_module(self, onward: Onward) -> None:
        geometry = self.coder.geometry
        x = self.latent.to(device=self.vae.device, dtype=self.vae.vae_dtype)
        watch = geometry.watch(1)

        def take(frames: Tensor) -> None:
            watch.on_strip(0.0, None)
            onward.take(frames)

        self.model.decode(x, output_buffer=Sink(take))
        self.row.lines[:] = [f"exact: {self.kind}: the host's result"]

    def _in_windows(self, onward: Onward) -> None:
        coder = self.coder
        coder.room.make(0)
        exact = coder.strips.exact_pass(self.latent, self.row)
        exact.along, exact.frames = "frames", WINDOW
        self.kind = "in exact windows of frames"

        def module(x: Tensor) -> Tensor:
            kept: list[Tensor] = []
            self.model.decode(x, output_buffer=Sink(kept.append))
            if len(kept) != 1:
                raise CannotRecord("the module cuts its frames into chunks")
            return kept[0]

        def code(run: ExactRun) -> Tensor:
            onward.begin(0)
            x = self.latent.to(device=self.vae.device, dtype=self.vae.vae_dtype)
            # In one piece as it is recorded: the windows are cut by their own plan, whatever the card.
            with replaced(sys.modules[type(self.model).__module__], CHUNK, lambda *_: 2**62):
                run.stream(onward.take, module, x)
            return self.latent

        run_strips(coder, exact, code, self.latent, self.row)


class Sink:
    """In the place of the tensor that the module writes its frames into: each slice of them is handed on.

    Args:
        take: called with frames (B, C, t, H, W), in order.
    """

    def __init__(self, take: Take) -> None:
        self._take, self._reached = take, 0

    def __getitem__(self, place: Any) -> _Slice:
        return _Slice(self, place[2].start or 0)

    def __setitem__(self, place: Any, frames: Tensor) -> None:
        self.write(place[2].start or 0, frames)

    def write(self, start: int, frames: Tensor) -> None:
        """The next frames. Raises CannotRecord for others than the next: they cannot be handed on."""
        if start != self._reached:
            raise CannotRecord("the module does not write its frames in order")
        self._reached += frames.shape[2]
        self._take(frames)


class _Slice:
    """What a slice of a :class:`Sink` is written by."""

    def __init__(self, sink: Sink, start: int) -> None:
        self._sink, self._start = sink, start

    def copy_(self, frames: Tensor) -> None:
        """As of a tensor."""
        self._sink.write(self._start, frames)


def _drop(frames: Tensor) -> None:
    """Takes frames and keeps none."""
