"""The search for a video's schedule: each one takes long to count, so that none is looked for in vain."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from headroom.vae.exact.planning.choice import Choice
from headroom.vae.exact.planning.schedule import Schedule
from headroom.vae.exact.planning.search import Search

from .test_workspace import on_card, planned

SHAPE = (1, 4, 8, 96, 96)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *(layer for _ in range(2) for layer in (nn.GroupNorm(8, width), nn.SiLU(), convolution(width, width)))
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)  # type: ignore[no-any-return]


def convolution(before: int, behind: int) -> nn.Conv3d:
    return nn.Conv3d(before, behind, 3, padding=1)


def video(width: int) -> nn.Module:
    """A small decoder of frames."""
    larger = nn.Upsample(scale_factor=(1, 2, 2))
    return nn.Sequential(convolution(4, width), Block(width), larger, Block(width), convolution(width, 3))


def descents(width: int, share: float, monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, bool]]:
    """Of each descent within a share of what the whole takes: whether it begins at taller strips, whether it fits."""
    whole, found, own = planned(video(width), SHAPE, on_card(None)).peak, list[tuple[bool, bool]](), Search._fitting

    def fitting(self: Search, choice: Choice, lowest: int) -> Schedule:
        end = own(self, choice, lowest)
        found.append((lowest > self._heights()[-1], end.peak <= self.budget))
        return end

    monkeypatch.setattr(Search, "_fitting", fitting)
    assert planned(video(width), SHAPE, on_card(None), share * whole).peak <= share * whole
    return found


def test_no_strips_that_do_not_fit_whatever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert descents(64, 0.5, monkeypatch) == [(False, True), *3 * [(True, True)], (False, True)]
    monkeypatch.undo()
    assert descents(64, 0.2, monkeypatch) == 2 * [(False, True)]


def test_no_taller_strips_where_low_ones_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert descents(320, 0.7, monkeypatch) == [(False, True)]
