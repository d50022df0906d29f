"""An encode or decode whose bands a crew computes: in the place of a run of the engine's on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...memory.accelerator import random_numbers
from ...memory.units import format_bytes
from ...vae.exact import ExactRun, StoreOverflow
from .crew import Crew, CrewReport, Task
from .devices import DeviceCrew
from .named import DEVICES, cluster_named

HOST = torch.device("cpu")


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
        task = Task(
            shared.vae.first_stage_model,
            module.__name__,
            shared.vae.device,
            x.to(HOST),
            shared.vae.vae_dtype,
            options,
            shared.half_store,
            shared.rows,
            self._tell,
            shared.notice,
        )
        bands, shared.report = shared.crew.compute(task)
        device = shared.vae.output_device
        if output_buffer is None:
            shape = list(bands[0].shape)
            shape[-2] = sum(band.shape[-2] for band in bands)
            output_buffer = torch.empty(shape, dtype=torch.float32, device=device)
        first = 0
        for band in bands:
            output_buffer[..., first : first + band.shape[-2], :].copy_(band)
            first += band.shape[-2]
        return output_buffer

    def _tell(self, share: float) -> None:
        self.on_strip(share, None)


def crew_for(name: str, vae: Any, limit_gb: float, weights: int) -> Crew:
    """The crew of a name: this machine's devices, or a cluster that the server's owner has named.

    Args:
        limit_gb: bytes of each of this machine's devices, weights included; 0 = its total minus the host's reserve.
        weights: bytes of the VAE's.

    Raises:
        ValueError: there is none; the sentence says what to do.
    """
    if name == DEVICES:
        return DeviceCrew.of(vae.device, limit_gb, weights)
    from .cluster import crew_of

    return crew_of(cluster_named(name))
