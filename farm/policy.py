"""Which prompt a worker gets next: what fits few workers first, models that are loaded, the longest before the short.

Least-flexible-job-first (Pinedo, Scheduling, 2016, section 5.2: optimal for equal jobs on nested machines, as cards
are: what fits a small one fits a large one) over longest-processing-time-first (Graham, 1969). The farm and its
simulation run this same code; it knows nothing of servers, and its only clock is what it is told.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

UNKNOWN_SECONDS = 1.0  # of a prompt of which nothing is known, until something was measured


@dataclass
class Kind:
    """Prompts that are the same to every worker but for their seed and their files' names.

    Attributes:
        models: files that it loads.
        seconds: by worker on which it fits, as predicted; None where it tells no time.
        waiting: jobs, the next first.
        measured: by worker, the mean of what they took there.
        times: how many each mean is of.
    """

    models: frozenset[str]
    seconds: dict[str, float | None]
    waiting: deque[str] = field(default_factory=deque)
    measured: dict[str, float] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)


@dataclass
class Seat:
    """A worker as the schedule sees it.

    Attributes:
        alive: whether it can be given work.
        job: what it does; None: nothing.
        kind: of that job.
        free_at: when it is expected to have done it.
        loaded: models of its last job.
        pace: measured by predicted seconds, of the jobs it has done.
        promised: jobs that others left to it, since it would have done them sooner.
    """

    alive: bool = True
    job: str | None = None
    kind: str = ""
    free_at: float = 0.0
    loaded: frozenset[str] = frozenset()
    pace: float | None = None
    promised: int = 0


class Schedule:
    """Jobs that wait, workers, and who gets what. Times are seconds of any one clock."""

    def __init__(self) -> None:
        self.kinds: dict[str, Kind] = {}
        self.seats: dict[str, Seat] = {}
        self.waiting = 0
        self._alive = 0
        self.idle: dict[str, None] = {}  # workers that can be given work, in order
        self._left_until: dict[str, float] = {}  # those of them that leave all to faster ones, until then

    def add_worker(self, name: str) -> None:
        """A worker that can be given work, new or back again."""
        seat = self.seats.setdefault(name, Seat(alive=False))
        self._alive += not seat.alive
        seat.alive, seat.loaded = True, frozenset()
        if seat.job is None:
            self.idle[name] = None
        self._look_again()

    def lose(self, name: str) -> str | None:
        """A worker is gone; gives the job that it had, which waits again as the first of its kind."""
        seat = self.seats[name]
        self._alive -= seat.alive
        job, seat.alive = seat.job, False
        if job is not None:
            self.kinds[seat.kind].waiting.appendleft(job)
            self.waiting += 1
        seat.job, seat.free_at = None, 0.0
        self.idle.pop(name, None)
        self._look_again()
        return job

    def offer(self, kind: str, models: Iterable[str], seconds: Mapping[str, float | None]) -> None:
        """Says on which workers jobs of a kind fit, and how long they take there (None: not known)."""
        known = self.kinds.get(kind)
        if known is None:
            self.kinds[kind] = Kind(frozenset(models), dict(seconds))
        else:
            known.seconds = dict(seconds)
        self._look_again()

    def retract(self, kind: str, worker: str) -> None:
        """A kind does not fit a worker, whatever was predicted."""
        self.kinds[kind].seconds.pop(worker, None)
        self._look_again()

    def add(self, kind: str, job: str, *, first: bool = False) -> None:
        """A job of a known kind waits."""
        waiting = self.kinds[kind].waiting
        (waiting.appendleft if first else waiting.append)(job)
        self.waiting += 1
        self._look_again()

    def stranded(self) -> list[tuple[str, str]]:
        """Kinds and jobs that wait for workers of which none is left, not even one that is gone for now."""
        return [(name, job) for name, kind in self.kinds.items() if not kind.seconds for job in kind.waiting]

    def waits(self, kind: str, job: str) -> bool:
        """Whether a job waits."""
        return job in self.kinds[kind].waiting

    def drop(self, kind: str, job: str) -> None:
        """A job does not wait any longer."""
        self.kinds[kind].waiting.remove(job)
        self.waiting -= 1

    def begin(self, worker: str, kind: str, job: str, now: float) -> None:
        """A worker has a job that does not wait here: one that it had before this schedule was made."""
        seat = self.seats[worker]
        self.idle.pop(worker, None)
        seat.job, seat.kind, seat.promised = job, kind, 0
        seat.free_at, seat.loaded = now + self.seconds(kind, worker), self.kinds[kind].models

    def ended(self, worker: str, seconds: float | None = None) -> None:
        """A worker has done its job.

        Args:
            seconds: that it took; None: it tells nothing of the next one.
        """
        seat = self.seats[worker]
        if seconds is not None and seat.job is not None:
            self._learn(seat, worker, seconds)
        seat.job, seat.free_at = None, 0.0
        if seat.alive:
            self.idle[worker] = None

    def seconds(self, kind: str, worker: str) -> float:
        """How long a job of a kind takes on a worker: measured there; else predicted, times what such predictions were
        off there; else measured elsewhere; else a guess."""
        this = self.kinds[kind]
        if worker in this.measured:
            return this.measured[worker]
        predicted = this.seconds.get(worker)
        if predicted is not None:
            return predicted * (self.seats[worker].pace or 1.0)
        return sum(this.measured.values()) / len(this.measured) if this.measured else UNKNOWN_SECONDS

    def assign(self, now: float) -> list[tuple[str, str]]:
        """Gives jobs to workers that have none: (worker, job) each. Those that are fast with what waits come first."""
        if not self.waiting:
            return []
        idle = [name for name in self.idle if self._left_until.get(name, now) <= now]
        if len(idle) > 1:
            fastest = self._fastest()
            idle.sort(key=lambda name: self._slowness(name, fastest))
        return [(name, job) for name in idle if self.waiting and (job := self._next(name, now)) is not None]

    def _next(self, worker: str, now: float) -> str | None:
        """The job that a worker begins now; None where there is none, or others do what there is sooner."""
        left_to: tuple[float, str] | None = None
        kinds = self._by_rank(worker)
        if not kinds:
            self._left_until[worker] = math.inf  # until something new waits
        for name in kinds:
            sooner = self._sooner_elsewhere(name, worker, now)
            if sooner is None:
                job = self.kinds[name].waiting.popleft()
                self.waiting -= 1
                self.begin(worker, name, job, now)
                return job
            left_to = left_to or sooner
        if left_to is not None:
            self.seats[left_to[1]].promised += 1
            self._left_until[worker] = left_to[0]
        return None

    def _by_rank(self, worker: str) -> list[str]:
        """Kinds of which a job waits that fits the worker, the one to begin with first."""
        loaded, share = self.seats[worker].loaded, self._share()
        ranks = []
        for order, (name, kind) in enumerate(self.kinds.items()):
            if kind.waiting and worker in kind.seconds:
                seconds = self.seconds(name, worker)
                # One that is longer than everybody's share of what is left: now, or all wait for it in the end.
                ranks.append((len(kind.seconds), seconds < share, kind.models != loaded, -seconds, order, name))
        return [rank[-1] for rank in sorted(ranks)]

    def _share(self) -> float:
        """Seconds of what waits for each worker that is there."""
        left = sum(
            len(kind.waiting) * self.seconds(name, next(iter(kind.seconds)))
            for name, kind in self.kinds.items()
            if kind.waiting and kind.seconds
        )
        return left / max(self._alive, 1)

    def _sooner_elsewhere(self, kind: str, worker: str, now: float) -> tuple[float, str] | None:
        """When a worker that is busy would have done the job, and which, if that is sooner. Asked where fewer jobs wait
        than there are workers: before that, everybody is needed."""
        if self.waiting > self._alive:
            return None
        best = (now + self.seconds(kind, worker), "")
        for name in self.kinds[kind].seconds:
            seat = self.seats[name]
            if name != worker and seat.alive and seat.job is not None:
                done = max(seat.free_at, now) + (seat.promised + 1) * self.seconds(kind, name)
                best = min(best, (done, name))
        return best if best[1] else None

    def _fastest(self) -> dict[str, float]:
        """Seconds on the fastest worker, by kind, of kinds that wait."""
        return {
            name: max(min(self.seconds(name, worker) for worker in kind.seconds), 1e-9)
            for name, kind in self.kinds.items()
            if kind.waiting and kind.seconds
        }

    def _slowness(self, worker: str, fastest: Mapping[str, float]) -> float:
        """Mean of its seconds by those of the fastest."""
        ratios = [
            self.seconds(name, worker) / best for name, best in fastest.items() if worker in self.kinds[name].seconds
        ]
        return sum(ratios) / len(ratios) if ratios else 0.0

    def _learn(self, seat: Seat, worker: str, seconds: float) -> None:
        kind = self.kinds[seat.kind]
        times = kind.times.get(worker, 0)
        kind.measured[worker] = (kind.measured.get(worker, 0.0) * times + seconds) / (times + 1)
        kind.times[worker] = times + 1
        predicted = kind.seconds.get(worker)
        if predicted:
            ratio = seconds / predicted
            seat.pace = ratio if seat.pace is None else 0.7 * seat.pace + 0.3 * ratio

    def _look_again(self) -> None:
        """What was left to others is asked about anew."""
        if self._left_until:
            self._left_until.clear()
            for seat in self.seats.values():
                seat.promised = 0
