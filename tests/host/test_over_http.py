"""Headroom in a running ComfyUI, over its HTTP API and websocket."""

import json
import re
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from headroom.tools.server.client import Client, PromptFailed, PromptInterrupted, PromptRejected, Result
from headroom.tools.server.server import PACK_FOLDER, Server

from .conftest import ENVIRONMENT
from .workflows import ATTENTION, VAE, node, text_to_image, with_headroom

MOST = {"width": 128, "height": 128, "steps": 2}
LEAST = {"tile_size": 192}
WORKFLOWS = sorted((Path(__file__).parents[2] / "workflows" / "api").glob("*.json"))


def latent_bytes(client: Client, result: Result, node_id: str = "8") -> bytes:
    """The tensors of a saved latent; its header holds the graph, which may differ."""
    file = client.latent(result.outputs[node_id]["latents"][0])
    return file[8 + struct.unpack("<Q", file[:8])[0] :]


def report_of(result: Result, node_id: str = "11") -> str:
    return result.outputs[node_id]["text"][0]


class TestServer:
    def test_the_log_names_the_host_and_lists_the_pack_without_a_warning(self, server: Server) -> None:
        # What other tests' prompts have logged since, the sentences of refused ones with them, is not looked at.
        start, ready, _ = server.log_path.read_text().partition("To see the GUI go to")
        assert ready
        lines = start.splitlines()
        assert any(f"ComfyUI version: {ENVIRONMENT.version}" in line for line in lines)
        mentions = [line for line in lines if PACK_FOLDER in line]
        assert len(mentions) == 1, mentions
        assert "seconds" in mentions[0]
        assert "FAILED" not in mentions[0]
        assert not [line for line in lines if "Headroom:" in line], "a host feature is missing"


@pytest.fixture(scope="module")
def small_picture(server: Server) -> str:
    """A picture of MOST's size among the server's."""
    with Image.open(server.base / "input" / "astronaut.png") as picture:
        picture.resize((MOST["width"], MOST["height"])).save(server.base / "input" / "small.png")
    return "small.png"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow(client: Client, small_picture: str, path: Path) -> None:
    """The demo runs them at their own size."""
    workflow = json.loads(path.read_text())
    for item in workflow.values():
        if item["class_type"] == "LoadImage":
            item["inputs"]["image"] = small_picture
        item["inputs"] |= {
            name: min(value, MOST[name])
            for name, value in item["inputs"].items()
            if name in MOST and not isinstance(value, list)
        }
        item["inputs"] |= {name: least for name, least in LEAST.items() if 0 < item["inputs"].get(name, 0) < least}
    result = client.run(workflow)
    (report_id,) = (key for key, item in workflow.items() if item["class_type"] == "HeadroomReport")
    report = report_of(result, report_id)
    assert "0 calls reached" not in report
    if any(item["class_type"] == "HeadroomAttention" for item in workflow.values()):
        assert "attention:" in report
    if any(item["class_type"] == "HeadroomCast" for item in workflow.values()):
        sampled = report.split("sampling · ")[1]
        assert re.search(r"float8_e4m3fn_scaled, computing in float32: [1-9]\d* layers", sampled)
    if any(item["class_type"] == "TrainLoraNode" for item in workflow.values()):
        print(report)
        assert re.search(r"training · .*peak", report)
        assert re.search(r"activations of the 17 blocks \d+ MB at most by the plan", report)
        return
    assert "decode · " in report
    saved = [entry for output in result.outputs.values() for entry in output.get("images", [])]
    assert saved
    assert all(len(client.image(entry)) > 1000 for entry in saved)


def test_the_workflows_hold_every_node_of_the_pack(client: Client) -> None:
    used = {item["class_type"] for path in WORKFLOWS for item in json.loads(path.read_text()).values()}
    ours = {name for name, info in client.object_info().items() if info["category"] == "headroom"}
    assert ours <= used


class TestIdentity:
    def test_a_graph_without_our_nodes_is_the_same_with_and_without_the_pack(self, client: Client) -> None:
        with_pack = latent_bytes(client, client.run(text_to_image(seed=5)))
        with Server(ENVIRONMENT, pack=False, cpu=True) as plain:
            other = Client(plain.url)
            assert "HeadroomVAE" not in other.object_info()
            without = latent_bytes(other, other.run(text_to_image(seed=5)))
        assert with_pack == without

    def test_a_branch_beside_a_patched_one(self, client: Client) -> None:
        alone = latent_bytes(client, client.run(text_to_image(seed=6)))
        both = text_to_image(seed=6)
        both["10"] = node("HeadroomAttention", model=["1", 0], **ATTENTION)
        both["15"] = {**both["5"], "inputs": both["5"]["inputs"] | {"model": ["10", 0]}}
        both["16"] = node("SaveLatent", samples=["15", 0], filename_prefix="latents/patched")
        client.free()  # or the host reuses the first result
        second = client.run(both)
        assert "5" not in second.cached
        assert latent_bytes(client, second) == alone
        assert "16" in second.outputs


class TestCasting:
    CAST = {"storage": "float8_e4m3fn_scaled", "compute": "auto", "skip": "auto"}

    def test_a_branch_beside_a_cast_one(self, client: Client) -> None:
        alone = latent_bytes(client, client.run(text_to_image(seed=41)))
        both = text_to_image(seed=41)
        both["10"] = node("HeadroomCast", model=["1", 0], **self.CAST)
        both["15"] = {**both["5"], "inputs": both["5"]["inputs"] | {"model": ["10", 0]}}
        both["16"] = node("SaveLatent", samples=["15", 0], filename_prefix="latents/cast")
        client.free()  # or the host reuses the first result
        second = client.run(both)
        assert "5" not in second.cached
        assert latent_bytes(client, second) == alone
        assert latent_bytes(client, second, "16") != alone
        assert "Layerwise Casting · float8_e4m3fn_scaled" in report_of(second, "10")

    def test_before_and_after_a_lora(self, client: Client) -> None:
        workflow = json.loads((WORKFLOWS[0].parent / "flux_cast_lora.json").read_text())
        after = latent_bytes(client, client.run(workflow), "13")
        workflow["18"]["inputs"]["model"] = ["1", 0]
        workflow["17"]["inputs"]["model"] = ["18", 0]
        for reader in ("8", "11", "15"):
            workflow[reader]["inputs"]["model"] = ["17", 0]
        assert latent_bytes(client, client.run(workflow), "13") == after

    def test_sensitivity_shows_its_chart(self, client: Client) -> None:
        workflow = json.loads((WORKFLOWS[0].parent / "flux_cast_lora.json").read_text())
        chosen = {"sensitivity": "size", "sensitivity.size_limit": 0.5, "positive": ["5", 0]}
        workflow["17"]["inputs"] |= chosen
        result = client.run(workflow)
        assert "groups kept" in report_of(result, "17")
        assert len(client.image(result.outputs["17"]["images"][0])) > 1000

    @pytest.mark.parametrize(
        ("settings", "sentence"),
        [
            ({"skip": "auto\n["}, "skip: line 2, '[', is no regular expression"),
            ({"skip": "."}, "skip: these rules leave no layer to cast; remove one, or write auto"),
            ({"cache_file": "../x"}, "cache_file: '../x' is no file name"),
            ({"sensitivity": "error", "sensitivity.target_db": 40.0}, "positive: sensitivity runs the model"),
        ],
    )
    def test_bad_input(self, client: Client, settings: dict, sentence: str) -> None:
        graph = text_to_image(seed=42)
        graph["10"] = node("HeadroomCast", model=["1", 0], **self.CAST | settings)
        graph["5"]["inputs"]["model"] = ["10", 0]
        with pytest.raises(PromptFailed) as failure:
            client.run(graph)
        assert sentence in failure.value.exception_message
        assert failure.value.exception_message.strip().count("\n") == 0


class TestOffload:
    def test_budgets_on_two_branches_and_in_a_second_prompt(self, client: Client) -> None:
        alone = latent_bytes(client, client.run(text_to_image(seed=51)))
        for first, second in ((0.05, 0.1), (0.12, 0.03)):
            both = text_to_image(seed=51)
            for number, budget in (("10", first), ("11", second)):
                both[number] = node("HeadroomOffload", model=["1", 0], vram_budget_gb=budget, granularity="auto")
                sampler, saver = f"{number}5", f"{number}6"
                both[sampler] = {**both["5"], "inputs": both["5"]["inputs"] | {"model": [number, 0]}}
                both[saver] = node("SaveLatent", samples=[sampler, 0], filename_prefix="latents/offload")
            result = client.run(both)
            assert latent_bytes(client, result, "106") == alone
            assert latent_bytes(client, result, "116") == alone
            assert "Block Offload · VRAM budget" in report_of(result, "10")

    def test_interrupted_in_its_second_step_and_run_again(self, client: Client) -> None:
        graph = text_to_image(seed=52)
        graph["5"]["inputs"]["steps"] = 4
        alone = latent_bytes(client, client.run(graph))
        ours = {**graph, "10": node("HeadroomOffload", model=["1", 0], vram_budget_gb=0.05, granularity="auto")}
        ours["5"] = {**graph["5"], "inputs": graph["5"]["inputs"] | {"model": ["10", 0]}}

        def cancel(progress: Any) -> None:
            if progress.node_type == "KSampler" and progress.value == 2:
                threading.Thread(target=client.interrupt).start()

        with pytest.raises(PromptInterrupted):
            client.run(ours, progress=cancel)
        assert latent_bytes(client, client.run(ours)) == alone

    def test_a_training_that_is_cancelled_and_run_again(self, client: Client, small_picture: str) -> None:
        """It ends at its next block; ComfyUI itself asks nowhere in a training."""
        graph = json.loads((WORKFLOWS[0].parent / "train_lora.json").read_text())
        graph["2"]["inputs"]["image"] = small_picture
        graph["3"]["inputs"] |= {"width": 64, "height": 64}
        short = json.loads(json.dumps(graph))
        graph["7"]["inputs"]["steps"] = 1000
        cancelled = threading.Event()

        def cancel(progress: Any) -> None:
            if progress.node_type == "TrainLoraNode" and progress.value >= 2 and not cancelled.is_set():
                cancelled.set()
                threading.Thread(target=client.interrupt).start()

        with pytest.raises(PromptInterrupted):
            client.run(graph, progress=cancel)
        assert "training · " in report_of(client.run(short), "8")

    def test_too_small_a_budget_names_the_least(self, client: Client) -> None:
        graph = text_to_image(seed=53)
        graph["10"] = node("HeadroomOffload", model=["1", 0], vram_budget_gb=0.001, granularity="leaf")
        graph["5"]["inputs"]["model"] = ["10", 0]
        with pytest.raises(
            PromptFailed, match=r"vram_budget_gb: 0\.001 GB is less than the 0\.\d+ GB that this model needs"
        ):
            client.run(graph)


def test_a_low_memory_vae_needs_its_method_alone(client: Client) -> None:
    """What is left out of a graph that is sent has the widgets' values."""
    graph = text_to_image(seed=61, save_latent=False)
    graph["20"] = node("HeadroomVAE", vae=["1", 2], method="exact")
    graph["21"] = node("VAEDecode", samples=["5", 0], vae=["20", 0])
    graph["22"] = node("HeadroomVAEDecode", samples=["5", 0], vae=["1", 2], method="exact")
    graph["23"] = node("HeadroomVAEDecode", samples=["5", 0], vae=["1", 2], **VAE | {"method": "exact"})
    graph["24"] = node("HeadroomVAEEncode", pixels=["22", 0], vae=["1", 2], method="exact")
    graph["25"] = node("SaveLatent", samples=["24", 0], filename_prefix="latents/encoded")
    for number in ("21", "22", "23"):
        graph[f"3{number}"] = node("SaveImage", images=[number, 0], filename_prefix=f"vae{number}")
    outputs = client.run(graph).outputs
    pictures = [client.file(outputs[f"3{number}"]["images"][0]) for number in ("21", "22", "23")]
    assert pictures[0] == pictures[1] == pictures[2]
    assert outputs["25"]["latents"]


class TestReport:
    def test_exact_strips_are_said(self, client: Client) -> None:
        result = client.run(with_headroom(seed=12, side=256, vae={"method": "exact", "tile_size": 32}))
        report = report_of(result)
        assert "exact: " in report
        assert " for each map on average, planned peak " in report
        assert "feathered" not in report

    def test_what_ran_is_said(self, client: Client) -> None:
        result = client.run(with_headroom(seed=11, vae={"method": "feathered", "tile_size": 64, "overlap": 32}))
        report = report_of(result)
        assert "#5 KSampler" in report
        assert "asked for: online in blocks all" in report
        assert "online: " in report
        assert "(chosen)" in report
        assert "feathered (approximate): " in report
        assert "tiles of 64 x 64 px, overlap 32 px, cosine" in report
        assert "peak " in report
        assert "the whole process, sampled" in report
        assert "Not measured: #1 Load Checkpoint" in report
        assert result.previews > 0, "tiles show the picture so far"

    def test_cached_nodes_are_said_to_be(self, client: Client) -> None:
        client.run(with_headroom(seed=12))
        again = with_headroom(seed=12, vae={"overlap": 72})
        report = report_of(client.run(again))
        sampler, decode = report.index("#5 KSampler"), report.index("#6 ")
        assert "cached, earlier run" in report[sampler:decode]
        assert "cached, earlier run" not in report[decode:]

    def test_a_cached_row_of_another_graph_is_not_shown(self, client: Client) -> None:
        client.run(with_headroom(seed=13))
        other = with_headroom(seed=14)
        other["5"]["inputs"]["model"] = ["1", 0]
        del other["10"]
        report = report_of(client.run(other))
        assert "#5 KSampler" not in report.split("Not measured:")[0]

    def test_make_it_fit_measures_what_it_leaves_as_it_is(self, client: Client) -> None:
        (path,) = (path for path in WORKFLOWS if path.stem == "make_it_fit")
        graph = json.loads(path.read_text(encoding="utf-8"))
        graph["6"]["inputs"]["seed"] = 17
        result = client.run(graph)
        assert "weights as they are" in result.outputs["5"]["text"][0]
        assert "#6 KSampler" in report_of(result, "9").split("Not measured:")[0]

    def test_two_samplers_on_one_model_are_two_rows(self, client: Client) -> None:
        graph = with_headroom(seed=15)
        graph["12"] = {**graph["5"], "inputs": graph["5"]["inputs"] | {"latent_image": ["5", 0], "denoise": 0.5}}
        graph["6"]["inputs"]["samples"] = ["12", 0]
        report = report_of(client.run(graph))
        assert "#5 KSampler" in report
        assert "#12 KSampler" in report

    def test_it_passes_anything_through(self, client: Client) -> None:
        graph = with_headroom(seed=16)
        graph["11"]["inputs"]["anything"] = ["5", 0]  # a LATENT
        graph["13"] = node("VAEDecode", samples=["11", 0], vae=["1", 2])
        graph["7"]["inputs"]["images"] = ["13", 0]
        graph["14"] = node("PreviewImage", images=["11", 2])
        del graph["6"]
        result = client.run(graph)
        assert result.outputs["7"]["images"]
        assert result.outputs["14"]["images"]


class TestBadInput:
    """One sentence that names the input and the fix; the next prompt on the same server works."""

    @pytest.fixture(autouse=True, scope="class")
    def _the_next_prompt_works(self, client: Client) -> Any:
        yield
        assert client.run(with_headroom(seed=21)).outputs["7"]["images"]

    def test_an_unknown_backend(self, client: Client) -> None:
        with pytest.raises(PromptRejected, match=r"backend: 'warp' not in .*'online'"):
            client.run(with_headroom(attention={"backend": "warp"}))

    @pytest.mark.parametrize(
        ("attention", "vae", "sentence"),
        [
            ({"blocks": "double:x"}, {}, "blocks: cannot read 'double:x'; write all, inner, or blocks of"),
            (
                {"start_percent": 0.9, "end_percent": 0.1},
                {},
                "start_percent (0.9) must be smaller than end_percent (0.1)",
            ),
            (
                {},
                {"method": "feathered", "tile_size": 128, "overlap": 128},
                "overlap (128) must be smaller than tile_size (128)",
            ),
            (
                {},
                {"method": "exact", "vram_budget_gb": 0.001},
                "vram_budget_gb: 0.001 GB is less than the 0.",
            ),
        ],
    )
    def test_settings(self, client: Client, attention: dict, vae: dict, sentence: str) -> None:
        with pytest.raises(PromptFailed) as failure:
            client.run(with_headroom(seed=22, attention=attention, vae=vae))
        assert sentence in failure.value.exception_message
        assert failure.value.exception_message.strip().count("\n") == 0

    def test_a_latent_of_another_family(self, client: Client) -> None:
        graph = with_headroom(seed=23)
        graph["9"] = node("EmptySD3LatentImage", width=64, height=64, batch_size=1)
        graph["6"]["inputs"]["samples"] = ["9", 0]
        with pytest.raises(PromptFailed, match="samples: the latent has 16 channels, but this VAE decodes 4; connect"):
            client.run(graph)

    def test_an_empty_batch(self, client: Client, server: Server) -> None:
        empty = {"latent_tensor": torch.zeros(0, 4, 8, 8), "latent_format_version_0": torch.zeros(0)}
        save_file(empty, server.base / "input" / "empty.latent")
        graph = with_headroom(seed=24)
        graph["9"] = node("LoadLatent", latent="empty.latent")
        graph["6"]["inputs"]["samples"] = ["9", 0]
        with pytest.raises(PromptFailed, match=r"samples: the latent is empty \(shape \(0, 4, 8, 8\)\); connect"):
            client.run(graph)


def test_cancel_in_the_middle_of_a_decode(client: Client) -> None:
    graph = with_headroom(seed=31, side=256, vae={"method": "feathered", "tile_size": 64, "overlap": 32})
    graph["5"]["inputs"]["steps"] = 1

    def cancel(progress: Any) -> None:
        if progress.node_type == "HeadroomVAEDecode" and progress.value >= 2:
            threading.Thread(target=client.interrupt).start()

    with pytest.raises(PromptInterrupted):
        client.run(graph, progress=cancel)
    assert client.run(with_headroom(seed=32)).outputs["7"]["images"]


class TestEstimate:
    def graph(self, **changes: Any) -> dict[str, Any]:
        workflow = json.loads((WORKFLOWS[0].parent / "will_it_fit.json").read_text())
        workflow["6"]["inputs"] |= changes
        return workflow

    def test_the_latent_passes_and_the_forecast_is_told(self, client: Client) -> None:
        result = client.run(self.graph())
        report = report_of(result, "6")
        assert report.splitlines()[1].startswith("fits, with all weights")
        assert [line.split(":")[0].split(" ")[0] for line in report.splitlines()[5:] if line[:1].isalpha()] == [
            "text", "sampling", "decode",
        ]  # fmt: skip
        assert result.outputs["12"]["images"]

    def test_what_does_not_fit_is_stopped_before_sampling(self, client: Client) -> None:
        with pytest.raises(PromptFailed, match=r"stopped before sampling: .* needs .* at least") as failure:
            client.run(self.graph(gpu="sm86", vram_gb=0.1, limit=0.9))
        assert "\n" not in failure.value.exception_message.strip()

    def test_the_tiles_of_the_decode_behind_it_count(self, client: Client) -> None:
        graph = self.graph(if_too_big="report", vae=["1", 2], limit=0.8)
        graph["9"] = node("VAEDecodeTiled", samples=["7", 0], vae=["1", 2], tile_size=128, overlap=32)
        graph["9"]["inputs"] |= {"temporal_size": 64, "temporal_overlap": 8}
        assert "decode (core's tiles" in report_of(client.run(graph), "6")

    def test_a_decode_straight_to_a_file_counts(self, client: Client) -> None:
        # Another limit than above: what stands behind a node is not among what ComfyUI keeps its answer by.
        graph = self.graph(if_too_big="report", vae=["1", 2], limit=0.81)
        graph["9"] = node("HeadroomVAEDecodeVideo", samples=["7", 0], vae=["1", 2], fps=16.0, format="mkv ffv1")
        graph["9"]["inputs"]["filename_prefix"] = "video/estimated"
        graph = {number: one for number, one in graph.items() if ["9", 0] not in one["inputs"].values()}
        assert ", to a file)" in report_of(client.run(graph), "6")
