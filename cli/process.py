"""The process of a command that only has to answer: what it imports stays, and at the end nothing is taken apart."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Callable
from typing import NoReturn

INTERRUPTED = 130  # as shells say it of a process that Ctrl-C ended


def run(main: Callable[[], int]) -> NoReturn:
    """Ends the process with a command's exit status.

    Python looks through all objects again and again while a ComfyUI is imported, and frees half a million of them one
    by one at the end: a quarter of an estimate's time.
    """
    status = [1]  # of an error that nobody has caught
    atexit.register(_leave, status)  # before any other, which makes it the last that is called
    gc.disable()
    try:
        status[0] = main()
    except SystemExit as error:  # argparse's
        status[0] = error.code if isinstance(error.code, int) else status[0]
        raise
    except KeyboardInterrupt:
        status[0] = INTERRUPTED
        raise
    sys.exit(status[0])


def imported() -> None:
    """Within :func:`run`: what there is stays to the end, and is not looked at when what comes is collected."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _leave(status: list[int]) -> None:
    """Behind what others do at the end of a process; the system takes back its memory at once."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # nobody reads it any more
            status[0] = status[0] or 1
    os._exit(status[0])
