"""What helps one node, in both formats, once: a text encoder is cast, a training gets its checkpoints."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from headroom.graph.fit.insert import Inserted, insert_fit, insert_remedy
from headroom.graph.prompt import Prompt, links

from ..host.ui_workflows import between, consistent, graph, in_a_subgraph, node_of, text_to_image, ui_node

CAST, TRAINING = "HeadroomCastCLIP", "HeadroomTraining"


def with_cast(workflow: dict[str, Any], number: str) -> Inserted:
    return insert_remedy(workflow, "text_node", number)


def checkpointed(workflow: dict[str, Any], number: str) -> Inserted:
    return insert_remedy(workflow, "train_node", number)


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
    inserted = with_cast(prompt, "3")
    assert prompt == before
    assert inserted.added == ("node 6, Layerwise Casting (text encoder), for node 3 (CLIPTextEncode)",)
    changed = dict(inserted.workflow)
    cast = changed.pop("6")
    assert cast["class_type"] == CAST
    assert links(cast) == {"clip": ("1", 1)}  # behind the loader: LoRAs may come after
    expected = copy.deepcopy(before)
    for number in "25":
        expected[number]["inputs"]["clip"] = ["6", 0]
    assert changed == expected


def test_what_saves_it_saves_what_was_loaded() -> None:
    saves = {"class_type": "CLIPSave", "inputs": {"clip": ["1", 1], "filename_prefix": "x"}}
    assert with_cast(api(s=saves), "3").workflow["s"] == saves


def test_what_is_cast_already_is_left_alone() -> None:
    once = with_cast(api(), "3").workflow
    again = with_cast(once, "4")
    assert again.workflow == once
    assert again.notes == ("node 4 (CLIPTextEncode) is left alone: its text encoder is cast already",)
    assert with_cast(once, "3").workflow == once  # a LoRA is between


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        ("9", "text_node: there is no node 9 that runs; send the id of one that encodes a text"),
        ("1", "text_node: node 1 (CheckpointLoaderSimple) reads no text encoder; send the id of one that"),
    ],
)
def test_bad_input(number: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^text_node: ") as raised:
        with_cast(api(), number)
    assert str(raised.value).startswith(sentence)
    with pytest.raises(ValueError, match=r"^text_node: there is no subgraph 7; send the node's id as ComfyUI's error"):
        with_cast(text_to_image(), "7:3")


def test_in_the_browsers_format() -> None:
    workflow = with_cast(text_to_image(), "2").workflow
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
    inserted = with_cast(workflow, "20:3")
    assert inserted.added == (
        "node 21, Layerwise Casting (text encoder), for node 3 (CLIPTextEncode) in subgraph Lighthouse",
    )
    consistent(inserted.workflow)
    (inside,) = inserted.workflow["definitions"]["subgraphs"]
    assert [node["type"] for node in inside["nodes"]].count(CAST) == 1
    assert [node["type"] for node in inserted.workflow["nodes"]].count(CAST) == 0
    rows = {row["id"]: row for row in inside["links"]}
    assert {rows[node["inputs"][0]["link"]]["origin_id"] for node in inside["nodes"] if node["id"] in (2, 3)} == {21}


def with_the_loader_outside() -> dict[str, Any]:
    """The prompts in subgraph 20, into which the text encoder comes from loader 1."""
    inside = [ui_node(number, "CLIPTextEncode", {"clip": "CLIP"}, "CONDITIONING") for number in (2, 3)]
    rows = [
        {"id": 50 + at, "origin_id": -10, "origin_slot": 0, "target_id": node["id"], "target_slot": 0, "type": "CLIP"}
        for at, node in enumerate(inside)
    ]
    for row, node in zip(rows, inside, strict=True):
        node["inputs"][0]["link"] = row["id"]
    rows.append(
        {"id": 60, "origin_id": 2, "origin_slot": 0, "target_id": -20, "target_slot": 0, "type": "CONDITIONING"}
    )
    inside[0]["outputs"][0]["links"] = [60]
    sub = {
        "id": "sub", "version": 1, "name": "Prompts", "nodes": inside, "links": rows, "groups": [],
        "state": {"lastGroupId": 0, "lastNodeId": 20, "lastLinkId": 60, "lastRerouteId": 0},
        "inputNode": {"id": -10, "bounding": [0, 0, 1, 1]}, "outputNode": {"id": -20, "bounding": [0, 0, 1, 1]},
        "inputs": [{"id": "i", "name": "text encoder", "type": "CLIP", "linkIds": [50, 51]}],
        "outputs": [{"id": "o", "name": "CONDITIONING", "type": "CONDITIONING", "linkIds": [60]}],
    }  # fmt: skip
    nodes = [
        ui_node(1, "CheckpointLoaderSimple", {}, "MODEL CLIP VAE"),
        ui_node(4, "CLIPTextEncode", {"clip": "CLIP"}, "CONDITIONING"),
        ui_node(20, "sub", {"text encoder": "CLIP"}, "CONDITIONING"),
    ]
    return graph(nodes, (1, 1, 4, "clip"), (1, 1, 20, "text encoder"), definitions={"subgraphs": [sub]})


def test_what_comes_into_a_subgraph_is_cast_where_it_comes_from() -> None:
    inserted = with_cast(with_the_loader_outside(), "20:3")
    workflow = inserted.workflow
    consistent(workflow)
    assert inserted.added == ("node 21, Layerwise Casting (text encoder), for node 20 (Prompts)",)
    assert workflow["definitions"] == with_the_loader_outside()["definitions"]
    rows = {row[0]: row for row in workflow["links"]}
    assert rows[node_of(workflow, 21)["inputs"][0]["link"]][1:3] == [1, 1]
    for number in (4, 20):
        assert rows[node_of(workflow, number)["inputs"][0]["link"]][1:3] == [21, 0]
    again = with_cast(workflow, "20:2")
    assert again.workflow == workflow
    assert again.notes


def training(**more: Any) -> Prompt:
    nodes: Prompt = {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "x"}},
        "2": {"class_type": "LoraLoader", "inputs": {"model": ["1", 0], "clip": ["1", 1], "lora_name": "y"}},
        "3": {"class_type": "TrainLoraNode", "inputs": {"model": ["2", 0], "rank": 8}},
        "4": {"class_type": "KSampler", "inputs": {"model": ["2", 0], "cfg": 4.0}},
    }
    return nodes | more


def test_what_is_trained_is_behind_checkpoints_and_what_is_sampled_is_not() -> None:
    prompt = training()
    before = copy.deepcopy(prompt)
    inserted = checkpointed(prompt, "3")
    assert prompt == before
    assert inserted.added == ("node 5, Training Memory, for node 3 (TrainLoraNode)",)
    changed = dict(inserted.workflow)
    added = changed.pop("5")
    assert added["class_type"] == TRAINING
    assert added["inputs"] == {"model": ["2", 0], "plan": "every block", "blocks": "all", "checkpoints_in_ram": False}
    before["3"]["inputs"]["model"] = ["5", 0]
    assert changed == before
    again = checkpointed(inserted.workflow, "3")
    assert again.workflow == inserted.workflow
    assert again.notes == ("node 3 (TrainLoraNode) is left alone: its model is behind checkpoints already",)


def test_a_prediction_of_the_training_knows_the_plan() -> None:
    prompt = training(e={"class_type": "HeadroomTrainingEstimate", "inputs": {"model": ["2", 0], "rank": 8}})
    prompt["3"]["inputs"]["model"] = ["e", 0]
    changed = checkpointed(prompt, "3").workflow
    assert changed["5"]["inputs"]["model"] == ["2", 0]
    assert changed["e"]["inputs"]["model"] == ["5", 0]
    assert changed["3"] == prompt["3"]


def test_checkpoints_further_up_are_found() -> None:
    prompt = training(t={"class_type": TRAINING, "inputs": {"model": ["1", 0], "plan": "every block"}})
    prompt["2"]["inputs"]["model"] = ["t", 0]
    assert checkpointed(prompt, "3").workflow == prompt


@pytest.mark.parametrize("number", ["4", "9", "7:3"])
def test_only_what_trains_is_taken(number: str) -> None:
    with pytest.raises(ValueError, match=r"^train_node: "):
        checkpointed(training(), number)


def test_a_training_in_the_browsers_format() -> None:
    workflow = graph(
        [
            ui_node(1, "CheckpointLoaderSimple", {}, "MODEL CLIP VAE", widgets_values=["x"]),
            ui_node(3, "TrainLoraNode", {"model": "MODEL"}, "LORA"),
            ui_node(4, "KSampler", {"model": "MODEL"}, "LATENT"),
        ],
        (1, 0, 3, "model"), (1, 0, 4, "model"),
    )  # fmt: skip
    inserted = checkpointed(workflow, "3").workflow
    consistent(inserted)
    rows = {row[0]: row for row in inserted["links"]}
    added = node_of(inserted, 5)
    assert added["type"] == TRAINING
    assert added["widgets_values"] == ["every block", "all", False]
    begins = {number: rows[node_of(inserted, number)["inputs"][0]["link"]][1] for number in (3, 4, 5)}
    assert begins == {3: 5, 4: 1, 5: 1}


def test_a_training_in_a_subgraph_whose_model_comes_from_around() -> None:
    text = json.dumps(with_the_loader_outside()).replace("CLIPTextEncode", "TrainLoraNode")
    workflow = json.loads(text.replace("CLIP", "MODEL").replace('"clip"', '"model"'))
    inserted = checkpointed(workflow, "20:3").workflow
    consistent(inserted)
    (inside,) = inserted["definitions"]["subgraphs"]
    added = next(node for node in inside["nodes"] if node["type"] == TRAINING)
    rows = {row["id"]: row for row in inside["links"]}
    assert rows[added["inputs"][0]["link"]]["origin_id"] == -10
    begins = {node["id"]: rows[node["inputs"][0]["link"]]["origin_id"] for node in inside["nodes"]}
    assert begins == {2: -10, 3: added["id"], added["id"]: -10}
    assert inserted["nodes"] == workflow["nodes"]


def test_checkpoints_around_a_subgraph_are_found() -> None:
    text = json.dumps(with_the_loader_outside()).replace("CLIPTextEncode", "TrainLoraNode")
    workflow = json.loads(text.replace("CLIP", "MODEL").replace('"clip"', '"model"'))
    between(workflow, 2, ui_node(30, TRAINING, {"model": "MODEL"}, "MODEL STRING"), "model")
    again = checkpointed(workflow, "20:3")
    assert again.workflow == workflow
    assert again.notes == (
        "node 3 (TrainLoraNode) in subgraph Prompts is left alone: its model is behind checkpoints already",
    )


def test_what_is_within_a_subgraph_on_the_way_is_found() -> None:
    """The loader and its casting are a subgraph."""
    workflow = in_a_subgraph(with_cast(text_to_image(), "2").workflow)
    (inside,) = workflow["definitions"]["subgraphs"]
    inside["outputs"].append({"id": "c", "name": "CLIP", "type": "CLIP", "linkIds": [90]})
    inside["links"].append(
        {"id": 90, "origin_id": 8, "origin_slot": 0, "target_id": -20, "target_slot": 1, "type": "CLIP"}
    )
    subgraph = node_of(workflow, 20)
    subgraph["outputs"].append({"name": "CLIP", "type": "CLIP", "links": [91]})
    workflow["nodes"].append(ui_node(21, "CLIPTextEncode", {"clip": "CLIP"}, "CONDITIONING"))
    node_of(workflow, 21)["inputs"][0]["link"] = 91
    workflow["links"].append([91, 20, 1, 21, 0, "CLIP"])
    again = with_cast(workflow, "21")
    assert again.workflow == workflow
    assert again.notes == ("node 21 (CLIPTextEncode) is left alone: its text encoder is cast already",)
