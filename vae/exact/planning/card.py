"""The figures of the device that is there: for an accelerator those that its driver tells.

They are the same in every process, so that a prediction plans what the run will run, and a seed gives the same picture
again: the driver's figures are constants of the card, and the measured speed of its link is rounded to one of the
speeds that links have.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from .device import ACCELERATOR, CPU, Figures
from .workspace import BY_RULE, ConvolutionWorkspace

KHZ = 1e3
# Lanes of a multiprocessor that multiply and add in float32 (CUDA C++ programming guide, throughput of arithmetic
# instructions), by compute capability; of later ones 128.
LANES = {(6, 0): 64, (6, 1): 128, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
LATER_LANES = 128
# Of AMD's: a work group processor of RDNA, which HIP counts as one, has 128, and from RDNA 3 on two operations each
# ("RDNA 3" instruction set reference, VOPD); a compute unit of CDNA 64.
RDNA_LANES = {"gfx10": 128, "gfx11": 256, "gfx12": 256}
CDNA_LANES = 64
# Times of float32 in 16 bits, sums in float32: tensor cores of data centres' cards and of Turing (NVIDIA's papers on
# Volta, Turing, Ampere GA100, Hopper). Of all others 2.
HALF = {(7, 0): 8.0, (7, 5): 8.0, (8, 0): 16.0, (9, 0): 15.0}
FIRST_WITH_BFLOAT16 = 8
# Bits that a line carries in a cycle of the clock that the driver tells: two by NVIDIA's; by AMD's the command clock of
# GDDR6, 16 of them, where the bus is one of GDDR6 (RX 7900 XTX: 1249 MHz x 16 x 384 lines = 960 GB/s), else HBM's two.
PER_CLOCK, AMD_PER_CLOCK, WIDEST_GDDR = 2, 16, 512
# PCI Express 3.0 x 4, of which four fifths arrive; every further step has twice as much.
LINK_STEP = 3.15e9


def figures_of(
    device: torch.device, link: float | None = None, workspace: ConvolutionWorkspace | None = BY_RULE
) -> Figures:
    """The device's own figures where they can be had, else those of its kind.

    Args:
        link: between it and page-locked memory, in bytes a second, as it was measured; None: unknown.
        workspace: what convolutions hold where the device is CUDA's (or ROCm's, which go by the same name): of others
            it is not known.
    """
    if device.type == "cpu":
        return CPU
    module: Any = getattr(torch, device.type, None)
    tells = hasattr(module, "get_device_properties") and module.is_available()  # a plan may be for one that is not here
    figures = told(module.get_device_properties(device) if tells else None, torch.version.hip is not None)
    if device.type == "cuda":
        figures = replace(figures, workspace=workspace)
    return replace(figures, link=link_step(link)) if link else figures


def told(properties: Any, amd: bool = False) -> Figures:
    """What a driver tells of a card, and usual figures where it does not.

    Args:
        properties: as :func:`torch.cuda.get_device_properties` gives them; those of other makers have no clocks.
    """
    parts, clock, memory_clock, width = (
        getattr(properties, name, 0) or 0
        for name in ("multi_processor_count", "clock_rate", "memory_clock_rate", "memory_bus_width")
    )
    # Intel's properties share some of these names but not their meanings: take all or nothing.
    if not (parts and clock and memory_clock and width):
        return ACCELERATOR
    version = (properties.major, properties.minor)
    if amd:
        lanes = RDNA_LANES.get(properties.gcnArchName[:5], CDNA_LANES)
        per_clock, half = AMD_PER_CLOCK if width <= WIDEST_GDDR else PER_CLOCK, 2.0
    else:
        lanes, per_clock, half = LANES.get(version, LATER_LANES), PER_CLOCK, HALF.get(version, 2.0)
    return replace(
        ACCELERATOR,
        flops=2.0 * parts * lanes * clock * KHZ,
        bandwidth=per_clock * memory_clock * KHZ * width / 8,
        half=half,
        bfloat=half if amd or version[0] >= FIRST_WITH_BFLOAT16 else 1.0,
        parts=parts,
    )


def link_step(rate: float) -> float:
    """The speed of a link that is nearest to a measured rate, in bytes a second."""
    return LINK_STEP * 2.0 ** max(0, round(math.log2(rate / LINK_STEP)))
