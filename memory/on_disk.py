"""Tensors that lie in a file: the system writes their pages out when it needs the memory, and reads them again."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from .units import format_bytes

SUFFIX = ".frames"
KEEP_FREE = 2**28  # bytes: a disk that is full to the last byte stops whatever else writes to it


class DiskTooSmall(ValueError):
    """A disk has less room than a file is going to need."""


def free_in(folder: Path) -> int:
    """Bytes that may be written to a folder, which need not be there yet; less than 0 where more is taken already."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    return shutil.disk_usage(there).free - KEEP_FREE


def require_room(folder: Path, needed: int, what: str) -> None:
    """Refuses before any work what a disk has no room for.

    Args:
        folder: on the disk; it need not be there yet.
        needed: bytes.
        what: is going to lie there, for the sentence.

    Raises:
        DiskTooSmall: with the bytes that are needed and those that are free.
    """
    free = free_in(folder)
    if needed > free:
        raise DiskTooSmall(
            f"{what} needs {format_bytes(needed)} of disk in {folder}, and {format_bytes(max(0, free))} are free there"
            f" beside {format_bytes(KEEP_FREE)} that are left alone: free some, or lower the size or the frames"
        )


def on_disk(folder: Path, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor of zeros, contiguous, in a file of its own that goes with it.

    The file's blocks are taken at once: a disk that fills up later would end the process when a page is written.
    Where the system lets a mapped file be unlinked it has no name from then on, so that nothing is left of it even if
    the process is killed; elsewhere it is removed when the tensor dies.

    Raises:
        DiskTooSmall: the disk has no room for it.
    """
    size = dtype.itemsize * math.prod(shape)
    require_room(folder, size, "the result")
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(SUFFIX, dir=folder)
    try:
        try:
            _take_blocks(handle, size)
        finally:
            os.close(handle)
        flat = torch.from_file(name, shared=True, size=math.prod(shape), dtype=dtype)
    except OSError as error:
        os.unlink(name)
        raise DiskTooSmall(
            f"the result needs {format_bytes(size)} of disk in {folder}, which could not be had: {error.strerror}"
        ) from error
    try:
        os.unlink(name)
    except OSError:  # Windows: not while it is mapped
        weakref.finalize(flat.untyped_storage(), _unlink, name)
    return flat.view(*shape)


def _take_blocks(handle: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size)
    else:
        os.truncate(handle, size)


def _unlink(name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name)
