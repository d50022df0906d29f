"""What of a long decode is finished: its segments, and what is needed to go on behind the last of them.

A folder for each key, and in it ``plan.json``, a file ``000000-000064.mkv`` for each segment, named by its first frame
and the one behind its last, a file ``000064.safetensors`` with the state at the border behind one, and ``lock``. The
state is written before the segment it belongs to: a segment without it is no place to go on from.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from .lock import FolderLock, holder
from .state_file import read_tensors, write_tensors
from .whole_file import PART, whole_file

PLAN, LOCK = "plan.json", "lock"
KEY = re.compile(r"[A-Za-z0-9_-]{1,100}")
SEGMENT = re.compile(r"(\d{6,})-(\d{6,})\.(\w+)")
STATE = re.compile(r"(\d{6,})\.safetensors")
DAY = 24 * 3600.0  # seconds


class JournalIsLocked(RuntimeError):
    """Another decode, in this process or another, is writing it."""


@dataclass(frozen=True)
class JournalPlan:
    """What is written; segments of another plan are of no use.

    Attributes:
        key: of all that decides about the frames, fit for a folder's name: letters, digits, ``_`` and ``-``.
        format: its name in :data:`.formats.FORMATS`.
        extension: of a segment's file.
        width, height: of a frame in pixels.
        frames: of the whole video.
    """

    key: str
    format: str
    extension: str
    width: int
    height: int
    frames: int


class FinishedSegment(NamedTuple):
    """Frames ``first`` to ``stop``, without the last, and their file."""

    first: int
    stop: int
    path: Path


class Journal:
    """Context manager; made by :meth:`open`. What it holds stays when it is closed, until :meth:`remove`."""

    def __init__(self, folder: Path, plan: JournalPlan, lock: FolderLock) -> None:
        self.folder, self.plan, self._lock = folder, plan, lock

    @classmethod
    def open(cls, root: str | Path, plan: JournalPlan) -> Journal:
        """Takes a key's folder, and brings it into order.

        Unfinished files are deleted, segments behind a gap or without a state too, and all of them if they are of
        another plan or ``plan.json`` cannot be read.

        Args:
            root: the folder of all keys; it is made if need be.

        Raises:
            ValueError: a key that is no folder's name.
            JournalIsLocked: another decode is writing it.
            OSError: it cannot be written.
        """
        if not KEY.fullmatch(plan.key):
            raise ValueError(f"{plan.key!r} is no key: letters, digits, _ and - alone, 100 at most")
        folder = Path(root, plan.key)
        lock = _locked(folder)
        try:
            journal = cls(folder, plan, lock)
            if _read_plan(folder) != asdict(plan):
                _empty(folder)
                with whole_file(folder / PLAN) as part:
                    part.write_text(json.dumps(asdict(plan), indent=1), encoding="utf-8")
            journal._tidy()
        except BaseException:
            lock.release()
            raise
        return journal

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets others open it."""
        self._lock.release()

    def finished(self) -> list[FinishedSegment]:
        """Segments in a row from frame 0 to the last border that has a state, or to the end, which needs none."""
        by_first = {segment.first: segment for segment in self._segments()}
        row: list[FinishedSegment] = []
        while segment := by_first.get(row[-1].stop if row else 0):
            row.append(segment)
        while row and row[-1].stop != self.plan.frames and not self._state_path(row[-1].stop).is_file():
            row.pop()
        return row

    def path_for(self, first: int, stop: int) -> Path:
        """The file of a segment that is to be written; whoever writes it makes it appear when it is whole.

        Raises:
            ValueError: no frames, or beyond the plan's.
        """
        if not 0 <= first < stop <= self.plan.frames:
            raise ValueError(f"frames {first} to {stop} are none of a video of {self.plan.frames}")
        return self.folder / f"{first:06}-{stop:06}.{self.plan.extension}"

    def state(self, stop: int) -> dict[str, Tensor] | None:
        """What is needed to go on at a border, on the CPU; None if it is not there, or is damaged."""
        return read_tensors(self._state_path(stop))

    def save_state(self, stop: int, tensors: Mapping[str, Tensor]) -> None:
        """Writes the state at a border, before the segment that ends there is written to its end.

        States before it are deleted but for the last finished segment's: until the new segment is there, that is
        where one would go on.

        Raises:
            ValueError: tensors of a dtype that is not kept.
            OSError: it cannot be written.
        """
        finished = self.finished()
        self._keep_states({stop, finished[-1].stop if finished else stop})
        write_tensors(self._state_path(stop), tensors)

    def forget(self) -> None:
        """Deletes all segments, also those without a state, and all states."""
        for segment in self._segments():
            segment.path.unlink()
        self._keep_states(set())

    def remove(self) -> None:
        """Deletes the folder and closes the journal."""
        _removed(self.folder, self._lock)

    def _state_path(self, stop: int) -> Path:
        return self.folder / f"{stop:06}.safetensors"

    def _segments(self) -> list[FinishedSegment]:
        found = []
        for path in self.folder.iterdir():
            name = SEGMENT.fullmatch(path.name)
            if name and name[3] == self.plan.extension and int(name[1]) < int(name[2]) <= self.plan.frames:
                found.append(FinishedSegment(int(name[1]), int(name[2]), path))
        return sorted(found)

    def _tidy(self) -> None:
        finished = self.finished()
        while finished and finished[-1].stop != self.plan.frames and self.state(finished[-1].stop) is None:
            # There, but damaged: without it, the segments before may still have theirs.
            self._state_path(finished[-1].stop).unlink(missing_ok=True)
            finished = self.finished()
        kept = {segment.path for segment in finished}
        for path in self.folder.iterdir():
            if path.name.endswith(PART) or (SEGMENT.fullmatch(path.name) and path not in kept):
                path.unlink()
        self._keep_states({finished[-1].stop} if finished else set())

    def _keep_states(self, stops: set[int]) -> None:
        for path in self.folder.iterdir():
            name = STATE.fullmatch(path.name)
            if name and int(name[1]) not in stops:
                path.unlink()


def clean(root: str | Path, older_than_days: float, more_than_bytes: int) -> int:
    """Deletes journals that nobody has gone on with: the old ones, then the oldest until the rest is small enough.

    Those that are being written are left, and so is what is no journal, what cannot be read or removed, and where
    nobody can tell: on a file system without locks.

    Args:
        root: the folder of all keys; it need not be there.
        older_than_days: since a file in it was last written.
        more_than_bytes: that all journals may take together.

    Returns:
        How many bytes were freed.
    """
    found: list[tuple[float, Path, int]] = []
    for path in Path(root).glob(f"*/{LOCK}"):
        with suppress(OSError):
            if not path.parent.is_symlink():
                found.append((_last_written(path.parent), path.parent, _bytes(path.parent)))
    total, freed = sum(size for *_, size in found), 0
    for written, folder, size in sorted(found):
        if time.time() - written <= older_than_days * DAY and total - freed <= more_than_bytes:
            continue
        with suppress(OSError):
            lock = FolderLock(folder / LOCK)
            if lock.holds:
                _removed(folder, lock)
                freed += size
            lock.release()
    return freed


def _locked(folder: Path) -> FolderLock:
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return FolderLock(folder / LOCK)
        except FileNotFoundError:
            continue  # cleaned away in between
        except BlockingIOError as error:
            raise JournalIsLocked(
                f"this video is being decoded by process {holder(folder / LOCK)} already: wait for it, or cancel it"
            ) from error


def _read_plan(folder: Path) -> object:
    try:
        return json.loads((folder / PLAN).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _empty(folder: Path) -> None:
    """All but the lock."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def _removed(folder: Path, lock: FolderLock) -> None:
    try:
        _empty(folder)
    finally:
        lock.release(remove=True)
    with suppress(OSError):  # somebody has begun anew in it
        os.rmdir(folder)


def _last_written(folder: Path) -> float:
    return max((status.st_mtime for status in _of_those_there(folder.iterdir())), default=0.0)


def _bytes(folder: Path) -> int:
    files = (status for status in _of_those_there(folder.rglob("*")) if stat.S_ISREG(status.st_mode))
    return sum(status.st_size for status in files)


def _of_those_there(paths: Iterable[Path]) -> Iterator[os.stat_result]:
    """Without those that another decode has removed since they were listed."""
    for path in paths:
        with suppress(FileNotFoundError):
            yield path.lstat()
