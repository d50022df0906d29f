"""One encode or decode of a slice of a batch by the exact engine, within the host's memory."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import comfy.model_management as model_management
import torch
from torch import Tensor

from ..memory import Row
from ..memory.report import format_bytes
from ..vae.exact import CannotRecord, DoesNotFit, ExactRun, FollowedRun, PlannedRun, Report, Schedule, StoreOverflow
from .compat import is_out_of_memory
from .vae_attention import attend

log = logging.getLogger(__name__)
Run = TypeVar("Run", bound=ExactRun)


class NotExact(Exception):
    """The exact method cannot be had; the message says why."""


@dataclass
class ExactPass:
    """What all slices of a batch share.

    Attributes:
        vae: the host's VAE.
        budget: bytes for the work on its device, weights not counted.
        store: dtype of stored maps, None = their own.
        rows: rows of the output in a strip, 0 = by the budget.
        row: of the run log.
        plans: what was planned for a shape, so that an equal slice need not be planned again.
        report: of the last slice that ran.
        planned: peak of the last schedule, whether or not memory sufficed.
    """

    vae: Any
    budget: float
    store: torch.dtype | None
    rows: int
    row: Row
    plans: dict[Any, Any] = field(default_factory=dict)
    report: Report | None = None
    planned: float = float("inf")

    def run(self, call: Callable[[ExactRun], Tensor], on_strip: Callable[[float, Tensor | None], None]) -> Tensor:
        """Runs a slice, with less memory if it runs out.

        Args:
            call: runs the module by the given run.
            on_strip: see :class:`ExactRun`.

        Raises:
            NotExact: strips cannot follow this module, or memory ran out on the last rung.
            DoesNotFit: the budget is too small, known before any work.
        """
        budgets = self._rungs()
        budget, offload = next(budgets)
        while True:
            run: ExactRun = self._prepared(budget, offload, on_strip)
            try:
                out = call(run)
                break
            except StoreOverflow as error:
                self.store = None
                self._notice(f"{error}: stored in full precision instead")
                continue
            except DoesNotFit:
                if budget == self.budget:
                    raise
            except CannotRecord as error:
                raise NotExact(str(error)) from error
            except model_management.InterruptProcessingException:
                raise
            except Exception as error:  # the module's own errors come again from the fallback, which runs it plainly
                if not is_out_of_memory(error):
                    log.debug("Headroom: the exact method stopped", exc_info=True)
                    raise NotExact(f"{type(error).__name__}: {error}") from error
            # Outside the handlers: the exception held every tensor of the failed run.
            run.close()
            self.rows = 0  # the height that was asked for gives way
            model_management.soft_empty_cache()
            rung = next(budgets, None)
            if rung is None:
                raise NotExact("out of memory with the lowest strips")
            budget, offload = rung
            self._notice(
                "out of memory: tried again "
                + ("with stored maps in host memory" if offload else f"within {format_bytes(int(budget))}")
            )
        self.report = run.report
        return out

    def plan(self, call: Callable[[ExactRun], Tensor]) -> int:
        """Bytes of a slice at its peak, as planned: for a VAE without data, nothing is computed.

        Raises:
            NotExact, DoesNotFit: as for :meth:`run`.
        """
        return self._without_data(call, PlannedRun).report.peak

    def follow(self, call: Callable[[ExactRun], Tensor]) -> int | None:
        """Goes through the passes that take most, for a tracker to see.

        Returns:
            The highest planned peak of the passes that were left out: a tracker that saw as much saw the highest. None
            where there are too many.
        """
        return self._without_data(call, FollowedRun).left

    def _without_data(self, call: Callable[[ExactRun], Tensor], kind: type[Run]) -> Run:
        run: Run = self._prepared(self.budget, False, lambda done, out: None, kind)
        try:
            call(run)
        except CannotRecord as error:
            raise NotExact(str(error)) from error
        finally:
            run.close()
        return run

    def _rungs(self) -> Iterator[tuple[float, bool]]:
        """Budgets to try one after the other, and whether stored maps lie in host memory."""
        yield self.budget, False
        budget = self.budget
        for _ in range(3):
            budget = min(budget, self.planned) / 2
            yield budget, False
        if self.vae.device.type != "cpu":
            yield self.budget, True

    def _prepared(
        self,
        budget: float,
        offload: bool,
        on_strip: Callable[[float, Tensor | None], None],
        kind: type[Run] = ExactRun,  # type: ignore[assignment]
    ) -> Run:
        return kind(
            budget,
            store=self.store,
            rows=self.rows,
            out_device=self.vae.output_device,
            out_dtype=torch.float32,
            on_strip=on_strip,
            on_plan=self._ask_host,
            attend=attend,
            owned=list(self.vae.first_stage_model.parameters()),
            offload=offload,
            plans=self.plans,
        )

    def _ask_host(self, schedule: Schedule) -> None:
        """The host frees what the strips need; the weights are there already."""
        self.planned = schedule.peak
        model_management.load_models_gpu([self.vae.patcher], memory_required=schedule.peak, force_full_load=True)

    def _notice(self, text: str) -> None:
        self.row.notices.append(text)
        log.warning("Headroom: %s", text)

    def describe(self) -> Iterator[str]:
        """What ran, for the report."""
        report = self.report
        if report is None or not report.schedules:
            return
        schedule = max(report.schedules, key=lambda one: one.peak)
        passes = sum(len(one.passes) for one in report.schedules)
        near = self.store is not None
        kind = "near-exact, float16 store" if near else "exact"
        yield f"{kind}: {report.strips} strips in {passes} passes, planned peak {format_bytes(report.peak)}"
        if schedule.choice.recomputed:
            yield f"{len(schedule.choice.recomputed)} maps computed again instead of stored"
        if report.host_peak:
            yield f"stored maps in host memory, {format_bytes(report.host_peak)}"
        if report.materialised:
            named = ", ".join(f"{name} x{count}" for name, count in sorted(Counter(report.materialised).items()))
            yield f"whole maps, beyond the plan, for: {named}"
