"""Switches of a prompt: the host runs the chosen branch alone."""

from typing import Any

import pytest

from headroom.graph.switches import without_switches

ENDS = ["5"]  # what runs


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


def prompt(switch: Any, kind: str = "ComfySwitchNode", **more: Any) -> dict[str, Any]:
    return {
        "1": node("UNETLoader", unet_name="large"),
        "2": node("LoraLoaderModelOnly", model=["1", 0], lora_name="fast"),
        "3": node("PrimitiveBoolean", value=True),
        "4": node(kind, switch=switch, on_false=["1", 0], on_true=["2", 0], **more),
        "5": node("KSampler", model=["4", 0]),
    }


@pytest.mark.parametrize(("switch", "source"), [(False, "1"), (True, "2"), (["3", 0], "2")])
def test_what_is_chosen_takes_the_place_of_the_switch(switch: Any, source: str) -> None:
    before = prompt(switch)
    after = without_switches(before, ENDS)
    assert after["5"]["inputs"]["model"] == [source, 0]
    assert set(after) == {"1", "5"} | ({"2"} if source == "2" else set())
    assert before == prompt(switch)


def test_a_choice_that_is_computed_stays() -> None:
    asked = {**prompt(["6", 2]), "6": node("ComfyMathExpression", expression="a > 1", **{"values.a": 2})}
    del asked["3"]
    assert without_switches(asked, ENDS) == asked


def test_switches_in_a_row() -> None:
    asked = prompt(True)
    asked["7"] = node("ComfySwitchNode", switch=False, on_false=["4", 0], on_true=["1", 0])
    asked["5"]["inputs"]["model"] = ["7", 0]
    assert without_switches(asked, ENDS)["5"]["inputs"]["model"] == ["2", 0]


def test_a_soft_switch_with_one_branch_gives_it_whatever_is_chosen() -> None:
    asked = prompt(True, "ComfySoftSwitchNode")
    del asked["4"]["inputs"]["on_true"]
    assert without_switches(asked, ENDS)["5"]["inputs"]["model"] == ["1", 0]


def test_a_branch_that_is_not_connected_stays_for_the_host_to_refuse() -> None:
    asked = prompt(True)
    del asked["4"]["inputs"]["on_true"], asked["3"]
    del asked["2"]
    assert without_switches(asked, ENDS) == asked


def test_switches_that_feed_each_other_end() -> None:
    asked = {
        "1": node("ComfySwitchNode", switch=True, on_true=["2", 0], on_false=1),
        "2": node("ComfySwitchNode", switch=True, on_true=["1", 0], on_false=1),
        "3": node("PreviewAny", source=["1", 0]),
    }
    assert "3" in without_switches(asked, ["3"])


def test_what_is_saved_on_its_way_into_the_other_side_is_saved() -> None:
    """Newer hosts hand on what they save, and run whatever saves."""
    asked = prompt(True)
    asked["6"] = node("VAEDecode", samples=["5", 0])
    asked["7"] = node("SaveImage", images=["6", 0])
    asked["8"] = node("ComfySwitchNode", switch=True, on_false=["7", 0], on_true=["9", 0])
    asked["9"] = node("LoadImage", image="x.png")
    asked["10"] = node("SaveImage", images=["8", 0])
    after = without_switches(asked, ["7", "10"])
    assert set(after) == {"1", "2", "5", "6", "7", "9", "10"}
    assert after["10"]["inputs"]["images"] == ["9", 0]
    assert set(without_switches(asked, ["10"])) == {"9", "10"}
