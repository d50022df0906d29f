"""Cards by the names that people write."""

from __future__ import annotations

import pytest

from headroom.graph.cards import SIZES, known_card
from headroom.graph.settings import CARDS

NAMES = {
    "rtx 3090": ("RTX 3090", "sm86", 24),
    "RTX3060 12GB": ("RTX 3060", "sm86", 12),
    "NVIDIA GeForce RTX 4060 Ti (16 GB)": ("RTX 4060 Ti", "sm89", 16),
    "4070 ti super": ("RTX 4070 Ti Super", "sm89", 16),
    "rtx-2080ti": ("RTX 2080 Ti", "sm75", 11),
    "gtx1660super": ("GTX 1660 Super", "sm75", 6),
    "5090": ("RTX 5090", "sm120", 32),
    "Tesla T4": ("T4", "sm75", 16),
    "H100": ("H100", "sm90", 80),
}


@pytest.mark.parametrize("name", NAMES)
def test_as_it_is_printed_or_typed(name: str) -> None:
    assert known_card("--gpu", name) == NAMES[name]


def test_what_is_said_of_its_memory_counts() -> None:
    assert known_card("--gpu", "rtx 3060", 6.0).vram_gb == 6.0  # a laptop's
    assert known_card("--gpu", "rtx 3060 12gb", 6.0).vram_gb == 6.0


@pytest.mark.parametrize("name", CARDS)
def test_kernels_are_as_before(name: str) -> None:
    assert known_card("--gpu", name) == (name, name, None)
    assert known_card("--gpu", name, 8.0) == (name, name, 8.0)


def test_sentences() -> None:
    with pytest.raises(ValueError, match=r"^--gpu: the RTX 3060 has 8 GB or 12 GB; say which, as 'rtx 3060 12gb' or w"):
        known_card("--gpu", "rtx 3060")
    for name in ("gtx 1080", "radeon", "", "rtx", "12gb", "super"):
        with pytest.raises(ValueError, match=r"^--gpu: '.*' is not known; write its name as 'rtx 3060', or its kern"):
            known_card("--gpu", name)


def test_each_name_leads_to_one_card() -> None:
    assert SIZES.keys() == set(CARDS)
    names = [name for cards in SIZES.values() for name in cards]
    assert len(names) == len(set(names))
    for kernels, cards in SIZES.items():
        for name, sizes in cards.items():
            assert sizes == tuple(sorted(sizes))
            assert known_card("--gpu", name, 1.0)[1:] == (kernels, 1.0)
