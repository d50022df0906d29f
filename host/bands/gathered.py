"""An encode or decode whose bands a crew computes: in the place of a run of the engine's on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ...memory.accelerator import random_numbers
from ...memory.units import format_bytes
from ...vae.exact import CannotRecord, DoesNotFit, ExactRun, StoreOverflow
from ...vae.exact.bands.talk import HOST
from .crew import Crew, CrewReport, Task
from .devices import DeviceCrew
from .named import DEVICES, cluster_named
from .work import dim_of


@dataclass
class BandedPass:
    """What all slices of a batch share.

    Attributes:
        vae: the host's VAE.
        crew: who computes.
        half_store: maps are kept in float16.
        rows: of the result in a strip; 0 = by the budget.
        notice: tells of what went otherwise.
        report: of the last slice.
    """

    vae: Any
    crew: Crew
    half_store: bool
    rows: int
    notice: Callable[[str], None]
    report: CrewReport = field(default_factory=CrewReport)

    def run(self, call: Callable[[ExactRun], Tensor], on_strip: Callable[[float, Tensor | None], None]) -> Tensor:
        """Has the crew compute a slice.

        Args:
            call: runs the module by the given run.
            on_strip: see :class:`ExactRun`.

        Raises:
            DoesNotFit, CannotRecord, OOM_EXCEPTION, RuntimeError: as :meth:`.crew.Crew.compute`.
        """
        taken: Any = GatheredRun(self, on_strip)
        draw_again = random_numbers(self.vae.device)
        try:
            return call(taken)
        except StoreOverflow as error:
            self.half_store = False
            self.notice(f"{error}: stored in full precision instead")
            draw_again()
            return call(taken)

    def task(self, method: str, x: Tensor, options: dict[str, Any], on_share: Callable[[float], None]) -> Task:
        """For the crew.

        Args:
            method: of the VAE's module.
            x: prepared, (B, C, [T,] H, W).
        """
        vae = self.vae
        return Task(
            vae.first_stage_model,
            method,
            vae.device,
            x.to(HOST),
            vae.vae_dtype,
            options,
            self.half_store,
            self.rows,
            on_share,
            self.notice,
        )

    def describe(self) -> Iterator[str]:
        """What ran, for the report."""
        kind = "near-exact, float16 store" if self.half_store else "exact"
        received = format_bytes(self.report.measured)
        yield f"{kind}: bands of {len(self.report.lines)} workers, {received} from each other"
        yield from self.report.lines


class GatheredRun:
    """Passes for an :class:`ExactRun` where a module is run: its bands are computed by a crew, and put together here.

    Attributes:
        beside: as an :class:`ExactRun` has it; of no use here.
    """

    def __init__(self, shared: BandedPass, on_strip: Callable[[float, Tensor | None], None]) -> None:
        self.shared, self.on_strip = shared, on_strip
        self.beside: list[int] = []

    def run(
        self, module: Callable[..., Any], x: Tensor, *, output_buffer: Tensor | None = None, **options: Any
    ) -> Tensor:
        """The result of a method of the VAE's module, (B, C, [T,] H, W) in float32 on the VAE's output device.

        Args:
            output_buffer: what the result is written into.
        """
        shared = self.shared
        task = shared.task(module.__name__, x, options, self._tell)
        bands, shared.report = self._computed(task)
        dim, device = dim_of(shared.report.way), shared.vae.output_device
        if output_buffer is None:
            shape = list(bands[0].shape)
            shape[dim] = sum(band.shape[dim] for band in bands)
            output_buffer = torch.empty(shape, dtype=torch.float32, device=device)
        first = 0
        while bands:
            band = bands.pop(0)
            output_buffer.narrow(dim, first, band.shape[dim]).copy_(band)
            first += band.shape[dim]
        return output_buffer

    def _computed(self, task: Task) -> tuple[list[Tensor], CrewReport]:
        """In bands of rows; a video for which these have no room, since they hold some rows of every frame, in bands of
        frames, if all of it can be followed so and fits."""
        crew, draw_again = self.shared.crew, random_numbers(task.device)
        try:
            return crew.compute(task)
        except DoesNotFit as error:
            if task.x.ndim < 5 or task.x.shape[0] > 1 or task.x.shape[2] < 2:
                raise
            draw_again()
            try:
                return crew.compute(replace(task, along="frames"))
            except CannotRecord:
                raise error from None
            except DoesNotFit as other:
                raise DoesNotFit(min(error.least, other.least)) from None

    def _tell(self, share: float) -> None:
        self.on_strip(share, None)


def crew_for(name: str, vae: Any, limit_gb: float, weights: int, make: Callable[[float], None]) -> Crew:
    """The crew of a name: this machine's devices, or a cluster that the server's owner has named.

    Args:
        limit_gb: bytes of each of this machine's devices, weights included; 0 = its total minus the host's reserve.
        weights: bytes of the VAE's.
        make: has the host free so many bytes on the VAE's device, beside the weights.

    Raises:
        ValueError: there is none; the sentence says what to do.
    """
    if name == DEVICES:
        return DeviceCrew.of(vae.device, limit_gb, weights, make)
    from .cluster import crew_of

    return crew_of(cluster_named(name))
