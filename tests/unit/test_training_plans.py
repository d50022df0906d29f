"""Plans of checkpoints: what a step takes by one, and the one that computes least again within a budget."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import pytest

from headroom.training import (
    BlockCost,
    Checkpoints,
    StepDoesNotFit,
    before_gradients_come,
    every,
    least_recomputation,
    least_recomputation_in_ram,
    least_room,
    spent,
)

SHARES = (0.0, 0.1, 0.25, 0.5, 0.8)  # of the way from the least room to that of a step without checkpoints


def chain_of(count: int, seed: int) -> list[BlockCost]:
    draw = random.Random(seed).randint
    return [
        BlockCost(
            given=(given := draw(1, 40) * 1000), saved=given + draw(0, 200) * 1000, forward=draw(1, 50),
            backward=draw(1, 100), forward_work=draw(0, 60) * 1000, backward_work=draw(0, 60) * 1000,
            entering=draw(0, 30) * 1000,
            **{("released", "copied")[draw(0, 1)]: draw(0, 1) * given},
        )
        for _ in range(count)
    ]  # fmt: skip


def alike(count: int) -> list[BlockCost]:
    """As a transformer's are."""
    return [BlockCost(given=10, saved=130, forward=1.0, backward=2.0, forward_work=25, backward_work=40)] * count


def kept(count: int) -> Checkpoints:
    return tuple(range(count))


def budgets(chain: Sequence[BlockCost]) -> list[int]:
    least, most = least_room(chain), spent(chain, kept(len(chain))).peak
    return [int(least + share * (most - least)) for share in SHARES]


def plans(first: int, behind: int) -> Iterator[Checkpoints]:
    """Every plan there is."""
    if first == behind:
        yield ()
        return
    for rest in plans(first + 1, behind):
        yield (first, *rest)
    for end in range(first + 1, behind):
        for part in plans(first, end):
            for rest in plans(end, behind):
                yield (part, *rest)


def test_a_step_is_followed_by_hand() -> None:
    chain = [BlockCost(4, 9, 2.0, 4.0, 5, 6), BlockCost(3, 7, 3.0, 6.0, 1, 2), BlockCost(2, 8, 5.0, 9.0, 3, 4)]
    # Forward: 9, 16, 24 + 3. Backward: the last block with its gradient and the one before, 24 + 2 + 3 + 4.
    assert spent(chain, (0, 1, 2)).peak == 33
    # Both first ones behind a checkpoint: 3 + 8, in backward 11 + 2 + 3 + 4; then 3 of a gradient, 9 + 7 again and
    # 3 + 4 + 2 in the second one's backward.
    assert spent(chain, ((0, 1), 2)).peak == 16 + 3 + 4 + 2
    assert spent(chain, ((0, 1), 2)).again == 5.0
    assert spent(chain, ((0,), (1,), (2,))).again == 10.0
    assert spent(chain, (((0,), 1), 2)).again == 7.0


def test_what_is_run_again_keeps_less() -> None:
    """Neither what only the next block needs, nor copies of what it writes to."""
    plain = [BlockCost(4, 9, 2.0, 4.0, 0, 0)] * 2
    released = [replace(block, released=3) for block in plain]
    copied = [replace(block, copied=2) for block in plain]
    # Backward of the last: what both keep, the gradient that comes and the one that goes.
    assert spent(plain, ((0, 1),)).peak == 9 + 9 + 4 + 4
    assert spent(released, ((0, 1),)).peak == 9 + 9 - 3 + 4 + 4
    assert spent(copied, ((0, 1),)).peak == 9 - 2 + 9 - 2 + 4 + 4
    assert spent(released, (0, 1)).peak == spent(copied, (0, 1)).peak == spent(plain, (0, 1)).peak


def test_gradients_come_from_the_last_block_on() -> None:
    chain = [replace(block, learnt=learnt) for block, learnt in zip([BlockCost(4, 9, 2.0, 4.0, 5, 6)] * 2, (10, 20))]
    # Of 30 bytes that are counted as there, none is in the forward; in the last block's backward its own are made.
    first, last = before_gradients_come(chain)
    assert (first.forward_work, first.backward_work) == (5 - 10, 6 - 10)
    assert (last.forward_work, last.backward_work) == (5 - 30, 6 - 30)
    assert before_gradients_come(chain, 100)[0].forward_work == 5 - 110
    # Most is there in the first block's backward: what both keep is gone but for its own, and so are two gradients.
    assert spent([first, last], (0, 1)).peak == 9 + 4 + 6 - 10
    assert spent(before_gradients_come([replace(one, learnt=100) for one in chain]), (0, 1)).peak == 0


@pytest.mark.parametrize("count", range(1, 6))
@pytest.mark.parametrize("share", [0.5, 3.0])
def test_none_of_all_plans_is_better_where_gradients_come(count: int, share: float) -> None:
    """Also where they are more than all activations, so that what a block works with is below nothing."""
    chain = [replace(block, learnt=int(share * block.saved)) for block in chain_of(count, 1)]
    chain = before_gradients_come(chain)
    found = [spent(chain, plan) for plan in set(plans(0, count))]
    for budget in budgets(chain):
        if budget > 0:
            _, step = least_recomputation(chain, budget)
            assert step.peak <= budget
            assert step.again == min(one.again for one in found if one.peak <= budget)


def test_a_first_run_takes_more_than_another() -> None:
    """What goes in is copied, and whatever is saved is there, until it is known what the block writes to."""
    block = BlockCost(given=4, saved=30, forward=1.0, backward=2.0, forward_work=5, backward_work=0, entering=7)
    last = BlockCost(given=1, saved=1, forward=1.0, backward=2.0)
    assert spent([block], (0,)).peak == 30 + 7 + 5
    assert spent([block], ((0,),)).peak == 30 + 7 + 5
    # Again, beside a gradient of 4; before it runs again nothing of it is there.
    assert spent([replace(block, entering=0, given=6), last], ((0,), 1)).peak == 6 + 30 + 5
    assert spent([replace(block, entering=7, given=6), last], ((0,), 1)).peak == 30 + 7 + 5


@pytest.mark.parametrize("plan", [(0, 1), (0, 2, 1), ((0, 1), 1, 2), (0, (1, 2), 3)])
def test_a_plan_names_each_block_once(plan: Checkpoints) -> None:
    with pytest.raises(ValueError, match="blocks 0 to 2 in their order"):
        spent(alike(3), plan)


def test_every_kth() -> None:
    assert every(5, 2) == ((0, 1), (2, 3), (4,))
    assert every(3, 1) == ((0,), (1,), (2,))


@pytest.mark.parametrize("count", range(1, 7))
@pytest.mark.parametrize("seed", range(3))
def test_none_of_all_plans_is_better(count: int, seed: int) -> None:
    chain = chain_of(count, seed)
    found = [spent(chain, plan) for plan in set(plans(0, count))]
    assert least_room(chain) == min(step.peak for step in found)
    for budget in budgets(chain):
        _, step = least_recomputation(chain, budget)
        assert step.peak <= budget
        assert step.again == min(one.again for one in found if one.peak <= budget)


@pytest.mark.parametrize("count", [9, 12])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_near_the_optimum_of_longer_chains(count: int, seed: int) -> None:
    """Of the same recursion to the byte, without slots."""
    chain = chain_of(count, seed)

    @cache
    def optimum(first: int, last: int, waits: bool, room: int) -> float:
        gradient, into = chain[last].given * waits, chain[first - 1].given if first else 0
        block, best = chain[first], float("inf")
        forward = block.saved + block.forward_work + gradient
        if room >= max(forward, block.saved + block.given + into + block.backward_work):
            best = 0.0 if first == last else optimum(first + 1, last, waits, room - block.saved)
        passing, before = 0, 0
        for behind in range(first + 1, last + 1):
            through = chain[behind - 1]
            passing, before = max(passing, before + through.given + through.forward_work), through.given
            if room >= passing + gradient:
                again = sum(one.forward for one in chain[first:behind]) + optimum(first, behind - 1, True, room)
                best = min(best, again + optimum(behind, last, waits, room - through.given))
        return best

    work = sum(block.forward + block.backward for block in chain)
    for budget in budgets(chain):
        _, step = least_recomputation(chain, budget)
        assert step.peak <= budget
        assert work + step.again <= 1.05 * (work + optimum(0, count - 1, False, budget))


@pytest.mark.parametrize("chain", [alike(57), alike(19), chain_of(30, 1), chain_of(48, 2)], ids=len)
def test_no_budget_is_exceeded_and_no_fixed_k_is_better(chain: list[BlockCost]) -> None:
    fixed = [spent(chain, every(len(chain), k)) for k in range(1, len(chain) + 1)]
    least, most = least_room(chain), spent(chain, kept(len(chain))).peak
    grid = [least + (most - least) * part // 9 for part in range(10)]
    for budget in grid:
        _, step = least_recomputation(chain, budget)
        assert step.peak <= budget
        assert step.again <= min((one.again for one in fixed if one.peak <= budget), default=float("inf"))
    assert least_recomputation(chain, most) == (kept(len(chain)), spent(chain, kept(len(chain))))


def test_a_budget_below_the_least_is_refused_with_it() -> None:
    chain = chain_of(7, 5)
    with pytest.raises(StepDoesNotFit, match="at least") as failure:
        least_recomputation(chain, least_room(chain) - 1)
    assert failure.value.least == least_room(chain)
    assert least_recomputation(chain, failure.value.least)[1].peak == failure.value.least


def test_checkpoints_in_ram_are_on_the_device_two_at_a_time() -> None:
    peaks = {spent(alike(count), every(count, 1), in_ram=True).peak for count in (3, 4, 12, 60)}
    # Backward of a block: what goes into it and the one before, its gradients, what it keeps, what it works with.
    assert peaks == {2 * 10 + 130 + 2 * 10 + 40}
    assert spent(alike(60), every(60, 1)).peak == 59 * 10 + 130 + 2 * 10 + 40
    # What a block that is kept is given stays: it keeps it itself.
    assert spent(alike(3), ((0,), 1, 2), in_ram=True) == spent(alike(3), ((0,), 1, 2))
    # So do checkpoints of a run within a run.
    assert spent(alike(4), (((0,), (1,), (2,), 3),), in_ram=True) == spent(alike(4), (((0,), (1,), (2,), 3),))


@pytest.mark.parametrize("chain", [alike(20), chain_of(12, 3), chain_of(30, 4)])
def test_in_ram_a_budget_is_kept_with_no_more_work_or_reaches_lower(chain: list[BlockCost]) -> None:
    for budget in budgets(chain):
        plan, step = least_recomputation_in_ram(chain, budget)
        assert step == spent(chain, plan, in_ram=True)
        assert step.peak <= budget
        assert step.again <= least_recomputation(chain, budget)[1].again
    everywhere = spent(chain, every(len(chain), 1), in_ram=True).peak
    _, step = least_recomputation_in_ram(chain, everywhere)
    assert step.peak <= everywhere
    with pytest.raises(StepDoesNotFit) as refused:
        least_recomputation_in_ram(chain, min(everywhere, least_room(chain)) - 1)
    assert refused.value.least == min(everywhere, least_room(chain))


def test_in_ram_little_room_costs_less_work() -> None:
    """On the device runs within runs keep it, over and over."""
    chain = [replace(block, given=40, saved=160) for block in alike(57)]
    room = spent(chain, every(57, 1), in_ram=True).peak
    assert room < spent(chain, every(57, 1)).peak / 6
    plan, step = least_recomputation_in_ram(chain, room)
    assert plan == every(57, 1)
    assert step.again < least_recomputation(chain, room)[1].again / 2
    plan, step = least_recomputation_in_ram(chain, room + 400)
    assert plan[-3:] == (54, 55, 56), "as many of the last are kept as there is room for"
    assert step.peak <= room + 400
