"""What a run has done so far, a line of JSON for each thing, on the disk before the next is begun.

One driver at a time: a file is locked for as long as it works. A last line that a kill cut in two is left out.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE, LOCK, DRAIN = "journal.jsonl", "driver.lock", "drain"


class TwoDrivers(ValueError):
    """Another driver works on this folder; the message says so."""


@dataclass
class State:
    """What a journal says of a job at its end.

    Attributes:
        status: waiting, sent, done, failed or refused.
        worker: that has it, or had it.
        prompt_id: on that worker.
        reason: of a failure or refusal.
        seconds: that it took there.
        lost: how often a worker was gone with it.
        files: of its results.
    """

    status: str = "waiting"
    worker: str = ""
    prompt_id: str = ""
    reason: str = ""
    seconds: float = 0.0
    lost: int = 0
    files: list[str] = field(default_factory=list)


class Journal:
    """The journal of a folder, open for writing.

    Raises:
        TwoDrivers: it is open elsewhere.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        from filelock import FileLock, Timeout

        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._lock = FileLock(folder / LOCK)
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise TwoDrivers(
                f"another driver works on {folder}: let it end, or give this one a folder of its own with --out"
            ) from error
        self._file = (folder / FILE).open("a+b")
        self._end_the_line()

    def write(self, event: str, **values: Any) -> None:
        """Adds a line; it is on the disk when this returns."""
        line = json.dumps({"event": event, "time": round(time.time(), 3), **values}, ensure_ascii=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Ends writing and lets others in."""
        self._file.close()
        self._lock.release()

    def _end_the_line(self) -> None:
        """A line that a kill cut in two ends before the next one begins."""
        if self._file.seek(0, os.SEEK_END):
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")


def lines(folder: Path) -> Iterator[dict[str, Any]]:
    """What was written, in order."""
    path = folder / FILE
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict) and isinstance(value.get("event"), str):
                yield value


def states(written: Iterator[Mapping[str, Any]]) -> dict[str, State]:
    """How each job stands, by its name."""
    found: dict[str, State] = {}
    for line in written:
        name = line.get("job")
        if not isinstance(name, str):
            continue
        state, event = found.setdefault(name, State()), line["event"]
        if event == "job":
            state.status = "waiting" if state.status in ("refused", "failed") else state.status  # asked for again
        elif event == "sent":
            state.status, state.worker, state.prompt_id = "sent", line.get("worker", ""), line.get("prompt_id", "")
        elif event == "lost":
            state.status, state.lost = "waiting", state.lost + 1
        elif event == "back":
            state.status = "waiting"
        elif event in ("done", "failed", "refused"):
            state.status, state.reason = event, line.get("reason", "")
            state.worker, state.seconds = line.get("worker", state.worker), line.get("seconds", 0.0)
            state.files = list(line.get("files", ()))
    return found


def drain(folder: Path) -> bool:
    """Asks the driver of a folder to give out no more; whether there is one to ask."""
    from filelock import FileLock, Timeout

    if not (folder / FILE).is_file():
        return False
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        (folder / DRAIN).touch()
        return True
    lock.release()
    return False
