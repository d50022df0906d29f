"""The file that keeps what was measured of devices: their figures, and how long models took beside predictions."""

from __future__ import annotations

import logging
import math
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..accelerator import device_name
from ..json_file import read_json, write_json
from .history import History, TimedRun
from .kernels import ATTENTION, CONVOLUTION, PRODUCT
from .speed import Speed

log = logging.getLogger(__name__)

KINDS = (PRODUCT, CONVOLUTION, ATTENTION)
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.float16, torch.bfloat16)}
MOST_OFF = 4.0  # times: a share that is further off is no measurement
NUMBERS = ("bandwidth", "dispatch", "functions", "page", "link", "kernel")


def device_key(device: torch.device) -> str:
    """What a measurement is valid for: the device, torch's version, and of a CPU its threads."""
    name = device_name(device)
    if device.type == "cpu":
        name = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    return f"{name}, torch {torch.__version__}"


def load_speed(path: Path, key: str, otherwise: Speed) -> Speed:
    """What a file knows of a device.

    Args:
        otherwise: what stands where nothing was measured, or the entry is damaged, which is logged.
    """
    entry = _content(path).get(key)
    if entry is None:
        return otherwise
    try:
        figures = entry.get("figures")
        speed = otherwise if figures is None else _speed(figures)
        return replace(speed, history=_history(entry.get("runs", {})))
    except (TypeError, ValueError, AttributeError, LookupError, ZeroDivisionError):
        log.warning("Headroom: %s is damaged and ignored: measure anew by cli/calibrate.py", path)
        return otherwise


def save_figures(path: Path, key: str, speed: Speed) -> None:
    """Keeps what was measured of a device; runs that were compared with other figures go.

    Raises:
        OSError: it cannot be written.
    """
    rates = [[kind, str(dtype).removeprefix("torch."), rate] for (kind, dtype), rate in speed.rates.items()]
    numbers = {name: getattr(speed, name) for name in NUMBERS}
    figures = {"rates": rates, "ahead": speed.ahead, "source": speed.source, **numbers}
    write_json(path, {**_content(path), key: {"figures": figures, "runs": {}}})


def save_run(path: Path, key: str, model: str, run: TimedRun) -> None:
    """Adds what a model took. A file that cannot be written is no reason to end a prompt: it is logged.

    Args:
        model: its class, what it did, and in which dtype.
    """
    content = _content(path)
    entry = content.get(key)
    entry = entry if isinstance(entry, dict) else {}
    try:
        history = _history(entry.get("runs", {}))
    except (TypeError, ValueError, AttributeError, LookupError, ZeroDivisionError):
        history = History()
    every = history.with_run(model, run).runs
    runs = {name: [[one.predicted, one.measured] for one in some] for name, some in every.items()}
    _write(path, {**content, key: {**entry, "runs": runs}})


def kept_share(path: Path, key: str, model: str) -> float:
    """How much of its predicted activations a model took on a device, when a step of it was measured; 1: nobody has."""
    entry = _content(path).get(key)
    shares = entry.get("activations") if isinstance(entry, dict) else None
    found = shares.get(model) if isinstance(shares, dict) else None
    if not isinstance(found, (int, float)) or isinstance(found, bool):
        return 1.0
    return min(max(float(found), 1 / MOST_OFF), MOST_OFF)


def save_share(path: Path, key: str, model: str, share: float) -> None:
    """Keeps that. A file that cannot be written is no reason to end a prompt: it is logged."""
    content = _content(path)
    entry = content.get(key)
    entry = entry if isinstance(entry, dict) else {}
    shares = entry.get("activations")
    shares = {**(shares if isinstance(shares, dict) else {}), model: share}
    _write(path, {**content, key: {**entry, "activations": shares}})


def _write(path: Path, content: dict[str, Any]) -> None:
    try:
        write_json(path, content)
    except OSError as error:
        log.warning("Headroom: what was measured is not kept: %s", error)


def _content(path: Path) -> dict[str, Any]:
    content = read_json(path)
    return content if isinstance(content, dict) else {}


def _speed(figures: dict[str, Any]) -> Speed:
    rates = {(kind, DTYPES[dtype]): _above_nothing(rate) for kind, dtype, rate in figures["rates"] if kind in KINDS}
    numbers: dict[str, Any] = {name: float(figures[name]) for name in NUMBERS}
    if not rates or not all(math.isfinite(number) and number >= 0 for number in numbers.values()):
        raise ValueError(figures)
    _above_nothing(numbers["bandwidth"])
    return Speed(rates, **numbers, ahead=bool(figures["ahead"]), source=str(figures["source"]))


def _history(runs: dict[str, Any]) -> History:
    return History(
        {str(model): tuple(TimedRun(*map(_above_nothing, both)) for both in some) for model, some in runs.items()}
    )


def _above_nothing(number: Any) -> float:
    found = float(number)
    if not 0 < found < math.inf:
        raise ValueError(number)
    return found
