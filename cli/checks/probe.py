"""How fast a device is, as one waits for it: which on an emulated card is not what its clock says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

LONG_ENOUGH = 0.005  # seconds, beside which those of a launch do not count
ROWS, CHANNELS = 1024, 128

Timed = Callable[[], object]


def product_speed(device: torch.device, dtype: torch.dtype, wait: Timed) -> float:
    """Operations per second of matrix products.

    Args:
        wait: until the device has done everything.
    """

    def of(side: int) -> tuple[Timed, float]:
        x, weight = (torch.ones(rows, side, dtype=dtype, device=device) for rows in (ROWS, side))
        return lambda: x @ weight, 2.0 * ROWS * side**2

    return speed((64, 256, 1024, 4096), of, wait)


def convolution_speed(device: torch.device, dtype: torch.dtype, wait: Timed) -> float:
    """The same of convolutions."""

    def of(side: int) -> tuple[Timed, float]:
        x = torch.ones(1, CHANNELS, side, side, dtype=dtype, device=device)
        weight = torch.ones(CHANNELS, CHANNELS, 3, 3, dtype=dtype, device=device)
        return lambda: functional.conv2d(x, weight, padding=1), 2.0 * 9 * (CHANNELS * side) ** 2

    return speed((16, 64, 256, 512), of, wait)


def speed(sides: Sequence[int], of: Callable[[int], tuple[Timed, float]], wait: Timed) -> float:
    """Of the first size that takes long enough, or of the last; some CPUs are hundreds of times slower in 16 bits.

    Args:
        of: work of a size, and its operations.
    """
    found = 0.0
    for side in sides:
        work, operations = of(side)
        passed = min(_seconds(work, wait) for _ in range(2))  # libraries load in the first
        found = operations / max(passed, 1e-9)
        if passed >= LONG_ENOUGH:
            break
    return found


def _seconds(work: Timed, wait: Timed) -> float:
    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start
