"""Work beside the loop: begun and forgotten, but for its failure."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """Tasks that run until they end or all are ended; the first failure is kept.

    Attributes:
        changed: set when one has failed, and by whoever has something to tell.
    """

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begins one."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._finish)

    async def change(self) -> None:
        """Waits until something has changed.

        Raises:
            BaseException: what one of the tasks failed with.
        """
        await self.changed.wait()
        if self._failure is not None:
            raise self._failure

    async def end(self) -> None:
        """Ends all."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
            self.changed.set()
