"""Cards by the names that people write, and when there can be no emulated one."""

import argparse
import sys

import pytest

from headroom.tools.card import cards, emulator


@pytest.mark.parametrize(
    ("text", "title", "vram_gb"),
    [
        ("rtx3060", "RTX 3060", 12),
        ("8GB-3060", "RTX 3060", 8),
        ("6gb-RTX4060", "RTX 4060", 6),
        ("1.5GB-t4", "T4", 1.5),
    ],
)
def test_names(text: str, title: str, vram_gb: float) -> None:
    card = cards.parse(text)
    assert (card.title, card.vram_gb) == (title, vram_gb)


@pytest.mark.parametrize("text", ["", "8GB-", "0", "rtx", "many-3060", "8GB-5090", "0GB-3060"])
def test_what_is_no_card(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not a card: choose rtx3060, .* or as 8GB-rtx3060"):
        cards.parse(text)


def test_rates_are_in_order() -> None:
    for card in cards.CARDS.values():
        assert card.double < card.single <= card.tf32 <= card.half <= card.eight
        assert card.link < card.bandwidth


def test_where_there_can_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator.shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(emulator.platform, "machine", lambda: "x86_64")
    assert "g++" in (emulator.missing() or "")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "Linux on x86-64" in (emulator.missing() or "")
