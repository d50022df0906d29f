"""A crew of processes on a Ray cluster that its owner has started; ComfyUI joins it, and starts none."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import comfy.model_management
from torch import Tensor

from ...graph.version import pack_version
from ...memory.accelerator import random_state, set_random_state
from ...vae.exact.bands.peers import ASKER
from ...vae.exact.bands.talk import HOST, talk_with
from ..core.compat import comfyui_version
from ..core.device import GB
from .crew import MOST_TRIES, NARROWER, CrewReport, Task, raise_unless_done, report_of, shares
from .joining import TO_ANSWER, join
from .named import NamedCluster
from .remote import RayPeers
from .sent import packed, plain, taken_apart, unpacked

PACK = Path(__file__).parents[2]
COMFYUI = Path(comfy.model_management.__file__).parents[1]
LOOK_EVERY = 0.1  # seconds between looks at progress and cancel
TO_BEGIN = 300.0  # seconds that a worker may take to import its ComfyUI
_joined: dict[NamedCluster, RayCrew] = {}


def crew_of(named: NamedCluster) -> RayCrew:
    """The crew of a name, which keeps its processes and their weights as long as this one lives.

    Raises:
        ValueError: Ray is missing, or the cluster does not answer, or nobody there can help; the sentence says what to
            do.
    """
    if named not in _joined or not _joined[named].workers:
        for other in list(_joined):  # Ray knows one cluster at a time
            _joined.pop(other).leave()
        _joined[named] = RayCrew(named)
    return _joined[named]


class RayCrew:
    """Processes of a Ray cluster.

    Attributes:
        workers: those that are there.
        gone: errors that say that one of them is there no more.
    """

    def __init__(self, named: NamedCluster) -> None:
        self.named, self.ray = named, join(named)
        # The latter is no kind of the former: of a worker that Ray ended, since its machine is short of memory.
        self.gone = self.ray.exceptions.RayActorError, self.ray.exceptions.OutOfMemoryError
        self.keys: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        from . import carried

        self.ray.cloudpickle.register_pickle_by_value(carried)
        self.carried = carried
        self.workers: list[RayWorker] = []
        try:
            self.workers += self._begun()
        except BaseException:
            self.leave()
            raise

    def compute(self, task: Task) -> tuple[list[Tensor], CrewReport]:
        """As :meth:`.crew.Crew.compute`. A worker that dies is left out, and its band computed by the others."""
        try:
            return self._computed(task)
        except (ConnectionError, self.ray.exceptions.GetTimeoutError) as error:
            self.workers.clear()  # whoever asks next joins anew
            raise RuntimeError(
                f"workers: the Ray cluster of {self.named.name} does not answer any more; see `ray status` at"
                f" {self.named.address}, then queue again"
            ) from error

    def _computed(self, task: Task) -> tuple[list[Tensor], CrewReport]:
        narrowed: dict[int, float] = {}
        for _ in range(MOST_TRIES + len(self.workers)):
            crew = list(self.workers)
            if not crew:
                raise RuntimeError(
                    f"workers: nobody of {self.named.name} is left; see `ray status` at {self.named.address}"
                )
            key = self._loaded(crew, task)
            if len(crew) != len(self.workers):
                continue
            budgets = [one.budget * narrowed.get(id(one), 1.0) for one in crew]
            try:
                answers = self._answers(crew, key, task, budgets)
            except self.gone:  # not one of them, or it would be left out: where they leave things for each other
                task.notice("what the workers had left for each other is gone: computed again")
                continue
            if dead := [one for one, answer in zip(crew, answers) if answer["status"] == "dead"]:
                self._leave_out(dead, task)
                continue
            short = [place for place, answer in enumerate(answers) if answer["status"] == "out_of_memory"]
            for place in short:
                narrowed[id(crew[place])] = NARROWER * narrowed.get(id(crew[place]), 1.0)
            if short and min(narrowed.values()) > NARROWER**MOST_TRIES:
                task.notice(f"{crew[short[0]].name} ran out of memory: tried again with a lower band")
                continue
            raise_unless_done([one.name for one in crew], answers)
            set_random_state(task.device, unpacked(answers[0]["random"], HOST))  # as if it had drawn here
            bands = [unpacked([answer["band"]], HOST)[0] for answer in answers]
            return bands, report_of([one.name for one in crew], answers, budgets)
        raise RuntimeError(f"workers: {self.named.name} loses its workers again and again")

    def leave(self) -> None:
        """Ends its processes, and leaves the cluster."""
        self.workers.clear()
        self.ray.shutdown()

    # ------------------------------------------------------------ its processes

    def _begun(self) -> Iterator[RayWorker]:
        """Raises ValueError where one has another version, or none answers."""
        nodes = [node for node in self.ray.nodes() if node["Alive"]]
        gpus = sum(int(node["Resources"].get("GPU", 0)) for node in nodes)
        count = self.named.workers or gpus or len(nodes)
        kind = {"num_gpus": 1} if gpus else {"num_cpus": 1}
        remote = self.ray.remote(self.carried.BandActor)
        actors = [
            remote.options(**kind, max_restarts=0, scheduling_strategy="SPREAD").remote(str(COMFYUI), str(PACK))
            for _ in range(count)
        ]
        asked = [actor.about.remote() for actor in actors]
        self._wait_for(asked)
        wrong, there = list[str](), 0
        for number, (actor, question) in enumerate(zip(actors, asked), 1):
            try:
                about = self.ray.get(question, timeout=0.1)
            except self.ray.exceptions.RayError as error:
                wrong.append(f"worker {number} does not answer ({type(error).__name__})")
                continue
            if about.get("wrong"):
                wrong.append(f"worker {number}: {about['wrong']}")
                continue
            for what, own in (("pack", pack_version()), ("comfyui", comfyui_version())):
                if about[what] != own:
                    name = {"pack": "Headroom", "comfyui": "ComfyUI"}[what]
                    raise ValueError(
                        f"workers: worker {number} of {self.named.name} has {name} {about[what]}, this server {own};"
                        " install the same version on both"
                    )
            there += 1
            yield RayWorker(actor, f"worker {number} ({about['device']})", self._budget(about, count))
        if not there:
            raise ValueError(f"workers: nobody of {self.named.name} can help: {'; '.join(wrong)}")
        if wrong:
            logging.warning("Headroom: %s", "; ".join(wrong))

    def _wait_for(self, asked: Sequence[Any]) -> None:
        """Until all have answered, or it takes too long, or the user cancels."""
        end = time.monotonic() + TO_BEGIN
        while time.monotonic() < end and not _all_there(self.ray, asked, LOOK_EVERY):
            comfy.model_management.throw_exception_if_processing_interrupted()

    def _budget(self, about: dict[str, Any], count: int) -> float:
        """Bytes of a worker, weights included; processes without a GPU share their machine's memory."""
        if self.named.budget_gb:
            return self.named.budget_gb * GB
        return float(about["bytes"]) / (count if about["kind"] == "cpu" else 1)

    def _loaded(self, crew: Sequence[RayWorker], task: Task) -> str:
        """The module's name among the workers, all of whom have it from now on."""
        key = self.keys.setdefault(task.model, uuid.uuid4().hex)
        lacking = [one for one in crew if one.loaded != key]
        if not lacking:
            return key
        sent = taken_apart(task.model)
        there = self.ray.put({"structure": sent.structure, "tensors": packed(sent.tensors)})
        for one in lacking:
            one.loaded = ""  # a cancel may come before or after it has let go of the last
        loading = [one.actor.load.remote(key, there) for one in lacking]
        self._watched(loading, task, None)
        for one, reference in zip(lacking, loading):
            try:
                weights = self.ray.get(reference)
            except self.gone:
                self._leave_out([one], task)
                continue
            except self.ray.exceptions.RayError as error:
                raise RuntimeError(
                    f"workers: {one.name} of {self.named.name} cannot take the VAE: {_reason(error)}"
                ) from error
            one.loaded, one.budget = key, one.given - weights
        return key

    def _answers(
        self, crew: Sequence[RayWorker], key: str, task: Task, budgets: Sequence[float]
    ) -> list[dict[str, Any]]:
        """What each worker says in the end."""
        board = self.ray.remote(self.carried.Board).options(num_cpus=0, max_concurrency=1000).remote()
        drawn, asked, bands = packed(random_state(task.device)), list[Any](), shares(budgets, task.height)
        for one, share, budget in zip(crew, bands, budgets):
            random = {"random": drawn, "random_of": task.device.type}
            work = self.ray.put({**plain(task.part(share, budget)), **random})
            asked.append(one.actor.band.remote(board, share.rank, list(share.cuts), share.grain, key, work))
        try:
            if task.talks:
                look = partial(self._look, asked, task, board)
                talk_with(Asker(board, look), bands, task.on_chunk, task.brings)
            self._watched(asked, task, board)
        except BaseException:
            with suppress(*self.gone):  # what ended it is told, whoever is there to hear of it
                self.ray.get(board.fail.remote(0, "was cancelled"), timeout=TO_ANSWER)
            self.ray.wait(asked, num_returns=len(asked), timeout=TO_BEGIN)
            raise
        finally:
            answers = [self._answer(reference) for reference in asked] if _all_there(self.ray, asked) else []
            self.ray.kill(board)
        return answers

    def _watched(self, asked: Sequence[Any], task: Task, board: Any) -> None:
        """Waits for all, tells of progress, and has the others end where one is gone."""
        waiting = list(asked)
        while waiting:
            _, waiting = self.ray.wait(waiting, num_returns=len(waiting), timeout=LOOK_EVERY)
            if board is None:
                task.on_share(0.0)
            else:
                self._look(asked, task, board)

    def _look(self, asked: Sequence[Any], task: Task, board: Any) -> None:
        """Tells of progress, and has the others end where one is gone."""
        for reference in self.ray.wait(list(asked), num_returns=len(asked), timeout=0)[0]:
            if self._answer(reference)["status"] == "dead":
                self.ray.get(board.fail.remote(list(asked).index(reference), "is gone"), timeout=TO_ANSWER)
        task.on_share(self.ray.get(board.progress.remote(), timeout=TO_ANSWER))

    def _answer(self, reference: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = self.ray.get(reference)
        except self.gone:
            return {"status": "dead"}
        except self.ray.exceptions.RayError as error:
            return {"status": "failed", "why": _reason(error)}
        return answer

    def _leave_out(self, dead: Sequence[RayWorker], task: Task) -> None:
        self.workers = [one for one in self.workers if one not in dead]
        names = " and ".join(one.name for one in dead)
        task.notice(f"{names} is gone: computed again by the other {len(self.workers)}")


class Asker(RayPeers):
    """Whoever asked, among the workers.

    Args:
        look: called again and again while something is waited for; may raise to stop.
    """

    def __init__(self, board: Any, look: Callable[[], None]) -> None:
        super().__init__(board, ASKER)
        self.look = look

    def there(self, wanted: Any) -> dict[str, Any]:
        while not self.ray.wait([wanted], timeout=LOOK_EVERY)[0]:
            self.look()
        return super().there(wanted)


class RayWorker:
    """One process.

    Attributes:
        given: bytes that it may take, weights included; budget: without those of what is loaded.
        loaded: name of the module that it has.
    """

    def __init__(self, actor: Any, name: str, given: float) -> None:
        self.actor, self.name, self.given, self.budget, self.loaded = actor, name, given, given, ""


def _reason(error: Exception) -> str:
    """What was wrong in a worker, without the way that Ray went."""
    return (str(getattr(error, "cause", None) or error).strip().splitlines() or [type(error).__name__])[-1]


def _all_there(ray: Any, asked: Sequence[Any], within: float = 0) -> bool:
    done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=within)
    return len(done) == len(asked)
