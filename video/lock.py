"""A lock that ends with the process that holds it: the system's own, on a file that also tells who it is."""

from __future__ import annotations

import errno
import logging
import os
import sys
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

log = logging.getLogger(__name__)

# What a system says of a file that another one has locked; anything else is a file system that knows no locks.
LOCKED = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, *([errno.EDEADLK] if sys.platform == "win32" else [])}
FAR = 1 << 30  # the byte that is locked on Windows, where a locked one cannot be read: far behind the number


class FolderLock:
    """Held from its making until :meth:`release`, or until the process ends in whatever way.

    Not by the process's number, which another process may have got since.

    Args:
        path: of the lock's file, in a folder that is there.

    Attributes:
        holds: whether it keeps others out: not on a file system without locks, as some of networks are.

    Raises:
        BlockingIOError: another one holds it, here or in another process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        while True:
            number = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                self.holds = _lock(number)
                # Whoever held it before may have removed the file after it was opened here.
                if path.exists() and os.path.samestat(os.fstat(number), path.stat()):
                    break
            except BlockingIOError:
                os.close(number)
                raise
            except FileNotFoundError:
                pass
            os.close(number)
        if not self.holds:
            log.warning("Headroom: %s cannot be locked: let no other server write the same video", path.parent)
        os.ftruncate(number, 0)
        os.write(number, str(os.getpid()).encode())
        self._number = number

    def release(self, remove: bool = False) -> None:
        """Lets others have it; with ``remove`` the file goes too. A second time does nothing."""
        if self._number < 0:
            return
        try:
            if remove and sys.platform != "win32":
                self.path.unlink(missing_ok=True)  # while it is held: nobody gets it in between
        finally:
            os.close(self._number)
            self._number = -1
        if remove and sys.platform == "win32":
            self.path.unlink(missing_ok=True)  # there an open file cannot be removed


def holder(path: Path) -> str:
    """The number of the process that holds a lock, for a sentence."""
    try:
        return path.read_text() or "?"
    except OSError:
        return "?"


def _lock(number: int) -> bool:
    """False where the file system has no locks."""
    try:
        if sys.platform == "win32":
            os.lseek(number, FAR, os.SEEK_SET)
            msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
            os.lseek(number, 0, os.SEEK_SET)
        else:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in LOCKED:
            return False
        raise BlockingIOError(error.errno, "it is locked") from error
    return True
