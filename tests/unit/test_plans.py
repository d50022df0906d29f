"""Which way to sample is chosen: the least loss first, then the least time, and never one that does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest
import torch

from headroom.memory.prediction import Fit, Forecast, Loss, Prediction, SamplingPlan, Stage, VAEPlan, choose, named_card
from headroom.memory.render import render_fit, why_nothing_fits
from headroom.memory.speed import KernelCost, KernelCosts

GB = 2**30
GRID = Path(__file__).resolve().parents[2] / "benchmarks" / "offload_grid.md"
CARD = named_card("sm86", 8.0)


def plan(
    weights: float, activations: float, least: float = 0.1, flops: float = 1e12, **changes: object
) -> SamplingPlan:
    work = KernelCosts([KernelCost("product", torch.float16, int(flops), 0, 0, 0, 0)])
    prediction = Prediction(0, int(activations * GB), work=work, calls=int(changes.pop("calls", 1)))  # type: ignore[call-overload]
    return SamplingPlan(Stage("sampling", prediction, int(weights * GB), int(least * GB)), **changes)  # type: ignore[arg-type]


def test_what_loses_nothing_comes_first_however_slow() -> None:
    exact, cast = plan(20, 1, staging=GB // 2), plan(5, 1, storage="int8_convrot", loss=Loss.NEAR_EXACT)
    assert exact.seconds(CARD, 4 * GB) > 3 * cast.seconds(CARD, 4 * GB)
    assert choose([cast, exact], CARD, 4 * GB) is exact


def test_of_equals_the_faster_one() -> None:
    together, turns = plan(6, 2), plan(6, 1, in_turns=True, calls=2)
    assert choose([together, turns], CARD, 8 * GB) is together
    # Here the one streams 1.5 GB once a step and the other 0.5 GB twice.
    assert choose([together, turns], CARD, int(6.5 * GB)) is turns
    assert choose([together, turns], CARD, int(1.9 * GB)) is turns  # only it fits


def test_none_where_none_fits() -> None:
    assert choose([plan(6, 2), plan(6, 1)], CARD, GB // 2) is None


def test_copies_hide_behind_the_work_where_blocks_can_be_staged() -> None:
    a_second = CARD.speed.rate("product", torch.float16)
    ahead, between = plan(6, 1, staging=GB // 2, flops=a_second), plan(6, 1, flops=a_second)
    assert ahead.seconds(CARD, 4 * GB) == pytest.approx(1.0)
    copying = 3 * GB / CARD.speed.link
    assert copying < 1  # so that half of it is hidden by the host's own streaming
    assert between.seconds(CARD, 4 * GB) == pytest.approx(1.0 + copying / 2)
    assert ahead.prefetches(CARD, 4 * GB)
    assert not between.prefetches(CARD, 4 * GB)
    assert not ahead.prefetches(CARD, int(1.2 * GB))  # no room for the staging


def test_what_streams_comes_through_the_staging_as_well() -> None:
    one = plan(6, 1, staging=GB // 2, flops=CARD.speed.rate("product", torch.float16))
    stage, allowed = one.settled(CARD, 4 * GB), Forecast(CARD, (), 0.5)
    assert (stage.budget, stage.staging) == (3 * GB, GB // 2)
    assert allowed.streamed(stage) == int(3.5 * GB)
    assert allowed.streamed(replace(stage, staging=0)) == 3 * GB
    assert not one.settled(CARD, 7 * GB).staging


def test_the_host_hides_what_the_emulated_card_measured() -> None:
    """Over the rows of the grid: a step of the host's own streaming beside the rule for it."""
    rows = [line.strip("| \n").split(" | ") for line in GRID.read_text(encoding="utf-8").splitlines()]
    points = [Point.of(row) for row in rows if len(row) == 11 and row[4].endswith(" %")]
    whole = {one.place: one.host for one in points if one.budget == 1}
    links: dict[tuple[str, str], list[float]] = {}
    for one in points:
        longer = one.reached * one.ours
        if longer > 1.1 * whole[one.place]:  # the copies, then, and those through the staging as well
            links.setdefault(one.place, []).append(longer / (1 - one.budget + one.staging))
    found = sorted(
        one.host / CARD.with_copies(whole[one.place], (1 - one.budget) * median(links[one.place]), prefetched=False)
        for one in points
        if one.host and one.budget < 1 and one.place in links
    )
    assert len(found) > 600
    assert median(found) == pytest.approx(1.02, abs=0.01)
    assert found[len(found) // 10] == pytest.approx(0.90, abs=0.01)
    assert found[-len(found) // 10] == pytest.approx(1.17, abs=0.01)


class Point(NamedTuple):
    """A row of the grid: shares of the weights and milliseconds; 0 where the host cannot run within the budget."""

    place: tuple[str, str]
    budget: float
    staging: float
    host: float
    ours: float
    reached: float

    @classmethod
    def of(cls, row: list[str]) -> Point:
        model, _, weights, ratio, budget, _, staging, host, ours, _, reached = row
        share = float(staging) / float(weights)
        return cls((model, ratio), _share(budget), share, float(host.replace("–", "0")), float(ours), _share(reached))


def _share(text: str) -> float:
    return int(text.removesuffix(" %")) / 100


def test_a_budget_only_where_the_weights_do_not_fit() -> None:
    one = plan(6, 1)
    assert one.budget(7 * GB) is None
    assert one.budget(5 * GB) == 4 * GB
    assert one.settled(CARD, 5 * GB).peak == 5 * GB
    assert replace(one, fixed=True).budget(5 * GB) is None
    assert not replace(one, fixed=True).fits(5 * GB)


@pytest.mark.parametrize("staging", [None, GB // 4, 3 * GB])
@pytest.mark.parametrize("calls", [1, 2])
def test_more_memory_is_never_worse(staging: int | None, calls: int) -> None:
    plans = [
        plan(6, 2, staging=staging),
        plan(6, 1, staging=staging, in_turns=True, calls=calls),
        plan(3, 2, staging=staging, storage="int8_convrot", loss=Loss.NEAR_EXACT),
    ]
    found = [(allowed, choose(plans, CARD, allowed * GB // 8)) for allowed in range(4, 80)]
    ranks = [(one.loss, one.seconds(CARD, allowed * GB // 8)) for allowed, one in found if one is not None]
    assert len(ranks) > 60
    assert ranks == sorted(ranks, reverse=True)


def fit(considered: list[SamplingPlan], allowed: int, vae: VAEPlan) -> Fit:
    chosen = vae if vae.fits(allowed) else None
    card = named_card("sm86", allowed / GB)
    return Fit(card, 1.0, "exact", choose(considered, card, allowed), chosen, tuple(considered), (vae,), ("a note",))


def test_the_words_say_what_and_why() -> None:
    decode = VAEPlan(Stage("decode", Prediction(0, GB), GB // 4, GB // 4, method="exact, in strips"), None, Loss.EXACT)
    text = render_fit(fit([plan(6, 3, least=2), plan(6, 1, in_turns=True, calls=2)], 4 * GB, decode))
    assert "guidance in turns" in text
    assert "as it is, sampling would need 5.00 GB at least" in text
    assert "3.00 GB of 6.00 GB weights on the card + 1.00 GB = 4.00 GB" in text
    assert "3.00 GB streamed 2 times per step" in text
    assert "decoding, exact: in strips, 1.25 GB" in text
    assert "! a note" in text


def test_where_nothing_fits_the_least_is_named() -> None:
    refused = VAEPlan(None, None, Loss.EXACT, "exact strips need 3.00 GB at least")
    found = fit([plan(6, 2), plan(6, 1.5, in_turns=True)], GB, refused)
    assert not found.found
    sentence = why_nothing_fits(found)
    assert "sampling needs 1.60 GB at least (attention as it is, guidance in turns" in sentence
    assert "exact strips need 3.00 GB at least" in sentence
    assert "near_exact" in sentence


def test_of_what_is_not_known_no_time_is_told() -> None:
    """The kernels of ComfyUI's own estimate are not known."""
    known, unknown = plan(6, 1), replace(plan(6, 1), stage=Stage("sampling", Prediction(0, GB), 6 * GB, GB))
    vae = VAEPlan(Stage("decode", Prediction(0, GB), GB, GB), None, Loss.EXACT)
    for one, is_told in ((known, True), (unknown, False)):
        text = render_fit(Fit(CARD, 1.0, "exact", one, vae, (one,), (vae,)))
        assert ("the documented figures of" in text) == is_told
        assert "\n  , by" not in text
