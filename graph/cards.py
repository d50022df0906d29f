"""Cards by the names that are printed on them: which kernels run on one, and how much memory it has.

Sizes are the makers' published ones. Laptop cards of the same name often have less: ``--vram`` says how much.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .formats import shortened
from .settings import CARDS

# Kernels, and GB of memory by name; several where cards of one name differ. NVIDIA's product pages.
SIZES: dict[str, dict[str, tuple[int, ...]]] = {
    "sm75": {
        "gtx 1650": (4,), "gtx 1650 super": (4,), "gtx 1660": (6,), "gtx 1660 super": (6,), "gtx 1660 ti": (6,),
        "rtx 2060": (6, 12), "rtx 2060 super": (8,), "rtx 2070": (8,), "rtx 2070 super": (8,), "rtx 2080": (8,),
        "rtx 2080 super": (8,), "rtx 2080 ti": (11,), "titan rtx": (24,), "t4": (16,), "quadro rtx 6000": (24,),
    },
    "sm80": {"a30": (24,), "a100": (40, 80)},
    "sm86": {
        "rtx 3050": (6, 8), "rtx 3060": (8, 12), "rtx 3060 ti": (8,), "rtx 3070": (8,), "rtx 3070 ti": (8,),
        "rtx 3080": (10, 12), "rtx 3080 ti": (12,), "rtx 3090": (24,), "rtx 3090 ti": (24,), "rtx a2000": (6, 12),
        "rtx a4000": (16,), "rtx a5000": (24,), "rtx a6000": (48,), "a10": (24,), "a40": (48,),
    },
    "sm89": {
        "rtx 4060": (8,), "rtx 4060 ti": (8, 16), "rtx 4070": (12,), "rtx 4070 super": (12,), "rtx 4070 ti": (12,),
        "rtx 4070 ti super": (16,), "rtx 4080": (16,), "rtx 4080 super": (16,), "rtx 4090": (24,), "l4": (24,),
        "l40": (48,), "l40s": (48,), "rtx 6000 ada": (48,),
    },
    "sm90": {"h100": (80,), "h200": (141,)},
    "sm120": {
        "rtx 5050": (8,), "rtx 5060": (8,), "rtx 5060 ti": (8, 16), "rtx 5070": (12,), "rtx 5070 ti": (16,),
        "rtx 5080": (16,), "rtx 5090": (32,), "rtx pro 6000": (96,),
    },
}  # fmt: skip
MAKERS = re.compile(r"\b(nvidia|geforce|tesla|graphics|gpu)\b")
WORDS = ("ti", "super", "ada", "quadro", "titan", "pro")  # no abbreviations
SIZE = re.compile(r"\b(\d+)\s*gb?\b")


class KnownCard(NamedTuple):
    """A card that somebody has named.

    Attributes:
        title: for people.
        kernels: one of :data:`.settings.CARDS`.
        vram_gb: of its memory, in GB of 2^30 bytes; None where its kernels were named and nothing was said.
    """

    title: str
    kernels: str
    vram_gb: float | None


def known_card(option: str, name: str, vram_gb: float | None = None) -> KnownCard:
    """The card that is meant.

    Args:
        option: what the name is called by whoever gives it, with which a sentence that refuses it begins.
        name: one of :data:`.settings.CARDS`, or as people write it: "rtx 3060 12gb", "RTX4070Ti", "3090".
        vram_gb: what the user says of its memory, which counts before the maker's; None: nothing.

    Raises:
        ValueError: no card of this name is known, or there are several sizes of it.
    """
    if name in CARDS:
        return KnownCard(name, name, vram_gb)
    words = MAKERS.sub(" ", name.lower())
    said = SIZE.search(words)
    words = _spaced(SIZE.sub(" ", words))
    if vram_gb is None and said is not None:
        vram_gb = float(said[1])
    for kernels, cards in SIZES.items():
        for card, sizes in cards.items():
            if words in (card, card.removeprefix("rtx ").removeprefix("gtx ")):
                return KnownCard(_title(card), kernels, _memory(option, card, sizes, vram_gb))
    known = ", ".join(CARDS)
    raise ValueError(f"{option}: {shortened(name)} is not known; write its name as 'rtx 3060', or its kernels: {known}")


def _spaced(words: str) -> str:
    """As the table writes it: a word and a number apart, "ti" and "super" too."""
    words = re.sub(r"[-_/(),]", " ", words)
    words = re.sub(r"\b(rtx|gtx)(?=\d)", r"\1 ", words)
    words = re.sub(r"(?<=\d)(ti|super)\b", r" \1", words)
    return " ".join(words.split())


def _memory(option: str, card: str, sizes: tuple[int, ...], vram_gb: float | None) -> float:
    if vram_gb is not None:
        return vram_gb
    if len(sizes) > 1:
        said = " or ".join(f"{size} GB" for size in sizes)
        written = f"'{card} {sizes[-1]}gb'"
        raise ValueError(f"{option}: the {_title(card)} has {said}; say which, as {written} or with --vram")
    return float(sizes[0])


def _title(card: str) -> str:
    return " ".join(word.title() if word in WORDS else word.upper() for word in card.split())
