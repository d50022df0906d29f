"""Strips whose result is handed on, with the VAE nodes' own errors where they cannot be had."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ...memory import Row
from ...vae.exact import DoesNotFit, ExactRun
from ..vae.coding import Coder
from ..vae.room import NoRoom, NotExact
from ..vae.strips import ExactPass


def run_strips(coder: Coder, exact: ExactPass, code: Callable[[ExactRun], Tensor], x: Tensor, row: Row) -> None:
    """Runs a video by the exact engine, in the weights' presence, and writes what ran into its row.

    Args:
        coder: of a VAE whose method is exact.
        exact: how it is cut.
        code: runs the module by a run that is given; called again with less memory.
        x: the prepared input.

    Raises:
        BudgetTooSmall, CannotBeExact, OOM_EXCEPTION: strips cannot be had.
    """
    try:
        exact.run(code, coder.geometry.watch(1).on_strip)
    except NotExact as error:
        coder.fallback.unrecorded(error, row)
    except DoesNotFit as error:
        coder.fallback.does_not_fit(error, x, row)
    except NoRoom as error:
        coder.fallback.no_room(error, x, row)
    row.lines[:] = coder.strips.describe(exact)
    row.predicted = coder.strips.planned(x, exact)
