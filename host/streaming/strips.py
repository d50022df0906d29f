"""By the module itself or in strips: which of them has room, and strips whose result is handed on, with the VAE nodes'
own errors where they cannot be had."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from ...memory import Row
from ...memory.prediction import CannotPredict
from ...memory.units import format_bytes
from ...vae.exact import DoesNotFit, ExactRun
from ..prediction.stages import own_card
from ..prediction.streamed import bytes_a_frame, predict_handed_on
from ..vae.coding import Coder
from ..vae.room import NoRoom, NotExact
from ..vae.strips import ExactPass


def fits_as_module(coder: Coder, x: Tensor, row: Row) -> bool:
    """Whether the module itself has room for a video whose frames are handed on, as predicted; then the host is asked
    to make it, and the row keeps the prediction."""
    vae = coder.geometry.vae
    try:
        found = predict_handed_on(vae, x, coder.geometry.direction, own_card(vae.device))
    except CannotPredict:
        return False
    if found is None or found.activations > coder.room.for_work():
        return False
    row.predicted = found
    coder.room.make(found.activations)
    return True


def growing(coder: Coder, x: Tensor, row: Row) -> Iterator[str]:
    """For the report: what each further frame takes, where something is computed of all of them.

    Args:
        row: with the prediction of this video.
    """
    vae = coder.geometry.vae
    try:
        more = bytes_a_frame(vae, x, coder.geometry.direction, own_card(vae.device), row.predicted)
    except CannotPredict:
        return
    if more:
        yield f"each further frame of {'pixels' if x.shape[1] == 3 else 'the latent'} takes {format_bytes(int(more))}"


def run_strips(coder: Coder, exact: ExactPass, code: Callable[[ExactRun], Tensor], x: Tensor, row: Row) -> None:
    """Runs a video by the exact engine, in the weights' presence, and writes what ran into its row.

    Args:
        coder: of a VAE whose method is exact.
        exact: how it is cut.
        code: runs the module by a run that is given: one that only plans, first, so that what does not fit is refused
            before any work; again with less memory, if that runs out.
        x: the prepared input.

    Raises:
        BudgetTooSmall, CannotBeExact, OOM_EXCEPTION: strips cannot be had.
    """
    try:
        with coder.room.staying():
            _plan(exact, code)
            exact.run(code, coder.geometry.watch(1).on_strip)
    except NotExact as error:
        coder.fallback.unrecorded(error, row)
    except DoesNotFit as error:
        coder.fallback.does_not_fit(error, x, row)
    except NoRoom as error:
        coder.fallback.no_room(error, x, row)
    row.lines[:] = coder.strips.describe(exact)
    row.predicted = coder.strips.planned(x, exact)


def _plan(exact: ExactPass, code: Callable[[ExactRun], Tensor]) -> None:
    """Windows of so many frames as were asked for, else of so many as fit. Raises DoesNotFit."""
    try:
        exact.plan(code)
    except DoesNotFit:
        if not exact.frames:
            raise
        exact.along, exact.frames = "frames", 0  # it had turned to rows, where nothing fits
        exact.plan(code)
