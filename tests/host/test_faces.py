"""What a server sends to the nodes' faces: reports, and the numbers of their bars."""

import json
from typing import Any

import pytest

from headroom.host.core.compat import shown_when_reused
from headroom.tools.server.client import Client, Result

from .workflows import node

GB = 2**30
CARD = {"cfg": 4.0, "vram_gb": 0.5, "limit": 0.8}


def workflow(side: int = 128) -> dict[str, Any]:
    """Decodes without sampling."""
    return {
        "1": node("CheckpointLoaderSimple", ckpt_name="tiny_sd15.safetensors"),
        "2": node("HeadroomOffload", model=["1", 0], vram_budget_gb=0.0, granularity="auto"),
        "3": node("EmptyLatentImage", width=side, height=side, batch_size=1),
        "4": node("HeadroomFit", model=["2", 0], vae=["1", 2], samples=["3", 0], quality="exact", **CARD),
        "5": node("HeadroomEstimate", model=["4", 0], samples=["3", 0], vae=["4", 1], if_too_big="report", **CARD),
        "6": node("VAEDecode", samples=["5", 0], vae=["4", 1]),
        "7": node("HeadroomReport", anything=["6", 0]),
    }


def bar(result: Result, number: str) -> dict[str, Any]:
    (sent,) = result.outputs[number]["headroom_bar"]
    return json.loads(sent)


@pytest.fixture(scope="module")
def result(client: Client) -> Result:
    return client.run(workflow())


@pytest.mark.parametrize("number", ["4", "5"])
def test_the_bar_of_a_prediction_has_the_numbers_of_its_report(result: Result, number: str) -> None:
    found = bar(result, number)
    assert found["total"] == GB // 2
    assert found["allowed"] == int(0.8 * GB / 2)
    assert [load["name"] for load in found["loads"]] == ["sampling", "decode"]
    decode = found["loads"][1]
    assert decode["peak"] == decode["parts"]["weights"] + decode["parts"]["activations"]
    assert f"{decode['peak'] / 2**20:.0f} MB" in result.outputs[number]["text"][0]


def test_the_bar_of_a_report_has_what_the_run_log_has(client: Client, result: Result) -> None:
    found = bar(result, "7")
    (row,) = client.get(f"/headroom/runs/{result.prompt_id}")["rows"]
    (load,) = found["loads"]
    assert load["name"] == "#6 decode"
    assert load["parts"] == {"before": row["measured"]["before"], "growth": row["measured"]["growth"]}
    assert load["peak"] == row["measured"]["highest"]
    assert found["total"] == client.system_stats()["devices"][0]["vram_total"]


def test_a_report_comes_again_with_a_result_that_is_reused(client: Client, result: Result) -> None:
    """Where the host can: 0.18.2 sends those of output nodes alone."""
    again = client.run(workflow())
    assert {"2", "4"} <= set(again.cached)
    expected = set(result.outputs) if shown_when_reused() else {"5", "7"}
    assert set(again.outputs) == expected
    for number in expected:
        assert again.outputs[number]["text"] == result.outputs[number]["text"]
