"""The host in this process on an emulated card, and servers on one.

pytest itself must have been started on the card: `python3 -m tools test` does that for this folder.
"""

import gc
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from headroom.memory import link
from headroom.tools.card import emulator
from headroom.tools.server.server import Server

if not emulator.is_on():
    raise RuntimeError(
        "tests/emulator runs on the emulated card: start it with `python3 -m tools test -- tests/emulator`"
        + (f". {reason}" if (reason := emulator.missing()) else "")
    )

import emulated_card  # type: ignore[import-not-found]  # there on the card only
import torch

from ..host.conftest import ENVIRONMENT, _inference, one_thread  # noqa: F401  # fixtures

VRAM_MB = 8192.0


class Card:
    """The emulated card of this process: its settings, what it counted, its clock."""

    def set(self, *, lazy: bool = False, races: bool = False, vram_mb: float = VRAM_MB, **settings: float) -> None:
        """Settings of this test, all others by default; `tests/emulator/README.md` has them."""
        torch.cuda.synchronize()
        emulated_card.default_settings()
        for name, value in {"lazy": lazy, "race": races, "vram_mb": vram_mb, **settings}.items():
            emulated_card.set(name, float(value))
        link._known.clear()  # of the card as it was
        self.reset()

    def reset(self) -> None:
        """Counters, races and torch's peak from now on."""
        emulated_card.reset()
        torch.cuda.reset_peak_memory_stats()

    @property
    def stats(self) -> dict[str, Any]:
        """Everything that is counted."""
        return dict(emulated_card.stats())

    @property
    def races(self) -> list[str]:
        """What was touched while nothing ordered it."""
        return list(emulated_card.races())

    @property
    def seconds(self) -> float:
        """Of the virtual clock, all work done."""
        return float(self.stats["virtual_s"])

    @property
    def launches(self) -> int:
        """Kernels since the last reset."""
        return int(self.stats["computes"])

    @property
    def peak(self) -> int:
        """Bytes allocated at most since the last reset."""
        return torch.cuda.max_memory_allocated()

    @property
    def allocated(self) -> int:
        """Bytes allocated now."""
        return torch.cuda.memory_allocated()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The file that takes longest first: a file stays with one worker, and the last one would wait for it."""
    items.sort(key=lambda item: item.path.name != "test_video_files.py")


@pytest.fixture
def card() -> Iterator[Card]:
    """The card, as a new one; whatever a test changed of it is put back."""
    import comfy.model_management

    def emptied() -> None:
        comfy.model_management.unload_all_models()
        gc.collect()
        torch.cuda.empty_cache()

    it = Card()
    emptied()  # of what tests without this fixture left
    it.set()
    yield it
    it.set()
    emptied()


class ServerOnCard(Server):
    """ComfyUI on an emulated card of its own."""

    def __init__(self, stats: Path, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.stats = stats

    def counted(self) -> dict[str, Any]:
        """What its card counted (`emulated_card.stats`), and its races as `race_texts`; half a second from now."""
        time.sleep(2 / emulated_card.WRITES_A_SECOND)
        return dict(json.loads(self.stats.read_text(encoding="utf-8")))


CardServer = Callable[..., AbstractContextManager[ServerOnCard]]


@pytest.fixture(scope="session")
def card_server_in() -> Callable[[Path], CardServer]:
    """Gives for a folder what starts ComfyUI on an emulated card:
    `with start("rtx3060", vram_mb=512, args=["--lowvram"]) as server`."""

    def in_folder(folder: Path) -> CardServer:
        @contextmanager
        def start(
            card: str = "rtx3060", *, args: tuple[str, ...] = (), pack: bool = True, **settings: Any
        ) -> Iterator[ServerOnCard]:
            stats = Path(tempfile.mkdtemp(dir=folder)) / "stats.json"
            variables = emulator.variables(ENVIRONMENT, card, stats=stats, **settings)
            with ServerOnCard(stats, ENVIRONMENT, pack, args, cpu=False, variables=variables) as server:
                yield server

        return start

    return in_folder
