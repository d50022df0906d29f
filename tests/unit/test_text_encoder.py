"""A text encoder that ran out of memory is cast: for all that read it, in both formats, once."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from headroom.graph.fit.insert import insert_cast, insert_fit
from headroom.graph.prompt import Prompt, links

from ..host.ui_workflows import consistent, in_a_subgraph, node_of, text_to_image

CAST = "HeadroomCastCLIP"


def api(**more: Any) -> Prompt:
    nodes: Prompt = {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "x"}},
        "2": {"class_type": "LoraLoader", "inputs": {"model": ["1", 0], "clip": ["1", 1], "lora_name": "y"}},
        "3": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["2", 1], "text": "a"}},
        "4": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["2", 1], "text": "b"}},
        "5": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": "c"}},
    }
    return nodes | more


def test_all_that_read_it_read_the_cast_one_and_nothing_else_is_changed() -> None:
    prompt = api()
    before = copy.deepcopy(prompt)
    inserted = insert_cast(prompt, "3")
    assert prompt == before
    assert inserted.added == ("node 6, Layerwise Casting (text encoder), for node 3 (CLIPTextEncode)",)
    changed = dict(inserted.workflow)
    cast = changed.pop("6")
    assert cast["class_type"] == CAST
    assert links(cast) == {"clip": ("2", 1)}
    expected = copy.deepcopy(before)
    for number in "34":
        expected[number]["inputs"]["clip"] = ["6", 0]
    assert changed == expected


def test_what_is_cast_already_is_left_alone() -> None:
    once = insert_cast(api(), "3").workflow
    again = insert_cast(once, "4")
    assert again.workflow == once
    assert again.notes == ("node 4 (CLIPTextEncode) is left alone: its text encoder is cast already",)
    behind = api()
    behind["1a"] = {"class_type": CAST, "inputs": {"clip": ["1", 1]}}
    behind["2"]["inputs"]["clip"] = ["1a", 0]
    assert insert_cast(behind, "3").workflow == behind  # a LoRA is between


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        ("9", "text_node: there is no node 9 that runs; send the id of one that encodes a text"),
        ("1", "text_node: node 1 (CheckpointLoaderSimple) reads no text encoder; send the id of one that"),
    ],
)
def test_bad_input(number: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^text_node: ") as raised:
        insert_cast(api(), number)
    assert str(raised.value).startswith(sentence)
    with pytest.raises(ValueError, match=r"^text_node: there is no subgraph 7; send the node's id as ComfyUI's error"):
        insert_cast(text_to_image(), "7:3")


def test_in_the_browsers_format() -> None:
    workflow = insert_cast(text_to_image(), "2").workflow
    consistent(workflow)
    cast = node_of(workflow, 8)
    assert cast["type"] == CAST
    rows = {row[0]: row for row in workflow["links"]}
    assert rows[cast["inputs"][0]["link"]][1:3] == [1, 1]
    for number in (2, 3):
        assert rows[node_of(workflow, number)["inputs"][0]["link"]][1:3] == [8, 0]
    assert insert_fit(workflow).added  # and Make It Fit goes in beside it


def test_in_a_subgraph_by_the_path_of_the_hosts_error() -> None:
    workflow = in_a_subgraph(text_to_image())
    inserted = insert_cast(workflow, "20:3")
    assert inserted.added == (
        "node 21, Layerwise Casting (text encoder), for node 3 (CLIPTextEncode) in subgraph Lighthouse",
    )
    consistent(inserted.workflow)
    (inside,) = inserted.workflow["definitions"]["subgraphs"]
    assert [node["type"] for node in inside["nodes"]].count(CAST) == 1
    assert [node["type"] for node in inserted.workflow["nodes"]].count(CAST) == 0
    rows = {row["id"]: row for row in inside["links"]}
    assert {rows[node["inputs"][0]["link"]]["origin_id"] for node in inside["nodes"] if node["id"] in (2, 3)} == {21}
