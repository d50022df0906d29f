"""Which layers stay, which are streamed, through how large a ring: judged on the virtual clock."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from headroom.benchmarks._offload_clock import (
    efficiency,
    evenly_spaced,
    ideal_seconds,
    plain_step,
    simulate,
    total_bytes,
    total_seconds,
)
from headroom.offload.costs import LayerCost, Segment, segments_of
from headroom.offload.kept_layers import layers_to_keep
from headroom.offload.schedule import Plan, PlanSearch, least_budget, ring_bytes, spread_residents
from headroom.offload.virtual_clock import ring_waits, step_seconds

from .readers import within_calls

MOST_CALLS = 1_000_000
ROUNDING = 1e-9  # seconds
KB = 1024
FLOPS_AND_BANDWIDTH = {
    "3060": (25e12, 12e9),
    "4070 Ti": (80e12, 24.5e9),
    "4090": (150e12, 24.5e9),
    "5090": (190e12, 50e9),
}


def equal(count: int, size: int = KB, seconds: float = 1.0) -> list[LayerCost]:
    return [LayerCost(size, seconds)] * count


def flux(card: str, bytes_per_weight: int) -> tuple[list[LayerCost], float]:
    """The layers of Flux at 1024 px, one a matrix, and a card's bandwidth."""
    flops, bandwidth = FLOPS_AND_BANDWIDTH[card]
    square, picture, text = 3072**2, 4096, 512
    both = picture + text
    attention = (0, 4 * 3072 * both**2)
    double = [(6, 1), (6, 1), (3, picture), (3, text), attention, (1, picture), (4, picture), (4, picture)]
    double += [(1, text), (4, text), (4, text)]
    single = [(3, 1), (7, both), attention, (5, both)]
    return [
        LayerCost(squares * square * bytes_per_weight, (2 * squares * square * work if squares else work) / flops)
        for squares, work in double * 19 + single * 38
    ], bandwidth


def random_costs(rng: random.Random) -> list[LayerCost]:
    count = rng.randint(1, 20)
    kinds = [(rng.randint(1, 10**9), rng.random()) for _ in range(rng.choice((1, 2, 3, 20)))]
    return [LayerCost(*rng.choice(kinds)) for _ in range(count)]


def random_budget(costs: Sequence[LayerCost], rng: random.Random) -> int:
    return rng.randint(least_budget(costs), max(least_budget(costs), total_bytes(costs)) + 1)


def planned_for(costs: Sequence[LayerCost], budget: int, bandwidth: float) -> Plan:
    """As if the link were known."""
    return PlanSearch(tuple(costs), budget, budget, (bandwidth,)).best()


# ------------------------------------------------------------------------------------------------ virtual clock


def test_a_ring_for_one_layer_hides_a_transfer_behind_resident_layers_only() -> None:
    """By hand: layer 0 arrives at 2 and runs to 3; layer 2 arrives at 5, when layer 1 has run too; and so on."""
    timing = simulate([LayerCost(4, 1.0), LayerCost(4, 1.5), LayerCost(4, 1.0)], {1}, bandwidth=2.0, staging=4)
    assert timing.transfers[:4] == [(0, 0.0, 2.0), (2, 3.0, 5.0), (0, 6.0, 8.0), (2, 9.0, 11.0)]
    assert timing.step_seconds == pytest.approx(6.0)
    assert timing.peak_bytes == 8


def test_a_ring_for_two_by_hand() -> None:
    """The link is the limit: a layer of 2 seconds to transfer and 1 to compute, over and over."""
    timing = simulate(equal(3, 4), (), bandwidth=2.0, staging=8)
    assert timing.transfers[:4] == [(0, 0.0, 2.0), (1, 2.0, 4.0), (2, 4.0, 6.0), (0, 6.0, 8.0)]
    assert timing.step_seconds == pytest.approx(6.0)
    assert timing.peak_bytes == 8


def test_layers_of_different_sizes_lie_one_behind_the_other() -> None:
    """6, 2 and 2 bytes in 10: only the next 6 have to wait, until the first have run."""
    costs = [LayerCost(6, 3.0), LayerCost(2, 3.0), LayerCost(2, 3.0)]
    timing = simulate(costs, (), bandwidth=2.0, staging=10)
    assert timing.transfers[:4] == [(0, 0.0, 3.0), (1, 3.0, 4.0), (2, 4.0, 5.0), (0, 6.0, 9.0)]
    assert timing.step_seconds == pytest.approx(9.0)


def test_all_resident_transfers_nothing() -> None:
    timing = simulate(equal(5), range(5), bandwidth=1.0, staging=0)
    assert (timing.step_seconds, timing.peak_bytes, timing.transfers) == (5.0, 5 * KB, [])


@pytest.mark.parametrize("seed", range(4))
def test_transfers_keep_their_order_and_the_ring_never_holds_more(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        costs, steps = random_costs(rng), 4
        resident = {i for i in range(len(costs)) if rng.random() < 0.4}
        streamed = [i for i in range(len(costs)) if i not in resident]
        staging = int(max((costs[i].bytes for i in streamed), default=0) * rng.uniform(1, 5))
        bandwidth = total_bytes(costs) / rng.uniform(1, 20)
        timing = simulate(costs, resident, bandwidth, staging, steps)
        assert [layer for layer, _, _ in timing.transfers] == streamed * steps
        assert all(before[2] <= after[1] + ROUNDING for before, after in pairwise(timing.transfers))
        assert timing.peak_bytes <= sum(costs[i].bytes for i in resident) + staging


@pytest.mark.parametrize("seed", range(4))
def test_the_packs_clock_agrees_with_the_one_that_follows_every_layer(seed: int) -> None:
    rng = random.Random(50 + seed)
    for _ in range(60):
        costs, steps = random_costs(rng), rng.randint(2, 5)
        streamed = [0, *(i for i in range(1, len(costs)) if rng.random() < 0.6)]  # nothing before the first of them
        staging = int(max(costs[i].bytes for i in streamed) * rng.uniform(1, 5))
        bandwidth = total_bytes(costs) / rng.uniform(1, 20)
        segments = segments_of(costs, streamed)
        found = step_seconds(segments, ring_waits(segments, staging, steps), bandwidth)
        resident = set(range(len(costs))) - set(streamed)
        assert found == pytest.approx(simulate(costs, resident, bandwidth, staging, steps).step_seconds)


# --------------------------------------------------------------------------------------------------------- plans


def test_everything_that_fits_is_resident() -> None:
    plan = spread_residents(equal(4), 4 * KB)
    assert (plan.streamed, plan.staging, plan.resident_bytes) == ((), 0, 4 * KB)


def test_too_small_a_budget_names_the_least() -> None:
    for budget in (0, KB - 1):
        with pytest.raises(ValueError, match="at least 1024"):
            spread_residents(equal(8), budget)
    plan = spread_residents(equal(8), KB)
    assert (plan.resident, plan.staging, plan.peak) == (frozenset(), KB, KB)


def test_a_layer_far_larger_than_the_rest_is_kept_out_of_the_ring() -> None:
    costs = [LayerCost(100 * KB, 1.0), *equal(8)]
    assert least_budget(costs) == 100 * KB  # a ring that it fits into
    plan = spread_residents(costs, 102 * KB)
    assert plan.resident == {0}
    assert plan.staging <= 2 * KB


@pytest.mark.parametrize("wrong", [[], [LayerCost(-1, 1.0)], [LayerCost(1, -1.0)]])
def test_costs_that_cannot_be(wrong: list[LayerCost]) -> None:
    with pytest.raises(ValueError, match="at least 1, and no negative costs"):
        spread_residents(wrong, 10**6)


def test_layers_without_bytes_or_compute() -> None:
    costs = [LayerCost(0, 1.0), LayerCost(10 * KB, 0.0), *equal(6, 10 * KB), LayerCost(0, 0.0)]
    plan = spread_residents(costs, 40 * KB)
    assert plan.peak <= 40 * KB
    assert {0, 8} <= plan.resident
    assert spread_residents([LayerCost(10 * KB, 0.0)] * 6, 40 * KB).peak <= 40 * KB


@pytest.mark.parametrize("seed", range(3))
def test_the_budget_holds_for_whatever_layers(seed: int) -> None:
    rng = random.Random(100 + seed)
    for _ in range(50):
        costs = random_costs(rng)
        budget, bandwidth = random_budget(costs, rng), total_bytes(costs) / rng.uniform(0.5, 20)
        plan = spread_residents(costs, budget)
        assert simulate(costs, plan.resident, bandwidth, plan.staging).peak_bytes <= plan.peak <= budget
        assert sorted([*plan.resident, *plan.streamed]) == list(range(len(costs)))
        assert list(plan.streamed) == sorted(plan.streamed)
        assert plan.resident_bytes + plan.streamed_bytes == total_bytes(costs)
        assert plan.resident_bytes == sum(costs[i].bytes for i in plan.resident)


def test_no_more_is_staged_than_allowed() -> None:
    costs, _ = flux("3060", 2)
    for most in (200_000_000, 400_000_000, 10**9):
        plan = spread_residents(costs, total_bytes(costs) // 10, most)
        assert plan.staging <= ring_bytes(most)


def test_equal_layers_leave_no_room_unused() -> None:
    for budget in range(2, 24):
        plan = spread_residents(equal(24), budget * KB + KB - 1)
        assert plan.peak > (budget - 1) * KB


def test_the_same_plan_every_time_and_soon() -> None:
    """The number of calls stands for seconds, which are another machine's: about a tenth of one."""
    costs, _ = flux("4090", 2)
    with within_calls(MOST_CALLS):
        first = spread_residents(costs, total_bytes(costs) // 2)
    assert all(spread_residents(costs, total_bytes(costs) // 2) == first for _ in range(2))


# ---------------------------------------------------------------------------------------------------- efficiency


def test_equal_layers_hide_what_can_be_hidden() -> None:
    """Whatever the link: plans that do not know it."""
    costs = equal(48)
    for budget in range(12, 48, 5):
        plan = spread_residents(costs, budget * KB)
        for ratio in (0.5, 0.75, 1.0, 1.5, 2.0, 4.0):
            assert efficiency(costs, plan.resident, KB / ratio, plan.staging) >= 0.95, (budget, ratio)


def test_residents_at_one_end_are_slower() -> None:
    costs = equal(24)
    assert efficiency(costs, range(12, 24), KB / 2, 2 * KB) < 0.75
    plan = spread_residents(costs, 14 * KB)
    assert efficiency(costs, plan.resident, KB / 2, plan.staging) > 0.95


@pytest.mark.parametrize("card", FLOPS_AND_BANDWIDTH)
@pytest.mark.parametrize("bytes_per_weight", [2, 1])
def test_flux_from_a_quarter_up(card: str, bytes_per_weight: int) -> None:
    costs, bandwidth = flux(card, bytes_per_weight)
    for percent in (25, 40, 50, 60, 75, 90):
        plan = spread_residents(costs, total_bytes(costs) * percent // 100)
        # At a quarter all single blocks are streamed, and where compute just balances the link nothing can make up for
        # double blocks that take longer to arrive than to run; what streams less then is not faster.
        limit = 0.88 if percent == 25 else 0.95
        assert efficiency(costs, plan.resident, bandwidth, plan.staging) >= limit, percent
        informed = planned_for(costs, total_bytes(costs) * percent // 100, bandwidth)
        steps = [simulate(costs, each.resident, bandwidth, each.staging).step_seconds for each in (plan, informed)]
        assert steps[0] <= 1.05 * steps[1], percent


@pytest.mark.parametrize("card", ["3060", "4090", "5090"])
def test_never_slower_than_plain_streaming_within_the_same_memory(card: str) -> None:
    costs, bandwidth = flux(card, 2)
    for percent in (3, 6, 12, 25, 50, 75, 95):
        budget = total_bytes(costs) * percent // 100
        plan = spread_residents(costs, budget)
        step = simulate(costs, plan.resident, bandwidth, plan.staging).step_seconds
        assert step <= plain_step(costs, budget, bandwidth) * 1.001, percent


def test_plain_streaming_by_hand() -> None:
    """Two buffers of 4 bytes, 2 seconds each to transfer, none resident; with room for one more, a fourth less."""
    costs = equal(4, 4, 0.5)
    assert plain_step(costs, 8, 2.0) == pytest.approx(8.0)
    assert plain_step(costs, 12, 2.0) == pytest.approx(6.0)
    assert plain_step(costs, 16, 2.0) == pytest.approx(total_seconds(costs))
    assert plain_step(costs, 7, 2.0) == float("inf")


def test_the_search_is_worth_it() -> None:
    """Beside even spacing, on whatever layers and links; in benchmarks/offload.md on models and cards."""
    rng = random.Random(7)
    ratios = []
    for _ in range(60):
        costs = random_costs(rng)
        budget, bandwidth = random_budget(costs, rng), total_bytes(costs) / rng.uniform(0.5, 20)
        simple = evenly_spaced(costs, budget)
        if simple is None:
            continue
        plans = spread_residents(costs, budget), simple
        ours, theirs = (simulate(costs, each.resident, bandwidth, each.staging).step_seconds for each in plans)
        assert simple.peak <= budget
        ratios.append(ours / theirs)
    assert len(ratios) > 40
    assert sum(ratios) / len(ratios) < 0.96


@pytest.mark.parametrize("card", ["4090", "5090"])
def test_knowing_the_bandwidth_is_no_loss(card: str) -> None:
    costs, bandwidth = flux(card, 2)
    for percent in (10, 48, 70):
        budget = total_bytes(costs) * percent // 100
        plans = planned_for(costs, budget, bandwidth), spread_residents(costs, budget)
        known, unknown = (simulate(costs, plan.resident, bandwidth, plan.staging).step_seconds for plan in plans)
        assert known <= unknown * 1.005, percent


@pytest.mark.parametrize("card", ["3060", "4090", "5090"])
def test_more_budget_is_not_slower(card: str) -> None:
    costs, bandwidth = flux(card, 2)
    fastest = float("inf")
    for percent in range(6, 101, 8):
        plan = spread_residents(costs, total_bytes(costs) * percent // 100)
        step = simulate(costs, plan.resident, bandwidth, plan.staging).step_seconds
        assert step <= fastest * 1.02, percent
        fastest = min(fastest, step)
    assert step == pytest.approx(ideal_seconds(costs, range(len(costs)), bandwidth))


# ------------------------------------------------------------------------------------------------ layers that stay


def test_layers_stay_where_the_link_is_the_limit() -> None:
    """Ten layers of 2 seconds to transfer and 0.1 to compute: even a ring for one is enough, the others stay."""
    kept = layers_to_keep([Segment(4 * KB, 0.1, 0.0)] * 10, 24 * KB, 2 * KB)
    assert len(kept) == 5


def test_none_stays_where_the_ring_hides_the_copies() -> None:
    """A long computation after every fourth layer, during which the next four arrive."""
    segments = [Segment(4 * KB, 0.1, 8.0 if i % 4 == 3 else 0.0) for i in range(16)]
    assert layers_to_keep(segments, 20 * KB, 2 * KB) == frozenset()


def test_what_stays_and_the_largest_of_the_others_fit_the_ring() -> None:
    rng = random.Random(3)
    for _ in range(60):
        segments = [Segment(rng.randint(1, 50) * KB, rng.random(), rng.random()) for _ in range(rng.randint(1, 12))]
        ring = max(segment.bytes for segment in segments) * rng.randint(1, 4)
        kept = layers_to_keep(segments, ring, rng.uniform(1, 50) * KB)
        rest = [stage.bytes for i, stage in enumerate(segments) if i not in kept]
        assert rest
        assert sum(segments[i].bytes for i in kept) + max(rest) <= ring
