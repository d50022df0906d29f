"""The numbers of the bar on a node's face."""

from __future__ import annotations

import json

import pytest

from headroom.memory import Peak, Row
from headroom.memory.peak import PROCESS
from headroom.memory.prediction import Forecast, Prediction, Stage, named_card
from headroom.memory.render import MemoryBar, NodeReport, forecast_bar, measured_bar

GB = 2**30
CARD = named_card("sm86", 8.0)


def stage(work: str, weights: float, activations: float, least: float = 0.5, budget: float | None = None) -> Stage:
    limit = None if budget is None else int(budget * GB)
    return Stage(work, Prediction(0, int(activations * GB)), int(weights * GB), int(least * GB), limit)


def bar(*stages: Stage, limit: float = 0.5) -> MemoryBar:
    return forecast_bar(Forecast(CARD, stages, limit))


def sizes(parts: dict[str, int]) -> dict[str, float]:
    return {kind: size / GB for kind, size in parts.items()}


class TestForecast:
    def test_what_fits_is_on_the_card_whole(self) -> None:
        found = bar(stage("sampling", 2, 1), stage("decode", 0.25, 3))
        assert (found.total, found.allowed) == (8 * GB, 4 * GB)
        assert [load.name for load in found.loads] == ["sampling", "decode"]
        assert [sizes(load.parts) for load in found.loads] == [
            {"weights": 2, "activations": 1, "streamed": 0},
            {"weights": 0.25, "activations": 3, "streamed": 0},
        ]
        assert found.peak == 3.25 * GB

    def test_what_streams_reaches_up_to_the_limit(self) -> None:
        (load,) = bar(stage("sampling", 20, 1)).loads
        assert sizes(load.parts) == {"weights": 3, "activations": 1, "streamed": 17}
        assert load.peak == 4 * GB

    def test_a_budget_of_a_node_streams_more(self) -> None:
        (load,) = bar(stage("sampling", 2, 1, budget=1.5)).loads
        assert sizes(load.parts) == {"weights": 1.5, "activations": 1, "streamed": 0.5}

    @pytest.mark.parametrize(("weights", "least", "activations"), [(2, 0.5, 5), (6, 4, 1)])
    def test_what_does_not_fit_goes_beyond_the_limit(self, weights: float, least: float, activations: float) -> None:
        found = bar(stage("sampling", weights, activations, least))
        assert found.peak == (weights + activations) * GB > found.allowed
        assert found.loads[0].parts["streamed"] == 0


def test_measured_work_is_what_was_there_and_what_came() -> None:
    rows = [Row("sampling", 1.0, Peak(GB, 3 * GB, "allocated")), Row("decode")]
    found = measured_bar([NodeReport("5", "KSampler", rows), NodeReport("7", "Save Image", [])], 8 * GB)
    assert [(load.name, sizes(load.parts)) for load in found.loads] == [("#5 sampling", {"before": 1, "growth": 2})]
    assert found.allowed == int(0.85 * 8 * GB)
    assert found.peak == 3 * GB


def test_weights_that_dynamic_vram_keeps_are_on_the_device_too() -> None:
    row = Row("sampling", 1.0, Peak(GB, 3 * GB, "allocated"), paged=4 * GB)
    found = measured_bar([NodeReport("5", "KSampler", [row])], 8 * GB)
    assert sizes(found.loads[0].parts) == {"before": 5, "growth": 2}
    assert found.peak == 7 * GB


def test_work_on_the_cpu_is_not_on_the_card() -> None:
    """As of a VAE with --cpu-vae; where the CPU is the device, it is what is told."""
    rows = [Row("sampling", 1.0, Peak(GB, 3 * GB, "allocated")), Row("decode", 1.0, Peak(GB, 30 * GB, PROCESS))]
    nodes = [NodeReport("5", "KSampler", rows)]
    assert [load.name for load in measured_bar(nodes, 8 * GB, own_memory=True).loads] == ["#5 sampling"]
    assert [load.name for load in measured_bar(nodes, 64 * GB).loads] == ["#5 sampling", "#5 decode"]


def test_nothing_measured_is_an_empty_bar() -> None:
    found = measured_bar([], 8 * GB)
    assert (found.peak, found.loads) == (0, ())


def test_the_sentence_has_the_numbers() -> None:
    found = bar(stage("sampling", 20, 1), stage("decode", 0.25, 0.5))
    assert found.sentence() == (
        "Peak 4.00 GB, 4.00 GB allowed (50% of 8.00 GB); sampling 4.00 GB: weights 3.00 GB, activations 1.00 GB,"
        " streamed 17.00 GB; decode 768 MB: weights 256 MB, activations 512 MB"
    )


def test_numbers_are_json() -> None:
    numbers = bar(stage("decode", 1, 2)).numbers()
    assert json.loads(json.dumps(numbers)) == numbers
    assert numbers["loads"] == [
        {"name": "decode", "parts": {"weights": GB, "activations": 2 * GB, "streamed": 0}, "peak": 3 * GB}
    ]
    assert (numbers["total"], numbers["allowed"]) == (8 * GB, 4 * GB)
