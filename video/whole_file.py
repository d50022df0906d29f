"""Files that appear under their names when all of them is on the disk, and not at all after an error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av

PART = ".part"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Gives the name to write to; it becomes ``path`` on a clean exit and is removed on any other.

    Raises:
        OSError: it cannot be written.
    """
    part = path.with_name(path.name + PART)
    try:
        yield part
        _to_disk(part)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if sys.platform != "win32":
        _to_disk(path.parent)  # the name too: it says that what it names is finished


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """FFmpeg's errors as OSError with their number and the file's name, as Python's own are."""
    try:
        yield
    except av.error.FFmpegError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _to_disk(path: Path) -> None:
    """Waits until a file, or a folder's names, are on the disk."""
    flags = os.O_RDWR if sys.platform == "win32" else os.O_RDONLY
    number = os.open(path, flags)
    try:
        os.fsync(number)
    finally:
        os.close(number)
