"""What Ray carries to the processes of a cluster, before they know the pack: needs the standard library alone."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import traceback
from pathlib import Path
from typing import Any


class Board:
    """Where the workers of one run leave things for each other: an actor of its own."""

    def __init__(self) -> None:
        self.given: dict[Any, Any] = {}
        self.failed: tuple[int, str] | None = None
        self.done: dict[int, float] = {}
        self.condition: asyncio.Condition | None = None

    async def give(self, rank: int, key: Any, to: list[int], things: Any) -> None:
        """Leaves something for others."""
        async with self._changed():
            self.given.update({(rank, other, key): things for other in to})
            self._changed().notify_all()

    async def take(self, rank: int, key: Any, of: int) -> dict[str, Any]:
        """What a worker left for another one, once it is there; or who is gone."""
        place = (of, rank, key)
        async with self._changed():
            await self._changed().wait_for(lambda: place in self.given or self.failed)
            if place in self.given:
                return {"things": self.given.pop(place)}
            assert self.failed
            return {"lost": self.failed}

    async def fail(self, rank: int, why: str) -> None:
        """A worker is gone, or gave up: nobody is to wait for it."""
        async with self._changed():
            self.failed = self.failed or (rank, why)
            self._changed().notify_all()

    async def tell(self, rank: int, share: float) -> tuple[int, str] | None:
        """How much of its work a worker has done; answers who is gone."""
        self.done[rank] = share
        return self.failed

    async def progress(self) -> float:
        """How much the slowest has done."""
        return min(self.done.values(), default=0.0)

    def _changed(self) -> asyncio.Condition:
        if self.condition is None:  # not before there is a loop that it belongs to
            self.condition = asyncio.Condition()
        return self.condition


class BandActor:
    """A process of a cluster that computes bands: with the ComfyUI and the pack of its own machine.

    Args:
        comfyui, pack: folders of the machine that asks; they count where this one names none in its environment
            (HEADROOM_COMFYUI, HEADROOM_PACK).
    """

    def __init__(self, comfyui: str, pack: str) -> None:
        self.models: dict[str, Any] = {}
        self.wrong = ""
        self.remote: Any = None
        try:
            self.remote = self._entered(
                os.environ.get("HEADROOM_COMFYUI") or comfyui, os.environ.get("HEADROOM_PACK") or pack
            )
        except Exception as error:
            self.wrong = f"{type(error).__name__}: {error}"
            traceback.print_exc()

    @staticmethod
    def _entered(comfyui: str, pack: str) -> Any:
        """Imports this machine's ComfyUI and pack."""
        for folder, has, variable in (
            (comfyui, "comfy/sd.py", "HEADROOM_COMFYUI"),
            (pack, "cli/host.py", "HEADROOM_PACK"),
        ):
            if not (Path(folder) / has).is_file():
                raise FileNotFoundError(f"{folder} is not there: set {variable} before `ray start`")
        spec = importlib.util.spec_from_file_location("headroom_entrance", Path(pack) / "cli" / "host.py")
        assert spec is not None
        assert spec.loader is not None
        entrance = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(entrance)
        import torch

        kinds: Any = getattr(torch, "accelerator", torch.cuda)  # PyTorch before 2.6 has no such name
        entrance.enter(Path(comfyui), cpu=not kinds.is_available(), extras=False)
        return importlib.import_module("headroom.host.bands.remote")

    def about(self) -> dict[str, Any]:
        """Versions, device and bytes; or what is wrong."""
        return {"wrong": self.wrong} if self.remote is None else self.remote.about()

    def has(self, key: str) -> bool:
        """Whether a module is here."""
        return key in self.models

    def load(self, key: str, sent: Any) -> int:
        """Takes a module in the place of the last one; gives the bytes of its weights."""
        self.models = {}  # before the next is there
        self.models[key] = self.remote.module(sent)
        return int(self.remote.weights(self.models[key]))

    def band(self, board: Any, rank: int, cuts: list[int], grain: int, key: str, work: Any) -> dict[str, Any]:
        """Its band, or why there is none."""
        answer: dict[str, Any] = self.remote.band(self.models[key], board, rank, cuts, grain, work)
        return answer

    def process(self) -> int:
        """Its number on its machine."""
        return os.getpid()
