"""LTX-Video in exact windows of frames, each window's frames handed on: memory that does not grow with the video, since
the decoder can be followed from end to end without anything that asks for the whole of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ...memory import Row
from ...vae.exact import CannotRecord, ExactRun
from ..chunks.ltx import LARGEST
from ..prediction.host_answers import replaced
from ..vae.coding import Coder
from ..vae.strips import ExactPass
from ..video.sink import Sink
from .source import Onward
from .strips import run_strips

WINDOW = 16  # frames


def in_windows(coder: Coder, latent: Tensor, row: Row, onward: Onward, decode: Callable[..., Any]) -> None:
    """Decodes a latent from its first frame to its last.

    Args:
        latent: (1, C, T, h, w), prepared, in host memory: a video, or the end of one.
        onward: takes the frames; it stands where the latent begins.
        decode: the module's own way, of a latent and an ``output_buffer`` that takes its frames.

    Raises:
        BudgetTooSmall, CannotBeExact, OOM_EXCEPTION: see :func:`run_strips`.
    """
    coder.room.make(0)
    exact, model = coder.strips.exact_pass(latent, row), coder.geometry.vae.first_stage_model
    exact.along, exact.frames = "frames", WINDOW
    begun = onward.at

    def module(x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        decode(x, output_buffer=Sink(kept.append))
        if len(kept) != 1:
            raise CannotRecord("the module cuts its frames into chunks")
        return kept[0]

    def code(run: ExactRun) -> Tensor:
        onward.begin(begun)
        # In one piece as it is recorded: the windows are cut by their own plan, whatever the card.
        with replaced(sys.modules[type(model).__module__], LARGEST, lambda *_: 2**62):
            run.stream(onward.take, module, _on_device(exact, latent, run))
        return latent

    run_strips(coder, exact, code, latent, row)


def _on_device(exact: ExactPass, latent: Tensor, run: ExactRun) -> Tensor:
    """All of the latent; a copy counts in the run's budget."""
    x = latent.to(device=exact.vae.device, dtype=exact.vae.vae_dtype)
    if x is not latent:
        run.beside = [*run.beside, x.nbytes]
    return x
