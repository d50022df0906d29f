"""Passes that are alike: what one takes is counted once, whatever computation it is of."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headroom.vae.exact import Schedule
from headroom.vae.exact.operations.row_by_row import RowByRow
from headroom.vae.exact.planning import alike
from headroom.vae.exact.planning import planner as planning
from headroom.vae.exact.planning.alike import CannotDescribe, Known, Taken, description, plain
from headroom.vae.exact.planning.choice import Choice
from headroom.vae.exact.planning.counted_pass import CountedPass
from headroom.vae.exact.planning.device import CPU
from headroom.vae.exact.planning.given_up import PARKED, RECOMPUTED, without
from headroom.vae.exact.planning.planner import Planner
from headroom.vae.exact.planning.schedule import PassCost
from headroom.vae.exact.planning.search import Search

from .test_exact_vae import decoder
from .test_search_of_videos import SHAPE as FRAMES
from .test_search_of_videos import video
from .test_workspace import on_card, planned

PICTURE = (1, 4, 24, 20)


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A number for each pass that is counted anew; nothing is known before."""
    found, own = list[int](), CountedPass.cost

    def cost(self: CountedPass, layouts: Any) -> PassCost:
        found.append(self.windows.count)
        return own(self, layouts)

    monkeypatch.setattr(CountedPass, "cost", cost)
    monkeypatch.setattr(planning, "KNOWN", Known())
    with torch.no_grad():
        yield found


def forget() -> None:
    """As in a new process."""
    planning.KNOWN = Known()


def numbers(schedule: Schedule) -> tuple[Any, ...]:
    """All of a schedule but its nodes."""
    choice = schedule.choice
    given = (choice.strip_bytes, len(choice.recomputed), len(choice.parked), choice.outside, dict(choice.strips))
    windows = [(one.count, one.rows) for one in schedule.windows]
    return given, windows, schedule.peaks, schedule.host_peak, schedule.seconds, schedule.launches, schedule.flops


@pytest.mark.parametrize("share", [0.9, 0.5, 0.25])
@pytest.mark.parametrize(("make", "shape"), [(lambda: decoder(16), PICTURE), (lambda: video(64), FRAMES)])
def test_a_model_that_is_loaded_anew_is_planned_the_same_and_nothing_counted_again(
    make: Callable[[], nn.Module], shape: tuple[int, ...], share: float, counted: list[int]
) -> None:
    whole = planned(make(), shape, on_card(None)).peak
    forget()
    first = planned(make(), shape, on_card(None), share * whole)
    before = len(counted)
    again = planned(make(), shape, on_card(None), share * whole)
    assert numbers(again) == numbers(first)
    assert len(counted) == before > 0
    forget()
    assert numbers(planned(make(), shape, on_card(None), share * whole)) == numbers(first)


def test_another_budget_counts_what_is_new_alone(counted: list[int]) -> None:
    whole = planned(video(64), FRAMES, on_card(None)).peak
    planned(video(64), FRAMES, on_card(None), 0.5 * whole)
    del counted[:]
    behind = planned(video(64), FRAMES, on_card(None), 0.4 * whole)
    few = len(counted)
    forget()
    del counted[:]
    assert numbers(planned(video(64), FRAMES, on_card(None), 0.4 * whole)) == numbers(behind)
    assert few < 0.6 * len(counted)


@pytest.mark.parametrize(("make", "shape"), [(lambda: decoder(16), PICTURE), (lambda: video(16), FRAMES)])
def test_a_schedule_is_the_same_whatever_was_counted_before(
    make: Callable[[], nn.Module], shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, own = set[str](), Search.run

    def run(self: Search) -> tuple[Schedule, bool]:
        planner, heights = self.planner, self._heights()
        few = [Choice(height, outside=outside) for height in (heights[0], heights[-1]) for outside in (False, True)]
        given_up = [without(few[0], way, [node]) for node in planner.analysis.storable for way in (PARKED, RECOMPUTED)]
        choices = [*few, *given_up, *few]
        for choice, warm in [(choice, numbers(planner.schedule(choice))) for choice in choices]:
            forget()
            fresh = Planner(planner.analysis, planner.device, [], planner.figures)
            fresh.beside = planner.beside
            assert numbers(fresh.schedule(choice)) == warm
            found.add(str(warm))
        return own(self)

    monkeypatch.setattr(Search, "run", run)
    planned(make(), shape, on_card(None))
    assert len(found) > 6


def test_equal_blocks_of_one_model_are_counted_once(counted: list[int]) -> None:
    planned(nn.Sequential(*(block() for _ in range(6))), (1, 8, 32, 32), on_card(None))
    with_six = len(counted)
    forget()
    del counted[:]
    planned(nn.Sequential(*(block() for _ in range(3))), (1, 8, 32, 32), on_card(None))
    assert with_six == len(counted)


def empty_cell() -> Callable[[], int]:
    def before() -> int:
        return later

    if False:
        later = 1
    return before


def mutual() -> Callable[[], Any]:
    def one() -> Any:
        return other

    def other() -> Any:
        return one

    return one


def block(**options: Any) -> nn.Module:
    return nn.Sequential(nn.GroupNorm(4, 8), nn.SiLU(), nn.Conv2d(8, 8, **{"kernel_size": 3, "padding": 1, **options}))


class Scaled(nn.Module):
    """A map times a tensor of some layout, which a function holds."""

    def __init__(self, scale: Tensor) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(functional.conv2d(x, self.scale, padding=1)) * 2.0


def weight(channels_last: bool) -> Tensor:
    kernel = torch.empty(8, 8, 3, 3, device="meta")
    return kernel.to(memory_format=torch.channels_last) if channels_last else kernel


OTHERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "kernel": (block, lambda: block(kernel_size=1, padding=0)),
    "padding": (block, lambda: block(padding_mode="reflect")),
    "dilation": (lambda: block(padding=2), lambda: block(padding=2, dilation=2)),
    "groups of channels": (block, lambda: block(groups=2)),
    "bias": (block, lambda: block(bias=False)),
    "function": (block, lambda: nn.Sequential(*[*block()][:1], nn.Sigmoid(), *[*block()][2:])),
    "in place": (block, lambda: nn.Sequential(*[*block()][:1], nn.SiLU(inplace=True), *[*block()][2:])),
    "layout of weights": (lambda: Scaled(weight(False)), lambda: Scaled(weight(True))),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_differs_is_counted(what: str, counted: list[int]) -> None:
    one, other = OTHERS[what]
    planned(one(), (1, 8, 32, 32), on_card(None))
    del counted[:]
    planned(one(), (1, 8, 32, 32), on_card(None))
    assert not counted
    planned(other(), (1, 8, 32, 32), on_card(None))
    assert counted


@pytest.mark.parametrize(
    "options", [{"dtype": torch.bfloat16}, {"figures": CPU}, {"rows": 8}, {"shape": (1, 8, 32, 40)}], ids=str
)
def test_so_is_it_for_other_dtypes_devices_strips_and_shapes(options: dict[str, Any], counted: list[int]) -> None:
    usual: dict[str, Any] = {"shape": (1, 8, 32, 32), "figures": on_card(None)}
    planned(block(), **usual)
    del counted[:]
    planned(block(), **{**usual, **options})
    assert counted


def test_what_comes_out_and_what_is_left_belongs_to_it() -> None:
    schedule = planned(nn.Sequential(block(), block()), (1, 8, 32, 32), on_card(None))
    one = next(one for one in schedule.passes if one.read and one.stored)
    node, purpose = one.results[0]
    others = [
        replace(one, results=[(node, "whole" if purpose != "whole" else "output")]),
        replace(one, results=[(one.computed[0], purpose)]),
        replace(one, stored=[]),
        replace(one, last_reads=[] if one.last_reads else one.read),
        replace(one, read=[], computed=[*one.read, *one.computed]),
    ]
    told = [description(each, {}) for each in (one, *others)]
    assert None not in told
    assert len({*told}) == len(told)


@pytest.mark.parametrize(
    "secret", [object(), empty_cell(), mutual()], ids=["object", "empty cell", "two of each other"]
)
def test_an_operation_that_cannot_be_described_is_counted_each_time(
    secret: object, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = planned(block(), (1, 8, 32, 32), on_card(None))
    own = RowByRow.__init__

    def unlike(self: RowByRow, *args: Any, **kwargs: Any) -> None:
        own(self, *args, **kwargs)
        self.secret = secret  # type: ignore[attr-defined]

    monkeypatch.setattr(RowByRow, "__init__", unlike)
    for _ in range(2):
        del counted[:]
        assert numbers(planned(block(), (1, 8, 32, 32), on_card(None))) == numbers(usual)
        assert counted


def recursive(by: int) -> Callable[[int], int]:
    def power(of: int) -> int:
        return by * power(of - 1) if of else 1

    return power


class TestPlain:
    def test_functions_by_what_they_hold(self) -> None:
        def scaled(by: float) -> Callable[[float], float]:
            return lambda x: by * x

        assert plain(scaled(2.0)) == plain(scaled(2.0)) != plain(scaled(3.0))
        assert plain(recursive(2)) == plain(recursive(2)) != plain(recursive(3))
        one, two = (lambda x: x + 1), (lambda x: x + 2)  # of one name and line
        assert plain(one) == plain(one) != plain(two)
        assert plain(functools.partial(max, 1)) == plain(functools.partial(max, 1)) != plain(functools.partial(max, 2))
        assert plain(torch.add) != plain(torch.mul) != plain(Tensor.mul) != plain(Tensor.add)
        assert plain("a".upper) == plain("a".upper) != plain("b".upper)
        assert plain(slice(0, 2)) != plain(slice(0, 3))
        assert plain([1, {"a": (2,)}]) == plain((1, {"a": [2]})) != plain((1, {"b": [2]}))

    def test_tensors_by_their_layout(self) -> None:
        kept = plain(torch.zeros(2, 3))
        assert kept == plain(torch.ones(2, 3)) != plain(torch.ones(3, 2))
        assert kept not in (plain(torch.ones(3, 2).T), plain(torch.ones(2, 3).half()))

    def test_nothing_is_guessed(self) -> None:
        thing = object()
        for held in (thing, nn.SiLU(), lambda: thing, functools.partial(max, thing)):
            with pytest.raises(CannotDescribe):
                plain(held)


class TestKnown:
    TAKEN = Taken(1, 2, 3.0, 4, (), 5)

    def test_the_oldest_goes_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(alike, "MOST", 7)
        known, wide = Known(), Taken(1, 2, 3.0, 4, (((0, 1), (1, 2)),), 5)  # one and its two slabs
        known.put("a", wide)
        known.put("b", wide)
        assert known.get("a") == wide
        known.put("c", copy.deepcopy(wide))
        assert known.get("b") is None
        assert known.get("a") == known.get("c") == wide

    def test_the_same_twice_counts_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(alike, "MOST", 2)
        known = Known()
        for key in "aaab":
            known.put(key, self.TAKEN)
        assert known.get("a") == known.get("b") == self.TAKEN
