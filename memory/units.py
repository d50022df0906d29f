"""Sizes and times as people read them. GB and MB are of 2^30 and 2^20 bytes."""

from __future__ import annotations

GB = 2**30
MB = 2**20
TENTHS_BELOW = 16 * GB
MINUTE, HOUR = 60, 3600


def format_bytes(count: float) -> str:
    """As "0.25 GB" or "17 MB"."""
    return f"{count / GB:.2f} GB" if count >= GB else f"{count / MB:.0f} MB"


def format_gb(count: float) -> str:
    """Of a device's whole memory, as "0.88 GB", "7.6 GB", "24 GB"; small amounts are not rounded to zero."""
    if count < GB:
        return f"{count / GB:.2g} GB"
    return f"{round(count / GB, 1 if count < TENTHS_BELOW else 0):g} GB"


def format_frames(count: int) -> str:
    """As "1 frame" or "17 frames"."""
    return f"{count} frame{'s' if count != 1 else ''}"


def format_seconds(seconds: float) -> str:
    """As "40 ms", "1.2 s", "34 s", "2 min 5 s", "1 h 20 min"."""
    if seconds < 0.1:
        return f"{1000 * seconds:.2g} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE} s"
    return f"{whole // HOUR} h {whole % HOUR // MINUTE} min"
