"""An encode or decode in strips: each slice of the batch by the exact engine, within the host's memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from comfy import model_management
from torch import Tensor

from ...memory import Row
from ...memory.accelerator import random_numbers
from ...memory.link import link_speed
from ...memory.prediction import Prediction, Workspaces
from ...memory.units import format_bytes
from ...vae.exact import (
    CannotRecord,
    DoesNotFit,
    ExactRun,
    FollowedRun,
    Hold,
    PlannedRun,
    Report,
    Schedule,
    StoreOverflow,
    UnbrokenRun,
)  # fmt: skip
from ...vae.exact.engine import zeros
from ...vae.exact.planning.card import figures_of
from ...vae.exact.planning.device import Figures
from ...vae.exact.planning.remembered import remembered
from ...vae.exact.planning.workspace import BY_RULE, ConvolutionWorkspace
from ..attention.in_vae import attend
from ..bands.gathered import BandedPass
from ..chunks.chunks import Chunks
from ..chunks.families import strips_of
from ..core.compat import is_out_of_memory
from ..measure.calibrated import in_strips, workspaces_on
from ..measure.runs import notice
from ..video.along import ALONG, OUTSIDE, described, first_way, is_chunked, maker_of, others
from .geometry import Geometry
from .room import NoRoom, NotExact, Room, Rungs, free_others, give_back

NARROWER = 0.9  # of what memory ran out with, for another way that is to need less
Run = TypeVar("Run", bound=ExactRun)


class StripCoder:
    """Encodes or decodes a batch in strips of rows: the result of one piece, up to float rounding. ``workspaces``: what
    kernels hold inside on the VAE's device; None: as it was measured there, or documented."""

    def __init__(self, geometry: Geometry, room: Room, workspaces: Workspaces | None = None) -> None:
        self.geometry, self.room, self.vae, self.workspaces = geometry, room, geometry.vae, workspaces

    def run(self, x: Tensor, exact: ExactPass | BandedPass) -> Tensor:
        """All slices of a prepared input, with the weights on the device; raises as :meth:`ExactPass.run` does."""
        geometry, preview = self.geometry, self.geometry.watch(self.geometry.slices(x))

        def code(part: Tensor) -> Tensor:
            out = exact.run(partial(geometry.recorded, x=part), preview.on_strip)
            preview.slice_done(out)
            return out

        return geometry.by_slices(x, code)

    def exact_pass(self, x: Tensor, row: Row) -> ExactPass:
        """What the slices of a batch share, with what their results leave of the budget."""
        geometry, dtype, gathered = self.geometry, self.vae.vae_dtype, self.gathered_bytes(x)
        module, one_video = self.vae.first_stage_model, x.ndim == 5 and x.shape[2] > 1
        one_video = one_video and min(x.shape[0], geometry.slice_step(x)) == 1
        chunks = strips_of(module, geometry.direction) if one_video else None
        half = torch.float16 if geometry.settings.store == "float16" and dtype.itemsize > 2 else None
        workspace = in_strips(workspaces_on(self.vae.device) if self.workspaces is None else self.workspaces)
        return ExactPass(
            self.vae, self.room.for_work() - gathered, half, geometry.strip_rows(), row, self.room.make, gathered,
            one_video, chunks, workspace, geometry.result, geometry.hold if geometry.holds_on_disk else None,
            along=first_way(chunks), plans=remembered(module),
        )  # fmt: skip

    def gathered_bytes(self, x: Tensor) -> int:
        """Bytes that the results of all slices take on the VAE's device. A single slice's is counted by the engine."""
        several = x.shape[0] > self.geometry.slice_step(x)
        gathers = several and self.vae.output_device.type == self.vae.device.type
        return self.geometry.output_bytes(x) if gathers else 0

    def planned(self, x: Tensor, exact: ExactPass) -> Prediction | None:
        """What the strips that ran had planned to stay within; None where nothing was planned."""
        if exact.report is None:
            return None
        peak = exact.report.peak + self.gathered_bytes(x)
        return Prediction.of_plan(int(self.vae.patcher.model_size()), peak, "strips, as planned")

    def describe(self, exact: ExactPass) -> Iterator[str]:
        """What ran, for the report."""
        yield f"budget {format_bytes(self.room.budget())}"
        yield from exact.describe()
        if self.geometry.adds_noise:
            yield "this VAE adds noise of its own, by the host's random numbers, as untiled it would"


@dataclass
class ExactPass:
    """What all slices of a batch share.

    Attributes:
        vae: the host's VAE.
        budget: bytes for the work on its device, weights not counted.
        store: dtype of stored maps, None = their own.
        rows: rows of the output in a strip, 0 = by the budget. row: of the run log.
        load: has the host bring the weights, and free this many bytes beside them.
        gathered: bytes of all slices' results on the device, which the budget leaves out.
        has_frames: slices are videos of several frames, one each, which can be cut along these.
        chunks: in which the host itself would run such a video, with a cache between them.
        workspace: what convolutions hold inside on a CUDA card.
        new: makes what the result is gathered in.
        hold: makes room on disk for maps of all frames that are no result; None: they lie in memory.
        frames: of the result in a window, where it is cut along frames; 0 = by the budget.
        along: what strips are cut along, see :data:`..video.along.ALONG`.
        handed_on: frames are taken chunk by chunk as they come.
        plans: what was planned for a shape, so that an equal slice, or later run, need not be planned again.
        report: of the last slice that ran.
        planned: peak of the last schedule, whether or not memory sufficed.
        flops: operations of a slice as planned, what is computed again included.
    """

    vae: Any
    budget: float
    store: torch.dtype | None
    rows: int
    row: Row
    load: Callable[[float], None]
    gathered: int = 0
    has_frames: bool = False
    chunks: type[Chunks] | None = None
    workspace: ConvolutionWorkspace = BY_RULE
    new: Callable[..., Tensor] = zeros
    hold: Hold | None = None
    frames: int = 0
    along: str = "rows"
    handed_on: bool = False
    plans: dict[Any, Any] = field(default_factory=dict)
    report: Report | None = None
    planned: float = float("inf")
    flops: float = 0.0

    def run(self, call: Callable[[ExactRun], Tensor], on_strip: Callable[[float, Tensor | None], None]) -> Tensor:
        """Runs a slice, with less memory if it runs out.

        Args:
            call: runs the module by the given run.
            on_strip: see :class:`ExactRun`.

        Raises:
            NotExact: strips cannot follow this module.
            DoesNotFit: the budget is too small, known before any work.
            NoRoom: memory ran out on the last rung.
        """
        rungs, draw_again = Rungs(self.budget), random_numbers(self.vae.device)
        while True:
            draw_again()  # the noise of a VAE that adds some is that of the untiled run, however often this begins anew
            run: ExactRun = self._prepared(rungs.budget, on_strip)
            least = None
            try:
                out, self.report = call(run), run.report
                return out
            except StoreOverflow as error:
                self.store = None
                notice(self.row, f"{error}: stored in full precision instead")
                continue
            except DoesNotFit as error:
                if not rungs.failures:
                    self._turn_to_frames(call, error, self.budget)
                    continue
                least = error.least
            except CannotRecord as error:
                raise NotExact(str(error)) from error
            except Exception as error:  # anything but a failure to allocate goes on
                if not is_out_of_memory(error):
                    raise
            finally:
                run.close()  # also on the way out: what is stored holds itself
            # Outside the handlers: the exception held every tensor of the failed run.
            del run
            give_back()
            if least is not None:
                rungs.rise_to(least)
            else:
                self._climb_down(rungs, call)

    def _turn_to_frames(self, call: Callable[[ExactRun], Tensor], error: DoesNotFit, budget: float) -> None:
        """Strips of rows hold a few rows of every frame, so that a long video has no room for them: from now on in
        chunks of frames, where the host has some, or cut along frames, if all of it can be followed so and fits.

        Args:
            budget: to fit.

        Raises:
            DoesNotFit: none fits; with the least of all, and what is gathered.
        """
        least, was = error.least, self.along
        of_kind = self.chunks, self.vae.device, self._figures().link, self.handed_on
        for way in others(was, *of_kind) if self.has_frames else ():
            self.along = way
            try:
                self.without_data(call, UnbrokenRun, budget)
                return
            except DoesNotFit as other:
                least = min(least, other.least)
            except NotExact:
                pass
        self.along = was
        raise DoesNotFit(least + self.gathered) from error

    def _climb_down(self, rungs: Rungs, call: Callable[[ExactRun], Tensor]) -> None:
        """After a failure to allocate. Raises :class:`NoRoom` where no rung is left, in no other way either."""
        if rungs.failures == 0 and free_others(self.vae.patcher):
            rungs.failures = 1
            notice(self.row, "out of memory: tried again without the other models on the device")
            return
        self.rows = self.frames = 0  # the height that was asked for gives way
        if rungs.lower(self.planned):
            notice(self.row, "out of memory: tried again with lower strips")
            return
        planned = self.planned  # plans of other ways have their own
        if math.isinf(planned):  # it ran out before anything was planned
            raise NoRoom(planned)
        try:
            self._turn_to_frames(call, DoesNotFit(int(planned)), NARROWER * planned)
        except DoesNotFit:
            raise NoRoom(planned) from None
        rungs.begin_with(NARROWER * planned)
        aside = ", what is kept from chunk to chunk in host memory" if self.along == OUTSIDE else ""
        notice(self.row, f"out of memory: tried again in {ALONG[self.along]}{aside}")

    def plan(self, call: Callable[[ExactRun], Tensor]) -> int:
        """Bytes of a slice at its peak, as planned: for a VAE without data, nothing is computed.

        Raises:
            NotExact, DoesNotFit: as for :meth:`run`.
        """
        try:
            report = self.without_data(call, PlannedRun).report
        except DoesNotFit as error:
            self._turn_to_frames(call, error, self.budget)
            report = self.without_data(call, PlannedRun).report
        self.flops = sum(schedule.flops for schedule in report.schedules)
        return report.peak

    def follow(self, call: Callable[[ExactRun], Tensor]) -> int | None:
        """Goes through the passes that take most, for a tracker to see.

        Returns:
            The highest planned peak of the passes that were left out: a tracker that saw as much saw the highest. None
            where there are too many.
        """
        return None if is_chunked(self.along) else self.without_data(call, FollowedRun).left

    def without_data(self, call: Callable[[ExactRun], Tensor], kind: type[Run], budget: float | None = None) -> Run:
        """A run of a kind that computes nothing; ``budget``: where it is another than that of the pass."""
        run: Run = self._prepared(self.budget if budget is None else budget, lambda done, out: None, kind)
        try:
            call(run)
        except CannotRecord as error:
            raise NotExact(str(error)) from error
        finally:
            run.close()
        return run

    def _prepared(
        self,
        budget: float,
        on_strip: Callable[[float, Tensor | None], None],
        kind: type[Run] = ExactRun,  # type: ignore[assignment]
    ) -> Run:
        rows = self.rows if self.along == first_way(self.chunks) else 0
        return maker_of(kind, self.chunks, self.vae.first_stage_model, self.along, self.hold)(
            budget, store=self.store, rows=self.frames if self.along == "frames" else rows,
            along="frames" if self.along == "frames" else "rows", out_device=self.vae.output_device,
            out_dtype=torch.float32, on_strip=on_strip,
            on_search=model_management.throw_exception_if_processing_interrupted, on_plan=self._ask_host, attend=attend,
            owned=[*self.vae.first_stage_model.parameters(), *self.vae.first_stage_model.buffers()], plans=self.plans,
            figures=self._figures(), new=self.new,
        )  # fmt: skip

    def _figures(self) -> Figures:
        return figures_of(self.vae.device, link_speed(self.vae.device), self.workspace)

    def _ask_host(self, schedule: Schedule) -> None:
        """The host frees what the strips need; the weights are there already."""
        self.planned = schedule.peak
        self.load(schedule.peak)

    def describe(self) -> Iterable[str]:
        """What ran, for the report."""
        return () if self.report is None else described(self.report, self.along, self.store)
