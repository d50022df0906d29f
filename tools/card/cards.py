"""Documented figures of graphics cards, for the emulated one (`emulator.py`). Standard library only.

From the makers' data sheets and architecture papers (NVIDIA Turing, Ampere GA102 and Ada white papers; AMD RDNA 3;
Intel Xe2), dense rates; those of products are with float32 accumulation. A link is four fifths of what the PCI
Express base specification gives its lanes, which large pinned copies about reach: an assumption, not a maker's figure.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace

PCIE3_LANE, PCIE4_LANE = 0.985, 1.969  # GB/s a lane and direction
PAYLOAD = 0.8  # of a link's rate that large pinned copies reach


@dataclass(frozen=True)
class CardModel:
    """Attributes:
    title: as people write it, without the memory.
    vram_gb: memory, in 2**30 bytes.
    capability: compute capability times ten, which torch and ComfyUI ask; for other makers' cards the nearest.
    multiprocessors: parts that work side by side (streaming multiprocessors, compute units, Xe cores).
    single, tf32, half, eight, double: 10**12 operations a second, of float32, of products in TF32, in float16 or
        bfloat16, in 8 bits, and of float64.
    bandwidth: of its memory, 10**9 bytes a second.
    link: from pinned memory, 10**9 bytes a second.
    tells_clocks: torch's properties of the device have its clocks and the width of its bus, as CUDA's and HIP's do.
    """

    title: str
    vram_gb: float
    capability: int
    multiprocessors: int
    single: float
    tf32: float
    half: float
    eight: float
    double: float
    bandwidth: float
    link: float
    tells_clocks: bool = True


def _link(lane: float, lanes: int) -> float:
    return round(lane * lanes * PAYLOAD, 1)


CARDS = {
    "rtx3060": CardModel("RTX 3060", 12, 86, 28, 12.74, 12.74, 25.5, 101.9, 0.199, 360, _link(PCIE4_LANE, 16)),
    "rtx4060": CardModel("RTX 4060", 8, 89, 24, 15.11, 15.11, 30.2, 120.9, 0.236, 272, _link(PCIE4_LANE, 8)),
    "rtx4090": CardModel("RTX 4090", 24, 89, 128, 82.6, 82.6, 165.2, 660.6, 1.29, 1008, _link(PCIE4_LANE, 16)),
    "t4": CardModel("T4", 16, 75, 40, 8.14, 8.14, 65.1, 130.3, 0.254, 320, _link(PCIE3_LANE, 16)),
    "rx7900": CardModel("RX 7900 XTX", 24, 86, 96, 61.4, 61.4, 122.8, 122.8, 1.92, 960, _link(PCIE4_LANE, 16)),
    "b580": CardModel("Arc B580", 12, 86, 20, 13.67, 13.67, 116.7, 233.4, 0.85, 456, _link(PCIE4_LANE, 8), False),
}


def parse(text: str) -> CardModel:
    """A card by its name, `rtx3060`, or with other memory than its own: `8GB-rtx3060`, also `8GB-3060`.

    Raises:
        argparse.ArgumentTypeError: there is no such card.
    """
    memory, dash, name = text.lower().rpartition("-")
    found = [card for known, card in CARDS.items() if name and known.endswith(name)]
    try:
        size = float(memory.removesuffix("gb")) if dash else 0.0
    except ValueError:
        size = math.nan
    if len(found) != 1 or (dash and not 0 < size < math.inf):
        raise argparse.ArgumentTypeError(f"{text!r} is not a card: choose {', '.join(CARDS)}, or as 8GB-rtx3060")
    return replace(found[0], vram_gb=size) if dash else found[0]
