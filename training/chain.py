"""A chain of blocks in a training step, and what a plan of its checkpoints takes.

A checkpoint keeps what goes into some blocks and lets go what they would keep for the backward; when the backward
arrives there, they are run again. Such a run may have checkpoints of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

#: What is done with the blocks of a chain, in their order: a block by its number is kept, blocks in a plan of their
#: own lie behind one checkpoint, and are run again by that plan.
Checkpoints = tuple["int | Checkpoints", ...]

ON_DEVICE = 2  # checkpoints of those that are kept in RAM: one that is used, and one that is copied meanwhile


@dataclass(frozen=True)
class BlockCost:
    """What a block takes, in bytes and FLOPs.

    Attributes:
        given: what it gives to the next block, bytes. Its gradient takes as much.
        saved: what its forward keeps for its backward, bytes, :attr:`given` among them, what goes in not.
        forward, backward: FLOPs.
        forward_work, backward_work: bytes beside that while they run, at most.
        released: bytes of :attr:`saved` that only the next block needs: a block that is run again lets them go.
        copied: bytes of :attr:`saved` that are copies of what goes in, which the block writes to: one that is run again
            got such a copy, and keeps none.
        learnt: gradients of what is trained in it, bytes: they are there from its backward on.
        entering: copies of what goes in, bytes, that are there while a step's forward runs it: only then it is known
            whether it writes to that. Whatever it saves is there then too, to see what it writes to.
    """

    given: int
    saved: int
    forward: float
    backward: float
    forward_work: int = 0
    backward_work: int = 0
    released: int = 0
    copied: int = 0
    learnt: int = 0
    entering: int = 0

    def first_run(self) -> int:
        """Bytes at most while a step's forward runs it, what goes in not among them."""
        return self.saved + self.entering + self.forward_work

    def stays(self, again: bool, is_last: bool) -> int:
        """Bytes that it keeps until its backward.

        Args:
            again: it lies behind a checkpoint and is run again.
            is_last: of those that are run again together.
        """
        return self.saved - again * (self.copied + is_last * self.released)


@dataclass(frozen=True)
class StepCost:
    """What a step takes by a plan.

    Attributes:
        peak: bytes of activations and their gradients at most, what goes into the first block not among them.
        again: FLOPs of blocks that are run again.
    """

    peak: int
    again: float


def before_gradients_come(chain: Sequence[BlockCost], ahead: int = 0) -> list[BlockCost]:
    """The chain beside all gradients of what is trained, counted as if they were there throughout.

    A step's backward brings them, from the last block to the first. So while a block runs, its own and those of the
    blocks before it are not there yet, which is taken off what it works with. (Of what else is not there when it runs
    again for a later block's backward nothing is said: that is a little too much.)

    Args:
        ahead: bytes of gradients of what is trained ahead of the first block; they come last.
    """
    missing = [ahead + less for less in accumulate(block.learnt for block in chain)]
    return [
        replace(block, forward_work=block.forward_work - less, backward_work=block.backward_work - less)
        for block, less in zip(chain, missing)
    ]


def every(count: int, k: int) -> Checkpoints:
    """A checkpoint before every k-th of so many blocks, all behind it computed again together."""
    return tuple(tuple(range(start, min(start + k, count))) for start in range(0, count, k))


def first_and_last(plan: Checkpoints) -> tuple[int, int]:
    """Numbers of a plan's blocks."""
    first, last = plan[0], plan[-1]
    while isinstance(first, tuple):
        first = first[0]
    while isinstance(last, tuple):
        last = last[-1]
    return first, last


def spent(chain: Sequence[BlockCost], plan: Checkpoints, *, in_ram: bool = False) -> StepCost:
    """Follows a step through a plan of all blocks.

    Args:
        in_ram: what goes into the blocks behind the plan's checkpoints is kept in the machine's memory; of two of them
            it is on the device, as one is copied while another is used.

    Raises:
        ValueError: the plan leaves blocks out, or has them in another order.
    """
    if list(_numbers(plan)) != list(range(len(chain))):
        raise ValueError(f"plan: it has to name blocks 0 to {len(chain) - 1} in their order, each once")
    walk = _Walk(chain, in_ram)
    walk.through(plan)
    walk.back(plan)
    return StepCost(walk.peak, walk.again)


def _numbers(plan: Checkpoints) -> Iterator[int]:
    for part in plan:
        if isinstance(part, tuple):
            yield from _numbers(part)
        else:
            yield part


class _Walk:
    """One step, block by block: what is held, and the most that was."""

    def __init__(self, chain: Sequence[BlockCost], in_ram: bool) -> None:
        self.chain = chain
        self.held = self.peak = 0
        self.again = 0.0
        self.in_ram, self.sent = in_ram, list[int]()

    def through(self, plan: Checkpoints, again: bool = False) -> None:
        """Forward; what the plan keeps is held then."""
        for part, following in zip(plan, (*plan[1:], None)):
            if isinstance(part, int):
                block = self.chain[part]
                self._see(block.saved + block.forward_work if again else block.first_run())
                self.held += self.chain[part].stays(again, part == plan[-1])
                continue
            first, last = first_and_last(part)
            before = 0  # of the block before, if it lies behind the same checkpoint
            for block in self.chain[first : last + 1]:
                self._see(before + (block.given + block.forward_work if again else block.first_run()))
                before = block.given
            self.held += before
            if self._goes(following, again):
                self.held -= self._copied_meanwhile()
                self.sent.append(before)

    def back(self, plan: Checkpoints, again: bool = False) -> None:
        """Backward; nothing of the plan is held then. The gradient of what the last block gave is there."""
        for part, following in zip(reversed(plan), (None, *plan[:0:-1])):
            if isinstance(part, int):
                block, into = self.chain[part], self.chain[part - 1].given if part else 0
                self._see(block.given + into + block.backward_work)
                self.held -= block.stays(again, part == plan[-1])
                continue
            first, last = first_and_last(part)
            self.held -= self.chain[last].given  # what goes into the next block, which is done
            if self._goes(following, again):
                self.sent.pop()
                self.held += self._copied_meanwhile()
            self.again += sum(block.forward for block in self.chain[first : last + 1])
            # The gradient waits while they are run again.
            self.held += self.chain[last].given
            self.through(part, again=True)
            self.held -= self.chain[last].given
            self.back(part, again=True)

    def _goes(self, following: int | Checkpoints | None, again: bool) -> bool:
        """Whether what a part gives is kept in the machine's memory: it goes behind one of the plan's checkpoints."""
        return self.in_ram and not again and isinstance(following, tuple)

    def _copied_meanwhile(self) -> int:
        """Bytes of the latest checkpoint that is on the device until there is one more."""
        return self.sent[-ON_DEVICE] if len(self.sent) >= ON_DEVICE else 0

    def _see(self, more: int) -> None:
        self.peak = max(self.peak, self.held + more)
