"""Blocks that are run again in the backward: the same gradients, less that is kept, and what is wrong is said."""

import gc
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headroom.memory.prediction import LiveBytes
from headroom.training import (
    BlockCost,
    CheckpointedChain,
    Checkpoints,
    ComputedOtherwise,
    InRam,
    WrittenPlaces,
    every,
    spent,
)
from headroom.training import checkpoint as checkpoints

COUNT, WIDTH = 6, 16
PLANS: list[Checkpoints] = [
    every(COUNT, 1),
    every(COUNT, 2),
    every(COUNT, 3),
    every(COUNT, COUNT),
    ((0, 1, 2), 3, (4,), 5),
    (0, ((1, 2), 3, 4), 5),
    (((0,), ((1, 2), 3), 4), 5),
    ((((((0,), 1), 2), 3), 4), 5),
    (0, 1, 2, 3, 4, 5),
    (),
]


class Stream(nn.Module):
    """A block of two streams that are modulated by what all blocks share, as a diffusion transformer's are."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.modulation, self.qkv = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.up, self.down, self.dropout = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), dropout

    def forward(self, image: Tensor, text: Tensor, *, shared: Tensor) -> tuple[Tensor, Tensor]:
        shift, scale = self.modulation(shared).chunk(2, -1)
        x = torch.cat([functional.layer_norm(one, (WIDTH,)) for one in (text, image)], 1) * (1 + scale) + shift
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        x = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = functional.dropout(x, self.dropout)
        text, image = (one + two for one, two in zip((text, image), x.split([text.shape[1], image.shape[1]], 1)))
        return image + self.down(functional.gelu(self.up(image))), text


def blocks(dropout: float = 0.0) -> nn.ModuleList:
    torch.manual_seed(3)
    return nn.ModuleList(Stream(dropout) for _ in range(COUNT))


Between = Callable[[int, Tensor], None]


def gradients(
    chain: nn.ModuleList,
    plan: Checkpoints | None,
    between: Between = lambda number, image: None,
    times: int = 1,
    written: WrittenPlaces | None = None,
    ram: InRam | None = None,
) -> list[Tensor]:
    """Of a loss by all parameters and inputs.

    Args:
        plan: None = none, the blocks called as they are.
        between: called with what each block gave, which it may change.
        times: backwards through the same graph.
        written: what earlier forwards have learnt.
        ram: where what goes into blocks is kept.
    """
    torch.manual_seed(7)
    image, text, shared = (torch.randn(2, n, WIDTH, requires_grad=True) for n in (9, 4, 1))
    chain.zero_grad()
    run, (x, y) = CheckpointedChain(plan or (), written, ram), (image * 1, text * 1)
    for number, block in enumerate(chain):
        x, y = run.run(number, block, x, y, shared=shared)
        between(number, x)
    del run
    for turn in range(times):
        (x.square().sum() + y.sum()).backward(retain_graph=turn + 1 < times)
    return [each.grad for each in (image, text, shared, *chain.parameters()) if each.grad is not None]


def require_same(first: list[Tensor], second: list[Tensor]) -> None:
    assert len(first) == len(second)
    assert all(torch.equal(one, other) for one, other in zip(first, second))


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_the_gradients_are_the_same_bits(plan: Checkpoints) -> None:
    require_same(gradients(blocks(), plan), gradients(blocks(), None))


@pytest.mark.parametrize("plan", PLANS[::2], ids=str)
def test_so_are_they_with_random_numbers_and_automatic_casts(plan: Checkpoints) -> None:
    expected = gradients(blocks(0.3), None)
    require_same(gradients(blocks(0.3), plan), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = gradients(blocks(), None)
    assert not torch.equal(cast[0], expected[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        require_same(gradients(blocks(), plan), cast)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_what_changes_a_block_s_result_in_place_counts(plan: Checkpoints) -> None:
    """As a control network's addition does."""

    def added(number: int, image: Tensor) -> None:
        if number in (1, 3):
            image += 0.5 * number

    require_same(gradients(blocks(), plan, added), gradients(blocks(), None, added))


class Writing(Stream):
    """A block that adds to what goes into it, as Flux's blocks do."""

    def forward(self, image: Tensor, text: Tensor, *, shared: Tensor) -> tuple[Tensor, Tensor]:
        x, y = super().forward(image, text, shared=shared)
        image += x.tanh()
        text += y.tanh()
        return image, text


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("kind", [Stream, Writing])
def test_the_gradients_are_the_same_bits_with_what_goes_in_elsewhere(plan: Checkpoints, kind: type[Stream]) -> None:
    """Each once there and back, what all blocks share once for all; tests/emulator has it beside a card."""
    torch.manual_seed(3)
    chain, ram = nn.ModuleList(kind() for _ in range(COUNT)), InRam(torch.device("cpu"))
    require_same(gradients(chain, plan, ram=ram), gradients(chain, every(COUNT, 1)))
    segments = [part for part in plan if isinstance(part, tuple)]
    image, text = (2 * n * WIDTH * 4 for n in (9, 4))
    assert ram.sent == ram.fetched == len(segments) * (image + text)  # what they share is trained itself: it stays


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("times", [1, 2])
def test_blocks_that_write_to_what_goes_into_them(plan: Checkpoints, times: int) -> None:
    """Autograd itself refuses, since their norms have saved what they write to: as blocks that add give it."""
    torch.manual_seed(3)
    chain = nn.ModuleList(Writing() for _ in range(COUNT))
    plain = blocks()
    for one, other in zip(chain, plain):
        one.load_state_dict(other.state_dict())

    def adding(block: nn.Module) -> Any:
        def forward(image: Tensor, text: Tensor, *, shared: Tensor) -> tuple[Tensor, Tensor]:
            x, y = Stream.forward(block, image, text, shared=shared)
            return image + x.tanh(), text + y.tanh()

        return forward

    for block in plain:
        block.forward = adding(block)
    expected = gradients(plain, None, times=times)
    written: WrittenPlaces = {}
    for _ in range(3):
        require_same(gradients(chain, plan, times=times, written=written), expected)


def test_a_graph_that_is_kept_is_gone_through_twice() -> None:
    require_same(gradients(blocks(), PLANS[6], times=2), gradients(blocks(), None, times=2))


def test_each_block_runs_again_as_often_as_the_plan_says() -> None:
    for plan in PLANS:
        chain, runs = blocks(), list[nn.Module]()
        for block in chain:
            block.register_forward_hook(lambda module, *_, runs=runs: runs.append(module))
        gradients(chain, plan)
        costs = [BlockCost(1, 1, 1.0, 1.0) for _ in range(COUNT)]
        assert len(runs) - COUNT == spent(costs, plan or tuple(range(COUNT))).again


def test_nothing_stays() -> None:
    gradients(blocks(), PLANS[6])
    gc.collect()
    left = [one for one in gc.get_objects() if isinstance(one, (checkpoints._Segment, checkpoints._Place))]
    assert not left


def test_without_a_gradient_nothing_is_kept() -> None:
    run, block = CheckpointedChain(((0,),)), blocks()[0]
    with torch.no_grad():
        run.run(0, block, torch.ones(1, 2, WIDTH), torch.ones(1, 2, WIDTH), shared=torch.ones(1, 1, WIDTH))
    assert not run._segments


def test_an_input_that_is_written_to_afterwards_is_an_error() -> None:
    run, x = CheckpointedChain(((0,),)), torch.ones(3, requires_grad=True) * 1
    y = run.run(0, lambda x: (x.detach() * 2).requires_grad_() * x.exp(), x)
    x.detach().add_(1)
    with pytest.raises(ComputedOtherwise, match="block 0: what goes into it was written to"):
        y.sum().backward()


@pytest.mark.parametrize("more", [True, False])
def test_a_block_that_does_something_else_the_second_time_is_an_error(more: bool) -> None:
    turns: list[int] = []

    def moody(x: Tensor) -> Tensor:
        turns.append(1)
        return x.exp() if (len(turns) == 1) == more else x.exp().tanh().exp()

    run = CheckpointedChain(((4,),))
    y = run.run(4, moody, torch.ones(3, requires_grad=True) * 1)
    with pytest.raises(ComputedOtherwise, match="block 4 saved other tensors"):
        y.sum().backward()


def costs_of(chain: nn.ModuleList) -> list[BlockCost]:
    """Measured tensor by tensor, of one block for all that are alike: what it saves, and what its backward takes."""
    block = chain[0]
    image, text = (torch.randn(2, n, WIDTH, requires_grad=True) * 1 for n in (90, 40))
    shared = torch.randn(2, 1, WIDTH, requires_grad=True)
    given = image.nbytes + text.nbytes
    with LiveBytes("cpu") as tracker:
        tracker.leave_out([*chain.parameters(), image, text, shared])
        x, y = block(image, text, shared=shared)
        saved, forward = tracker.live, tracker.live_peak
        loss = x.square().sum() + y.square().sum()
        del x, y
        tracker.live_peak = 0
        torch.autograd.grad(loss, [image, text, shared, *block.parameters()])
        most = tracker.live_peak
    return [BlockCost(given, saved, 1.0, 2.0, forward - saved, most - saved - 2 * given)] * len(chain)


def step(chain: nn.ModuleList, plan: Checkpoints) -> tuple[int, int]:
    """Bytes that live between forward and backward, and at most."""
    image, text, shared = (torch.randn(2, n, WIDTH, requires_grad=True) for n in (90, 40, 1))
    for one in (image, text, shared, *chain.parameters()):
        one.grad = torch.zeros_like(one)
    run = CheckpointedChain(plan)
    with LiveBytes("cpu") as tracker:
        tracker.leave_out([*chain.parameters(), image, text, shared])
        tracker.leave_out([one.grad for one in (*chain.parameters(), image, text, shared) if one.grad is not None])
        x, y = image * 1, text * 1
        before = tracker.live
        for number, block in enumerate(chain):
            x, y = run.run(number, block, x, y, shared=shared)
        held = tracker.live - before
        loss = x.square().sum() + y.square().sum()
        del run, x, y
        loss.backward()
        return held, tracker.live_peak - before


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_what_lives_is_what_the_plan_says(plan: Checkpoints) -> None:
    chain = blocks()
    costs = costs_of(chain)
    plan = plan or tuple(range(COUNT))
    held, most = step(chain, plan)
    expected = 0
    for part in plan:
        number = part if isinstance(part, int) else checkpoints.first_and_last(part)[1]
        expected += costs[number].saved if isinstance(part, int) else costs[number].given
    assert held == expected
    assert most == pytest.approx(spent(costs, plan or tuple(range(COUNT))).peak, abs=256)  # of the loss


def test_plans_by_chance() -> None:
    draw = random.Random(4)

    def plan(first: int, behind: int) -> Checkpoints:
        if first == behind:
            return ()
        end = draw.randint(first + 1, behind)
        if end < behind and draw.random() < 0.6:
            return (plan(first, end), *plan(end, behind))
        return (first, *plan(first + 1, behind))

    expected = gradients(blocks(), None)
    for _ in range(20):
        require_same(gradients(blocks(), plan(0, COUNT)), expected)
