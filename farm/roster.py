"""The workers as they stand: who is there, what each shows, and what each says of a kind of job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..graph.version import pack_version
from .offers import Offers
from .plain import UNREACHABLE
from .policy import Schedule
from .prompts import Job
from .workers import Worker

THERE, GONE, REFUSED = "there", "gone", "refused"
TOLD = Callable[[str], None]


@dataclass
class Standing:
    """A worker as the driver sees it.

    Attributes:
        worker: its name, address and terms.
        actor: that speaks to it.
        status: there, gone or refused.
        reason: why it is not there.
        done: jobs that it has done.
        prompt_id: of what it runs.
        orphan: of what it ran when it was gone; the server may still do it, when it is back.
        shown: what of it the server shows.
    """

    worker: Worker
    actor: Any
    status: str = GONE
    reason: str = ""
    done: int = 0
    prompt_id: str = ""
    orphan: str = ""
    shown: Mapping[str, Any] = field(default_factory=dict)

    async def has(self, prompt_id: str) -> bool:
        """Whether a prompt waits, runs or has ended there."""
        return bool((await answer_of(self.actor.knows.remote(prompt_id))).get("known"))

    async def pieces(self, entry: Mapping[str, str]) -> AsyncIterator[bytes]:
        """A file of its outputs; the last piece is empty, and without it the file is not whole."""
        import ray

        try:
            async for piece in self.actor.fetch.options(num_returns="streaming").remote(dict(entry)):
                yield await piece
        except ray.exceptions.RayError:
            return


class Roster:
    """All workers, and their offers by kind of job.

    Args:
        actors: by a worker's name.
        schedule: is told who is there and what fits.
        unpredicted: what a worker cannot predict wholly may go there.
        told: called with a line for people at each event.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        actors: Mapping[str, Any],
        schedule: Schedule,
        unpredicted: bool,
        told: TOLD,
    ) -> None:
        self.standing = {worker.name: Standing(worker, actors[worker.name]) for worker in workers}
        self.offers: dict[str, Offers] = {}
        self._schedule, self._unpredicted, self._told = schedule, unpredicted, told

    def __iter__(self) -> Iterator[Standing]:
        return iter(self.standing.values())

    def __getitem__(self, name: str) -> Standing:
        return self.standing[name]

    def there(self) -> list[Standing]:
        """Those that answer."""
        return [one for one in self if one.status == THERE]

    def get(self, name: str) -> Standing | None:
        """A worker that answers; None: there is none of this name."""
        return next((one for one in self.there() if one.worker.name == name), None)

    @property
    def reasons(self) -> str:
        """Why workers are not there."""
        return "; ".join(one.reason for one in self if one.reason)

    async def greet(self) -> None:
        """Asks all whether they are there."""
        await asyncio.gather(*map(self._greet, self))

    async def call_back(self, jobs: Mapping[str, Job]) -> None:
        """Asks those that are gone whether they are back, and then what they could not be asked.

        Args:
            jobs: one of each kind, by the kind.
        """
        gone = [one for one in self if one.status == GONE]
        await asyncio.gather(*map(self._greet, gone))
        for kind, offers in self.offers.items():
            unasked = [one for one in gone if one.status == THERE and not offers.has_answer(one.worker.name)]
            # A question may have broken off although the server was there, with the process that asked it.
            back = unasked or [one for one in self.there() if offers.broke_off(one.worker.name)]
            if back:
                await self.ask(kind, jobs[kind], back)

    async def ask(self, kind: str, job: Job, some: Sequence[Standing] | None = None) -> None:
        """Asks workers whether a kind of job fits them, all at a time, and tells the schedule.

        Args:
            job: one of this kind.
            some: these workers; None: all that are there.
        """
        offers = self.offers.setdefault(kind, Offers(self._unpredicted))
        asked = self.there() if some is None else some
        content = job.content()
        answers = await asyncio.gather(
            *(answer_of(one.actor.ask.remote(job.prompt, one.worker.terms, content)) for one in asked)
        )
        for one, answer in zip(asked, answers):
            offers.hear(one.worker.name, answer)
        self._schedule.offer(kind, job.models, offers.seconds)

    def could_still(self, kind: str) -> bool:
        """Whether a worker that has not answered might say that a kind of job fits it."""
        return any(one.status != REFUSED and not self.offers[kind].has_answer(one.worker.name) for one in self)

    def lose(self, name: str, reason: str) -> None:
        """A worker does not answer any longer."""
        one = self.standing[name]
        one.status, one.reason, one.orphan, one.prompt_id, one.shown = GONE, reason, one.prompt_id, "", {}
        self._told(f"{name}: gone ({reason})")

    async def look(self) -> None:
        """What those that run something show of it."""
        for one in self.there():
            if one.prompt_id:
                answer = await answer_of(one.actor.shown.remote())
                one.shown = {} if answer.get("status") == UNREACHABLE else answer

    async def _greet(self, one: Standing) -> None:
        answer = await answer_of(one.actor.hello.remote())
        ours, theirs, name = pack_version(), answer.get("headroom"), one.worker.name
        before = (one.status, one.reason)
        if answer["status"] == UNREACHABLE:
            one.status, one.reason = GONE, answer["reason"]
        elif theirs != ours:
            has = f"Headroom {theirs}" if theirs else "no Headroom, or one older than 0.7"
            one.status = REFUSED
            one.reason = f"{name} has {has}, this farm is of {ours}: bring both to one version"
        else:
            one.status, one.reason = THERE, ""
            if one.orphan:  # another has it by now
                await answer_of(one.actor.cancel.remote(one.orphan))
                one.orphan = ""
            self._schedule.add_worker(name)
        if before != (one.status, one.reason):
            self._told(f"{name}: {one.reason or 'ComfyUI ' + answer['comfyui']}")


async def answer_of(question: Any) -> dict[str, Any]:
    """What an actor answers; one that died is as a server that is gone."""
    import ray

    try:
        return dict(await question or {})
    except ray.exceptions.RayError as error:
        return {"status": UNREACHABLE, "reason": f"the process that speaks to it ended ({type(error).__name__})"}
