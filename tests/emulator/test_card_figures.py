"""What plans take a card to be: by its driver and its link, not by one card for all."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from headroom.memory import link
from headroom.tools.cards import CARDS
from headroom.vae.exact.card import figures_of
from headroom.vae.exact.device import ACCELERATOR, Figures

from .conftest import Card

DEVICE = torch.device("cuda:0")
MB = 2**20


def told() -> Figures:
    return figures_of(DEVICE, link.link_speed(DEVICE))


def test_the_documented_figures_come_back_from_the_driver(card: Card) -> None:
    documented = CARDS["rtx3060"]
    figures = told()
    assert figures.flops == pytest.approx(documented.single * 1e12, rel=0.01)
    assert figures.bandwidth == pytest.approx(documented.bandwidth * 1e9, rel=0.01)
    assert figures.link == pytest.approx(documented.link * 1e9, rel=0.01)
    assert figures.parts == documented.multiprocessors
    # What a driver does not tell is the usual.
    assert replace(figures, flops=0, bandwidth=0, link=0, parts=0) == replace(
        ACCELERATOR, flops=0, bandwidth=0, link=0, parts=0
    )


def test_a_slower_link_is_seen(card: Card) -> None:
    card.set(h2d=12.6, d2h=25.2)
    assert told().link == pytest.approx(12.6e9)


def test_the_link_is_measured_beside_work_and_without_data(card: Card) -> None:
    """As a prediction asks: tensors are not what they seem there, and a prompt may run."""
    card.set(lazy=True, races=True)
    busy = torch.ones(512, 512, device=DEVICE)
    for _ in range(20):
        busy = busy @ busy * 1e-3
    with FakeTensorMode():
        speed = link.link_speed(DEVICE)
    assert speed == pytest.approx(CARDS["rtx3060"].link * 1e9, rel=0.1)
    assert not card.races
    assert bool(busy.isfinite().all())


def test_measuring_takes_little_and_leaves_nothing(card: Card) -> None:
    before = card.allocated
    card.reset()
    link.link_speed(DEVICE)
    assert card.peak - before <= MB
    assert card.allocated == before


def test_it_is_measured_once(card: Card) -> None:
    link.link_speed(DEVICE)
    card.reset()
    link.link_speed(DEVICE)
    assert card.stats["h2d_pinned"] == [0, 0]
