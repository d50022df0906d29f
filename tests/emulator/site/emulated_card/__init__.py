"""The emulated card as `import torch` finds it: an entry point of the group `torch.backends`.

`tests/emulator/README.md` tells what is emulated. Everything here works on the card of this process.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DEVICE = os.environ.get("EMU_DEVICE", "")
WRITES_A_SECOND = 4.0
_card: ctypes.CDLL | None = None


def stats() -> dict[str, Any]:
    """Counters since :func:`reset`: bytes, copies, launches, races, seconds of the virtual clock."""
    answer: dict[str, Any] = json.loads(_loaded().emu_stats())
    return answer


def races() -> list[str]:
    """The first races found since :func:`reset`, a sentence each."""
    return [str(line) for line in _loaded().emu_races().decode().splitlines()]


def reset() -> None:
    """Counters and races from zero; the peak from what is held now. The virtual clock goes on."""
    _loaded().emu_reset()


def set(key: str, value: float) -> None:
    """Changes a setting of the running card: vram_mb, lazy, race, or a rate of its clock.

    Raises:
        KeyError: there is no such setting.
    """
    if not _loaded().emu_set(key.encode(), ctypes.c_double(value)):
        raise KeyError(key)


def default_settings() -> None:
    """All settings as the environment variables say."""
    _loaded().emu_default_settings()


def _loaded() -> ctypes.CDLL:
    if _card is None:
        raise RuntimeError("this process has no emulated card: start it by tools.card.emulator.variables()")
    return _card


def _autoload() -> None:
    """What torch calls when it is imported; nothing where no card was asked for."""
    global _card
    if not DEVICE:
        return
    import torch

    build = Path(os.environ["EMU_BUILD"])
    if DEVICE == "npu":
        torch.utils.rename_privateuse1_backend("npu")
    core = ctypes.CDLL(str(build / "operators.so"), mode=ctypes.RTLD_GLOBAL)
    _card = ctypes.CDLL(None if DEVICE == "cuda" else str(build / "operators.so"))
    with _quiet():
        core.emu_core_init()
    _without_kitchen()
    if DEVICE == "npu":
        import torch_npu  # noqa: F401

        return
    for name in ("emu_stats", "emu_races"):
        getattr(_card, name).restype = ctypes.c_char_p
    if path := os.environ.get("EMU_STATS"):
        threading.Thread(target=_keep_writing, args=(Path(path),), daemon=True).start()


def _without_kitchen() -> None:
    """comfy_kitchen's kernels bring a CUDA runtime of their own, which finds no card: it has a plain PyTorch way."""
    found = importlib.util.spec_from_file_location

    def spec(name: str, *args: Any, **options: Any) -> Any:
        return None if name == "comfy_kitchen.backends.cuda._C" else found(name, *args, **options)

    importlib.util.spec_from_file_location = spec  # type: ignore[assignment]


def _keep_writing(path: Path) -> None:
    """What the card counted, in a file: a server ends by a signal, and others want to know before."""
    draft = path.with_suffix(".new")
    while True:
        time.sleep(1 / WRITES_A_SECOND)
        draft.write_text(json.dumps(stats() | {"race_texts": races()[-80:]}), encoding="utf-8")
        draft.replace(path)


@contextmanager
def _quiet() -> Iterator[None]:
    """The dispatcher tells of every kernel that is replaced; that is what is meant here."""
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
