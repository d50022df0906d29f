"""Figures of cards by their names, from the makers' data sheets, for whom nothing was measured.

Sources: NVIDIA's data sheets and its white papers on Turing, Ampere (GA100, GA102), Ada, Hopper and Blackwell; dense
rates, sums in float32. What work reaches of them is an assumption: three quarters of a rate in products, three fifths
in attention (T. Dao, "FlashAttention-2", 2023, section 4.1: 50 to 73 % on an A100) and in convolutions, 85 % of the
bandwidth, four fifths of a link. Not measured on a GPU.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import torch

from .kernels import ATTENTION, CONVOLUTION, PRODUCT
from .speed import Speed

HALF = (torch.float16, torch.bfloat16)
REACHED = {PRODUCT: 0.75, CONVOLUTION: 0.6, ATTENTION: 0.6}
OF_BANDWIDTH = 0.85
LANE = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9}  # bytes a second of PCI Express, each way
PAYLOAD = 0.8
# By kernels: times of float32 in 16 bits (sums in float32), generation of PCI Express.
GENERATIONS = {(7, 5): (4, 3), (8, 0): (16, 4), (8, 6): (2, 4), (8, 9): (2, 4), (9, 0): (14.8, 5), (12, 0): (2, 5)}
# 10^12 operations a second in float32, 10^9 bytes a second, GB of memory; then what differs from the generation: times
# in 16 bits, lanes. The slower first.
CARDS: dict[tuple[int, int], dict[str, tuple[float, ...]]] = {
    (7, 5): {
        "gtx 1650": (3.0, 128, 4, 2), "gtx 1650 super": (4.4, 192, 4, 2), "gtx 1660": (5.0, 192, 6, 2),
        "gtx 1660 super": (5.0, 336, 6, 2), "gtx 1660 ti": (5.4, 288, 6, 2), "rtx 2060": (6.5, 336, 6),
        "rtx 2060 super": (7.2, 448, 8), "rtx 2070": (7.5, 448, 8), "t4": (8.1, 320, 16, 8),
        "rtx 2070 super": (9.1, 448, 8), "rtx 2080": (10.1, 448, 8), "rtx 2080 super": (11.2, 496, 8),
        "rtx 2080 ti": (13.4, 616, 11), "quadro rtx 6000": (16.3, 672, 24, 8), "titan rtx": (16.3, 672, 24, 8),
    },
    (8, 0): {"a30": (10.3, 933, 24), "a100": (19.5, 1555, 40)},
    (8, 6): {
        "rtx a2000": (8.0, 288, 6, 4), "rtx 3050": (9.1, 224, 8, 2, 8), "rtx 3060": (12.7, 360, 12),
        "rtx 3060 ti": (16.2, 448, 8), "rtx a4000": (19.2, 448, 16, 4), "rtx 3070": (20.3, 448, 8),
        "rtx 3070 ti": (21.7, 608, 8), "rtx a5000": (27.8, 768, 24, 4), "rtx 3080": (29.8, 760, 10),
        "a10": (31.2, 600, 24, 4), "rtx 3080 ti": (34.1, 912, 12), "rtx 3090": (35.6, 936, 24),
        "a40": (37.4, 696, 48, 4), "rtx a6000": (38.7, 768, 48, 4), "rtx 3090 ti": (40.0, 1008, 24),
    },
    (8, 9): {
        "rtx 4060": (15.1, 272, 8, 2, 8), "rtx 4060 ti": (22.1, 288, 16, 2, 8), "rtx 4070": (29.1, 504, 12),
        "l4": (30.3, 300, 24, 4), "rtx 4070 super": (35.5, 504, 12), "rtx 4070 ti": (40.1, 504, 12),
        "rtx 4070 ti super": (44.1, 672, 16), "rtx 4080": (48.7, 717, 16), "rtx 4080 super": (52.2, 736, 16),
        "rtx 4090": (82.6, 1008, 24), "l40": (90.5, 864, 48), "rtx 6000 ada": (91.1, 960, 48, 4),
        "l40s": (91.6, 864, 48, 4),
    },
    (9, 0): {"h100": (66.9, 3350, 80), "h200": (66.9, 4800, 141)},
    (12, 0): {
        "rtx 5050": (13.2, 320, 8, 2, 8), "rtx 5060": (19.2, 448, 8, 2, 8), "rtx 5060 ti": (23.7, 448, 16, 2, 8),
        "rtx 5070": (30.9, 672, 12), "rtx 5070 ti": (43.9, 896, 16), "rtx 5080": (56.3, 960, 16),
        "rtx 5090": (104.8, 1792, 32), "rtx pro 6000": (125.0, 1792, 96, 4),
    },
}  # fmt: skip
LANES = 16
USUAL = (8, 6)
KERNELS = re.compile(r"sm\d+")  # a card that goes by these alone is any that has them
NAMES = re.compile(r"nvidia|geforce|tesla|quadro(?= rtx 4)|[^a-z0-9 ]")
# One core of a server (AVX2: 16 multiply-adds a cycle, two units, 3 GHz), and what a core draws from memory; a page of
# 4 KiB that was not there takes the system about 3 us.
CPU = Speed(
    {(PRODUCT, torch.float32): 6e10, (PRODUCT, torch.float16): 1e9, (PRODUCT, torch.bfloat16): 6e10},
    bandwidth=1.2e10, dispatch=1e-5, functions=3e8, page=7e-10, source="a usual core's figures",
)  # fmt: skip


@cache
def documented(name: str, total: int, capability: tuple[int, int] | None, threads: int = 0) -> Speed:
    """The speed of a card by its maker's figures; of one that is not in the table, of the nearest that is.

    Args:
        name: as its driver or a person calls it.
        total: bytes of its memory.
        capability: compute capability; None: it is not NVIDIA's, and of such ones no figures are known here.
        threads: of a CPU; 0: it is none.
    """
    if threads:
        rates = {key: rate * threads for key, rate in CPU.rates.items()}
        return replace(CPU, rates=rates, functions=CPU.functions * threads)
    asked = capability or USUAL
    generation = min(GENERATIONS, key=lambda one: _distance(one, asked))
    cards = CARDS[generation]
    words = " ".join(NAMES.sub(" ", name.lower()).split())
    said = [card for card in cards if re.search(rf"\b{card}\b", words)]
    known = max(said, key=len) if said else _by_memory(cards, total / 2**30)
    speed = _of_card(known, cards[known], generation)
    if said or KERNELS.fullmatch(words):
        return speed
    return replace(speed, source=f"{speed.source}, since those of this card are not known")


def _distance(one: tuple[int, int], other: tuple[int, int]) -> int:
    return abs(10 * one[0] + one[1] - 10 * other[0] - other[1])


def _by_memory(cards: dict[str, tuple[float, ...]], memory: float) -> str:
    """The slowest card with the nearest memory: a name was not said."""
    return min(cards, key=lambda card: (abs(cards[card][2] - memory), cards[card][0]))


def _of_card(name: str, figures: tuple[float, ...], generation: tuple[int, int]) -> Speed:
    single, bandwidth, _, *more = figures
    half, express = GENERATIONS[generation]
    half = more[0] if more else half
    lanes = more[1] if len(more) > 1 else LANES
    rates = {(kind, torch.float32): share * single * 1e12 for kind, share in REACHED.items()}
    rates |= {(kind, dtype): share * half * single * 1e12 for kind, share in REACHED.items() for dtype in HALF}
    if generation < (8, 0):  # no units for bfloat16: computed in float32
        rates |= {(kind, torch.bfloat16): share * single * 1e12 for kind, share in REACHED.items()}
    return Speed(
        rates, OF_BANDWIDTH * bandwidth * 1e9, dispatch=5e-6, link=PAYLOAD * lanes * LANE[int(express)], ahead=True,
        kernel=2e-6, source=f"the documented figures of the {name.upper().replace(' TI', ' Ti')}",
    )  # fmt: skip
