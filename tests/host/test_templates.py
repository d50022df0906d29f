"""The templates of the browser: the same graphs as their API twins, which the tests run, with files that people have.

What a template changes in its twin is what its specification says and nothing else; the template as it is goes through
the host's loaders and its validation on headers of the files that it names.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import quote

import execution
import folder_paths
import pytest
from PIL import Image

import nodes
from headroom.host.workflow.dry_run import DryRun
from headroom.host.workflow.estimate import as_queued
from headroom.memory.prediction import Verdict, named_card
from headroom.nodes import NODES
from headroom.tools.demo.twin import is_link
from headroom.tools.pictures.thumbnails import SHOWN
from headroom.tools.server.client import Client
from headroom.tools.server.server import PACK_FOLDER
from headroom.tools.setup.hosts import DEFAULT
from headroom.tools.templates.parts import MODELS, Template
from headroom.tools.templates.specs import TEMPLATES
from headroom.tools.templates.template import NOTE, WORKFLOWS, path_of, template, twin
from headroom.tools.templates.text import as_json

from ..nightly import some_of
from . import public_files
from .conftest import ENVIRONMENT
from .ui_workflows import LATER, Workflow, consistent, overlap

pytestmark = pytest.mark.usefixtures("extra_nodes")

GB = 2**30
OURS = {one.GET_SCHEMA().node_id: one for one in NODES}
# What stands in for a model or a text that is too large for tests, and what has its place in a template.
STAND_INS = {"UNETLoader", "VAELoader", "CLIPLoader", "LoadTrainingDataset", "ConditioningZeroOut"}
REAL = {"CheckpointLoaderSimple", "CLIPLoader", "DualCLIPLoader", "TripleCLIPLoader", "CLIPTextEncode"}
# Widgets that differ: names of files, texts, sizes, and what depends on the size of a picture or a model.
NAMES = {"ckpt_name", "unet_name", "vae_name", "lora_name", "image", "text"}
SIZES = {"width", "height", "length", "steps", "cfg", "scale_by", "tile_size", "overlap", "min_tokens", "slice_rows"}
SIZES |= {"backend", "slice_sizes", "strength_model", "vram_budget_gb", "method", "format", "rank", "training_dtype"}
SIZES |= {"lora_dtype"}


@pytest.fixture(params=TEMPLATES)
def name(request: pytest.FixtureRequest, extra_nodes: None) -> str:
    kind, entry = LATER.get(request.param, ("", ""))
    if kind and entry not in nodes.NODE_CLASS_MAPPINGS[kind].INPUT_TYPES()["required"]:
        pytest.skip(f"this ComfyUI's {kind} has other widgets")
    return request.param


@pytest.fixture
def spec(name: str) -> Template:
    return TEMPLATES[name]


@pytest.fixture
def saved(name: str) -> Workflow:
    """The file as the browser opens it."""
    return json.loads(path_of(name).read_text(encoding="utf-8"))


@pytest.fixture
def queued(saved: Workflow) -> Workflow:
    """What the browser queues of it."""
    return as_queued(saved, OURS)


def test_they_are_all_there() -> None:
    assert set(SHOWN) == set(TEMPLATES)
    assert set(WORKFLOWS.glob("*.json")) == {path_of(name) for name in TEMPLATES}
    assert all(re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)+", name) for name in TEMPLATES)
    assert all(re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9 .()-]*[A-Za-z0-9)])?", spec.title) for spec in TEMPLATES.values())


def test_they_hold_every_node_of_the_pack() -> None:
    used = {one["type"] for name in TEMPLATES for one in template(name, OURS)["nodes"]}
    assert set(OURS) <= used


@pytest.mark.skipif(ENVIRONMENT.version != DEFAULT, reason=f"they are written by the stock nodes of {DEFAULT}")
def test_a_file_is_what_is_generated(name: str) -> None:
    """`python3 -m tools templates` was run after the last change of a node, a twin or a specification."""
    assert path_of(name).read_text(encoding="utf-8") == as_json(template(name, OURS))


def test_each_has_its_thumbnail(name: str) -> None:
    with Image.open(path_of(name).with_suffix(".jpg")) as picture:
        assert picture.format == "JPEG"
        assert min(picture.size) >= 200


# ------------------------------------------------------------------------------------------- the same graph as its twin


def test_the_same_graph_as_its_twin(name: str, spec: Template, queued: Workflow) -> None:
    """Node by node and input by input, but for what the specification names."""
    graph = twin(name)
    assert set(queued) == set(graph) - {*spec.without.split()} | set(spec.nodes)
    for number in set(queued) - set(spec.nodes):
        one, other = queued[number], graph[number]
        assert one["class_type"] == other["class_type"]
        assert one["_meta"] == other["_meta"]
        for entry, value in other["inputs"].items():
            expected = spec.values.get(f"{number}.{entry}", _moved(value, spec) if is_link(value) else value)
            assert one["inputs"][entry] == expected, (number, entry)
        # What the twin leaves to the node's own defaults.
        added = {entry: value for entry, value in one["inputs"].items() if entry not in other["inputs"]}
        assert not [value for value in added.values() if is_link(value)]


def _moved(link: list, spec: Template) -> list:
    number, _, slot = spec.links.get(f"{link[0]}:{link[1]}", f"{link[0]}:{link[1]}").partition(":")
    return [number, int(slot)]


def test_only_stand_ins_names_and_sizes_differ(name: str, spec: Template) -> None:
    graph = twin(name)
    left_out = {graph[number]["class_type"] for number in spec.without.split()}
    assert left_out <= {"VAELoader", "SaveLatent", "PreviewImage"}
    assert {graph[number]["class_type"] for number in spec.nodes if number in graph} <= STAND_INS
    assert {one["class_type"] for one in spec.nodes.values()} <= REAL
    assert {key.partition(".")[2] for key in spec.values} <= NAMES | SIZES
    assert all(graph[link.partition(":")[0]]["class_type"] in STAND_INS for link in spec.links)


def test_it_ends_in_a_memory_report(queued: Workflow) -> None:
    (report,) = (one for one in queued.values() if one["class_type"] == "HeadroomReport")
    last = queued[report["inputs"]["anything"][0]]
    assert last["class_type"] in ("VAEDecode", "HeadroomVAEDecode", "HeadroomVAEDecodeVideo", "TrainLoraNode")


# ------------------------------------------------------------------------------------------------------- on the canvas


def test_links_have_both_ends(saved: Workflow) -> None:
    consistent(saved)
    assert [one["order"] for one in saved["nodes"]] == list(range(len(saved["nodes"])))


def test_nothing_overlaps(saved: Workflow) -> None:
    for one, other in combinations(saved["nodes"], 2):
        assert not overlap(one, other), (one["type"], other["type"])
    for one, other in combinations(saved["groups"], 2):
        assert not _meet(one["bounding"], other["bounding"]), (one["title"], other["title"])


def test_each_node_is_in_one_group(saved: Workflow) -> None:
    for one in saved["nodes"]:
        (x, y), (width, height) = one["pos"], one["size"]
        around = [group for group in saved["groups"] if _meet(group["bounding"], [x, y - 30, width, height + 30])]
        assert len(around) == (one["type"] != NOTE), one["type"]
        for group in around:
            left, top, wide, high = group["bounding"]
            assert left <= x < x + width <= left + wide
            assert top <= y - 30 < y + height <= top + high


def _meet(one: list[int], other: list[int]) -> bool:
    return all(one[i] < other[i] + other[i + 2] and other[i] < one[i] + one[i + 2] for i in (0, 1))


def test_reports_have_room_for_their_text(saved: Workflow) -> None:
    """In width; that there is height for some lines is looked at in the browser."""
    tables = dict.fromkeys(("HeadroomEstimate", "HeadroomFit", "HeadroomTrainingEstimate"), 560)
    sentences = dict.fromkeys(("HeadroomCast", "HeadroomCastCLIP", "HeadroomOffload", "HeadroomTraining"), 390)
    widths = tables | sentences | {"HeadroomReport": 480, "HeadroomCompare": 640}
    assert any(one["type"] in widths for one in saved["nodes"])
    for one in saved["nodes"]:
        assert one["size"][0] >= widths.get(one["type"], 0)


def test_the_note_names_every_file(spec: Template, saved: Workflow, queued: Workflow) -> None:
    note = saved["nodes"][0]
    assert note["type"] == NOTE
    assert note["title"] == spec.title
    (text,) = note["widgets_values"]
    loaded = {
        value for one in queued.values() for value in one["inputs"].values() if str(value).endswith(".safetensors")
    }
    assert loaded
    for file in loaded:
        folder, address = MODELS[file]
        assert f"- *models/{folder}/* [{file}]({address}/{file})" in text
    offered = {one["name"]: one for node in saved["nodes"] for one in node["properties"].get("models", [])}
    assert set(offered) == loaded
    assert all(one["url"] == f"{MODELS[file][1]}/{file}" for file, one in offered.items())
    assert len(re.findall(r"^- \*models/", text, re.MULTILINE)) == len(loaded)


# ----------------------------------------------------------------------------------------- with the files that it names


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("public")
    public_files.write_all(folder / "models")
    return folder


@pytest.fixture
def public(base: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The host of this process has the pack, the files that the templates name, and its own example picture."""
    for folder in {folder for folder, _ in MODELS.values()}:
        places = ([str(base / "models" / folder)], folder_paths.folder_names_and_paths[folder][1])
        monkeypatch.setitem(folder_paths.folder_names_and_paths, folder, places)
    monkeypatch.setattr(folder_paths, "input_directory", str(ENVIRONMENT.comfyui / "input"))
    for kind, node in OURS.items():
        monkeypatch.setitem(nodes.NODE_CLASS_MAPPINGS, kind, node)
    folder_paths.filename_list_cache.clear()
    yield
    folder_paths.filename_list_cache.clear()


@pytest.mark.usefixtures("public")
def test_the_host_accepts_it(name: str, queued: Workflow) -> None:
    valid, error, outputs, errors = asyncio.run(execution.validate_prompt(name, queued, None))
    assert valid, (error, errors)
    assert not errors
    assert outputs


@pytest.mark.usefixtures("public")
@pytest.mark.parametrize(
    ("name", "weights"),
    some_of(
        [
            ("will_it_fit", 4.78),
            ("sd35_text_to_image", 7.71),
            ("wan_text_to_video", 2.64),
            ("ltx_text_to_video", 3.58),
        ],
        2,
    ),
)
def test_its_files_are_found_out_by_the_host(queued: Workflow, weights: float) -> None:
    """By their headers, gone through without data on a small picture; GB of the diffusion model as it is stored."""
    for one in queued.values():
        one["inputs"] |= {side: 256 for side in ("width", "height") if side in one["inputs"]}
        one["inputs"] |= {"length": 9} if "length" in one["inputs"] else {}
    run = DryRun(queued, named_card("sm86", 24.0), ours=OURS).run()
    assert run.complete, run.unknown
    assert {stage.work for stage in run.stages} == {"text", "sampling", "decode"}
    assert not any(stage.doubt for stage in run.stages)
    (sampling,) = (stage for stage in run.stages if stage.work == "sampling")
    assert sampling.weights / GB == pytest.approx(weights, rel=0.01)


def test_each_public_file_is_named_by_a_template() -> None:
    used = {value for name in TEMPLATES for value in _values(template(name, OURS))}
    assert set(MODELS) == set(public_files.FILES) == {value for value in used if str(value).endswith(".safetensors")}


def _values(workflow: Workflow) -> Iterator[Any]:
    for one in workflow["nodes"]:
        yield from one["widgets_values"]


NAMING_CARDS = [name for name, spec in TEMPLATES.items() if "GB" in spec.title]


@pytest.mark.parametrize("called", some_of(NAMING_CARDS, 3))
def test_it_is_for_the_card_that_its_name_says(called: str) -> None:
    """By what is predicted of the files that it names, whether they are there or not."""
    size = int(re.findall(r"(\d+)GB", TEMPLATES[called].title)[0])
    card = named_card("sm86", float(size))
    forecast = (
        DryRun(as_queued(json.loads(path_of(called).read_text(encoding="utf-8")), OURS), card, OURS).run().forecast()
    )
    assert forecast.stages
    assert forecast.verdict is not Verdict.DOES_NOT_FIT
    with Image.open(path_of(called).with_suffix(".jpg")) as thumbnail:
        figures = json.loads(thumbnail.info["comment"])
    assert figures["card"] == size
    assert figures["peak"] == pytest.approx(forecast.peak / GB, abs=0.05), (
        "python3 -m tools screenshots --only thumbnails"
    )


# ----------------------------------------------------------------------------------------------------- in the browser


def test_the_server_offers_them(client: Client) -> None:
    offered = client.get("/workflow_templates")
    assert sorted(offered[PACK_FOLDER]) == sorted(path_of(name).stem for name in TEMPLATES)
    known = client.object_info()
    for name in TEMPLATES:
        served = client.get(f"/api/workflow_templates/{PACK_FOLDER}/{quote(path_of(name).name)}")
        assert served == json.loads(path_of(name).read_text(encoding="utf-8"))
        assert {one["type"] for one in served["nodes"]} <= {*known, NOTE}
