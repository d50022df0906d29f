"""Workflow files without a host and without torch: formats, what is whole, walks of any length, settings, commands."""

import contextlib
import copy
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headroom.cli import estimate, files, fit
from headroom.graph import litegraph
from headroom.graph.fit.insert import insert_fit
from headroom.graph.fit.plan import Seen, plan_fit
from headroom.graph.formats import PROMPT, WORKFLOW, BadWorkflow, check_api, check_sent, check_ui, is_api, is_ui
from headroom.graph.kinds import FIT, GUIDERS, SAMPLERS
from headroom.graph.prompt import in_order, is_link, links, parents_in, reached, readers, upstream
from headroom.graph.settings import FitSettings, check_names, check_share, check_size
from headroom.graph.to_api import to_api

from ..host.ui_workflows import doubling

ROOT = Path(__file__).parents[2]
LONG = 2_000
Workflow = dict[str, Any]


def node(kind: str, **inputs: Any) -> Workflow:
    return {"class_type": kind, "inputs": inputs}


def text_to_image() -> Workflow:
    return {
        "1": node("CheckpointLoaderSimple", ckpt_name="x"),
        "2": node("CLIPTextEncode", clip=["1", 1], text="a lighthouse"),
        "4": node("EmptyLatentImage", width=64, height=64, batch_size=1),
        "5": node("KSampler", model=["1", 0], positive=["2", 0], negative=["2", 0], latent_image=["4", 0], cfg=4.0),
        "6": node("VAEDecode", samples=["5", 0], vae=["1", 2]),
    }


def ui_node(number: int, kind: str, links_in: dict[str, int | None], outputs: int = 1, **more: Any) -> Workflow:
    """A node of the browser's with ids of links by its inputs."""
    return {
        "id": number, "type": kind, "mode": 0, "pos": [number * 400, 0], "size": [300, 200],
        "inputs": [{"name": name, "type": "*", "link": link} for name, link in links_in.items()],
        "outputs": [{"name": str(slot), "type": "*", "links": []} for slot in range(outputs)],
        "widgets_values": [7, "fixed", 2, 4.0, "euler", "normal", 1.0], "properties": {},
    } | more  # fmt: skip


def ui() -> Workflow:
    """Loader 1, latent 4, sampler 5, decode 6, of which 5 is in the subgraph node 20."""
    inner = {
        "id": "sub", "name": "Sampling", "nodes": [
            ui_node(5, "KSampler", {"model": 1, "latent_image": 2}), ui_node(6, "VAEDecode", {"samples": 3, "vae": 4}),
        ],
        "inputs": [{"name": name, "type": "*", "linkIds": [link]} for name, link in
                   (("model", 1), ("latent", 2), ("vae", 4))],
        "outputs": [{"name": "IMAGE", "type": "*", "linkIds": [5]}],
        "links": [
            {"id": link, "origin_id": origin, "origin_slot": slot, "target_id": target, "target_slot": end, "type": "*"}
            for link, origin, slot, target, end in
            ((1, -10, 0, 5, 0), (2, -10, 1, 5, 1), (3, 5, 0, 6, 0), (4, -10, 2, 6, 1), (5, 6, 0, -20, 0))
        ],
    }  # fmt: skip
    return {
        "last_node_id": 20, "last_link_id": 13, "version": 0.4, "extra": {"reroutes": [{"id": 1, "linkIds": [10]}]},
        "nodes": [
            ui_node(1, "CheckpointLoaderSimple", {}, 3), ui_node(4, "EmptyLatentImage", {}),
            ui_node(20, "sub", {"model": 10, "latent": 11, "vae": 12}), ui_node(7, "SaveImage", {"images": 13}, 0),
        ],
        "links": [[10, 1, 0, 20, 0, "*"], [11, 4, 0, 20, 1, "*"], [12, 1, 2, 20, 2, "*"], [13, 20, 0, 7, 0, "*"]],
        "definitions": {"subgraphs": [inner]},
    }  # fmt: skip


class Graph:
    """As the host's dynamic prompt."""

    def __init__(self, prompt: Workflow) -> None:
        self.prompt = prompt

    def get_node(self, node_id: str) -> Workflow:
        return self.prompt[node_id]

    def has_node(self, node_id: str) -> bool:
        return node_id in self.prompt

    def all_node_ids(self) -> set[str]:
        return set(self.prompt)


def chain(length: int = LONG) -> Workflow:
    """Each node reads the one that stands after it: the worst order for a walk."""
    return {str(n): node("LatentFlip", samples=[str(n + 1), 0]) for n in range(length)} | {str(length): node("Empty")}


# ------------------------------------------------------------------------------------------------------------- prompts


@pytest.mark.parametrize("value", [["1", 0], ["12:3", 2]])
def test_links(value: Any) -> None:
    assert is_link(value)
    assert links(node("A", x=value, y=1)) == {"x": (value[0], value[1])}


@pytest.mark.parametrize("value", ["1", 0, None, [], ["1"], [1, 0], ["1", "0"], ["1", 0, 0], {"__value__": ["1", 0]}])
def test_no_links(value: Any) -> None:
    assert not is_link(value)


def test_walks_over_a_small_prompt() -> None:
    prompt = text_to_image()
    of = parents_in(prompt)
    assert in_order(["6"], of) == ["1", "2", "4", "5", "6"]
    assert in_order(prompt, of) == ["1", "2", "4", "5", "6"]
    assert upstream("5", of) == ["1", "2", "4"]
    behind = readers(prompt)
    assert behind["1"] == ["2", "5", "6"]
    assert list(reached(["1"], lambda number: behind.get(number, ()))) == ["1", "2", "5", "6"]


def test_a_long_chain_is_walked() -> None:
    prompt = chain()
    of = parents_in(prompt)
    assert in_order(prompt, of) == [str(n) for n in range(LONG, -1, -1)]
    assert len(upstream("0", of)) == LONG
    assert len(list(reached(["0"], of))) == LONG + 1


@pytest.mark.parametrize("length", [1, 2, LONG])
def test_a_circle_is_one_sentence(length: int) -> None:
    prompt = chain(length)
    prompt[str(length)]["inputs"]["samples"] = ["0", 0]
    with pytest.raises(ValueError, match=r"^the workflow has a circle through node \d+$"):
        in_order(prompt, parents_in(prompt))
    assert len(list(reached(["0"], parents_in(prompt)))) == length + 1


def test_a_link_to_a_node_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"^the workflow links to node 9, which is not in it$"):
        in_order(["1"], parents_in({"1": node("VAEDecode", samples=["9", 0])}))


def test_the_kinds_are_of_one_table() -> None:
    assert {"KSampler", "SamplerCustomAdvanced"} <= set(SAMPLERS)
    assert GUIDERS["BasicGuider"].negative is None
    assert not GUIDERS["BasicGuider"].guided
    assert GUIDERS["CFGGuider"].guided


def test_a_latent_that_guides_another_sampler_is_not_decoded_by_that_ones_vae() -> None:
    """Stable Cascade: the first model's latent has other channels than those that the second one's VAE decodes."""
    prompt = {
        "1": node("CheckpointLoaderSimple", ckpt_name="c"), "2": node("CheckpointLoaderSimple", ckpt_name="b"),
        "3": node("StableCascade_EmptyLatentImage", width=1024, height=1024, compression=42, batch_size=1),
        "4": node("KSampler", model=["1", 0], latent_image=["3", 0], cfg=4.0),
        "5": node("StableCascade_StageB_Conditioning", stage_c=["4", 0]),
        "6": node("KSampler", model=["2", 0], positive=["5", 0], latent_image=["3", 1], cfg=1.1),
        "7": node("VAEDecode", samples=["6", 0], vae=["2", 2]),
    }  # fmt: skip
    found = insert_fit(prompt).workflow
    given = {one["inputs"]["model"][0]: one["inputs"]["vae"] for one in found.values() if one["class_type"] == FIT}
    assert given == {"1": ["1", 2], "2": ["2", 2]}
    assert found["7"]["inputs"]["vae"] == [found["6"]["inputs"]["model"][0], 1]


def around_the_sampler(*more: Workflow) -> Workflow:
    """Loader 1 and decode 6 in the subgraph node 20, the sampler 5 between them outside."""
    inner = {
        "id": "sub", "name": "Models", "nodes": [
            ui_node(1, "CheckpointLoaderSimple", {}, outputs=3), ui_node(6, "VAEDecode", {"samples": 2, "vae": 1}),
        ],
        "links": [
            {"id": 1, "origin_id": 1, "origin_slot": 2, "target_id": 6, "target_slot": 1, "type": "VAE"},
            {"id": 2, "origin_id": -10, "origin_slot": 0, "target_id": 6, "target_slot": 0, "type": "LATENT"},
            {"id": 3, "origin_id": 1, "origin_slot": 0, "target_id": -20, "target_slot": 0, "type": "MODEL"},
            {"id": 4, "origin_id": 6, "origin_slot": 0, "target_id": -20, "target_slot": 1, "type": "IMAGE"},
        ],
        "inputs": [{"id": "i", "name": "samples", "type": "LATENT", "linkIds": [2]}],
        "outputs": [
            {"id": "m", "name": "MODEL", "type": "MODEL", "linkIds": [3]},
            {"id": "o", "name": "IMAGE", "type": "IMAGE", "linkIds": [4]},
        ],
    }  # fmt: skip
    nodes = [
        ui_node(20, "sub", {"samples": 10}, outputs=2), ui_node(4, "EmptyLatentImage", {}),
        ui_node(5, "KSampler", {"model": 11, "latent_image": 12}), ui_node(7, "SaveImage", {"images": 13}), *more,
    ]  # fmt: skip
    rows = [[10, 5, 0, 20, 0, "*"], [11, 20, 0, 5, 0, "*"], [12, 4, 0, 5, 1, "*"], [13, 20, 1, 7, 0, "*"]]
    return {"nodes": nodes, "links": rows, "definitions": {"subgraphs": [inner]}}


def test_a_subgraph_that_a_sampler_reads_and_that_reads_it_is_no_circle() -> None:
    found = insert_fit(around_the_sampler())
    assert found.added == ("node 21, Low-Memory VAE (exact), for node 6 (VAEDecode) in subgraph Models",)
    assert found.notes == ("node 5 (KSampler) is left alone: there is no VAE",)
    found = insert_fit(around_the_sampler(ui_node(8, "VAELoader", {})))
    assert found.added[-1] == "node 22, Make It Fit, for node 5 (KSampler)"
    queued = to_api(found.workflow, {})
    assert in_order(queued, parents_in(queued))
    assert queued["22"]["inputs"]["model"] == ["20:1", 0]


def test_what_a_subgraph_decodes_and_encodes_by_one_vae_makes_no_circle() -> None:
    """It is before the sampler and behind it: the VAE of Make It Fit, which waits for the latent, is not for it."""
    workflow = around_the_sampler(ui_node(8, "VAELoader", {}))
    (inner,) = workflow["definitions"]["subgraphs"]
    inner["nodes"].append(ui_node(9, "VAEEncode", {"pixels": None, "vae": 5}))
    inner["links"] += [
        {"id": 5, "origin_id": -10, "origin_slot": 1, "target_id": 9, "target_slot": 1, "type": "VAE"},
        {"id": 6, "origin_id": 9, "origin_slot": 0, "target_id": -20, "target_slot": 2, "type": "LATENT"},
    ]
    inner["links"][0] |= {"origin_id": -10, "origin_slot": 1}
    inner["inputs"].append({"id": "v", "name": "vae", "type": "VAE", "linkIds": [1, 5]})
    inner["outputs"].append({"id": "l", "name": "LATENT", "type": "LATENT", "linkIds": [6]})
    subgraph, sampler = workflow["nodes"][0], workflow["nodes"][2]
    subgraph["inputs"].append({"name": "vae", "type": "VAE", "link": 14})
    subgraph["outputs"].append({"name": "LATENT", "type": "LATENT", "links": [12]})
    workflow["links"][2] = [12, 20, 2, 5, 1, "*"]
    workflow["links"].append([14, 8, 0, 20, 1, "VAE"])
    assert sampler["inputs"][1]["link"] == 12
    queued = to_api(insert_fit(workflow).workflow, {})
    assert in_order(queued, parents_in(queued))
    kinds = [node["class_type"] for node in queued.values()]
    assert (kinds.count("HeadroomFit"), kinds.count("HeadroomVAE")) == (1, 1)
    assert queued["20:6"]["inputs"]["vae"] == queued["20:9"]["inputs"]["vae"] != ["8", 0]


# ------------------------------------------------------------------------------------------------------- long workflows


def test_a_long_chain_is_fitted() -> None:
    prompt = chain() | {
        "a": node("KSampler", model=["b", 0], latent_image=["0", 0]),
        "b": node("CheckpointLoaderSimple"),
        "c": node("VAEDecode", samples=["a", 0], vae=["b", 2]),
    }
    found = insert_fit(prompt)
    assert found.added == (f"node {LONG + 1}, Make It Fit, for node a (KSampler)",)
    assert found.workflow["c"]["inputs"]["vae"] == [str(LONG + 1), 1]


def long_reroutes(circle: bool = False) -> Workflow:
    """A sampler behind a chain of reroutes of the browser's."""
    reroutes = [ui_node(n, "Reroute", {"": n - 1 or None}) for n in range(1, LONG + 1)]
    rows = [[n, n, 0, n + 1, 0, "*"] for n in range(1, LONG + 1)]
    if circle:
        reroutes[0]["inputs"][0]["link"] = LONG
    return {"nodes": [*reroutes, ui_node(LONG + 1, "KSampler", {"model": LONG})], "links": rows}


def test_long_chains_of_reroutes_are_followed() -> None:
    assert set(to_api(long_reroutes(), {})) == {str(LONG + 1)}
    assert insert_fit(long_reroutes()).notes[0].endswith("nothing is connected to model")
    with pytest.raises(BadWorkflow, match=r"^link \d+ goes in a circle: disconnect it$"):
        to_api(long_reroutes(circle=True), {})


def test_subgraphs_nested_without_end_are_refused() -> None:
    subgraphs = [
        {"id": f"s{n}", "nodes": [ui_node(1, f"s{n + 1}", {})], "links": [], "inputs": [], "outputs": []}
        for n in range(LONG)
    ]
    workflow = {"nodes": [ui_node(1, "s0", {})], "links": [], "definitions": {"subgraphs": subgraphs}}
    for read in (insert_fit, lambda one: to_api(one, {})):
        with pytest.raises(BadWorkflow, match="subgraphs are nested"):
            read(workflow)


def test_a_small_file_that_unpacks_to_more_than_there_is_memory_for_is_refused() -> None:
    assert len(to_api(doubling(3, 10), {})) == 1000
    for read in (insert_fit, lambda one: to_api(one, {})):
        with pytest.raises(BadWorkflow, match="with its subgraphs unpacked it has more than 50,000 nodes"):
            read(doubling(8, 10))


def test_what_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file within the other limits whose links cost more at every node."""
    monkeypatch.setattr(litegraph, "MOST_SECONDS", 0.0)
    with pytest.raises(BadWorkflow, match="going through its links took more than 0 s"):
        to_api(doubling(2, 2), {})


# ------------------------------------------------------------------------------------------------------------- formats


def test_a_node_without_a_name_is_no_circle() -> None:
    """An id of no letters was taken for the end of the models' way, again and again: the fit never ended."""
    plan = plan_fit({"": Seen("KSampler")}, FitSettings(), 1)
    assert plan.notes == ["node  (KSampler) is left alone: nothing is connected to model"]


def test_which_format() -> None:
    assert is_ui(ui())
    assert not is_api(ui())
    assert is_api(text_to_image())
    assert not is_ui(text_to_image())
    for other in (None, [], "nodes", {"nodes": {}, "version": 1}, {"1": 2}):
        assert not is_ui(other)
        assert not is_api(other)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"1": 2}, "this is no workflow in the API format: every entry needs class_type and inputs"),
        (
            {"": {"class_type": "A", "inputs": {}}},
            "workflow: a node has an empty id; give it a number that no other has",
        ),
        ({"1": {"inputs": {}}}, "workflow: an entry of it is not as ComfyUI writes it; save it again from ComfyUI: n"),
        ({"1": {"class_type": "A", "inputs": []}}, "workflow: an entry of it is not as ComfyUI writes it; save it"),
    ],
)
def test_what_is_not_whole_in_the_api_format(content: Workflow, said: str) -> None:
    with pytest.raises(BadWorkflow) as failure:
        insert_fit(content)
    assert str(failure.value).startswith(said)


def test_the_sentence_calls_the_workflow_as_its_sender_does() -> None:
    with pytest.raises(BadWorkflow, match=r"^prompt: node 7 needs class_type and inputs, as Export"):
        check_api({"7": {"class_type": "A"}}, PROMPT)
    for called in (PROMPT, WORKFLOW):
        with pytest.raises(BadWorkflow, match=f"^{called.name}: send a workflow"):
            check_sent({}, called)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.update(nodes=[1]),
        lambda one: one["nodes"][0].pop("type"),
        lambda one: one["nodes"][0].update(id=""),
        lambda one: one["nodes"][0].update(inputs=[1]),
        lambda one: one["nodes"][0].update(widgets_values=3),
        lambda one: one["nodes"][2]["inputs"][0].pop("name"),
        lambda one: one.update(links=[[1, 2]]),
        lambda one: one.update(links=3),
        lambda one: one.update(definitions=[1]),
        lambda one: one["definitions"]["subgraphs"][0].pop("id"),
        lambda one: one["definitions"]["subgraphs"][0]["inputs"].pop(),
        lambda one: one["definitions"]["subgraphs"][0]["links"][1].update(origin_slot=9),
        lambda one: one["definitions"]["subgraphs"][0]["outputs"][0].update(linkIds={}),
    ],
)
def test_what_is_not_whole_in_the_browsers_format(change: Callable[[Workflow], Any]) -> None:
    check_ui(ui())
    workflow = ui()
    change(workflow)
    with pytest.raises(BadWorkflow, match="save it again from ComfyUI"):
        insert_fit(workflow)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every key and index of a JSON value, with what holds it."""
    pending = [value]
    while pending:
        holder = pending.pop()
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            yield holder, key
            if isinstance(holder[key], (dict, list)):
                pending.append(holder[key])


@pytest.mark.parametrize("whole", [ui(), text_to_image()], ids=["browser", "api"])
def test_a_damaged_file_is_read_or_refused_with_a_sentence(whole: Workflow) -> None:
    """Anything in the place of anything: whoever asks gets a sentence and no traceback."""
    drawn = random.Random(0)
    values = (None, 0, -1, 99, 1.5, 10**400, True, "", "x", [], [1], ["1", 0], ["1", 99], {}, {"name": 1}, [[]])
    insert_fit(whole)
    for _ in range(4_000):
        workflow = copy.deepcopy(whole)
        for _ in range(drawn.choice((1, 1, 2))):
            holder, key = drawn.choice(list(places(workflow)))
            if drawn.random() < 0.2 and isinstance(holder, dict):
                del holder[key]
            else:
                holder[key] = copy.deepcopy(drawn.choice(values))
        for read in (insert_fit, lambda one: to_api(one, {})):
            with contextlib.suppress(ValueError):
                read(workflow)


# ------------------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"quality": "best"}, "quality: 'best' is not known; choose one of exact, near_exact, any"),
        ({"gpu": None}, "gpu: None is not known; choose one of this machine, sm75"),
        ({"vram_gb": -1}, "vram_gb: -1 is no size; send GB as a number"),
        ({"vram_gb": float("nan")}, "vram_gb: nan is no size"),
        ({"vram_gb": 10**400}, "vram_gb: 1000"),
        ({"limit": float("inf")}, "limit: inf is no share of the card's memory"),
        ({"limit": True}, "limit: True is no share of the card's memory"),
        ({"limit": 0.05}, "limit: 0.05 is too small a share of a card; choose from 0.1 to 1"),
    ],
)
def test_settings_that_make_no_sense(settings: Workflow, said: str) -> None:
    FitSettings().check()
    with pytest.raises(ValueError) as failure:  # noqa: PT011
        FitSettings(**settings).check()
    assert str(failure.value).startswith(said)
    (name,) = settings
    with pytest.raises(ValueError, match=r"^--option: "):
        FitSettings(**settings).check({name: "--option"})


def test_checks_by_themselves() -> None:
    check_share("limit", 1)
    check_size("ram_gb", 0)
    check_names({"a": 1}, ("a", "b"))
    with pytest.raises(ValueError, match=r"^'c' is not known; choose from a, b$"):
        check_names({"a": 1, "c": 2}, ("a", "b"))


# --------------------------------------------------------------------------------------------------------- the commands


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--vram", "-1"], "--vram: -1.0 is no size"),
        (["--vram", "nan"], "--vram: nan is no size"),
        (["--limit", "0.01"], "--limit: 0.01 is too small a share"),
    ],
)
def test_fit_calls_options_as_they_are_typed(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.json"
    path.write_text(json.dumps(text_to_image()))
    assert fit.main([str(path), "-o", str(tmp_path / "out.json"), *options]) == 2
    assert capsys.readouterr().err.startswith(said)
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gpu", "sm1"], "--gpu: 'sm1' is not known; write its name as 'rtx 3060', or its kernels: sm75, sm80"),
        (["--vram", "0"], "--vram: say how many GB the sm86 card has"),
        (["--ram", "-1"], "--ram: -1.0 is no size"),
        (["--limit", "2"], "--limit: 2.0 is no share of the card's memory"),
        (["--comfyui", "/nowhere"], "no ComfyUI here"),
    ],
)
def test_estimate_calls_options_as_they_are_typed(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COMFYUI_PATH", "HEADROOM_COMFYUI"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "in.json"
    path.write_text(json.dumps(text_to_image()))
    assert estimate.main([str(path), *options]) == 2
    assert capsys.readouterr().err.startswith(said)


def test_an_error_of_another_kind_is_not_taken_for_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are known by their types: one that only has the name of one of ours goes up."""

    class NoHost(Exception):
        pass

    def fail(*_: Any) -> None:
        raise NoHost

    path = tmp_path / "in.json"
    path.write_text(json.dumps(text_to_image()))
    monkeypatch.setattr(estimate.host, "find_comfyui", fail)
    with pytest.raises(NoHost):
        estimate.main([str(path)])


def test_json_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    path.write_text("[" * 100_000)
    with pytest.raises(BadWorkflow, match="is no JSON"):
        files.read(path)


def test_a_file_that_is_not_whole_is_named(tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    path.write_text('{"prompt": {"3": {"class_type": "A"}}}')
    with pytest.raises(BadWorkflow, match=r"in\.json: node 3 needs class_type and inputs, as Export"):
        files.read(path)


def test_fit_needs_the_standard_library_alone(tmp_path: Path) -> None:
    """It starts in no time, and where there is no ComfyUI and no torch."""
    path, out = tmp_path / "in.json", tmp_path / "out.json"
    path.write_text(json.dumps(text_to_image()))
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import fit; status = fit.main(sys.argv[2:]);"
        "print(sorted({name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", script, str(ROOT / "cli"), str(path), "-o", str(out)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "['__main__', 'files', 'fit', 'headroom', 'host']"
    assert out.exists()


def test_a_file_that_is_fitted_in_place_is_whole_whatever_is_in_it_and_whatever_happens(tmp_path: Path) -> None:
    path = tmp_path / "workflow.json"
    workflow = text_to_image()
    workflow["2"]["inputs"]["text"] = "a wave \ud83c"  # half of a letter: it was cut there
    path.write_text(json.dumps(workflow))
    path.chmod(0o640)
    assert fit.main([str(path), "-o", str(path)]) == 0
    assert files.read(path)["2"] == workflow["2"]
    before = path.read_bytes()
    part = tmp_path / ".workflow.json.part"
    part.mkdir()  # nothing can be written there
    with pytest.raises(BadWorkflow, match="cannot be written"):
        files.write(path, workflow)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (before, 0o640)
    part.rmdir()
    files.write(Path("/dev/null"), workflow)
    assert [one.name for one in tmp_path.iterdir()] == ["workflow.json"]


def test_the_kinds_of_a_file_are_those_of_subgraphs_too() -> None:
    inner = {"nodes": [{"id": 1, "type": "VAEDecode", "inputs": [{"type": "LATENT"}]}]}
    workflow = {"nodes": [{"id": 1, "type": "KSampler"}], "definitions": {"subgraphs": [inner]}}
    assert files.kinds(workflow) == {"KSampler", "VAEDecode", "LATENT"}
    assert files.kinds({"1": {"class_type": "Canny", "inputs": {"type": 3}}}) == {"Canny"}


def test_a_file_may_be_as_deep_as_its_writer_likes() -> None:
    content: dict[str, Any] = {"type": "Canny"}
    for _ in range(5000):
        content = {"extra": [content]}
    assert files.kinds(content) == {"Canny"}
