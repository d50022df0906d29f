"""Exact execution of an autoencoder in strips of rows."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .cutting.passes import Analysis, Pass
from .cutting.share import WHOLE
from .explain import explanation
from .operations.graph import Need, Node, ancestors
from .operations.leaves import Held
from .operations.purposes import moments_of
from .planning.choice import PlannedBefore
from .planning.device import Figures
from .planning.planner import Planner
from .planning.schedule import Schedule, flops_of
from .planning.search import Search
from .recording.record import Recorded, Recorder
from .recording.value import CannotRecord
from .report import Report
from .rules import apply
from .runner import PassRunner, Remains, Target
from .running.arena import Arena, Hold
from .running.heap import give_back_free_pages

log = logging.getLogger(__name__)

# A result that goes elsewhere is gathered on the device first, if it takes no more than this share of the largest map:
# to copy each strip would make the host wait.
GATHERED = 1 / 8
STRIPS_BETWEEN_TRIMS = 8  # of the C library's heap: less often it grows further, more often it takes time


PLACES = {"rows": 1, "frames": 2}  # among a map's dims, counted from the last one


class DoesNotFit(Exception):
    """No schedule fits the budget.

    Attributes:
        least: bytes of the one that needs least.
    """

    def __init__(self, least: int) -> None:
        super().__init__(f"the least possible is {least} bytes")
        self.least = least


def attend(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
    """PyTorch's fused attention."""
    return functional.scaled_dot_product_attention(query, key, value, scale=scale)


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A result that is not there yet."""
    return torch.zeros(tuple(shape), dtype=dtype, device=device)


class ExactRun:
    """One run of a module in strips.

    Args:
        budget: bytes on the device: strips, stored maps, output if it is made there, ``beside``. Not the weights.
        store: dtype for stored maps, if narrower than their own; None = their own.
        rows: rows of the output in a strip; 0 = by the budget.
        out_device, out_dtype: of the output; None = as the module makes it.
        on_strip: called before each strip with the share of the work done and, in the last pass, the output so far;
            may raise to stop.
        on_search: called again and again while a schedule is looked for, which may take minutes; may raise to stop.
        on_plan: called with each schedule before it runs.
        attend: (query, key, value, scale) -> Tensor over (..., tokens, channels), exact. It may have a ``beside``,
            (device, dtype, queries, keys, channels, channels of values) -> bytes that it takes beyond its result.
        owned: weights that stay where they are during the run; others, on a GPU, are copied when they are recorded.
        offload: keep stored maps in host memory whatever the budget.
        beside: bytes of each tensor of the caller's that is on the device all along and counts in the budget: a copy of
            the input, what the module writes into.
        plans: what earlier runs decided; used again where module, shape and dtype make the same computation.
        figures: of the device, for the plan; None = those that its driver tells, or the usual ones of its kind.
        new: (shape, dtype, device) -> zeros, for the result.
        along: what strips are cut along: "rows", or "frames" of a (1, C, T, H, W) tensor: then what is said of rows
            here is meant of frames.

    Attributes:
        far: (shape, dtype) -> a tensor in a file: on a CPU stored maps may lie there, whose pages the system writes out
            and reads again; None: in memory only.
    """

    band = WHOLE  # the rows of every map that are computed

    def __init__(
        self,
        budget: float = float("inf"),
        *,
        store: torch.dtype | None = None,
        rows: int = 0,
        out_device: torch.device | None = None,
        out_dtype: torch.dtype | None = None,
        on_strip: Callable[[float, Tensor | None], None] = lambda share, out: None,
        on_search: Callable[[], None] = lambda: None,
        on_plan: Callable[[Schedule], None] = lambda schedule: None,
        attend: Callable[..., Tensor] = attend,
        owned: Iterable[Tensor] = (),
        offload: bool = False,
        beside: Sequence[int] = (),
        plans: dict[Hashable, PlannedBefore] | None = None,
        figures: Figures | None = None,
        new: Callable[[Sequence[int], torch.dtype, torch.device], Tensor] = zeros,
        along: str = "rows",
    ) -> None:
        self.budget, self.store, self.rows, self.offload = budget, store, rows, offload
        self.out_device, self.out_dtype, self.beside = out_device, out_dtype, list(beside)
        self.on_strip, self.on_search, self.on_plan = on_strip, on_search, on_plan
        self.plans = {} if plans is None else plans
        self.figures, self.new = figures, new
        self.far: Hold | None = None
        self.remains = Remains()
        self.report = Report()
        self._explained: list[str] = []
        # The recorder must not hold the run: the last map, copied weights and the input are to go when the run goes.
        own = weakref.proxy(self)
        self.recorder = Recorder(
            lambda node: own._materialise(node),
            lambda pairs: own._write_into(pairs),
            apply,
            attend,
            owned,
            PLACES[along],
        )

    def run(self, module: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """``module(x, *args, **kwargs)`` for a (B, C, [T,] H, W) tensor, its rows in strips.

        Returns:
            The same tensor up to rounding.

        Raises:
            DoesNotFit: before anything is computed, if nothing else needed a whole map.
            CannotRecord: the module does something that strips cannot follow.
            StoreOverflow: a value too large for the narrower store.
        """
        node = self._record(module, x, *args, **kwargs)
        if isinstance(node, Tensor):
            return node if self.out_dtype is None else node.to(self.out_device, self.out_dtype)
        # Zeros, and not uninitialised: the picture so far is shown while it is made.
        dtype, device = self.out_dtype or node.dtype, self.out_device or node.device
        out = self.new(node.shape, dtype, node.device if self._gathers(node, device) else device)
        self._execute([(node, out)], allocated=True)
        self.close()
        return out.to(device)

    def stream(self, take: Callable[[Tensor], None], module: Callable[..., Any], x: Tensor, **kwargs: Any) -> None:
        """As :meth:`run`, with the result handed on strip by strip and kept nowhere.

        Args:
            take: the next strip of the result, on the device; it is to be copied before this returns.
        """
        node = self._record(module, x, **kwargs)
        if isinstance(node, Tensor):
            take(node)
        else:
            self._execute([(node, lambda first, rows, own: take(rows))], allocated=True)
        self.close()

    def _record(self, module: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Node | Tensor:
        """The result of a module, not yet computed; a tensor, where the module came to one."""
        with self.recorder:
            result = module(self._opened(x), *args, **kwargs)
            if not isinstance(result, Tensor):
                raise CannotRecord(f"the module returns a {type(result).__name__}, not a tensor")
            self.recorder.flush()
        self.report.materialised = self.recorder.materialised
        if not isinstance(result, Recorded):
            return result
        self.recorder.live.clear()
        return result.node

    def _opened(self, x: Tensor) -> Recorded:
        """The input, as the recording begins with it."""
        return self.recorder.leaf(x)

    @staticmethod
    def _gathers(node: Node, device: torch.device) -> bool:
        """Whether a result that goes elsewhere is small enough to gather where it is computed."""
        largest = max(other.bytes for other in ancestors([node]))
        return device.type != node.device.type != "cpu" and node.bytes <= GATHERED * largest

    def explain(self) -> str:
        """What was recorded, cut into passes and planned so far, in lines of text.

        Also after :class:`DoesNotFit`, then of the plan that needs least. With ``HEADROOM_DEBUG=1`` in the environment
        the log has it of every new plan, before it runs.
        """
        return "\n\n".join(self._explained) or "nothing was planned"

    def close(self) -> None:
        """Lets go of everything."""
        self.remains.clear()
        self.recorder.live.clear()
        self.recorder.made.clear()
        self.recorder.pending.clear()

    def _materialise(self, node: Node) -> Tensor:
        """A whole map, which is there from now on."""
        out = torch.empty(node.shape, dtype=node.dtype, device=node.device)
        self._execute([(node, out)], allocated=True)
        node.become(Held(out, node.rows.dim, node.rows.unit))
        return out

    def _write_into(self, pairs: Sequence[tuple[Node, Tensor]]) -> None:
        self._execute(pairs, allocated=False)

    def _execute(self, pairs: Sequence[tuple[Node, Target]], allocated: bool, sent: Collection[Node] = ()) -> Schedule:
        outputs = {node: out for node, out in pairs}
        device = next(iter(outputs)).device
        later = [node for node in self.recorder.nodes_alive() if node not in outputs]
        known = [Need(node, moments_of(groups)) for node, groups in self.remains.statistics]
        analysis = Analysis(list(outputs), later, known, sent)
        made = [
            out.nbytes
            for _, out in pairs
            if allocated and isinstance(out, Tensor) and out.device.type in (device.type, "meta")
        ]
        beside = [*made, *self.beside, *self.recorder.made]
        schedule = self._schedule(Planner(analysis, device, beside, self.figures, self.on_search, self.band))
        self.report.schedules.append(schedule)
        self.report.in_file |= self.far is not None and device.type == "cpu" and schedule.choice.outside
        self.on_plan(schedule)
        self._run(schedule, pairs, device)
        return schedule

    def _schedule(self, planner: Planner) -> Schedule:
        search = Search(planner, self.budget, self.store, self.rows, self.far is not None)
        if self.offload:
            return self._explain(search.outside())
        key = (planner.signature(), self.budget, self.store, self.rows, search.has_far)
        known = self.plans.get(key)
        if known is None:
            schedule, fits = search.run()
            self.plans[key] = planner.remember(schedule.choice, fits)
        else:
            schedule, fits = planner.again(known), known.fits
        self._explain(schedule, is_new=known is None)
        if not fits:
            self._too_large(schedule)
        return schedule

    def _too_large(self, schedule: Schedule) -> None:
        """The schedule that needs least does not fit."""
        raise DoesNotFit(schedule.peak)

    def _explain(self, schedule: Schedule, is_new: bool = True) -> Schedule:
        self._explained.append(explanation(schedule, self.budget))
        if is_new and os.environ.get("HEADROOM_DEBUG") == "1":
            log.warning("Headroom: %s", self._explained[-1])
        return schedule

    def _run(self, schedule: Schedule, pairs: Sequence[tuple[Node, Target]], device: torch.device) -> None:
        far = None if self.far is None else Arena(self.far, schedule.host_peak).take
        passes = self._passes(schedule, pairs, device, far)
        done = 0.0
        try:
            # Counted before they run: what a pass computes becomes a leaf, which costs nothing.
            for one, windows, flops in zip(
                schedule.passes, schedule.windows, [flops_of(one) for one in schedule.passes]
            ):
                passes.run(one, windows, self._progress(one, flops / max(1, windows.count), done, schedule, pairs))
                done += flops
        finally:
            passes.close()

    def _passes(self, *given: Any) -> PassRunner:
        return PassRunner(self.remains, *given)

    def _progress(
        self, one: Pass, of_strip: float, done: float, schedule: Schedule, pairs: Sequence[tuple[Node, Target]]
    ) -> Callable[[int], None]:
        target = pairs[0][1] if one is schedule.passes[-1] else None
        out = target if isinstance(target, Tensor) else None

        def before_strip(number: int) -> None:
            if pairs[0][0].device.type == "cpu" and number % STRIPS_BETWEEN_TRIMS == 0:
                give_back_free_pages()
            self._tell((done + of_strip * number) / max(1.0, schedule.flops), out)

        return before_strip

    def _tell(self, share: float, out: Tensor | None) -> None:
        """How much of a module's work is done, and its result so far."""
        self.on_strip(share, out)
