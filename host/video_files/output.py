"""Where a video goes in the host's output folder, what is left of unfinished ones there, and how much disk there is."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import folder_paths

from ...memory.on_disk import require_room
from ...video import FileFormat

LONGEST_ENDING = "webm.part"  # of what a name gets while it is written
FULL = (errno.ENOSPC, errno.EDQUOT)
UNFINISHED = "headroom_unfinished"  # in the output folder: as a rule on the disk that the video will lie on


@dataclass(frozen=True)
class Place:
    """A file that is going to be written.

    Attributes:
        folder: it lies in, which is there and can be written.
        stem: of its name, with the host's counter.
        subfolder: of the output folder.
    """

    folder: Path
    stem: str
    subfolder: str


def place_for(filename_prefix: str, width: int, height: int) -> Place:
    """By the host's rules for prefixes: subfolders, dates, a counter.

    Raises:
        ValueError: a prefix that leads out of the output folder, or into a folder that cannot be written.
    """
    root = folder_paths.get_output_directory()
    if not filename_prefix.strip(" /\\") or "\0" in filename_prefix:
        raise ValueError("filename_prefix: is empty; give the file a name, such as video/ComfyUI")
    inside = Path(os.path.abspath(os.path.join(root, os.path.normpath(filename_prefix))))
    if not inside.is_relative_to(os.path.abspath(root)):
        raise ValueError(
            f"filename_prefix: {filename_prefix[:80]} leads out of the output folder; use a name or a subfolder of it"
        )
    try:
        folder, name, counter, subfolder, _ = folder_paths.get_save_image_path(filename_prefix, root, width, height)
        with tempfile.TemporaryFile(dir=folder):
            pass
        stem = f"{name}_{counter:05}_"
        with contextlib.suppress(FileNotFoundError):
            os.lstat(os.path.join(folder, f"{stem}.{LONGEST_ENDING}"))  # refused where it is too long
    except OSError as error:
        raise ValueError(
            f"filename_prefix: {filename_prefix[:80]} cannot be written ({error.strerror}); use a shorter name, choose"
            " another subfolder of the output folder, or make it writable"
        ) from error
    return Place(Path(folder), stem, subfolder)


def unfinished() -> Path:
    """The folder of videos that are not finished; one folder for each."""
    return Path(folder_paths.get_output_directory()) / UNFINISHED


def require_disk(place: Place, form: FileFormat, size: tuple[int, int], frames: int, kept: int) -> None:
    """Asks for what is going to lie there: the segments that are missing, and the file that all are joined to.

    Args:
        size: width and height of a frame.
        frames: of the whole video.
        kept: of those, in segments that are there.

    Raises:
        DiskTooSmall: there is less.
    """
    what = f"filename_prefix: {frames} frames of {size[0]} x {size[1]} as {form.name}"
    if on_one_disk(place.folder, unfinished()):
        require_room(place.folder, form.disk(*size, frames, kept), what)
        return
    require_room(unfinished(), form.bytes_of(*size, frames - kept), what)
    require_room(place.folder, form.bytes_of(*size, frames), what)  # pictures too, which are moved there


def on_one_disk(one: Path, other: Path) -> bool:
    """Whether two folders are; a subfolder may be another disk."""
    return one.stat().st_dev == other.stat().st_dev


@contextlib.contextmanager
def said_when_full(folder: Path, how_far: Callable[[], tuple[str, str]]) -> Iterator[None]:
    """Raises ValueError for a full disk.

    Args:
        folder: that is written to.
        how_far: a clause of what is done, and one of what queuing the same again will do.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        done, then = how_far()
        raise ValueError(
            f"filename_prefix: the disk of {folder} is full {done}; free some and queue the same again: {then}"
        ) from error
