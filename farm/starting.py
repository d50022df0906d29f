"""ComfyUI servers that the farm starts itself: one for each card of this machine, on its loopback interface."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .cluster import FarmError

LOOPBACK = "127.0.0.1"
READY, STOP, LOOK = 300.0, 10.0, 0.3  # seconds
QUOTED = 3  # lines of a log


@contextmanager
def started(count: int, comfyui: str | None, folder: Path, arguments: Sequence[str] = ()) -> Iterator[list[str]]:
    """Servers for as long as the context lasts.

    Args:
        count: how many; where the machine has cards, one each and no more.
        comfyui: ComfyUI's folder; None: ``COMFYUI_PATH``, or the one that holds the pack.
        folder: for their logs and what they write.
        arguments: more options of ComfyUI, such as ``--cpu``.

    Returns:
        Their addresses.

    Raises:
        FarmError: there is no ComfyUI, too few cards, or one did not start.
    """
    host = _find(comfyui)
    cards = 0 if "--cpu" in arguments else _cards()
    if cards and count > cards:
        raise FarmError(
            f"--start {count}: this machine has {cards} card{'s' * (cards > 1)}, and each server wants its own"
        )
    running: list[tuple[int, subprocess.Popen[bytes]]] = []
    try:
        for number in range(count):
            own = ("--cuda-device", str(number)) if cards else ()
            running.append(_start(host, folder.resolve() / f"worker-{number + 1}", [*own, *arguments]))
        for number, (port, process) in enumerate(running):
            _wait(port, process, folder / f"worker-{number + 1}" / "server.log")
        yield [f"http://{LOOPBACK}:{port}" for port, _ in running]
    finally:
        for _, process in running:
            _end(process)


def _find(named: str | None) -> Path:
    pack = Path(__file__).resolve().parents[1]
    for place in (named, os.environ.get("COMFYUI_PATH"), str(pack.parents[1])):
        if place and (Path(place) / "main.py").is_file() and (Path(place) / "comfy").is_dir():
            return Path(place).resolve()
    raise FarmError("--start: no ComfyUI here: name its folder with --comfyui, or in COMFYUI_PATH")


def _cards() -> int:
    code = "import torch; print(torch.cuda.device_count())"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)  # noqa: S603
    if asked.returncode:
        raise FarmError(f"--start: {sys.executable} has no torch: run the farm with ComfyUI's own Python")
    return int(asked.stdout.strip() or 0)


def _start(host: Path, folder: Path, arguments: Sequence[str]) -> tuple[int, subprocess.Popen[bytes]]:
    for name in ("output", "temp", "user"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port = int(probe.getsockname()[1])
    places = [f"--{name}-directory={folder / name}" for name in ("output", "temp", "user")]
    fixed = ["--listen", LOOPBACK, "--port", str(port), "--disable-auto-launch", "--database-url", "sqlite:///:memory:"]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, str(host / "main.py"), *fixed, *places, *arguments],
            cwd=host,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
    return port, process


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY
    while not _answers(port):
        if process.poll() is not None or time.monotonic() > deadline:
            last = " | ".join(log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-QUOTED:])
            raise FarmError(f"--start: a ComfyUI did not start; its log {log} ends with: {last}")
        time.sleep(LOOK)


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=10)
    try:
        connection.request("GET", "/system_stats")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
