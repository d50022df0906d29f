"""The farm's schedule at a size that no desk has: the same policy, workers and prompts that are numbers alone.

Discrete events: a worker ends its prompt, goes down, comes back. Seconds of a prompt are drawn around what was
predicted, and a worker that has to load other models first takes longer.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from .policy import Schedule

CARDS = {6: (0.3, 3.0), 8: (0.3, 2.0), 12: (0.2, 1.5), 16: (0.1, 1.2), 24: (0.1, 1.0)}  # GB: share, pace; see `bound`
SPREAD = 0.1  # of what prompts take around what was predicted, standard deviation of its logarithm
LOAD = 10.0  # seconds to load other models
REPAIR = 300.0  # seconds until a worker is back


@dataclass(frozen=True)
class Outcome:
    """What came of a simulated run.

    Attributes:
        done: prompts.
        seconds: from the first to the last.
        bound: no schedule of these prompts on these workers is shorter: see :func:`bound`.
        busy: share of the workers' time, while they were there, that went into prompts that were finished.
        lost: prompts that had to be begun again.
        loads: times that a worker loaded other models.
        queue: prompts that waited when a tenth, two tenths … of the time had gone.
    """

    done: int
    seconds: float
    bound: float
    busy: float
    lost: int
    loads: int
    queue: tuple[int, ...]

    @property
    def efficiency(self) -> float:
        """The bound by the seconds."""
        return self.bound / self.seconds


def simulate(
    workers: int, prompts: int, kinds: int = 40, hours_between_failures: float = math.inf, seed: int = 0
) -> Outcome:
    """Runs a farm of numbers.

    Args:
        workers: with cards as :data:`CARDS` shares them out.
        prompts: of `kinds` kinds, each of which needs a card and takes seconds that are drawn from 5 s to 200 s.
        hours_between_failures: mean, of each worker; exponential.
    """
    return _Run(workers, prompts, kinds, hours_between_failures * 3600, random.Random(seed)).run()  # noqa: S311


def bound(work: list[tuple[float, int]], cards: list[tuple[int, float]]) -> float:
    """Seconds below which no schedule can be: for each size of card, what needs as much or more, shared among those
    that have it by their speeds; and the longest prompt on the fastest.

    Args:
        work: seconds on the fastest card, and GB that are needed, of each prompt.
        cards: GB and seconds by the fastest, of each worker.
    """
    sizes = sorted({size for size, _ in cards})
    shares = [
        sum(seconds for seconds, needed in work if needed > before) / sum(1 / pace for gb, pace in cards if gb > before)
        for before in [0, *sizes[:-1]]
    ]
    return max(*shares, max(seconds for seconds, _ in work))


class _Run:
    def __init__(self, workers: int, prompts: int, kinds: int, between: float, draw: random.Random) -> None:
        self.draw, self.between = draw, between
        self.schedule = Schedule()
        self.cards = dict(zip((f"worker-{number}" for number in range(workers)), _cards(workers)))
        sizes = draw.choices(list(CARDS), [share for share, _ in CARDS.values()], k=kinds)
        self.needs = {f"kind-{number}": (draw.uniform(5, 200), gb) for number, gb in enumerate(sizes)}
        for name in self.cards:
            self.schedule.add_worker(name)
        for number, (kind, (seconds, needed)) in enumerate(self.needs.items()):
            fits = {name: seconds * pace for name, (gb, pace) in self.cards.items() if gb >= needed}
            self.schedule.offer(kind, {f"model-{number % max(kinds // 4, 1)}"}, fits)
        self.kind_of = {f"prompt-{number}": draw.choice(list(self.needs)) for number in range(prompts)}
        self.factor = {job: math.exp(draw.gauss(0, SPREAD)) for job in self.kind_of}
        self.events: list[tuple[float, int, str, str, str]] = []
        self.order = 0
        self.generation: dict[str, int] = dict.fromkeys(self.cards, 0)

    def run(self) -> Outcome:
        for job, kind in self.kind_of.items():
            self.schedule.add(kind, job)
        for name in self.cards if math.isfinite(self.between) else ():
            self._later(self.draw.expovariate(1 / self.between), name, "down", "")
        now, done, useful, lost, down, loads = 0.0, 0, 0.0, 0, 0.0, self._begin(0.0)
        waiting: list[tuple[float, int]] = []
        while done < len(self.kind_of):
            now, _, name, what, job = heapq.heappop(self.events)
            if what == "down":
                lost += self.schedule.lose(name) is not None
                self.generation[name] += 1
                down += REPAIR
                self._later(now + REPAIR, name, "up", "")
            elif what == "up":
                self.schedule.add_worker(name)
                self._later(now + self.draw.expovariate(1 / self.between), name, "down", "")
            elif what == f"done {self.generation[name]}":
                seconds = self._seconds(job, name)
                self.schedule.ended(name, seconds)
                done, useful = done + 1, useful + seconds
            loads += self._begin(now)
            waiting.append((now, self.schedule.waiting))
        work = [(self.needs[kind][0] * self.factor[job], self.needs[kind][1]) for job, kind in self.kind_of.items()]
        busy = useful / (now * len(self.cards) - down)
        return Outcome(
            done, now, bound(work, list(self.cards.values())), busy, lost, loads, tuple(_tenths(waiting, now))
        )

    def _begin(self, now: float) -> int:
        """Gives out what can be; how many workers had to load other models."""
        before = {name: self.schedule.seats[name].loaded for name in self.schedule.idle}
        loads = 0
        for name, job in self.schedule.assign(now):
            other = before[name] != self.schedule.seats[name].loaded
            loads += other
            end = now + self._seconds(job, name) + other * LOAD
            self._later(end, name, f"done {self.generation[name]}", job)
        return loads

    def _seconds(self, job: str, name: str) -> float:
        return self.needs[self.kind_of[job]][0] * self.cards[name][1] * self.factor[job]

    def _later(self, when: float, name: str, what: str, job: str) -> None:
        self.order += 1
        heapq.heappush(self.events, (when, self.order, name, what, job))


def _cards(workers: int) -> Iterator[tuple[int, float]]:
    """GB and pace of each worker, by the shares of :data:`CARDS`; of each size at least one, the largest first."""
    left, shares = workers, sorted(CARDS.items(), reverse=True)
    for number, (gb, (share, pace)) in enumerate(shares):
        last = number == len(shares) - 1
        count = left if last else min(left, max(1, round(workers * share)))
        yield from [(gb, pace)] * count
        left -= count


def _tenths(waiting: list[tuple[float, int]], end: float) -> Iterator[int]:
    place = 0
    for tenth in range(1, 11):
        while place + 1 < len(waiting) and waiting[place + 1][0] <= end * tenth / 10:
            place += 1
        yield waiting[place][1]
