"""Where exact strips cannot be had: whether feathered tiles may take their place, or which error says what helps."""

from __future__ import annotations

import math

from torch import Tensor

from ...memory import Row
from ...vae.exact import DoesNotFit
from ..core.compat import out_of_memory_kind
from ..measure.runs import notice
from .geometry import Geometry
from .room import NoRoom, NotExact, Room, gigabytes
from .tiles import TileCoder


class BudgetTooSmall(ValueError):
    """A budget below the least that works.

    Attributes:
        least: bytes, weights included.
    """

    def __init__(self, least: float, text: str) -> None:
        super().__init__(text)
        self.least = least


class CannotBeExact(ValueError):
    """Strips cannot follow a module, and nothing else was allowed."""


class Fallback:
    """From strips to tiles: a method for each cause, which returns where tiles may follow and raises otherwise.

    Args:
        geometry: the direction.
        room: on the VAE's device.
        tiles: what would follow.
    """

    def __init__(self, geometry: Geometry, room: Room, tiles: TileCoder) -> None:
        self.geometry, self.room, self.tiles = geometry, room, tiles
        self.settings = geometry.settings
        self.can_store = self.settings.store != "float16"  # there is a store to be set, and it would help

    def unrecorded(self, error: NotExact, row: Row) -> None:
        """Strips cannot follow the module. Under auto, one piece has been found too large by now.

        Raises:
            CannotBeExact: the method is exact.
        """
        if self.settings.method != "auto":
            raise CannotBeExact(
                f"method: exact strips cannot follow this VAE ({error}); set method to auto, which decodes in one piece"
                " where that fits and else in feathered tiles (approximate), or to feathered"
            ) from error
        notice(row, f"feathered (approximate), because exact strips are not possible: {error}")

    def does_not_fit(self, error: DoesNotFit, x: Tensor, row: Row) -> None:
        """The least strips of a prepared input do not fit the budget. Tiles follow if they do fit, or, under auto
        without a budget of the user's, in any case: the host's estimate may be too high.

        Raises:
            BudgetTooSmall: with the least budget that works.
        """
        budget = self.room.budget()
        least = error.least + self.room.weights()
        sizes = self._sizes(x)
        advice = ", or set store to float16" if self.can_store else ""
        if self.settings.workers:
            raise BudgetTooSmall(
                least,
                f"workers: {sizes} needs {gigabytes(least, up=True)} of each of {self.settings.workers} at least"
                f" ({self._weights()} included), and one of them has less; name more workers or larger ones{advice}, or"
                " lower the size of the picture",
            )
        if self.settings.method == "auto":
            plan, own = self.tiles.plan(x), self.settings.vram_budget_gb
            if plan.fits or not own:
                there = f"the budget is {gigabytes(budget)}; raise {self.settings.budget_name} for the exact result"
                if not own:
                    there = f"{self.room.vae.device} has {gigabytes(max(0, budget))} beside what ComfyUI reserves"
                needed = f"exact strips of {sizes} need {gigabytes(least, up=True)} at least"
                notice(row, f"feathered (approximate): {needed}, {there}")
                return
            least = min(least, plan.bytes + self.room.weights())
        needed = f"the {gigabytes(least, up=True)} that {sizes} needs at least ({self._weights()} included)"
        if not self.settings.vram_budget_gb:
            raise BudgetTooSmall(
                least,
                f"{self.room.vae.device} has {gigabytes(max(0, budget))} beside what ComfyUI reserves, less than"
                f" {needed}; lower the size of the picture{advice}",
            )
        raise BudgetTooSmall(
            least,
            f"{self.settings.budget_name}: {gigabytes(budget)} is less than {needed}; raise {self.settings.budget_name}"
            f"{advice}, or lower the size of the picture",
        )

    def no_room(self, error: NoRoom, x: Tensor, row: Row) -> None:
        """Memory ran out with the least strips of a prepared input.

        Raises:
            OOM_EXCEPTION: the host's out-of-memory error, with the least, where the method is exact.
        """
        sizes = self._sizes(x)
        if math.isinf(error.least):
            needed = f"there was no room to begin exact strips of {sizes} ({self._weights()})"
        else:
            least = gigabytes(error.least + self.room.weights(), up=True)
            needed = f"exact strips of {sizes} need {least} at least ({self._weights()} included)"
        if self.settings.method == "auto":
            notice(row, f"feathered (approximate), because memory ran out: {needed}")
            return
        raise out_of_memory_kind()(
            f"method: {needed}, and {self.room.vae.device} had less to give: end what else uses it, lower the size of"
            " the picture, or set method to auto, which may go on in feathered tiles"
        )

    def _weights(self) -> str:
        return f"weights {gigabytes(self.room.weights())}"

    def _sizes(self, x: Tensor) -> str:
        return " x ".join(str(size) for size in self.geometry.picture_size(x))
