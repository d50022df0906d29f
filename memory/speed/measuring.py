"""Measures a device's speed: a handful of operators, each run for a few seconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from ..accelerator import has_own_memory, seconds_of
from ..link import link_speed
from .kernels import ATTENTION, CONVOLUTION, PRODUCT
from .speed import MIB, Speed

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SECONDS = 2.0  # of each measurement
LEAST = 3  # runs of it
MANY = 200  # small kernels
SIDE, SIDE_ON_CARD = 768, 4096
TOKENS, TOKENS_ON_CARD = 1024, 4096
# Of a result that a C library's heap holds, but no cache; and of one that it asks the system for each time.
SMALL, LARGE = 16 * MIB, 128 * MIB


def measure(device: torch.device) -> Speed:
    """About half a minute of work on a device.

    Raises:
        RuntimeError: the device has no room for it (about 1 GB), or cannot do it.
    """
    with torch.inference_mode():
        return _measured(device)


def _measured(device: torch.device) -> Speed:
    card = has_own_memory(device)
    rates = {}
    for dtype in DTYPES:
        for kind, (flops, work) in _operators(device, dtype, card):
            try:
                rates[kind, dtype] = flops / _seconds(device, work)
            except torch.OutOfMemoryError:  # others' use of the device is no property of it
                raise
            except RuntimeError:  # dtypes that a device does not have
                continue
    small = torch.empty(SMALL // 4, device=device)
    tiny = torch.zeros(1, 8, device=device)
    layer = torch.nn.Linear(8, 8).to(device)  # with what Python takes for a layer
    dispatch = _seconds(device, lambda: [layer(tiny) for _ in range(MANY)]) / MANY
    moved = LARGE if card else SMALL
    x, y = (torch.ones(moved // 4, device=device) for _ in range(2))
    bandwidth = 3 * moved / max(1e-9, _seconds(device, lambda: torch.add(x, y)) - dispatch)
    if card:
        return Speed(
            rates, bandwidth, dispatch, link=link_speed(device) or 0.0, ahead=True, kernel=dispatch / 2,
            source="measured on this card",
        )  # fmt: skip
    # A gelu, a silu and a softmax: between them most of the functions that models compute.
    functions = [functional.gelu, functional.silu, lambda t: torch.softmax(t.view(-1, 1024), -1)]
    each = [_seconds(device, lambda f=f: f(small)) - 2 * SMALL / bandwidth for f in functions]  # type: ignore[misc]
    wholes = [torch.ones(LARGE // 4) for _ in range(2)]
    fresh = _seconds(device, lambda: torch.add(*wholes)) - 3 * LARGE / bandwidth
    return Speed(
        rates, bandwidth, dispatch, small.numel() / max(1e-9, statistics.fmean(each)), max(0.0, fresh / LARGE),
        source=f"measured on this CPU with {torch.get_num_threads()} threads",
    )  # fmt: skip


def _operators(
    device: torch.device, dtype: torch.dtype, card: bool
) -> Iterator[tuple[str, tuple[float, Callable[[], Tensor]]]]:
    """A product, a convolution and an attention as models have them, with their operations."""
    side, tokens, channels = (SIDE_ON_CARD, TOKENS_ON_CARD, 64) if card else (SIDE, TOKENS, 64)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device=device).to(dtype)

    a, b = random(side, side), random(side, side)
    yield PRODUCT, (2.0 * side**3, lambda: a @ b)
    width, size = (320, 128) if card else (160, 48)
    x, weight = random(1, width, size, size), random(width, width, 3, 3)
    yield CONVOLUTION, (2.0 * 9 * width**2 * size**2, lambda: torch.conv2d(x, weight, padding=1))
    q = random(1, 8, tokens, channels)
    flops = 4.0 * 8 * tokens**2 * channels
    yield ATTENTION, (flops, lambda: functional.scaled_dot_product_attention(q, q, q))


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    """The median of several runs, after one that does not count."""
    work()
    end, found = time.monotonic() + SECONDS, list[float]()
    while len(found) < LEAST or (time.monotonic() < end and len(found) < MANY):
        found.append(seconds_of(device, work))
        if len(found) == 1 and found[0] > SECONDS:
            break
    return statistics.median(found)
