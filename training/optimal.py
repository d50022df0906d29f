"""The plan of checkpoints that computes least again within a budget of bytes.

Source: Beaumont, Eyraud-Dubois, Herrmann, Joly & Shilova, "Optimal checkpointing for heterogeneous chains: how to train
deep neural networks with limited memory" (arXiv 1911.13214), section 4.2: the best persistent plan of blocks s to t
either keeps all that block s saves, or lays a checkpoint before s and keeps only what goes into a later block s'. Here
a step's forward, when no gradient is there yet, has a table of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from .chain import BlockCost, Checkpoints, StepCost, spent

SLOTS = 1024  # of the budget, by which the tables are cut
BEYOND = 1.25  # times the budget that the tables reach to: each sum is rounded up to slots, and takes less
KEEP = 0  # a choice: what the first block saves is kept


class StepDoesNotFit(ValueError):
    """No plan of checkpoints keeps the budget.

    Attributes:
        least: bytes that the one needs which needs least.
    """

    def __init__(self, least: int, budget: int) -> None:
        super().__init__(f"a training step needs at least {least} bytes of activations, {budget} are there")
        self.least = least


def least_room(chain: Sequence[BlockCost]) -> int:
    """Bytes that a step needs with the plan that needs least."""
    return _Rooms(chain).least(0, None)


def least_recomputation(chain: Sequence[BlockCost], budget: int) -> tuple[Checkpoints, StepCost]:
    """The plan that computes least again, and what a step takes by it.

    Args:
        chain: one block or more.
        budget: bytes of activations and their gradients, as :class:`.StepCost` counts them.

    Raises:
        StepDoesNotFit: whatever is computed again.
    """
    kept: Checkpoints = tuple(range(len(chain)))
    if (step := spent(chain, kept)).peak <= budget:
        return kept, step
    if (least := least_room(chain)) > budget:
        raise StepDoesNotFit(least, budget)
    found = [(step.again, step.peak, number, plan, step) for number, (plan, step) in enumerate(_plans(chain, budget))]
    _, _, _, plan, step = min(found)
    return plan, step


def least_recomputation_in_ram(chain: Sequence[BlockCost], budget: int) -> tuple[Checkpoints, StepCost]:
    """As :func:`least_recomputation`, with checkpoints that are kept in the machine's memory.

    They cost next to nothing there, so that each block has its own or is kept; the last blocks are, which are done
    before others run again. Where less is computed again by the plan without RAM, its checkpoints move there.

    Raises:
        StepDoesNotFit: whatever is computed again.
    """
    count, found, least = len(chain), list[tuple[Checkpoints, StepCost]](), list[int]()
    try:
        plan, _ = least_recomputation(chain, budget)
        found.append((plan, spent(chain, plan, in_ram=True)))
    except StepDoesNotFit as error:
        least.append(error.least)
    for kept in reversed(range(count + 1)):
        plan = (*((number,) for number in range(count - kept)), *range(count - kept, count))
        step = spent(chain, plan, in_ram=True)
        least.append(step.peak)
        if step.peak <= budget:
            found.append((plan, step))
            break
    if not found:
        raise StepDoesNotFit(min(least), budget)
    return min(found, key=lambda one: one[1].again)


def _plans(chain: Sequence[BlockCost], budget: int) -> Iterator[tuple[Checkpoints, StepCost]]:
    """Plans that keep the budget, the best one by the tables among them."""
    # Tables know no memory below nothing, which gradients that are not there yet make of what a block works with.
    more = max(0, -min(min(block.forward_work, block.backward_work) for block in chain))
    tables = _Tables([_with_more(block, more) for block in chain], budget + more)
    for slots in reversed(tables.steps()):
        plan = tables.plan(0, None, slots)
        step = spent(chain, plan)
        if step.peak <= budget:
            yield plan, step
            break
    least = _Rooms(chain).plan(0, None)
    yield least, spent(chain, least)


def _with_more(block: BlockCost, more: int) -> BlockCost:
    return replace(block, forward_work=block.forward_work + more, backward_work=block.backward_work + more)


class _Needs:
    """What parts of a chain need at once. ``last`` is the block whose gradient waits meanwhile; None: none does."""

    def __init__(self, chain: Sequence[BlockCost]) -> None:
        self.chain, self.count = chain, len(chain)

    def waits(self, last: int | None) -> int:
        return 0 if last is None else self.chain[last].given

    def end(self, last: int | None) -> int:
        return self.count - 1 if last is None else last

    def stays(self, first: int, last: int | None) -> int:
        """Of a block whose forward is kept."""
        return self.chain[first].stays(last is not None, first == last)

    def to_keep(self, first: int, last: int | None) -> int:
        """To run a block whose forward is kept, and its backward later on."""
        block, into = self.chain[first], self.chain[first - 1].given if first else 0
        forward = block.first_run() if last is None else block.saved + block.forward_work + self.waits(last)
        return max(forward, self.stays(first, last) + block.given + into + block.backward_work)

    @cached_property
    def _passing(self) -> tuple[list[list[int]], list[list[int]]]:
        """In a step's forward, and again. By first block, then by how many: the most that they take where nothing is
        kept of them."""
        return (
            self._most([block.first_run() for block in self.chain]),
            self._most([block.given + block.forward_work for block in self.chain]),
        )

    def _most(self, runs: Sequence[int]) -> list[list[int]]:
        found = []
        for first in range(self.count):
            before = [0, *(block.given for block in self.chain[first:-1])]
            found.append(list(accumulate((was + run for was, run in zip(before, runs[first:])), max)))
        return found

    def to_pass(self, first: int, behind: int, last: int | None) -> int:
        """To run blocks up to one, nothing of them kept."""
        return self._passing[last is not None][first][behind - first - 1] + self.waits(last)


class _Rooms:
    """The least room of each part of a chain, to the byte."""

    def __init__(self, chain: Sequence[BlockCost]) -> None:
        self.chain, self.needs = chain, _Needs(chain)
        self.best = lru_cache(maxsize=None)(self._best)

    def least(self, first: int, last: int | None) -> int:
        return self.best(first, last)[0]

    def _best(self, first: int, last: int | None) -> tuple[int, int]:
        """The least room, and the choice: :data:`KEEP`, or the block behind the checkpointed ones."""
        end, needs = self.needs.end(last), self.needs
        kept = needs.to_keep(first, last)
        if first == end:
            return kept, KEEP
        found = [(max(kept, needs.stays(first, last) + self.least(first + 1, last)), KEEP)]
        for behind in range(first + 1, end + 1):
            rest = self.chain[behind - 1].given + self.least(behind, last)
            room = max(needs.to_pass(first, behind, last), rest, self.least(first, behind - 1))
            found.append((room, behind))
        return min(found)

    def plan(self, first: int, last: int | None) -> Checkpoints:
        behind = self.best(first, last)[1]
        if behind != KEEP:
            return (self.plan(first, behind - 1), *self.plan(behind, last))
        return (first, *(self.plan(first + 1, last) if first < self.needs.end(last) else ()))


class _Tables:
    """FLOPs that are computed again, by part of the chain and by slots of memory; and the choices."""

    def __init__(self, chain: Sequence[BlockCost], budget: int) -> None:
        self.chain, self.needs = chain, _Needs(chain)
        self.slot = max(1, -(-budget // SLOTS))
        self.slots = int(BEYOND * budget / self.slot) + 1
        self.forward = [0.0, *accumulate(block.forward for block in chain)]
        self.cost: dict[tuple[int, int | None], NDArray[np.float64]] = {}
        self.choice: dict[tuple[int, int | None], NDArray[np.int16]] = {}
        for length in range(1, len(chain) + 1):
            for first in range(len(chain) - length + 1):
                self._fill(first, first + length - 1)
        for first in reversed(range(len(chain))):
            self._fill(first, None)

    def _in_slots(self, size: int) -> int:
        return -(-size // self.slot)

    def _after(self, part: tuple[int, int | None], held: int, need: int) -> NDArray[np.float64]:
        """The cost of a part by the memory that is there before so many bytes are held; none below a need."""
        shift, found = self._in_slots(held), np.full(self.slots, np.inf)
        if shift < self.slots:
            found[shift:] = self.cost[part][: self.slots - shift]
        found[: self._in_slots(need)] = np.inf
        return found

    def _fill(self, first: int, last: int | None) -> None:
        end, part, needs = self.needs.end(last), (first, last), self.needs
        kept = needs.to_keep(first, last)
        if first == end:
            self.cost[part] = np.zeros(self.slots)
            self.cost[part][: self._in_slots(kept)] = np.inf
        else:
            self.cost[part] = self._after((first + 1, last), needs.stays(first, last), kept)
        self.choice[part] = np.full(self.slots, KEEP, dtype=np.int16)
        for behind in range(first + 1, end + 1):
            cost = self._after((behind, last), self.chain[behind - 1].given, needs.to_pass(first, behind, last))
            cost += self.cost[first, behind - 1] + (self.forward[behind] - self.forward[first])
            better = cost < self.cost[part]
            self.cost[part][better] = cost[better]
            self.choice[part][better] = behind

    def steps(self) -> list[int]:
        """Slots of memory from which on a step costs less than with one less."""
        cost = self.cost[0, None]
        return [int(at) for at in np.flatnonzero(cost < np.concatenate(([np.inf], cost[:-1])))]

    def plan(self, first: int, last: int | None, slots: int) -> Checkpoints:
        behind = int(self.choice[first, last][slots])
        if behind != KEEP:
            rest = self.plan(behind, last, slots - self._in_slots(self.chain[behind - 1].given))
            return (self.plan(first, behind - 1, slots), *rest)
        if first == self.needs.end(last):
            return (first,)
        return (first, *self.plan(first + 1, last, slots - self._in_slots(self.needs.stays(first, last))))
