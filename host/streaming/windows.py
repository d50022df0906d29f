"""Videos in exact windows of frames, each window's frames handed on: memory that does not grow with the video, where
the decoder can be followed from end to end without anything that asks for the whole of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from ...memory import Row
from ...vae.exact import DoesNotFit, ExactRun, UnbrokenRun
from ..vae.coding import Coder
from ..vae.room import NotExact
from ..vae.strips import ExactPass
from .source import Onward
from .strips import run_strips

WINDOW = 16  # frames


def windows_of(coder: Coder, latent: Tensor, row: Row) -> ExactPass:
    """The strips of a video, cut along frames.

    Args:
        latent: (1, C, T, h, w), prepared, in host memory.
        row: of the run log.
    """
    coder.room.make(0)
    exact = coder.strips.exact_pass(latent, row)
    exact.along, exact.frames = "frames", WINDOW
    return exact


def are_followed(coder: Coder, latent: Tensor, row: Row) -> bool:
    """Whether windows hold nothing but their own frames and those that the next ones need, and fit: for a decoder whose
    norms and attention keep to single frames. Nothing is computed."""
    exact, passes = windows_of(coder, latent, row), 0

    def code(run: ExactRun) -> Tensor:
        nonlocal passes
        run.stream(lambda frames: None, exact.vae.first_stage_model.decode, _on_device(exact, latent, run))
        passes = run.report.passes
        return latent

    for frames in (WINDOW, 0):
        exact.frames = frames
        try:
            exact.without_data(code, UnbrokenRun)
            return passes == 1
        except NotExact:
            return False
        except DoesNotFit:
            continue
    return False


def in_windows(
    coder: Coder,
    latent: Tensor,
    row: Row,
    onward: Onward,
    module: Callable[[Tensor], Tensor],
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Decodes a video from its beginning.

    Args:
        onward: takes the frames.
        module: decodes a latent in one piece.
        around: what recording happens in.

    Raises:
        BudgetTooSmall, CannotBeExact, OOM_EXCEPTION: see :func:`run_strips`.
    """
    exact = windows_of(coder, latent, row)

    def code(run: ExactRun) -> Tensor:
        onward.begin(0)
        with around():
            run.stream(onward.take, module, _on_device(exact, latent, run))
        return latent

    run_strips(coder, exact, code, latent, row)


def _on_device(exact: ExactPass, latent: Tensor, run: ExactRun) -> Tensor:
    """All of the latent; a copy counts in the run's budget."""
    x = latent.to(device=exact.vae.device, dtype=exact.vae.vae_dtype)
    if x is not latent:
        run.beside = [*run.beside, x.nbytes]
    return x
