"""What the set-up is doing, for the person who waits, and the one kind of error it ends with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

LIVE_SECONDS, PLAIN_SECONDS = 0.2, 10.0


class SetupError(Exception):
    """One sentence that says what is wrong and what to do about it; the command ends with status 2."""


class Stage:
    """A step of the set-up: one live line on a terminal, a plain line now and then elsewhere.

    Assign to `detail` what the step is busy with.
    """

    def __init__(self, title: str) -> None:
        self.title, self.detail = title, ""
        self._live = sys.stderr.isatty()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._refresh, daemon=True)

    def __enter__(self) -> Stage:
        self._started = time.monotonic()
        self._write(f"{self.title} ...")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        outcome = "stopped" if kind else "done"
        self._write(f"{self.title}: {outcome} after {self._seconds()} s")
        if self._live:
            print(file=sys.stderr)

    def _seconds(self) -> int:
        return round(time.monotonic() - self._started)

    def _refresh(self) -> None:
        while not self._done.wait(LIVE_SECONDS if self._live else PLAIN_SECONDS):
            self._write(" · ".join(filter(None, (self.title, self.detail, f"{self._seconds()} s"))))

    def _write(self, text: str) -> None:
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            print("\r" + text[:width].ljust(width), end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)


def run_logged(
    command: Sequence[str | Path],
    log: Path,
    stage: Stage,
    describe: Callable[[str], str | None],
    variables: Mapping[str, str],
    folder: Path | None = None,
) -> int:
    """Run a command with its whole output in `log`; `describe(line)` is what the stage shows, if anything."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("w", encoding="utf-8") as output,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            cwd=folder,
            env={**os.environ, **variables},
            close_fds=False,  # the child keeps the cache's lock (cache.py) for as long as it writes there
        ) as child,
    ):
        try:
            for line in child.stdout or ():
                output.write(line)
                stage.detail = " ".join((describe(line) or stage.detail).split())
        except BaseException:
            child.terminate()
            raise
    return child.returncode
