"""A crew of this machine's own devices: a thread for each."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import comfy.model_management as model_management
import torch
from torch import Tensor

from ...memory.accelerator import device_name, random_numbers
from ...vae.exact.bands.peers import PeerLost
from ...vae.exact.bands.talk import talk_with
from ...vae.exact.bands.threads import ThreadPeers, together
from ..core.device import memory_budget
from ..offload.own_weights import copied
from .crew import MOST_TRIES, NARROWER, CrewReport, Task, raise_unless_done, report_of, shares
from .work import computed


class DeviceCrew:
    """Devices of one kind; the first one has the module already.

    Args:
        devices: each at most once, but for a CPU.
        budgets: bytes on each, weights not counted.
        make: has the host free so many bytes on the first one.
    """

    def __init__(
        self,
        devices: Sequence[torch.device],
        budgets: Sequence[float],
        make: Callable[[float], None] = lambda needed: None,
    ) -> None:
        self.devices, self.budgets, self.make = list(devices), list(budgets), make
        self._host = threading.Lock()  # its memory manager is asked for one thing at a time

    @classmethod
    def of(
        cls, device: torch.device, limit_gb: float, weights: int, make: Callable[[float], None] = lambda needed: None
    ) -> DeviceCrew:
        """All devices of the same kind as this one, which comes first.

        Args:
            limit_gb: of each, weights included; 0 = its total minus the host's reserve.
        """
        # A device without a number is the first one: Metal's has none.
        devices = [device, *(other for other in _alike(device) if other.index != (device.index or 0))]
        return cls(devices, [memory_budget(one, limit_gb) - weights for one in devices], make)

    def compute(self, task: Task) -> tuple[list[Tensor], CrewReport]:
        """As :meth:`.crew.Crew.compute`. One that runs out of memory gets a lower band."""
        names = [_name(device) for device in self.devices]
        models = [task.model, *(_on(task.model, device, self.devices[0]) for device in self.devices[1:])]
        budgets, draw_again = list(self.budgets), random_numbers(task.device)
        for left in reversed(range(MOST_TRIES)):
            answers = self._answers(task, models, budgets)
            short = [rank for rank, answer in enumerate(answers) if answer["status"] == "out_of_memory"]
            if not short or not left:
                break
            for rank in short:
                budgets[rank] *= NARROWER
            task.notice(f"{names[short[0]]} ran out of memory: tried again with a lower band")
            draw_again()
            gc.collect()
            model_management.soft_empty_cache()
        raise_unless_done(names, answers)
        return [answer["band"] for answer in answers], report_of(names, answers, budgets)

    def _answers(self, task: Task, models: Sequence[Any], budgets: Sequence[float]) -> list[dict[str, Any]]:
        """What each device's thread says in the end."""
        bands = shares(budgets, task.height)
        done = [0.0] * len(bands)

        def work(rank: int, peers: ThreadPeers) -> dict[str, Any]:
            def tell(share: float) -> None:
                if peers.table.failed is not None:
                    raise PeerLost(peers.table.failed, "gave up")
                done[rank] = share
                task.on_share(min(done))

            device, asked = self.devices[rank], task.part(bands[rank], budgets[rank])
            make = partial(self._make, rank)
            answer = computed(models[rank], asked, bands[rank], peers, device, tell, make)
            if answer["status"] != "done":
                peers.table.fail(rank)
            return {**answer, "measured": peers.received}

        talking = partial(talk_with, bands=bands, on_chunk=task.on_chunk, brings=task.brings)
        return together(work, len(bands), talking if task.talks else None)

    def _make(self, rank: int, needed: float) -> None:
        """Has the host free what a plan takes, beside the weights."""
        with self._host:
            if rank == 0:
                self.make(needed)
            elif self.devices[rank].type != "cpu":
                reserved = model_management.extra_reserved_memory()
                model_management.free_memory(needed + reserved, self.devices[rank])


def _alike(device: torch.device) -> list[torch.device]:
    module: Any = None if device.type == "cpu" else getattr(torch, device.type, None)
    count = module.device_count() if hasattr(module, "device_count") else 0
    return [torch.device(device.type, number) for number in range(count)]


def _on(model: Any, device: torch.device, at: torch.device) -> Any:
    """The module on another device: the host, which knows of none there, is asked to make room."""
    if device.type == "cpu" or device == at:
        return model
    size = sum(one.nbytes for one in model.parameters())
    model_management.free_memory(size, device)
    return copied(model, device)


def _name(device: torch.device) -> str:
    return f"{device} ({device_name(device)})"
