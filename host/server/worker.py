"""Work for the server beside its loop: one piece at a time, for a limited time, and while somebody waits for it."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from ...memory.prediction import GivenUp, ends_by_asking_alone, others_wait, while_wanted

Result = TypeVar("Result")
LOOK = 0.25  # seconds between looks at the clock and at who waits
SWITCH = 0.0005  # seconds after which a thread that waits for the interpreter's lock asks for it
TO_LET_GO = 0.05  # seconds until work that let others go first begins anew
GRACE = 3.0  # seconds for work to notice by itself that it is not wanted

log = logging.getLogger(__name__)


class TookTooLong(ValueError):
    """Work was given up since it took longer than it may."""


class Worker:
    """Runs one piece of work at a time: a dry run is Python throughout, and two would slow each other and the prompt.

    All in one thread that never ends: torch's device guards for tensors without data are of the first thread that uses
    one, and crash the process once that is gone (PyTorch 2.11).

    Args:
        most_seconds: that a piece may take, its wait for the one before not counted.
        prompt_runs: whether there is a prompt that work has to make way for.
    """

    def __init__(self, most_seconds: float, prompt_runs: Callable[[], bool] = lambda: True) -> None:
        self.most_seconds, self.prompt_runs = most_seconds, prompt_runs
        self._waiting: deque[_Job[Any]] = deque()
        self._more = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[[], Result], is_waited_for: Callable[[], bool] = lambda: True) -> Result:
        """What the work gives, while the server goes on.

        Args:
            work: run in the worker's thread.
            is_waited_for: whether somebody still wants the answer; asked in the server's loop.

        Raises:
            TookTooLong: it took longer than it may.
            asyncio.CancelledError: nobody waits for it any longer.
        """
        job = _Job(work, self.prompt_runs)
        self._put(job)
        try:
            answer = asyncio.wrap_future(job.answer)
            while not (await asyncio.wait([answer], timeout=LOOK))[0]:
                if job.seconds() > self.most_seconds:
                    raise TookTooLong(f"given up after {self.most_seconds:g} s: it is too much to predict here")
                if not is_waited_for():
                    raise asyncio.CancelledError
            return answer.result()
        finally:
            self._give_up(job)

    def _put(self, job: _Job[Any]) -> None:
        self._waiting.append(job)
        self._more.release()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="headroom-estimate", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            try:
                while not self._waiting:
                    self._more.acquire()
                # It leaves the queue when it is done: what was raised for the one before may arrive at any place here.
                self._waiting[0].run()
                self._waiting.popleft()
            except GivenUp:
                continue

    def _give_up(self, job: _Job[Any]) -> None:
        """Has work end, if it has not: first where it asks, then wherever its Python is, where that is safe."""
        job.wanted.clear()
        if job.began and not job.ended.is_set():
            threading.Thread(target=self._insist, args=(job,), daemon=True).start()

    def _insist(self, job: _Job[Any]) -> None:
        while not job.ended.wait(GRACE) and self._thread is not None:
            if ends_by_asking_alone(self._thread):
                continue
            # CPython's own way to raise in another thread; it arrives between two steps of the interpreter.
            raised: Any = ctypes.py_object(GivenUp)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident or 0), raised)


@contextmanager
def hurried() -> Iterator[None]:
    """Within it, whoever waits for the interpreter's lock asks for it sooner than Python does by itself: the server's
    loop needs it many times for an answer, and each time it waits its turn behind the prompt and work like this."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, SWITCH))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class _Job(Generic[Result]):
    """One piece of work.

    Attributes:
        answer: what it gave or raised; open for ever once it was given up.
        wanted: cleared when it is given up.
        ended: set when it will not go on.
        began: when its turn came; 0 before.
    """

    def __init__(self, work: Callable[[], Result], prompt_runs: Callable[[], bool]) -> None:
        self.answer: Future[Result] = Future()
        self.wanted, self.ended = threading.Event(), threading.Event()
        self.wanted.set()
        self.began = 0.0
        self._work, self._prompt_runs = work, prompt_runs

    def seconds(self) -> float:
        """Since its turn came."""
        return time.monotonic() - self.began if self.began else 0.0

    def _goes_on(self) -> bool:
        """Whether it is wanted, and nobody else. Asked at each operator, where the interpreter's lock is handed to a
        prompt that runs, to which work that is all Python would leave little of its time; without one that handing
        over would take a quarter of the work's own. A prompt's own prediction, as of its Memory Report, does not wait:
        this one begins anew after it, and what it has recorded is kept."""
        if self._prompt_runs():
            time.sleep(0)
        return self.wanted.is_set() and not others_wait()

    def run(self) -> None:
        """Does the work, unless it was given up or is done."""
        while self.wanted.is_set() and not self.answer.done():
            self.began = self.began or time.monotonic()
            try:
                with hurried(), while_wanted(self._goes_on):
                    self.answer.set_result(self._work())
            except GivenUp:
                if self.wanted.is_set():  # a prompt's goes first, or it was raised for the work before: once more
                    time.sleep(TO_LET_GO)
                else:
                    log.info("Headroom gave up a prediction after %.0f s", self.seconds())
            except BaseException as error:  # whoever waits gets it, whatever it is
                self.answer.set_exception(error)
        self.ended.set()
