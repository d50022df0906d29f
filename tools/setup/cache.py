"""Things that take minutes to make and are kept outside the checkout, each named after its versions."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from .progress import SetupError, Stage

GB = 2**30
MARKER = ".complete"

if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: TextIO) -> bool:
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(file: TextIO) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def root() -> Path:
    """The cache folder: `HEADROOM_CACHE`, else the platform's own place for such things."""
    if chosen := os.environ.get("HEADROOM_CACHE"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "headroom" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "headroom"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headroom"


def key(*parts: str) -> str:
    """A short name for everything that an entry depends on."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def log_path(name: str) -> Path:
    """Where the output of the command that makes an entry is kept."""
    return root() / "logs" / f"{name}.log"


def cached(name: str, what: str, size_gb: float, build: Callable[[Path], None]) -> Path:
    """The entry `name`, made by `build(folder)` unless it is there; what was left half-made is made afresh.

    `what` and `size_gb` are for the sentences: what is being made, and how much room it takes.
    """
    folder = root() / name
    if _is_complete(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.with_name(f"{name}.lock"), what):
            if not _is_complete(folder):
                _make(folder, what, size_gb, build)
    except OSError as error:
        raise SetupError(
            f"{what[0].upper()}{what[1:]} could not be made in {folder} ({error}): make sure that it can be "
            "written and has room, or set HEADROOM_CACHE to another folder."
        ) from error
    return folder


def _make(folder: Path, what: str, size_gb: float, build: Callable[[Path], None]) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    _require_space(folder.parent, what, size_gb)
    folder.mkdir()
    build(folder)
    # Last, and in one step: whatever interrupts the work before this line leaves no marker.
    draft = folder / f"{MARKER}.new"
    draft.write_text(str(folder.resolve()), encoding="utf-8")
    draft.replace(folder / MARKER)


def _is_complete(folder: Path) -> bool:
    """Whether the marker is there and names this very place: a virtual environment cannot be moved."""
    marker = folder / MARKER
    return marker.is_file() and marker.read_text(encoding="utf-8") == str(folder.resolve())


def _require_space(folder: Path, what: str, size_gb: float) -> None:
    free_gb = shutil.disk_usage(folder).free / GB
    if free_gb < size_gb:
        raise SetupError(
            f"Not enough disk space for {what}: it takes about {size_gb:g} GB and {folder} has "
            f"{free_gb:.1f} GB free; free some, or set HEADROOM_CACHE to a folder on another disk."
        )


@contextmanager
def _lock(path: Path, what: str) -> Iterator[None]:
    """Keep two processes from making the same entry; the system releases the lock of one that dies."""
    with path.open("a", encoding="utf-8") as file:
        os.set_inheritable(file.fileno(), True)  # see run_logged
        if not _try_lock(file):
            with Stage(f"Another process is making {what}; waiting for it"):
                while not _try_lock(file):
                    time.sleep(0.5)
        yield
