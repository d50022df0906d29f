"""One worker's part of an exact run over several."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor

from ..cutting.exchange import exchanged
from ..cutting.share import Share
from ..engine import DoesNotFit, ExactRun, attend
from ..operations.graph import Leaf, Node, Rows
from ..operations.leaves import Held
from ..planning.choice import PlannedBefore
from ..planning.planner import Planner
from ..planning.schedule import Schedule
from ..planning.search import Search
from ..recording.record import Recorded, Recorder
from ..recording.value import CannotRecord
from ..runner import PassRunner, Target, into
from ..running.banded import Banded, banded
from ..running.kernels import Kernels
from ..running.stream import Taker
from .attend import AttendBands
from .passes import BandPasses
from .peers import Peers

TRIES = 6  # of a plan that fits this worker and not another: each time within less
CLOSER = 0.97  # of what would fit by the last try, where a map's bytes do not fall with the budget


class BandRun(ExactRun):
    """An :class:`ExactRun` of one worker's band: its result is that band.

    All workers call :meth:`run` with the same module and input.

    Args:
        share: the worker's band.
        peers: the other workers.
        others: of :class:`ExactRun`; ``budget`` is this worker's own, ``store`` and ``rows`` are the same for all.

    Attributes:
        height: rows of the whole input, where :meth:`run` is given this worker's band of it; None: it is given all.
        unbroken: a function that asks for a whole map ends the run.
    """

    height: int | None = None
    unbroken = False

    def __init__(
        self, share: Share, peers: Peers, *others: Any, attend: Callable[..., Tensor] = attend, **named: Any
    ) -> None:
        self.band, self.peers, self.steps = share, peers, count()
        super().__init__(*others, **named, attend=AttendBands(attend, share))
        own = weakref.proxy(self)  # the recorder must not hold the run
        self.recorder.random = lambda *given, **options: own._random(*given, **options)  # type: ignore[method-assign]

    def run(self, module: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The band of ``module(x, *args, **kwargs)``, (B, C, [T,] rows, W); see :meth:`Share.rows` for which rows.

        Where strips are cut along frames, so are bands.

        Args:
            x: all rows of the input, or with :attr:`height` those of the band.

        Raises:
            DoesNotFit, CannotRecord, StoreOverflow: as :meth:`ExactRun.run`.
            PeerLost: another worker is gone, or gave up.
        """
        node = self._record(module, x, *args, **kwargs)
        if isinstance(node, Tensor):
            # The module put it together itself, of maps that every worker was given whole.
            dim = node.ndim - 1 - self.recorder.place
            first, stop = self.band.rows(node.shape[dim])
            band = node.narrow(dim, first, stop - first)
            return band if self.out_dtype is None else band.to(self.out_device, self.out_dtype)
        dtype, device = self.out_dtype or node.dtype, self.out_device or node.device
        on = node.device if self._gathers(node, device) else device
        band = self.new(self._shape(node), dtype, on)
        self._fill([(node, band)])
        self.close()
        return band.to(device)

    def _shape(self, node: Node) -> Sequence[int]:
        return node.slab_shape(self.band.height(node))

    def _fill(self, pairs: Sequence[tuple[Node, Target]], sent: Collection[Node] = ()) -> Schedule:
        """Computes maps, each into a tensor of this worker's band."""
        bands = [(node, out) for node, out in pairs if isinstance(out, Tensor)]
        given = self.beside
        self.beside = [*given, *(band.nbytes for node, band in bands if band.device.type == node.device.type)]
        filling = [(node, self._into(out, node) if isinstance(out, Tensor) else out) for node, out in pairs]
        try:
            return self._execute(filling, allocated=True, sent=sent)
        finally:
            self.beside = given

    def _into(self, out: Tensor, node: Node) -> Taker:
        return into(out, node, self.band.of_node(node)[0])

    def _opened(self, x: Tensor) -> Recorded:
        if self.height is None:
            return super()._opened(x)
        return self._of_band(x.shape, x.dtype, self.height, Held(x, x.ndim - 1 - self.recorder.place), x.device)

    def _of_band(
        self, shape: Sequence[int], dtype: torch.dtype, height: int, held: Leaf, device: torch.device
    ) -> Recorded:
        """A map of which this worker has its band.

        Args:
            shape: of the band.
            height: rows of the whole map.
        """
        dim = len(shape) - 1 - self.recorder.place
        whole = (*shape[:dim], height, *shape[dim + 1 :])
        node = Node(held, (), whole, dtype, device, Rows(dim, height))
        node.op = Banded(node, held, self.band, Kernels(device))
        return Recorded(node, self.recorder)

    def _materialise(self, node: Node) -> Tensor:
        """A whole map, which every worker has from now on."""
        if self.unbroken:
            raise CannotRecord(f"{self.recorder.materialised[-1]} asks for a whole map")
        out = torch.empty(node.shape, dtype=node.dtype, device=node.device)
        self._execute([(node, out)], allocated=True)
        self._complete([(node, out)])
        node.become(Held(out, node.rows.dim, node.rows.unit))
        return out

    def _write_into(self, pairs: Sequence[tuple[Node, Tensor]]) -> None:
        self._execute(pairs, allocated=False)
        self._complete(pairs)

    def _complete(self, pairs: Sequence[tuple[Node, Tensor]]) -> None:
        """Gives every worker the bands of the others."""
        step = next(self.steps)
        for place, (node, out) in enumerate(pairs):
            first, stop = self.band.of_node(node)
            if first < stop:
                rows = node.cut(out, first, stop - first).clone(memory_format=torch.contiguous_format)
                self.peers.give((step, place), [rows], self.band.others)
        for place, (node, out) in enumerate(pairs):
            for rank in self.band.others:
                first, stop = self.band.rows(node.rows.count, rank)
                if first < stop:
                    (rows,) = self.peers.take((step, place), rank)(node.device)
                    self.report.received += rows.nbytes
                    node.cut(out, first, stop - first).copy_(rows)

    def _random(self, name: str, *shape: Any, **options: Any) -> Tensor:
        """Random numbers, which the first worker draws for all."""
        if not self.recorder.draws:
            return Recorder.random(self.recorder, name, *shape, **options)
        key = (next(self.steps), "random")
        if self.band.rank == 0:
            drawn = getattr(torch, name)(*shape, **options)
            self.peers.give(key, [drawn], self.band.others)
            return drawn
        like = getattr(torch, name)(0, **{k: v for k, v in options.items() if k != "generator"})
        (drawn,) = self.peers.take(key, 0)(like.device)
        self.report.received += drawn.nbytes
        return drawn.clone()

    def _schedule(self, planner: Planner) -> Schedule:
        """What the first worker finds for its own band, within less where that does not fit another."""
        budgets, within = self._told(self.budget), self.budget
        schedule: Schedule | None = None
        for _ in range(TRIES):
            fits = True
            if self.band.rank == 0:
                schedule, fits = self._found(planner, within)
                self._give_plan((planner.remember(schedule.choice), fits))
            else:
                found, fits = self._take_plan()
                schedule = planner.again(found)
            peaks = self._told(schedule.peak)
            over = max(peak / max(1.0, budget) for peak, budget in zip(peaks, budgets))
            if over <= 1 or not fits:
                break
            within = min(within, peaks[0]) * min(CLOSER, 1 / over)
        assert schedule is not None
        self._explain(schedule)
        if over > 1:
            raise DoesNotFit(max(peaks))
        in_bands = {node for node in planner.analysis.nodes if banded(node)}
        self.report.received += exchanged(schedule.passes, self.band, in_bands)
        return schedule

    def _found(self, planner: Planner, within: float) -> tuple[Schedule, bool]:
        """The plan within a budget, perhaps an earlier run's; and whether it fits."""
        key = (planner.signature(), within, self.store, self.rows)
        if key in self.plans:
            return planner.again(self.plans[key]), True
        schedule, fits = Search(planner, within, self.store, self.rows, self.far is not None).run()
        if fits:
            self.plans[key] = planner.remember(schedule.choice)
        return schedule, fits

    def _told(self, mine: Any) -> list[Any]:
        """A value of every worker's."""
        step = next(self.steps)
        self.peers.give((step, "told"), [mine], self.band.others)
        cpu = torch.device("cpu")
        return [
            mine if rank == self.band.rank else self.peers.take((step, "told"), rank)(cpu)[0]
            for rank in range(self.band.workers)
        ]

    def _give_plan(self, found: tuple[PlannedBefore, bool]) -> None:
        self.peers.give((next(self.steps), "plan"), [found], self.band.others)

    def _take_plan(self) -> tuple[PlannedBefore, bool]:
        found: tuple[PlannedBefore, bool] = self.peers.take((next(self.steps), "plan"), 0)(torch.device("cpu"))[0]
        return found

    def _passes(self, *given: Any) -> PassRunner:
        return BandPasses(self.band, self.peers, self.steps, self.remains, *given)
