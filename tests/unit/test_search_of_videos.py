"""The search for a video's schedule: each one takes long to count, so that none is looked for in vain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor, nn

from headroom.vae.exact.planning import given_up, search
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


class Skipping(nn.Module):
    """Whose maps are all wanted again, the first one last."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first, self.last = convolution(4, width), convolution(width, 3)
        self.down, self.up = (nn.ModuleList(Block(width) for _ in range(depth)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        maps = [self.first(x)]
        for block in self.down:
            maps.append(block(maps[-1]))
        x = maps.pop()
        for block in self.up:
            x = block(x) + maps.pop()
        return self.last(x)  # type: ignore[no-any-return]


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
    monkeypatch.setattr(search, "USES", 1e6)  # a video that is worth it
    assert descents(64, 0.5, monkeypatch) == [(False, True), *3 * [(True, True)], (False, True)]
    monkeypatch.undo()
    monkeypatch.setattr(search, "USES", 1e6)
    assert descents(64, 0.2, monkeypatch) == 2 * [(False, True)]


def test_no_further_descent_for_a_video_whose_decode_is_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "USES", 1e-3)
    assert descents(64, 0.5, monkeypatch) == 2 * [(False, True)]


class TestSeveralAtOnce:
    SHARE = 0.3  # of what the whole takes: many maps have to go

    def rounds(self, monkeypatch: pytest.MonkeyPatch, several: bool) -> tuple[int, Schedule]:
        """How often a map was looked for that goes next, and the schedule."""
        whole, found = planned(Skipping(16, 6), SHAPE, on_card(None)).peak, []

        def counted(*given: Any) -> Schedule | None:
            found.append(given[1].peak)
            return given_up.exchanged(*given[:-1], several)

        monkeypatch.setattr(search, "exchanged", counted)
        schedule = planned(Skipping(16, 6), SHAPE, on_card(None), self.SHARE * whole)
        monkeypatch.undo()
        assert schedule.peak <= self.SHARE * whole
        return len(found), schedule

    def test_fewer_rounds_and_as_fast_a_decode(self, monkeypatch: pytest.MonkeyPatch) -> None:
        one_by_one, slow = self.rounds(monkeypatch, several=False)
        together, quick = self.rounds(monkeypatch, several=True)
        assert together <= 0.7 * one_by_one
        assert quick.seconds <= 1.05 * slow.seconds

    @pytest.mark.parametrize(("longer", "gone"), [(0.2, 4), (0.3, 4), (0.31, 2)])
    def test_not_where_it_takes_clearly_more_than_each_by_itself(self, longer: float, gone: int) -> None:
        """Four maps of 100 bytes each are to go of 1,000 where 200 fit, each for 0.05 s."""
        usual = planned(Skipping(16, 4), SHAPE, on_card(None))
        before = replace(usual, peak=1000, peaks=(1000,), seconds=1.0)
        ranked = [
            (replace(before, peak=900, peaks=(900,), seconds=1.05), [(given_up.PARKED, node)])
            for one in usual.passes
            for node in one.stored
        ]

        def plan(choice: Choice) -> Schedule:
            parked = len(choice.parked)
            return replace(before, choice=choice, peaks=(1000 - 100 * parked,), seconds=1.0 + longer * (parked == 4))

        # Where four are too dear, two are tried.
        assert given_up._with_the_next(before, ranked, 200, plan).peaks == (1000 - 100 * gone,)


def test_no_taller_strips_where_low_ones_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert descents(320, 0.7, monkeypatch) == [(False, True)]
