"""Returns memory that the C library keeps to the system, so that freed strips do not stay resident."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # a C library other than glibc, which keeps less or keeps it elsewhere
        return None
    return trim


def give_back_free_pages() -> bool:
    """Returns free pages between live blocks to the system; takes milliseconds.

    Strips of many sizes come and go between pages that stay. glibc gives back only what lies at the end of its heap:
    the resident set grew to 1.6 times the bytes alive without this call between passes.

    Returns:
        Whether the C library can do that.
    """
    trim = _malloc_trim()
    if trim is None:
        return False
    trim(0)
    return True
