"""The driver: gives out what waits, follows it, fetches what is done, and writes down each step before it is taken."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import journal as journals
from . import results
from .cluster import FarmError
from .journal import Journal, State
from .offers import Offers
from .plain import UNREACHABLE
from .policy import Schedule
from .prompts import Job, ends_first
from .roster import TOLD, Roster, Standing, answer_of
from .tasks import Tasks
from .workers import Worker

AGAIN, LOOK = 3.0, 0.25  # seconds between looks for workers that are gone, for a wish to drain
MOST_LOST = 3  # workers that may be gone with a job


@dataclass(frozen=True)
class Settings:
    """How a run is done.

    Attributes:
        out: folder of results.
        unpredicted: what a worker cannot predict wholly may go there.
        wait: seconds without a worker that what waits fits, after which the run ends.
    """

    out: Path
    unpredicted: bool = False
    wait: float = 300.0


class Driver:
    """One run over jobs and workers.

    Args:
        jobs: of which those that are done already are left out.
        actors: by a worker's name.
        told: called with a line for people at each event.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        workers: Sequence[Worker],
        actors: Mapping[str, Any],
        journal: Journal,
        settings: Settings,
        told: TOLD = lambda line: None,
    ) -> None:
        self.jobs = {job.name: job for job in jobs}
        self.states = {name: State() for name in self.jobs}
        self.draining = False
        self.schedule = Schedule()
        self.roster = Roster(workers, actors, self.schedule, settings.unpredicted, told)
        self._settings, self._journal, self._told = settings, journal, told
        self._tasks = Tasks()
        self._asked = False  # whether all kinds of jobs have been asked about
        self._alone_since: float | None = None

    async def run(self) -> None:
        """To the end of all jobs, of all workers, or of a drain. Cancelled, it takes back what runs.

        Raises:
            FarmError: no worker answers, or the disk takes no more; what is done stays done.
        """
        try:
            await self._run()
        except asyncio.CancelledError:
            await self._tasks.end()  # who follows a prompt would take it for one that somebody else has interrupted
            await self._take_back()
            raise
        except OSError as error:
            raise FarmError(
                f"{error.filename or self._settings.out}: {error.strerror or error}; make room, or mend that, and run"
                " the same command again, it goes on where it is"
            ) from error
        finally:
            await self._tasks.end()

    async def _run(self) -> None:
        (self._settings.out / journals.DRAIN).unlink(missing_ok=True)
        self._recall()
        await self.roster.greet()
        if not self.roster.there():
            raise FarmError(f"no worker can be used: {self.roster.reasons}")
        self._journal.write("greeted", workers=[one.worker.name for one in self.roster.there()])
        await self._adopt()
        self._tasks.start(self._ask_all())
        self._tasks.start(self._look())
        self._tasks.start(self._call_back())
        while not self._over():
            self._tasks.changed.clear()
            self._give_out()
            await self._tasks.change()

    # ---------------------------------------------------------------------------------------- what was before

    def _recall(self) -> None:
        """Takes up what the journal and the folder say."""
        before = journals.states(journals.lines(self._settings.out))
        for name, job in self.jobs.items():
            state = self.states[name] = before.get(name, self.states[name])
            files = results.finished(self._settings.out, name)
            if files is None:
                if state.status != "sent":  # its results were removed, or what failed is asked for again
                    state.status, state.lost = "waiting", 0
                self._journal.write("job", job=name, source=job.source, kind=job.kind)
            elif state.status != "done":  # a driver ended between the folder and the journal's line
                state.status, state.files = "done", files
                self._journal.write("done", job=name, worker=state.worker, files=files)

    async def _adopt(self) -> None:
        """Goes on with what an earlier driver has sent, where it still is."""
        for name, state in self.states.items():
            if state.status != "sent":
                continue
            one, job = self.roster.get(state.worker), self.jobs[name]
            if one is None or one.prompt_id or not await one.has(state.prompt_id):
                if one is not None:  # it may wait behind the one that is gone on with
                    await answer_of(one.actor.cancel.remote(state.prompt_id))
                state.status = "waiting"
                self._journal.write("back", job=name, reason="its worker does not have it any longer")
                continue
            self.schedule.offer(job.kind, job.models, {state.worker: None})
            self.schedule.begin(state.worker, job.kind, name, time.monotonic())
            one.prompt_id = state.prompt_id
            self._told(f"{name}: goes on on {state.worker}")
            self._tasks.start(self._follow(job, one, one.actor.watch.remote(state.prompt_id)))

    async def _ask_all(self) -> None:
        """Asks for each kind of job; what fits somewhere waits for it from then on."""
        kinds = self._by_kind()
        for first in ends_first(jobs[0] for jobs in kinds.values()):
            await self.roster.ask(kind := first.kind, first)
            for job in kinds[kind]:
                if self.states[job.name].status == "waiting" and not self.schedule.waits(kind, job.name):
                    self.schedule.add(kind, job.name)
            self._refuse_stranded()
            self._tasks.changed.set()
        self._asked = True

    def _by_kind(self) -> dict[str, list[Job]]:
        kinds: dict[str, list[Job]] = {}
        for name, job in self.jobs.items():
            if self.states[name].status in ("waiting", "sent"):
                kinds.setdefault(job.kind, []).append(job)
        return kinds

    # -------------------------------------------------------------------------------------------- what is done

    def _give_out(self) -> None:
        for worker, name in [] if self.draining else self.schedule.assign(time.monotonic()):
            one, state, job = self.roster[worker], self.states[name], self.jobs[name]
            one.prompt_id = state.prompt_id = str(uuid.uuid4())
            state.status, state.worker = "sent", worker
            self._journal.write("sent", job=name, worker=worker, prompt_id=state.prompt_id)
            self._told(f"{name}: to {worker}")
            self._tasks.start(self._follow(job, one, one.actor.run.remote(job.prompt, state.prompt_id, job.content())))

    async def _follow(self, job: Job, one: Standing, running: Any) -> None:
        """To the end of a job on a worker."""
        outcome = await answer_of(running)
        worker, status = one.worker.name, outcome["status"]
        if status == UNREACHABLE:
            self.roster.lose(worker, outcome["reason"])
            if self.schedule.lose(worker) == job.name:
                self.schedule.drop(job.kind, job.name)
                self._again(job, outcome["reason"])
            return
        one.prompt_id, one.shown = "", {}
        # What the server had already tells nothing of how long such a job takes.
        self.schedule.ended(worker, outcome["seconds"] if status == "success" and not outcome["cached"] else None)
        self._tasks.changed.set()
        if status == "success":
            await self._fetch(job, one, outcome)
        elif status == "refused" or outcome.get("out_of_memory"):
            self._elsewhere(job, worker, outcome["reason"])
        else:
            self._end(job.name, "failed", f"{worker}: {outcome['reason']}", worker=worker)

    async def _fetch(self, job: Job, one: Standing, outcome: Mapping[str, Any]) -> None:
        worker = one.worker.name
        offers = self.roster.offers.get(job.kind, Offers())
        about = {
            "source": job.source,
            "worker": worker,
            "seconds": outcome["seconds"],
            "notes": [note for note in (*job.notes, offers.note(worker)) if note],
            "predicted": dict(offers.answers.get(worker, {})),
            "outputs": outcome["outputs"],
        }
        try:
            files = await results.store(self._settings.out, job, about, outcome["files"], one.pieces)
        except results.NotWhole as error:
            self._again(job, f"{worker} was gone before {error} had come over")
            return
        one.done, self.states[job.name].seconds = one.done + 1, outcome["seconds"]
        self._end(job.name, "done", worker=worker, seconds=outcome["seconds"], files=files)

    def _again(self, job: Job, reason: str) -> None:
        """A job waits again, unless too many workers were gone with it."""
        state = self.states[job.name]
        state.lost += 1
        self._journal.write("lost", job=job.name, worker=state.worker, reason=reason)
        if state.lost >= MOST_LOST:
            self._end(job.name, "failed", f"{state.lost} workers were gone while they ran it, the last: {reason}")
        else:
            state.status = "waiting"
            self.schedule.add(job.kind, job.name, first=True)

    def _elsewhere(self, job: Job, worker: str, reason: str) -> None:
        """A worker could not do a job that it had been offered."""
        self.roster.offers.setdefault(job.kind, Offers()).take_back(worker, reason)
        self.schedule.retract(job.kind, worker)
        self._journal.write("back", job=job.name, worker=worker, reason=reason)
        self._told(f"{job.name}: back from {worker} ({reason})")
        self.states[job.name].status = "waiting"
        self.schedule.add(job.kind, job.name, first=True)
        self._refuse_stranded()

    def _refuse_stranded(self) -> None:
        """Ends jobs that can go to none of the workers, those that are gone and were never asked among them."""
        for kind, name in self.schedule.stranded():
            if not self.roster.could_still(kind):
                self.schedule.drop(kind, name)
                self._end(name, "refused", self.roster.offers[kind].refusal)

    def _end(self, name: str, status: str, reason: str = "", **values: Any) -> None:
        state = self.states[name]
        state.status, state.reason, state.worker = status, reason, values.get("worker", state.worker)
        self._journal.write(status, job=name, **({"reason": reason} if reason else {}), **values)
        self._told(f"{name}: {status}" + (f": {reason}" if reason else f" in {values.get('seconds', 0):.1f} s"))
        self._tasks.changed.set()

    # ------------------------------------------------------------------------------------------ what goes on
    async def _look(self) -> None:
        """Now and then: a wish to drain, what each worker shows."""
        while True:
            await asyncio.sleep(LOOK)
            if (self._settings.out / journals.DRAIN).exists() and not self.draining:
                self.draining = True
                self._told("draining: what runs is finished, nothing more is given out")
            await self.roster.look()
            self._tasks.changed.set()  # the schedule may have left a job to a worker that is later than was expected

    async def _call_back(self) -> None:
        """Now and then, workers that are back: beside the rest, since one that is silent is waited for."""
        jobs = {kind: some[0] for kind, some in self._by_kind().items()}
        while True:
            await asyncio.sleep(AGAIN)
            await self.roster.call_back(jobs)
            self._refuse_stranded()
            self._tasks.changed.set()

    def _over(self) -> bool:
        """Whether nothing is left to wait for.

        Raises:
            FarmError: no worker has answered for too long.
        """
        left = [state.status for state in self.states.values() if state.status in ("waiting", "sent")]
        if not left or (self.draining and "sent" not in left):
            return True
        if "sent" in left or not self._alone():
            self._alone_since = None
            return False
        self._alone_since = self._alone_since or time.monotonic()
        if time.monotonic() - self._alone_since > self._settings.wait:
            raise FarmError(
                f"no worker that they fit has answered for {self._settings.wait:.0f} s, prompts that wait: {len(left)};"
                f" start it and run the same command again, it goes on; {self.roster.reasons}"
            )
        return False

    def _alone(self) -> bool:
        """Whether nobody is there who could do what waits."""
        there = {one.worker.name for one in self.roster.there()}
        wanted = [set(kind.seconds) for kind in self.schedule.kinds.values() if kind.waiting]
        return not there or (self._asked and not any(there & one for one in wanted))

    async def _take_back(self) -> None:
        """What runs is cancelled on its server, and waits."""
        for name, state in self.states.items():
            if state.status == "sent" and (one := self.roster.get(state.worker)) is not None:
                await answer_of(one.actor.cancel.remote(state.prompt_id))
                state.status = "waiting"
                self._journal.write("back", job=name, reason="the run was cancelled")
