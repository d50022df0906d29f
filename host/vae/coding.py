"""One encode or decode of a batch: the method is chosen, the work done, and measured into the run log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol, TypeVar

from torch import Tensor

from ...memory import Row
from ...memory.prediction import Workspaces
from ...vae import Direction, TilePlan
from ...vae.exact import CannotRecord, DoesNotFit
from ..bands.gathered import BandedPass, crew_for
from ..bands.named import DEVICES
from ..core.compat import device_context, show_on_node
from ..measure.questions import coding_question
from ..measure.runs import Following, measured, notice
from .fallback import Fallback
from .geometry import Geometry
from .room import NoRoom, NotExact, Room, give_back
from .strips import StripCoder
from .tiles import TileCoder

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Ways(Protocol[T_co]):
    """The three ways to code a prepared input: done by :class:`Coder`, foretold by ``host/prediction/vae.py``."""

    def in_one_piece(self, x: Tensor, whole: TilePlan, row: Row) -> T_co | None:
        """What fits as a whole, by the host's estimate; None where memory ran out nevertheless."""

    def in_strips(self, x: Tensor, row: Row) -> T_co:
        """By the exact engine. Raises NotExact, DoesNotFit, NoRoom."""

    def in_tiles(self, x: Tensor, row: Row) -> T_co:
        """By feathered tiles, if need be by a single one."""


class Coder:
    """One encode or decode of a batch by a low-memory VAE's settings.

    Args:
        workspaces: as of :class:`StripCoder`.

    Attributes:
        geometry: the direction.
        room: on the VAE's device.
        strips, tiles: what codes.
        fallback: from strips to tiles.
    """

    def __init__(self, geometry: Geometry, workspaces: Workspaces | None = None) -> None:
        self.geometry = geometry
        self.room = Room(geometry.vae, geometry.settings.vram_budget_gb)
        self.strips = StripCoder(geometry, self.room, workspaces)
        self.tiles = TileCoder(geometry, self.room)
        self.fallback = Fallback(geometry, self.room, self.tiles)

    def run(self, x: Tensor) -> Tensor:
        """Codes a batch, and writes a row of the run log.

        Args:
            x: as the host's VAE takes it: latents (B, C, [T,] h, w), or pixels (B, H, W, C).

        Returns:
            As the host's VAE gives it: pixels (B, [T,] H, W, C), or latents (B, C, [T,] h, w).

        Raises:
            ValueError: an input that does not fit the VAE, a budget that is too small, strips that are not possible.
            OOM_EXCEPTION: the host's out-of-memory error, where no allowed method had enough.
        """
        asked, x = x, self.geometry.prepare(x)
        vae, direction = self.geometry.vae, self.geometry.direction
        device = vae.device
        with measured(direction.value, device) as row, Following(row, device) as following, device_context(device):
            row.question = coding_question(vae, asked, encodes=direction is Direction.ENCODE)
            self.room.aside = following.loading
            following.begin(vae.first_stage_model, given=[asked])
            out = self.by_method(x, row, self)
            for text in row.notices:
                show_on_node(text)
        return self.geometry.finish(out)

    def by_method(self, x: Tensor, row: Row, ways: Ways[T]) -> T:
        """A prepared input by the method of the settings: under auto in one piece if that fits, else in strips, else in
        tiles, each of them if the one before cannot be had; notices of the row say why.

        Raises:
            BudgetTooSmall, CannotBeExact, OOM_EXCEPTION: see :class:`Fallback`.
        """
        method = self.geometry.settings.method
        if method == "auto" and not self.geometry.settings.workers:
            whole = self.tiles.plan_whole(x)
            if whole.fits and (done := ways.in_one_piece(x, whole, row)) is not None:
                return done
        if method != "feathered":
            try:
                return ways.in_strips(x, row)
            except NotExact as error:
                self.fallback.unrecorded(error, row)
            except DoesNotFit as error:
                self.fallback.does_not_fit(error, x, row)
            except NoRoom as error:
                self.fallback.no_room(error, x, row)
        return ways.in_tiles(x, row)

    def in_one_piece(self, x: Tensor, whole: TilePlan, row: Row) -> Tensor | None:
        """A prepared input as a whole; None where memory ran out."""
        out = self.tiles.run_whole(x, whole, row)
        if out is not None:
            row.lines += self.tiles.describe(whole)
        return out

    def in_strips(self, x: Tensor, row: Row) -> Tensor:
        """A prepared input in exact strips, in the weights' presence: what is planned is for beside them.

        Raises:
            NotExact, DoesNotFit, NoRoom: strips cannot be had.
        """
        if self.geometry.settings.workers:
            return self._in_bands(x, row)
        self.room.make(0)
        exact = self.strips.exact_pass(x, row)
        with self.room.staying():
            out = self.strips.run(x, exact)
        row.lines += self.strips.describe(exact)
        row.predicted = self.strips.planned(x, exact)
        return out

    def _in_bands(self, x: Tensor, row: Row) -> Tensor:
        """A prepared input in bands of several workers."""
        with self.banded(row) as banded:
            try:
                out = self.strips.run(x, banded)
            except CannotRecord as error:
                raise NotExact(str(error)) from error
            row.lines += banded.describe()
        return out

    @contextmanager
    def banded(self, row: Row) -> Iterator[BandedPass]:
        """What slices that several workers compute share, with the weights on the first of this machine's devices.

        Raises:
            ValueError: there are no workers of that name.
            NoRoom, OOM_EXCEPTION: as of :meth:`Room.staying`.
        """
        settings, vae = self.geometry.settings, self.geometry.vae
        weights, are_here = self.room.weights(), settings.workers == DEVICES
        if are_here:
            self.room.make(0)
        crew = crew_for(settings.workers, vae, settings.vram_budget_gb, weights, self.room.make)
        half = settings.store == "float16" and vae.vae_dtype.itemsize > 2
        with self.room.staying() if are_here else nullcontext():
            yield BandedPass(vae, crew, half, self.geometry.strip_rows(), lambda text: notice(row, text))

    def in_tiles(self, x: Tensor, row: Row) -> Tensor:
        """A prepared input in feathered tiles."""
        if self.geometry.settings.method != "feathered":
            give_back()  # what strips that could not be had have left
        out, plan = self.tiles.run(x, row)
        row.lines += self.tiles.describe(plan)
        if not plan.fits:
            row.notices.append(
                f"even these tiles are estimated above the budget: raise {self.geometry.settings.budget_name}, or set a"
                " smaller tile_size or temporal_size"
            )
        return out
