"""A crew of this machine's own devices: a thread for each."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import comfy.model_management as model_management
import torch
from torch import Tensor

from ...memory.accelerator import device_name
from ...vae.exact.bands.talk import talk_with
from ...vae.exact.bands.threads import ThreadPeers, together
from ..core.device import memory_budget
from .crew import CrewReport, Task, raise_unless_done, report_of, shares
from .work import computed


class DeviceCrew:
    """Devices of one kind; the first one has the module already.

    Args:
        devices: each at most once, but for a CPU.
        budgets: bytes on each, weights not counted.
    """

    def __init__(self, devices: Sequence[torch.device], budgets: Sequence[float]) -> None:
        self.devices, self.budgets = list(devices), list(budgets)

    @classmethod
    def of(cls, device: torch.device, limit_gb: float, weights: int) -> DeviceCrew:
        """All devices of the same kind as this one, which comes first.

        Args:
            limit_gb: of each, weights included; 0 = its total minus the host's reserve.
        """
        devices = [device, *(other for other in _alike(device) if other != device)]
        return cls(devices, [memory_budget(one, limit_gb) - weights for one in devices])

    def compute(self, task: Task) -> tuple[list[Tensor], CrewReport]:
        """As :meth:`.crew.Crew.compute`."""
        names, bands = [_name(device) for device in self.devices], shares(self.budgets, task.height)
        models = [task.model, *(_on(task.model, device, self.devices[0]) for device in self.devices[1:])]
        done = [0.0] * len(bands)

        def work(rank: int, peers: ThreadPeers) -> dict[str, Any]:
            def tell(share: float) -> None:
                done[rank] = share
                task.on_share(min(done))

            asked = task.part(bands[rank], self.budgets[rank])
            answer = computed(models[rank], asked, bands[rank], peers, self.devices[rank], tell)
            if answer["status"] != "done":
                peers.table.fail(rank)
            return {**answer, "measured": peers.received}

        talking = partial(talk_with, bands=bands, on_chunk=task.on_chunk, brings=task.brings)
        answers = together(work, len(bands), talking if task.talks else None)
        raise_unless_done(names, answers)
        return [answer["band"] for answer in answers], report_of(names, answers, self.budgets)


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
    return copy.deepcopy(model).to(device)


def _name(device: torch.device) -> str:
    return f"{device} ({device_name(device)})"
