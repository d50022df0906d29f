"""Workflow files: the browser's format as the host gets it, and workflows made to fit."""

import asyncio
import copy
import importlib
import importlib.util
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import execution
import pytest
from comfy_api.latest import _io

import nodes
from headroom.cli import files, fit
from headroom.graph.fit.insert import insert_fit
from headroom.graph.fit.insert_ui import OUTPUTS, SOCKETS, TYPES
from headroom.graph.fit.plan import VAE_WIDGETS
from headroom.graph.formats import is_ui
from headroom.graph.kinds import TITLES, VAE_LOADERS
from headroom.graph.settings import GPUS, QUALITIES, FitSettings
from headroom.graph.to_api import is_widget
from headroom.host.workflow.estimate import as_queued
from headroom.memory import prediction
from headroom.memory.prediction import GPU_CHOICES
from headroom.nodes import NODES
from headroom.nodes.fit import HeadroomFit

from .ui_workflows import between, consistent, graph, in_a_subgraph, node_of, overlap, relink, text_to_image, ui_node
from .workflows import node
from .workflows import text_to_image as api_text_to_image

pytestmark = pytest.mark.usefixtures("extra_nodes")

PACK = Path(__file__).parents[2]
Workflow = dict[str, Any]
OURS = {one.GET_SCHEMA().node_id: one for one in (*NODES, HeadroomFit)}
FITTED = {
    "quality": "exact", "vram_gb": 0.0, "gpu": "this machine", "limit": 0.85, "cfg_source": "graph", "verify": "off"
}  # fmt: skip


def template_workflows() -> Iterator[tuple[str, Workflow]]:
    """The workflows that come with ComfyUI, whichever of its packages holds them."""
    packages = [one for one in packages_distributions() if one.startswith("comfyui_workflow_templates")]
    folders = {Path(place) for one in packages for place in importlib.import_module(one).__path__}
    for path in sorted(path for folder in folders for path in folder.rglob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if is_ui(content):
            yield path.name, content


def api(workflow: Workflow) -> Workflow:
    return as_queued(workflow, OURS)


def inputs(workflow: Workflow, number: int | str) -> Workflow:
    return api(workflow)[str(number)]["inputs"]


# ------------------------------------------------------------------------------------------------------ as it is queued


def wrong(kind: Any, options: Workflow, value: Any) -> bool:
    """Whether the host would refuse a value, names of files aside."""
    if isinstance(kind, list) or kind == "COMBO":
        choices = kind if isinstance(kind, list) else options.get("options") or []
        is_file = isinstance(value, str) and "." in value
        return not (value in choices or is_file or not choices)
    types = {"INT": int, "FLOAT": (int, float), "STRING": str, "BOOLEAN": bool}
    return kind in types and not isinstance(value, types[kind])


def complaints(class_type: str, given: Workflow) -> Iterator[str]:
    """What the host would say of a node's widgets."""
    known = nodes.NODE_CLASS_MAPPINGS[class_type]
    spec = known.INPUT_TYPES()
    if issubclass(known, _io._ComfyNodeInternal):
        spec, _, _ = _io.get_finalized_class_inputs(spec, given)
    for group in ("required", "optional"):
        for name, (kind, *more) in spec.get(group, {}).items():
            options = more[0] if more and more[0] else {}
            shown = is_widget((name, "COMBO" if isinstance(kind, list) else kind, options))
            if shown and group == "required" and name not in given:
                yield f"{class_type}.{name} is missing"
            is_link = isinstance(given.get(name), list) and len(given[name]) == 2
            if name in given and not is_link and wrong(kind, options, given[name]):
                yield f"{class_type}.{name} = {given[name]!r}"


def plain_links(content: Workflow) -> Iterator[tuple[str, str, list]]:
    """Links between nodes that both run: (node, input, what the API format says)."""
    kinds = {one["id"]: one["type"] for one in content["nodes"] if one["mode"] not in (2, 4)}
    rows = {row[0]: row for row in content["links"]}
    for one in content["nodes"]:
        for entry in one.get("inputs") or ():
            row = rows.get(entry["link"])
            if row and all(kinds.get(end) in nodes.NODE_CLASS_MAPPINGS for end in (row[1], one["id"])):
                yield str(one["id"]), entry["name"], [str(row[1]), row[2]]


def test_the_templates_convert_to_what_the_host_accepts() -> None:
    found: dict[str, list[str]] = {}
    checked = 0
    for name, content in template_workflows():
        converted = as_queued(content)
        for number, entry, link in plain_links(content):
            assert converted[number]["inputs"][entry] == link, name
        for one in converted.values():
            assert all(value[0] in converted for value in one["inputs"].values() if isinstance(value, list)), name
        if {one["class_type"] for one in converted.values()} - set(nodes.NODE_CLASS_MAPPINGS):
            continue
        for number, one in converted.items():
            checked += 1
            for complaint in complaints(one["class_type"], one["inputs"]):
                found.setdefault(complaint, []).append(f"{name} {number}")
    assert checked
    assert not found


def test_widgets_by_their_order_and_by_name() -> None:
    expected = {"seed": 7, "steps": 2, "cfg": 4.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    links = {"model": ["1", 0], "positive": ["2", 0], "negative": ["3", 0], "latent_image": ["4", 0]}
    assert inputs(text_to_image(), 5) == expected | links
    assert inputs(text_to_image(widgets_values=dict(expected)), 5) == expected | links
    short = inputs(text_to_image(widgets_values=[7, "fixed", 2]), 5)
    assert (short["steps"], short["cfg"], short["denoise"]) == (2, 8.0, 1.0)
    upload = graph([ui_node(1, "LoadImage", {}, "IMAGE MASK", widgets_values=["a.png", "image"])])
    assert inputs(upload, 1) == {"image": "a.png"}
    combo = graph([ui_node(1, "CustomCombo", {}, "STRING INT", widgets_values=["b", 1, "a", "b", ""])])
    assert inputs(combo, 1) == {"choice": "b", "index": 1, "option1": "a", "option2": "b", "option3": ""}


@pytest.mark.parametrize(
    ("name", "number", "values"),
    [
        ("sd15_local_attention", "4", ["window", 8, 16, 0, 0.1, "all", 0.0, 1.0, 4096]),
        ("flux_cast_lora", None, None),
        ("sd15_text_to_image", None, None),
    ],
)
def test_our_nodes_as_in_our_own_workflows(name: str, number: str | None, values: list | None) -> None:
    """What is exported by hand is what the conversion of the same values gives."""
    workflow = json.loads((PACK / "workflows" / "api" / f"{name}.json").read_text())
    for key, one in workflow.items():
        if key == number or (number is None and one["class_type"] in OURS):
            widgets = {name: value for name, value in one["inputs"].items() if not isinstance(value, list)}
            saved = ui_node(1, one["class_type"], widgets_values=values or list(widgets.values()))
            assert widgets.items() <= inputs(graph([saved]), 1).items()


def test_links_of_both_spellings() -> None:
    workflow = text_to_image()
    names = ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")
    spelt_out = workflow | {"links": [dict(zip(names, row, strict=True)) for row in workflow["links"]]}
    assert api(spelt_out) == api(workflow)


def test_a_muted_node_is_left_out() -> None:
    workflow = text_to_image()
    node_of(workflow, 4)["mode"] = 2
    found = api(workflow)
    assert "4" not in found
    assert "latent_image" not in found["5"]["inputs"]


def test_a_bypassed_node_hands_on_what_fits() -> None:
    lora = {"model": "MODEL", "clip": "CLIP"}
    workflow = between(text_to_image(), 1, ui_node(8, "LoraLoader", lora, "MODEL CLIP", mode=4), "model")
    found = api(workflow)
    assert "8" not in found
    assert found["5"]["inputs"]["model"] == ["1", 0]
    switch = ui_node(9, "SomebodysSwitch", {"either": "CLIP", "or": "CLIP,VAE"}, "VAE", mode=4)
    assert api(between(workflow, 8, switch, "or"))["6"] == found["6"]
    node_of(workflow, 6)["mode"] = 4  # no input of a decode is a picture
    assert "images" not in inputs(workflow, 7)


def test_a_bypassed_node_hands_on_what_is_in_the_same_place() -> None:
    workflow = text_to_image()
    found = api(workflow)
    both = ui_node(9, "SomebodysSwitch", {"one": "VAE", "other": "VAE"}, "VAE VAE", mode=4)
    assert api(between(workflow, 8, both, "other", output=1))["6"] == found["6"]


@pytest.mark.parametrize(("get", "set_"), [("GetNode", "SetNode"), ("easy getNode", "easy setNode")])
def test_what_is_set_by_a_name_is_got_by_it(get: str, set_: str) -> None:
    workflow = between(text_to_image(), 8, ui_node(8, get, {"in": "VAE"}, "VAE", widgets_values=["vae"]), "in")
    getter = node_of(workflow, 8)
    taken = next(row for row in workflow["links"] if row[0] == getter["inputs"][0]["link"])
    getter["inputs"] = []
    setters = [ui_node(n, set_, {"": "*"}, "*", widgets_values=[name]) for n, name in ((9, "model"), (10, "vae"))]
    workflow["nodes"] += setters
    setters[1]["inputs"][0]["link"], taken[3], taken[4] = taken[0], 10, 0
    assert api(workflow) == api(text_to_image())
    workflow["nodes"].append(ui_node(11, "easy setNode" if get == "GetNode" else "SetNode", {"": "*"}, "*"))
    node_of(workflow, 11)["widgets_values"] = ["vae"]  # of another pack: a getter's own comes first
    workflow["nodes"].reverse()
    assert api(workflow)["6"] == api(text_to_image())["6"]
    getter["widgets_values"] = ["nobody set this"]
    assert "vae" not in inputs(workflow, 6)


def test_reroutes_primitives_and_notes_are_of_the_browser() -> None:
    workflow = between(text_to_image(), 1, ui_node(8, "Reroute", {"": "*"}, "MODEL"), "")
    workflow["nodes"] += [
        ui_node(9, "PrimitiveNode", {}, "FLOAT", widgets_values=[2.5, "fixed"]),
        ui_node(10, "MarkdownNote", widgets_values=["read me"]),
    ]
    workflow["links"].append([99, 9, 0, 5, 4, "FLOAT"])
    node_of(workflow, 5)["inputs"][4]["link"] = 99
    found = api(workflow)
    assert set(found) == {"1", "2", "3", "4", "5", "6", "7"}
    assert found["5"]["inputs"]["model"] == ["1", 0]
    assert found["5"]["inputs"]["cfg"] == 2.5


def test_nodes_of_other_packs_that_are_of_the_browser() -> None:
    workflow = between(text_to_image(), 1, ui_node(8, "Reroute (rgthree)", {"": "*"}, "*"), "")
    workflow["nodes"] += [
        ui_node(9, "Fast Groups Bypasser (rgthree)", {}, "*"),
        ui_node(10, "Label (rgthree)"),
        ui_node(11, "Bookmark (rgthree)", widgets_values=["1", 1]),
        ui_node(12, "Node Collector (rgthree)", {"LATENT": "*", "": "*"}, "*"),
        ui_node(13, "Fast Muter (rgthree)", {"Node Collector (rgthree)": "*", "": "*"}, "*"),
        ui_node(14, "easy bookmark"),
    ]
    workflow["links"] += [[98, 5, 0, 12, 0, "*"], [99, 12, 0, 13, 0, "*"]]
    node_of(workflow, 12)["inputs"][0]["link"], node_of(workflow, 13)["inputs"][0]["link"] = 98, 99
    assert api(workflow) == api(text_to_image())
    fitted_one = insert_fit(workflow)
    assert len(fitted_one.added) == 1
    assert not fitted_one.notes


def test_a_widget_made_an_input() -> None:
    workflow = text_to_image()
    workflow["nodes"].append(ui_node(9, "PrimitiveFloat", {}, "FLOAT", widgets_values=[3.5]))
    workflow["links"].append([99, 9, 0, 5, 4, "FLOAT"])
    node_of(workflow, 5)["inputs"][4]["link"] = 99
    assert inputs(workflow, 5)["cfg"] == ["9", 0]
    assert inputs(workflow, 9) == {"value": 3.5}


def test_subgraphs_and_the_values_they_are_given() -> None:
    found = api(in_a_subgraph(text_to_image()))
    assert set(found) == {"7", *(f"20:{number}" for number in range(1, 7))}
    assert found["7"]["inputs"]["images"] == ["20:6", 0]
    assert found["20:5"]["inputs"]["model"] == ["20:1", 0]
    assert found["20:2"]["inputs"]["text"] == "a lighthouse"
    assert inputs(in_a_subgraph(text_to_image(), "a harbour"), "20:2")["text"] == "a harbour"
    proxied = in_a_subgraph(text_to_image())
    node_of(proxied, 20).update(
        properties={"proxyWidgets": [["5", "steps"], ["2", "text"]]}, widgets_values=[9, "a harbour"]
    )
    assert inputs(proxied, "20:5")["steps"] == 9
    assert inputs(proxied, "20:2")["text"] == "a harbour"
    node_of(proxied, 20)["mode"] = 2
    assert set(api(proxied)) == {"7"}


def test_a_subgraph_in_a_subgraph() -> None:
    inner = in_a_subgraph(text_to_image())
    definition = inner["definitions"]["subgraphs"][0]
    entry = node_of(inner, 20)
    entry["inputs"][0]["link"] = 60
    outer = {
        "id": "outer", "name": "Outer", "nodes": [entry],
        "inputs": [{"name": "words", "type": "STRING", "linkIds": [60]}],
        "outputs": [{"name": "IMAGE", "type": "IMAGE", "linkIds": [61]}],
        "links": [{"id": 60, "origin_id": -10, "origin_slot": 0, "target_id": 20, "target_slot": 0, "type": "STRING"},
                  {"id": 61, "origin_id": 20, "origin_slot": 0, "target_id": -20, "target_slot": 0, "type": "IMAGE"}],
    }  # fmt: skip
    save = ui_node(7, "SaveImage", {"images": "IMAGE"}, widgets_values=["x"])
    host = ui_node(30, "outer", {"words*": "STRING"}, "IMAGE", widgets_values=["a pier"])
    found = api(graph([host, save], (30, 0, 7, "images"), definitions={"subgraphs": [outer, definition]}))
    assert found["7"]["inputs"]["images"] == ["30:20:6", 0]
    assert found["30:20:2"]["inputs"]["text"] == "a pier"
    host["widgets_values"] = []
    found = api(graph([host, save], definitions={"subgraphs": [outer, definition]}))
    assert found["30:20:2"]["inputs"]["text"] == "a lighthouse"


def test_an_unknown_node_keeps_its_links() -> None:
    mystery = ui_node(8, "SomebodysPatch", {"model": "MODEL"}, "MODEL", widgets_values=[1, 2])
    assert inputs(between(text_to_image(), 1, mystery, "model"), 8) == {"model": ["1", 0]}


@pytest.mark.parametrize(
    ("workflow", "said"),
    [
        ({"1": {}}, "has no list of nodes"),
        ({"nodes": [{"type": "KSampler"}]}, "save it again"),
        (graph([ui_node(1, "workflow>mine")]), "group node"),
    ],
)
def test_what_cannot_be_converted(workflow: Workflow, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        as_queued(workflow)


def test_reroutes_in_a_circle() -> None:
    workflow = between(text_to_image(), 1, ui_node(8, "Reroute", {"": "*"}, "MODEL"), "")
    relink(workflow, 10, 8, 0)
    with pytest.raises(ValueError, match="circle"):
        as_queued(workflow)


# -------------------------------------------------------------------------------------------------------- made to fit


def fitted(workflow: Workflow, **settings: Any) -> Workflow:
    return insert_fit(workflow, FitSettings(**settings)).workflow


def test_the_nodes_are_those_of_the_pack() -> None:
    for kind in ("HeadroomFit", "HeadroomVAE"):
        schema = OURS[kind].GET_SCHEMA()
        taken = [one.id for one in schema.inputs]
        assert [name for name in taken if name in TYPES] == list(SOCKETS[kind])
        assert schema.display_name == TITLES[kind]
        assert [one.get_io_type() for one in schema.outputs] == [type_ for _, type_ in OUTPUTS[kind]]
    widgets = {one.id: one.default for one in OURS["HeadroomVAE"].GET_SCHEMA().inputs if one.id != "vae"}
    assert list(widgets.items()) == list(VAE_WIDGETS.items())
    names = [one.id for one in OURS["HeadroomFit"].GET_SCHEMA().inputs if one.id not in TYPES]
    assert names == ["cfg", *FITTED]
    defaults = {one.id: one.default for one in OURS["HeadroomFit"].GET_SCHEMA().inputs if one.id in FITTED}
    assert defaults | {"cfg_source": "graph"} == FITTED  # saved graphs keep the widget's
    for kind, slot in VAE_LOADERS.items():
        assert nodes.NODE_CLASS_MAPPINGS[kind].RETURN_TYPES[slot] == "VAE"


def test_text_to_image_and_nothing_else_changes() -> None:
    before = api_text_to_image()
    kept = copy.deepcopy(before)
    after = fitted(before, quality="any", vram_gb=8.0, gpu="sm86", limit=0.8)
    assert before == kept
    fit = after.pop("9")
    links = {"model": ["1", 0], "vae": ["1", 2], "samples": ["4", 0], "positive": ["2", 0], "negative": ["3", 0]}
    asked = {"quality": "any", "vram_gb": 8.0, "gpu": "sm86", "limit": 0.8}
    assert fit["inputs"] == links | {"cfg": 4.0, **asked, "cfg_source": "graph", "verify": "off"}
    assert (fit["class_type"], fit["_meta"]["title"]) == ("HeadroomFit", "Make It Fit")
    kept["5"]["inputs"]["model"] = ["9", 0]
    kept["6"]["inputs"]["vae"] = ["9", 1]
    assert after == kept


def inpaint() -> Workflow:
    """Encode 3 before the sampler 5, a tiled decode 6, an encode 7 between it and a second sampler 8, decode 9."""
    sampling = {"seed": 1, "steps": 2, "cfg": 4.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    texts = {"positive": ["2", 0], "negative": ["2", 0], "model": ["1", 0]}
    tiles = {"tile_size": 512, "overlap": 64, "temporal_size": 64, "temporal_overlap": 8}
    return {
        "1": node("CheckpointLoaderSimple", ckpt_name="tiny_sd15.safetensors"),
        "2": node("CLIPTextEncode", clip=["1", 1], text="a lighthouse"),
        "10": node("LoadImage", image="photo.png"),
        "3": node("VAEEncode", pixels=["10", 0], vae=["1", 2]),
        "5": node("KSampler", latent_image=["3", 0], **sampling, **texts),
        "6": node("VAEDecodeTiled", samples=["5", 0], vae=["1", 2], **tiles),
        "7": node("HeadroomVAEEncode", pixels=["6", 0], vae=["1", 2], **VAE_WIDGETS),
        "8": node("KSampler", latent_image=["7", 0], **sampling, **texts),
        "9": node("VAEDecode", samples=["8", 0], vae=["1", 2]),
        "11": node("SaveImage", images=["9", 0], filename_prefix="x"),
        "12": node("BasicScheduler", model=["1", 0], scheduler="normal", steps=2, denoise=1.0),
    }


def test_each_vae_link_goes_to_the_nearest_fit_before_it() -> None:
    after = fitted(inpaint())
    kinds = {number: one["class_type"] for number, one in after.items() if number not in inpaint()}
    assert kinds == {"13": "HeadroomFit", "14": "HeadroomFit", "15": "HeadroomVAE"}
    assert after["13"]["inputs"]["samples"] == ["3", 0]
    assert after["14"]["inputs"]["samples"] == ["7", 0]
    assert (after["5"]["inputs"]["model"], after["8"]["inputs"]["model"]) == (["13", 0], ["14", 0])
    vaes = {number: after[number]["inputs"]["vae"] for number in ("3", "6", "7", "9", "13", "14", "15")}
    low_memory = {"3": ["15", 0], "6": ["13", 1], "7": ["13", 1], "9": ["14", 1]}
    assert vaes == low_memory | {"13": ["1", 2], "14": ["1", 2], "15": ["1", 2]}
    assert after["12"] == inpaint()["12"]
    assert after["15"]["inputs"] == {"vae": ["1", 2], **VAE_WIDGETS}


def custom(guider: Workflow) -> Workflow:
    workflow = api_text_to_image(save_latent=False)
    workflow["9"] = guider
    workflow["5"] = node("SamplerCustomAdvanced", latent_image=["4", 0], guider=["9", 0], noise=["10", 0])
    workflow["10"] = node("RandomNoise", noise_seed=1)
    return workflow


def test_guiders() -> None:
    after = fitted(custom(node("BasicGuider", model=["1", 0], conditioning=["2", 0])))
    assert after["9"]["inputs"]["model"] == ["11", 0]
    assert after["11"]["inputs"] == FITTED | {
        "model": ["1", 0], "vae": ["1", 2], "samples": ["4", 0], "positive": ["2", 0], "cfg": 1.0,
    }  # fmt: skip
    cfg = node("CFGGuider", model=["1", 0], positive=["2", 0], negative=["3", 0], cfg=["20", 0])
    after = fitted(custom(cfg) | {"20": node("PrimitiveFloat", value=3.0)})
    assert after["21"]["inputs"]["cfg"] == ["20", 0]
    assert after["21"]["inputs"]["negative"] == ["3", 0]
    found = insert_fit(custom(node("DualCFGGuider", model=["1", 0])))
    assert "neither BasicGuider nor CFGGuider" in found.notes[0]
    assert found.workflow["9"]["inputs"]["model"] == ["1", 0]


def test_a_guider_of_two_samplers_makes_no_circle() -> None:
    workflow = custom(node("BasicGuider", model=["1", 0], conditioning=["2", 0]))
    second = node("SamplerCustomAdvanced", latent_image=["5", 0], guider=["9", 0], noise=["10", 0])
    workflow = {"20": second, **workflow}
    workflow["6"]["inputs"]["samples"] = ["20", 0]
    found = insert_fit(workflow)
    assert found.workflow["21"]["inputs"]["samples"] == ["4", 0]
    assert found.workflow["6"]["inputs"]["vae"] == ["21", 1]
    assert "node 20" in found.notes[0]


def test_without_a_vae_or_without_a_sampler() -> None:
    workflow = {"1": node("UNETLoader", unet_name="x"), "2": node("KSampler", model=["1", 0], latent_image=["3", 0])}
    workflow["3"] = node("EmptyLatentImage", width=64, height=64, batch_size=1)
    found = insert_fit(workflow)
    assert found.workflow == workflow
    assert found.notes == ("node 2 (KSampler) is left alone: there is no VAE",)
    round_trip = {
        "1": node("VAELoader", vae_name="x"),
        "2": node("LoadImage", image="photo.png"),
        "3": node("VAEEncode", pixels=["2", 0], vae=["1", 0]),
        "4": node("VAEDecode", samples=["3", 0], vae=["1", 0]),
    }
    after = fitted(round_trip)
    assert set(after) == {*round_trip, "5"}
    assert (after["3"]["inputs"]["vae"], after["4"]["inputs"]["vae"]) == (["5", 0], ["5", 0])


def test_a_vae_of_sounds_is_left_alone() -> None:
    workflow = api_text_to_image()
    workflow["6"]["class_type"] = "VAEDecodeAudio"
    assert fitted(workflow)["6"]["inputs"]["vae"] == ["1", 2]


def test_the_browsers_format() -> None:
    before = text_to_image()
    kept = copy.deepcopy(before)
    found = insert_fit(before)
    after = found.workflow
    assert before == kept
    consistent(after)
    assert api(after) == insert_fit(api(before)).workflow
    assert found.added == ("node 8, Make It Fit, for node 5 (KSampler)",)
    fit = after["nodes"].pop()
    assert fit["widgets_values"] == [4.0, *FITTED.values()]
    assert fit["properties"] == {"Node name for S&R": "HeadroomFit"}
    assert not any(overlap(fit, one) for one in after["nodes"])
    # The links to the sampler and to the decode begin at the new node; all else is as it was.
    for number, start, output in ((1, 8, 0), (8, 8, 1)):
        row = next(row for row in kept["links"] if row[0] == number)
        node_of(kept, row[1])["outputs"][row[2]]["links"].remove(number)
        row[1:3] = start, output
    assert after["links"][: len(kept["links"])] == kept["links"]
    for number, outputs in ((1, "MODEL CLIP VAE"), (2, "CONDITIONING"), (3, "CONDITIONING"), (4, "LATENT")):
        for slot in range(len(outputs.split())):
            ours = [link for link in node_of(after, number)["outputs"][slot]["links"] if link > kept["last_link_id"]]
            node_of(kept, number)["outputs"][slot]["links"] += ours
    counted = {"links": 0, "last_link_id": 0, "last_node_id": 0}
    assert after | counted == kept | counted


def test_a_moved_link_leaves_the_points_it_was_drawn_through() -> None:
    points = [{"id": 1, "pos": [0, 0], "linkIds": [1, 2]}, {"id": 2, "parentId": 1, "pos": [9, 9], "linkIds": [1]}]
    extra = {"reroutes": points, "linkExtensions": [{"id": 1, "parentId": 2}, {"id": 2, "parentId": 1}]}
    assert fitted(text_to_image() | {"extra": extra})["extra"] == {
        "reroutes": [{"id": 1, "pos": [0, 0], "linkIds": [2]}], "linkExtensions": [{"id": 2, "parentId": 1}],
    }  # fmt: skip


def test_behind_reroutes_and_bypassed_nodes() -> None:
    """The new node takes the links as they are drawn; the same VAE is known as such by either way."""
    workflow = between(
        text_to_image(), 1, ui_node(8, "LoraLoaderModelOnly", {"model": "MODEL"}, "MODEL", mode=4), "model"
    )
    workflow = between(workflow, 8, ui_node(9, "Reroute", {"": "*"}, "VAE"), "")
    workflow["nodes"].append(ui_node(10, "VAEEncode", {"pixels": "IMAGE", "vae": "VAE"}, "LATENT"))
    workflow["links"].append([12, 1, 2, 10, 1, "VAE"])
    node_of(workflow, 10)["inputs"][1]["link"] = 12
    node_of(workflow, 1)["outputs"][2]["links"].append(12)
    workflow |= {"last_node_id": 10, "last_link_id": 12}
    after = fitted(workflow)
    consistent(after)
    fit = node_of(after, 11)
    begins = {row[0]: row[1:3] for row in after["links"]}
    assert {one["name"]: begins[one["link"]] for one in fit["inputs"]} == {
        "model": [8, 0], "vae": [9, 0], "samples": [4, 0], "positive": [2, 0], "negative": [3, 0],
    }  # fmt: skip
    assert node_of(after, 12)["type"] == "HeadroomVAE"
    assert api(after) == insert_fit(api(workflow)).workflow


def test_in_a_subgraph() -> None:
    workflow = in_a_subgraph(text_to_image())
    after = fitted(workflow)
    consistent(after)
    assert {key: after[key] for key in ("nodes", "links")} == {key: workflow[key] for key in ("nodes", "links")}
    expected, found = insert_fit(api(workflow)).workflow, api(after)
    renamed = json.loads(json.dumps(found).replace('"20:21"', '"21"'))
    assert renamed == expected
    assert after["definitions"]["subgraphs"][0]["state"]["lastNodeId"] == after["last_node_id"] == 21


def test_a_vae_from_outside_a_subgraph() -> None:
    """A decode in a subgraph behind a sampler, and an encode in one before it: wrapped where the VAE is loaded."""
    workflow = text_to_image()
    decode, rest = node_of(workflow, 6), [one for one in workflow["nodes"] if one["id"] not in (6, 7)]
    slots = (("samples", "LATENT", 70), ("a_vae", "VAE", 71))
    inner = {
        "id": "sub", "name": "Decode", "nodes": [decode],
        "inputs": [{"name": name, "type": kind, "linkIds": [link]} for name, kind, link in slots],
        "outputs": [{"name": "IMAGE", "type": "IMAGE", "linkIds": [72]}],
        "links": [{"id": link, "origin_id": -10, "origin_slot": slot, "target_id": 6, "target_slot": slot, "type": kind}
                  for slot, (_, kind, link) in enumerate(slots)]
        + [{"id": 72, "origin_id": 6, "origin_slot": 0, "target_id": -20, "target_slot": 0, "type": "IMAGE"}],
    }  # fmt: skip
    for entry, (_, _, link) in zip(decode["inputs"], slots, strict=True):
        entry["link"] = link
    host = ui_node(20, "sub", {name: kind for name, kind, _ in slots}, "IMAGE")
    for one in rest:
        for entry in (*one["inputs"], *one["outputs"]):
            entry["link" if "link" in entry else "links"] = None if "link" in entry else []
    names = [(1, 0, 5, "model"), (1, 1, 2, "clip"), (2, 0, 5, "positive"), (4, 0, 5, "latent_image")]
    whole = graph([*rest, host], *names, (5, 0, 20, "samples"), (1, 2, 20, "a_vae"), definitions={"subgraphs": [inner]})
    after = fitted(whole)
    assert after["definitions"] == whole["definitions"]
    assert api(after)["20:6"]["inputs"]["vae"] == ["21", 1]


def test_the_templates_made_to_fit() -> None:
    changed = 0
    for name, content in template_workflows():
        found = insert_fit(content)
        assert insert_fit(found.workflow) == type(found)(found.workflow, (), found.notes), name
        ui, plain = as_queued(found.workflow, OURS), insert_fit(as_queued(content, OURS))
        # A subgraph may hold a sampler and no VAE; in the API format there are no subgraphs.
        alone = [sum("left alone: there is no VAE in it" in note for note in one.notes) for one in (found, plain)]
        kinds = [Counter(one["class_type"] for one in workflow.values()) for workflow in (ui, plain.workflow)]
        assert kinds[0] + Counter(HeadroomFit=alone[0] - alone[1]) == kinds[1], name
        for one in ui.values():  # nothing is lost on the way
            if one["class_type"] == "HeadroomFit":
                assert {"model", "vae", "samples", *FITTED, "cfg"} <= set(one["inputs"]), name
        changed += bool(found.added)
    assert changed


def test_the_host_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("HeadroomFit", "HeadroomVAE"):
        monkeypatch.setitem(nodes.NODE_CLASS_MAPPINGS, kind, OURS[kind])
    encode = node("VAEEncode", pixels=["13", 0], vae=["1", 2])
    image = node("EmptyImage", width=64, height=64, batch_size=1, color=0)
    encoded = api_text_to_image() | {"12": encode, "13": image}
    encoded["5"]["inputs"]["latent_image"] = ["12", 0]
    for workflow in (fitted(encoded), api(fitted(text_to_image())), api(fitted(in_a_subgraph(text_to_image())))):
        assert "HeadroomFit" in {one["class_type"] for one in workflow.values()}
        valid, error, outputs, errors = asyncio.run(execution.validate_prompt("a", workflow, None))
        assert valid, (error, errors)
        assert outputs


@pytest.mark.parametrize("workflow", [api_text_to_image(), inpaint(), text_to_image(), in_a_subgraph(text_to_image())])
def test_fitting_twice_changes_nothing(workflow: Workflow) -> None:
    once = insert_fit(workflow)
    assert once.added
    again = insert_fit(once.workflow)
    assert again.workflow == once.workflow
    assert not again.added


# -------------------------------------------------------------------------------------------------- the command line


def test_estimate_reads_both_formats() -> None:
    converted = files.as_api(text_to_image(), OURS)
    assert converted == api(text_to_image())
    assert files.as_api({"prompt": converted}, OURS) == converted


def test_fit_as_people_run_it(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(json.dumps(text_to_image()))
    command = [sys.executable, "-m", "tools", "fit", str(tmp_path / "in.json"), "-o", str(tmp_path / "out.json")]
    result = subprocess.run(
        [*command, "--quality", "any", "--vram", "8"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=PACK,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "node 8, Make It Fit, for node 5 (KSampler)\n"
    written = json.loads((tmp_path / "out.json").read_text())
    assert written == fitted(text_to_image(), quality="any", vram_gb=8.0)


def test_fit_writes_what_it_got(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "in.json"
    path.write_text(json.dumps({"prompt": api_text_to_image(), "client_id": "a"}))
    assert fit.main([str(path), "-o", str(path)]) == 0
    assert json.loads(path.read_text()) == {"prompt": fitted(api_text_to_image()), "client_id": "a"}
    assert fit.main([str(path), "-o", str(path)]) == 0
    assert "nothing to insert" in capsys.readouterr().out


def test_the_choices_are_those_of_predictions() -> None:
    """They stand twice: workflow files are read where there is no torch."""
    assert GPUS == GPU_CHOICES
    assert tuple(prediction.QUALITIES) == QUALITIES


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        ("{", ["-o", "x"], "is no JSON"),
        ('{"1": 2}', ["-o", "x"], "is no ComfyUI workflow"),
        ('{"nodes": []}', [], "-o is missing"),
        ('{"nodes": []}', ["-o", "x", "--limit", "2"], "--limit: 2"),
        ('{"nodes": [{"id": 1, "type": "workflow>x"}]}', ["-o", "x"], "group node"),
        ('{"nodes": []}', ["-o", "no/such/folder"], "cannot be written"),
    ],
)
def test_what_fit_refuses(
    tmp_path: Path, content: str, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.json"
    path.write_text(content)
    assert fit.main([str(path), *(str(tmp_path / one) if "/" in one or one == "x" else one for one in options)]) == 2
    assert said in capsys.readouterr().err
    assert path.read_text() == content
    assert list(tmp_path.iterdir()) == [path]
