"""Work beside the server's loop: one at a time, given up when it takes too long or nobody waits, in real threads."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from headroom.host.server import worker as worker_module
from headroom.host.server.worker import TookTooLong, Worker
from headroom.memory.prediction import (
    GivenUp,
    LiveBytes,
    ends_where_it_asks,
    fake_mode,
    others_wait,
    require_wanted,
    turn,
    while_wanted,
)

LONG = 3600.0


class Endless:
    """Work that goes on until it is given up."""

    def __init__(self, goes_round: Callable[[], Any]) -> None:
        self.goes_round = goes_round
        self.began, self.ended = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.began.set()
        try:
            while True:
                self.goes_round()
        finally:
            self.ended.set()


def ask_nobody() -> None:
    """A step of work that looks at nothing."""


def test_what_it_gives_and_what_it_raises() -> None:
    def fails() -> None:
        raise ZeroDivisionError("of the work")

    worker = Worker(LONG)
    assert asyncio.run(worker.run(lambda: 7)) == 7
    with pytest.raises(ZeroDivisionError, match="of the work"):
        asyncio.run(worker.run(fails))
    thread = asyncio.run(worker.run(threading.current_thread))
    assert thread is not threading.current_thread()
    assert asyncio.run(worker.run(threading.current_thread)) is thread


def test_tensors_without_data_again_and_again() -> None:
    """In a thread that ends after the first, torch crashes the process at the second."""

    def work() -> tuple[int, ...]:
        with fake_mode():
            return tuple(torch.ones(3).shape)

    async def both() -> None:
        worker = Worker(LONG)
        for _ in range(2):
            assert await worker.run(work) == (3,)

    asyncio.run(both())


def test_one_at_a_time_in_order() -> None:
    log: list[tuple[str, int]] = []

    def work(number: int) -> None:
        log.append(("begins", number))
        time.sleep(0.05)
        log.append(("ends", number))

    async def all_of_them() -> None:
        worker = Worker(LONG)
        await asyncio.gather(*(worker.run(lambda number=number: work(number)) for number in range(4)))

    asyncio.run(all_of_them())
    assert log == [(what, number) for number in range(4) for what in ("begins", "ends")]


@pytest.mark.parametrize("goes_round", [require_wanted, ask_nobody])
def test_what_takes_too_long_ends_and_the_next_has_its_turn(goes_round: Callable[[], Any]) -> None:
    """Work that asks ends at once; of other work, CPython ends the loop."""

    async def both() -> int:
        worker = Worker(0.5)
        with pytest.raises(TookTooLong, match=r"given up after 0\.5 s"):
            await worker.run(endless)
        worker.most_seconds = LONG
        return await worker.run(lambda: 7)

    endless = Endless(goes_round)
    assert asyncio.run(both()) == 7
    assert endless.ended.is_set()


def test_operators_ask() -> None:
    def add() -> None:
        torch.ones(1) + 1

    async def followed() -> None:
        with pytest.raises(TookTooLong):
            await Worker(0.2).run(within)

    def within() -> None:
        with LiveBytes("cpu"):
            endless()

    endless = Endless(add)
    asyncio.run(followed())
    assert endless.ended.wait(60)


@pytest.mark.parametrize("region", [ends_where_it_asks, nullcontext])
def test_work_with_gradients_ends_where_it_asks(
    monkeypatch: pytest.MonkeyPatch, region: Callable[[], AbstractContextManager[None]]
) -> None:
    """An error raised in its thread from outside could arrive where torch takes none, and ends the process."""
    monkeypatch.setattr(worker_module, "GRACE", 0.05)
    where, given_up = list[str](), threading.Event()

    def work() -> None:
        try:
            with region():
                where.append("within")
                given_up.wait(30)
                for _ in range(50):
                    time.sleep(0.01)  # it asks nobody
                where.append("at its end")
                require_wanted()
        finally:
            ended.set()

    async def both() -> int:
        worker = Worker(0.1)
        with pytest.raises(TookTooLong):
            await worker.run(work)
        given_up.set()
        worker.most_seconds = LONG
        return await worker.run(lambda: 7)

    ended = threading.Event()
    assert asyncio.run(both()) == 7
    assert ended.is_set()
    assert where == ["within", *(["at its end"] if region is ends_where_it_asks else [])]


def test_nobody_waits_any_longer() -> None:
    """What runs ends; what waits for its turn never begins."""
    endless, never = Endless(require_wanted), Endless(require_wanted)

    async def both() -> int:
        worker = Worker(LONG)
        looks = iter((True, True, False))  # the second is given up while the first has its turn
        first = asyncio.ensure_future(worker.run(endless, lambda: next(looks)))
        second = asyncio.ensure_future(worker.run(never, lambda: False))
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError] * 2
        return await worker.run(lambda: 7)

    assert asyncio.run(both()) == 7
    assert endless.ended.is_set()
    assert not never.began.is_set()


def test_a_prompt_does_not_wait_for_a_prediction() -> None:
    """Its Memory Report predicts in between; the other begins anew."""
    done, began, may_end = list[str](), threading.Event(), threading.Event()

    def estimate() -> str:
        with turn():
            began.set()
            for _ in range(3000):
                require_wanted()
                if may_end.wait(0.01):
                    break
            done.append("estimate")
        return "answer"

    def prompt() -> None:
        assert began.wait(30)
        with turn():
            done.append("prompt")
        may_end.set()

    thread = threading.Thread(target=prompt)
    thread.start()
    assert asyncio.run(Worker(LONG).run(estimate)) == "answer"
    thread.join()
    assert done == ["prompt", "estimate"]


def test_what_waits_for_its_turn_is_given_up() -> None:
    holds, ends = threading.Event(), threading.Event()

    def other() -> None:
        with turn():
            holds.set()
            ends.wait(30)

    thread = threading.Thread(target=other)
    thread.start()
    assert holds.wait(30)
    with pytest.raises(GivenUp), while_wanted(lambda: False), turn():
        pass
    ends.set()
    thread.join()
    with turn():  # nobody is left waiting
        assert not others_wait()


def test_within_a_turn_nothing_is_collected_but_what_is_asked_for() -> None:
    """Looking through all that a host has stops every thread for a third of a second."""
    assert gc.isenabled()
    with turn():
        assert not gc.isenabled()
        with turn():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="x"), turn():
        raise ValueError("x")
    assert gc.isenabled()
    gc.disable()  # as another has chosen
    try:
        with turn():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("runs", [True, False])
def test_work_makes_way_where_a_prompt_runs(monkeypatch: pytest.MonkeyPatch, runs: bool) -> None:
    slept = list[float]()
    sleep = time.sleep

    def noted(seconds: float) -> None:
        slept.append(seconds)
        sleep(seconds)

    def work() -> int:
        monkeypatch.setattr(time, "sleep", noted)
        for _ in range(5):
            require_wanted()
        monkeypatch.setattr(time, "sleep", sleep)
        return 7

    assert asyncio.run(Worker(LONG, lambda: runs).run(work)) == 7
    assert slept == [0] * (5 if runs else 0)
