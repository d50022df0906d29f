"""Streams: the order that was asked for holds, and a wait that is missing is found, as a race and as poison."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from .conftest import Card

COUNT = 1 << 18


def staged(copy_is_waited_for: bool, read_is_waited_for: bool) -> list[float]:
    """Four weights through one buffer: copied on one stream, read on another."""
    weights = [torch.full((COUNT,), float(number)).pin_memory() for number in range(4)]
    buffer = torch.empty(COUNT, device="cuda")
    copies, copied, read = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()
    torch.cuda.synchronize()
    results = []
    for number, weight in enumerate(weights):
        with torch.cuda.stream(copies):
            if number and read_is_waited_for:
                copies.wait_event(read)
            buffer.copy_(weight, non_blocking=True)
            copied.record(copies)
        if copy_is_waited_for:
            torch.cuda.current_stream().wait_event(copied)
        results.append(buffer * 1)
        read.record()
    torch.cuda.synchronize()
    return [result[0].item() for result in results]


class TestCopiesBesideKernels:
    @pytest.mark.parametrize("lazy", [False, True])
    def test_right(self, card: Card, lazy: bool) -> None:
        card.set(lazy=lazy, races=True)
        assert staged(True, True) == [0, 1, 2, 3]
        assert card.races == []

    def test_a_copy_that_nobody_waits_for(self, card: Card) -> None:
        card.set(lazy=True, races=True)
        values = staged(False, True)
        assert all(value != value for value in values), "read before it was there: NaN"
        assert "read after write" in card.races[0]
        assert len(card.races) == 4

    def test_a_buffer_that_is_filled_while_it_is_read(self, card: Card) -> None:
        card.set(lazy=True, races=True)
        staged(True, False)
        assert [race.split(":")[0] for race in card.races] == ["write after read"] * 3


class TestPinnedMemory:
    def test_overwritten_while_its_copy_waits(self, card: Card) -> None:
        card.set(lazy=True)
        source, target = torch.ones(COUNT).pin_memory(), torch.empty(COUNT, device="cuda")
        target.copy_(source, non_blocking=True)
        source.fill_(2)
        torch.cuda.synchronize()
        assert target[0] == 2

    @pytest.mark.parametrize(("waits", "expected"), [(True, 1.0), (False, None)])
    def test_read_before_a_copy_into_it_is_done(self, card: Card, waits: bool, expected: float | None) -> None:
        card.set(lazy=True)
        target = torch.zeros(8).pin_memory()
        target.copy_(torch.ones(8, device="cuda"), non_blocking=True)
        if waits:
            torch.cuda.synchronize()
        assert target[0] == expected if waits else target[0].isnan()

    def test_pageable_memory_is_taken_before_the_call_returns(self, card: Card) -> None:
        card.set(lazy=True)
        source, target = torch.ones(COUNT), torch.empty(COUNT, device="cuda")
        target.copy_(source, non_blocking=True)
        source.fill_(2)
        assert target[0] == 1


@pytest.mark.parametrize("told", [True, False])
def test_memory_given_back_while_another_stream_reads_it(card: Card, told: bool) -> None:
    card.set(races=True)
    other, tensor = torch.cuda.Stream(), torch.ones(COUNT, device="cuda")
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        result = tensor + 1
    if told:
        tensor.record_stream(other)
    del tensor
    torch.zeros(COUNT, device="cuda")
    assert bool(card.races) is not told
    assert result[0] == 2


class TestClock:
    def seconds(self, card: Card, work: Callable[[], object]) -> float:
        torch.cuda.synchronize()
        before = card.seconds
        work()
        torch.cuda.synchronize()
        return card.seconds - before

    def squared(self, card: Card, a: torch.Tensor) -> float:
        return self.seconds(card, lambda: a @ a)

    def test_a_large_product_takes_its_arithmetic(self, card: Card) -> None:
        card.set(tflops=0.01, dispatch_us=0, waves=0)
        a = torch.ones(512, 512, device="cuda")
        assert self.seconds(card, lambda: a @ a) == pytest.approx(2 * 512**3 / 0.01e12, rel=1e-6)

    def test_rates_go_by_dtype(self, card: Card) -> None:
        card.set(tflops=0.01, tflops_half=0.02, tflops_double=0.005, dispatch_us=0, waves=0)
        a = torch.ones(256, 256, device="cuda")
        single, half, double = (
            self.squared(card, a.to(dtype)) for dtype in (torch.float32, torch.float16, torch.float64)
        )
        assert (single / half, double / single) == (pytest.approx(2, rel=1e-6), pytest.approx(2, rel=1e-6))

    def test_a_product_too_small_to_fill_the_card_runs_below_its_rate(self, card: Card) -> None:
        card.set(tflops=0.01, dispatch_us=0, multiprocessors=28)
        small = torch.ones(64, 64, device="cuda")  # one tile for 28
        assert self.seconds(card, lambda: small @ small) == pytest.approx(28 * 2 * 64**3 / 0.01e12, rel=1e-6)

    def test_the_host_runs_ahead_of_long_kernels(self, card: Card) -> None:
        card.set(tflops=0.01, dispatch_us=50, waves=0)
        a = torch.ones(256, 256, device="cuda")
        ten = self.seconds(card, lambda: [a @ a for _ in range(10)])
        assert ten == pytest.approx(10 * 2 * 256**3 / 0.01e12, rel=0.01), "its dispatch is hidden but for the first"

    def test_small_kernels_wait_for_the_host(self, card: Card) -> None:
        card.set(dispatch_us=50)
        a = torch.ones(16, device="cuda")
        assert self.seconds(card, lambda: [a.add_(1) for _ in range(10)]) == pytest.approx(10 * 50e-6, rel=0.1)

    @pytest.mark.parametrize("aside", [True, False])
    def test_copies_on_a_stream_of_their_own_hide_behind_kernels(self, card: Card, aside: bool) -> None:
        card.set(tflops=0.01, h2d=0.1, dispatch_us=0, waves=0)
        weight, buffer = torch.ones(COUNT).pin_memory(), torch.empty(COUNT, device="cuda")
        a, stream = torch.ones(256, 256, device="cuda"), torch.cuda.Stream()
        copy, product = COUNT * 4 / 0.1e9, 2 * 256**3 / 0.01e12

        def work() -> None:
            with torch.cuda.stream(stream if aside else None):
                buffer.copy_(weight, non_blocking=True)
            for _ in range(3):
                a @ a

        expected = max(copy, 3 * product) if aside else copy + 3 * product
        assert self.seconds(card, work) == pytest.approx(expected, rel=1e-3)

    def test_what_is_overwritten_is_not_read(self, card: Card) -> None:
        card.set(hbm=1, dispatch_us=0, kernel_us=0)
        a, b = (torch.ones(COUNT, device="cuda") for _ in range(2))
        moved = {  # tensors that are read or written
            2: [b.neg_, lambda: torch.add(a, a, out=b)],
            3: [lambda: b.add_(a), lambda: torch.add(a, b)],
            1: [lambda: b.fill_(3), lambda: b.zero_()],
        }
        for count, works in moved.items():
            for work in works:
                assert self.seconds(card, work) == pytest.approx(count * a.nbytes / 1e9, rel=1e-6)

    def test_shapes_alone_take_the_same_time_and_bytes(self, card: Card) -> None:
        map_, weight = torch.ones(1, 8, 33, 40, device="cuda"), torch.ones(16, 8, 3, 3, device="cuda")
        query = torch.ones(1, 2, 40, 8, device="cuda")

        def work() -> list[tuple[int, ...]]:
            products = [torch.conv2d(map_, weight, stride=2, padding=1), query @ query.mT, query[0] @ query[0].mT]
            products.append(torch.nn.functional.scaled_dot_product_attention(query, query, query))
            products.append(torch.nn.functional.linear(query, query[0, 0]))
            return [tuple(product.shape) for product in products]

        found = []
        for shapes in (0, 1):
            card.set(shapes=shapes)
            before, made = card.allocated, []
            seconds = self.seconds(card, lambda made=made: made.append(work()))
            found.append((made[0], card.peak - before, seconds))
        (computed, *figures), (alone, *others) = found
        assert alone == computed
        assert others == pytest.approx(figures, rel=1e-9)

    def test_shapes_alone_take_little_of_this_machine(self, card: Card) -> None:
        """A map of 512 MB and its pinned copy share 64 MB of memory."""

        def own() -> int:
            (kb,) = re.findall(r"^Pss: +(\d+) kB$", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
            return int(kb) * 1024

        card.set(shapes=1)
        before = own()
        map_ = torch.full((512, 2**20), 7, dtype=torch.uint8, device="cuda")
        stored = torch.empty(map_.shape, dtype=map_.dtype, pin_memory=True).copy_(map_)
        torch.cuda.synchronize()
        assert stored[-1, -1] == 7
        assert card.allocated >= map_.nbytes
        assert own() - before < map_.nbytes / 4

    def test_a_copy_that_waits_does_not_hold_up_one_that_need_not(self, card: Card) -> None:
        card.set(tflops=0.001, h2d=1, dispatch_us=0, waves=0)
        weight, buffers = torch.ones(COUNT).pin_memory(), [torch.empty(COUNT, device="cuda") for _ in range(2)]
        a, first, second = torch.ones(256, 256, device="cuda"), torch.cuda.Stream(), torch.cuda.Stream()
        torch.cuda.synchronize()
        start, late, early = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        start.record()
        a @ a
        first.wait_stream(torch.cuda.current_stream())
        for stream, buffer, event in ((first, buffers[0], late), (second, buffers[1], early)):
            with torch.cuda.stream(stream):
                buffer.copy_(weight, non_blocking=True)
                event.record()
        product, copy = 2 * 256**3 / 0.001e12, COUNT * 4 / 1e9
        torch.cuda.synchronize()
        assert start.elapsed_time(early) == pytest.approx(copy * 1e3, rel=0.01)
        assert start.elapsed_time(late) == pytest.approx((product + copy) * 1e3, rel=0.01)
