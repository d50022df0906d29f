"""Headroom's routes in a running ComfyUI, and that what they do leaves the prompt that runs alone."""

import json
import struct
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import comfy.ldm.lightricks.model as lightricks
import comfy.model_management as model_management
import comfy.utils
import folder_paths
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from headroom.cli.fit import answer as fit_answer
from headroom.cli.fit import parser as fit_parser
from headroom.host.core.device import ram_total
from headroom.host.prediction.host_answers import answering, card_answers, replaced
from headroom.host.prediction.stages import chosen_card
from headroom.host.workflow.dry_run import DryRun
from headroom.host.workflow.estimate import Terms, estimate_beside, estimate_workflow
from headroom.host.workflow.isolation import beside_the_prompt, by_formula
from headroom.memory.prediction import Forecast, fake_mode, named_card
from headroom.nodes import NODES
from headroom.tools.server.client import Client, PromptRejected
from headroom.tools.server.server import Server

from ..nightly import at_night, some_of
from .ui_workflows import doubling, in_a_subgraph
from .ui_workflows import text_to_image as ui_text_to_image
from .workflows import node, text_to_image, with_headroom

GB = 2**30
CPU = torch.device("cpu")
OURS = {one.GET_SCHEMA().node_id: one for one in NODES}


def in_a_circle() -> dict[str, Any]:
    """The latent is upscaled from what is sampled of it."""
    workflow = text_to_image()
    workflow["4"] = node("LatentUpscaleBy", samples=["5", 0], upscale_method="bilinear", scale_by=1.5)
    return workflow


def forecast(workflow: dict[str, Any], terms: Terms) -> Forecast:
    card = chosen_card(terms.gpu, terms.vram_gb, CPU)
    return DryRun(workflow, card, OURS, terms.limit).run().forecast(ram_total(terms.ram_gb))


def refused(client: Client, path: str, payload: Any) -> dict[str, Any]:
    """The JSON that comes with a refusal."""
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    request = urllib.request.Request(client.url + path, body, {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as failure:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60)
    assert failure.value.code == 400
    assert failure.value.headers.get_content_type() == "application/json"
    return json.loads(failure.value.read())


class TestEstimate:
    def test_the_numbers_are_those_of_a_dry_run(self, client: Client) -> None:
        workflow = with_headroom(side=256)
        answer = client.post("/headroom/estimate", {"prompt": workflow, "vram_gb": 8, "limit": 0.5})
        expected = forecast(workflow, Terms(vram_gb=8, limit=0.5))
        assert answer["complete"]
        assert answer["unknown"] == answer["notes"] == []
        assert answer["verdict"] == expected.verdict.value
        assert [stage["work"] for stage in answer["stages"]] == ["text", "sampling", "decode"]
        for stage, found in zip(expected.stages, answer["stages"], strict=True):
            assert found["predicted"]
            assert found["activations_gb"] == pytest.approx(stage.activations / GB, rel=0.02)  # it has other threads
            assert found["weights_gb"] == stage.weights / GB
        assert answer["allowed_gb"] == 4
        assert answer["text"].splitlines()[1] == "fits, with all weights in memory"

    def test_another_card(self, client: Client) -> None:
        workflow = text_to_image(side=256)
        answer = client.post("/api/headroom/estimate", {"prompt": workflow, "gpu": "sm86", "vram_gb": 0.01})
        expected = forecast(workflow, Terms(gpu="sm86", vram_gb=0.01))
        assert answer["verdict"] == expected.verdict.value == "does_not_fit"
        assert answer["card"] == "sm86, 0.01 GB"
        assert answer["peak_gb"] * GB == expected.peak  # it runs on no card of this machine's

    def test_what_is_not_followed_is_said(self, client: Client) -> None:
        workflow = text_to_image()
        workflow["6"] = node("SomebodysDecode", samples=["5", 0])
        answer = client.post("/headroom/estimate", {"prompt": workflow})
        assert answer["unknown"] == ["node 6: SomebodysDecode is not known", *answer["unknown"][1:]]
        assert "! not followed: node 6: SomebodysDecode is not known" in answer["text"]

    @pytest.mark.parametrize(
        ("body", "sentence"),
        [
            (b"{", "the body is no JSON: "),
            (b"[]", 'the body is no JSON object: send {"prompt": workflow in the API format}'),
            ({}, "prompt: send a workflow in the API format (menu: Export (API)), an object of nodes"),
            ({"prompt": {"nodes": [], "links": []}}, "nothing to predict in this workflow: no sampler, no VAE"),
            ({"prompt": {"1": {"inputs": {}}}}, "prompt: node 1 needs class_type and inputs, as Export (API) writes"),
            ({"prompt": text_to_image(), "gpu": "sm1"}, "gpu: 'sm1' is not known; choose one of this machine, sm75,"),
            ({"prompt": text_to_image(), "gpu": "sm86"}, "vram_gb: say how many GB the sm86 card has; 0 means"),
            ({"prompt": text_to_image(), "vram_gb": "8"}, "vram_gb: '8' is no size; send GB as a number, 0 for this"),
            ({"prompt": text_to_image(), "limit": 1.5}, "limit: 1.5 is no share of the card's memory; send a number"),
            ({"prompt": text_to_image(), "vram": 8}, "'vram' is not known; choose from limit, vram_gb, ram_gb, gpu"),
            ({"prompt": {"1": node("Note", text="")}}, "nothing to predict in this workflow: no sampler, no VAE"),
            ({"prompt": {"1": node("VAEDecode", samples=["9", 0])}}, "the workflow links to node 9, which is not in"),
        ],
    )
    def test_bad_input(self, client: Client, body: Any, sentence: str) -> None:
        error = refused(client, "/headroom/estimate", body)["error"]
        assert error.startswith(sentence)
        assert "\n" not in error

    @pytest.mark.parametrize(
        ("inputs", "sentence"),
        some_of(
            [
                ({"batch_size": 10**9}, "EmptyLatentImage: batch_size is 1000000000; it takes 1 to 4096"),
                ({"width": 10**15}, "EmptyLatentImage: width is 1000000000000000; it takes 16 to 16384"),
                ({"height": float("nan")}, "EmptyLatentImage: height is nan, which is no number"),
                ({"width": 16384, "height": 16384, "batch_size": 4096}, "EmptyLatentImage: it would give 4096 x 4 x"),
                ({"width": ["20", 0]}, "EmptyLatentImage: it would give 1 x 4 x 8 x 125000000000"),
                ({"batch_size": ["20", 0]}, "EmptyLatentImage: it would give 1000000000000 x 4 x 8 x 8 values"),
            ],
            3,
        ),
    )
    def test_what_no_machine_holds_is_refused_and_the_next_answered(
        self, client: Client, inputs: dict[str, Any], sentence: str
    ) -> None:
        workflow = text_to_image(side=64)
        workflow["20"] = node("PrimitiveInt", value=10**12)
        workflow["4"]["inputs"] |= inputs
        answer = client.post("/headroom/estimate", {"prompt": workflow})
        assert not answer["complete"]
        assert any(line.startswith(f"node 4: {sentence}") for line in answer["unknown"]), answer["unknown"]
        assert client.post("/headroom/estimate", {"prompt": text_to_image(side=64)})["complete"]

    def test_the_server_answers_meanwhile(self, client: Client) -> None:
        """A file of a few kilobytes that stands for a hundred million nodes is refused beside the server's loop."""
        asked = json.dumps({"prompt": doubling(8, 10), "extra_data": {"headroom_limit": 0.5}}).encode()
        assert len(asked) < 20_000
        for path in ("/headroom/estimate", "/headroom/fit"):
            body = asked if path.endswith("estimate") else json.dumps({"workflow": doubling(8, 10)}).encode()
            assert "more than 50,000 nodes" in refused(client, path, body)["error"]
        assert "system" in client.get("/system_stats")


class TestFit:
    @pytest.mark.parametrize("workflow", [text_to_image(), ui_text_to_image(), in_a_subgraph(ui_text_to_image())])
    def test_it_is_what_the_command_line_writes_and_fitting_again_changes_nothing(
        self, client: Client, workflow: dict[str, Any], tmp_path: Path
    ) -> None:
        before, after = tmp_path / "before.json", tmp_path / "after.json"
        before.write_text(json.dumps(workflow))
        options = ["--quality", "any", "--gpu", "rtx 3070"]
        said = fit_answer(fit_parser().parse_args([str(before), "-o", str(after), *options]))
        fitted = client.post("/headroom/fit", {"workflow": workflow, "quality": "any", "gpu": "sm86", "vram_gb": 8})
        assert fitted["workflow"] == json.loads(after.read_text()) != workflow
        assert [*fitted["changed"], *fitted["notes"]] == said.splitlines()
        assert fitted["summary"] == f"{len(fitted['changed'])} node inserted"
        again = client.post("/api/headroom/fit", {"workflow": fitted["workflow"]})
        assert again["workflow"] == fitted["workflow"]
        assert again["changed"] == []
        assert again["summary"] == "nothing to insert: this workflow is fitted already"

    def test_the_settings_are_those_of_the_node(self, client: Client) -> None:
        asked = {"quality": "near_exact", "vram_gb": 6.5, "gpu": "sm89", "limit": 0.7}
        fitted = client.post("/headroom/fit", {"workflow": text_to_image(), **asked})["workflow"]
        (inputs,) = (one["inputs"] for one in fitted.values() if one["class_type"] == "HeadroomFit")
        assert {name: inputs[name] for name in asked} == asked

    def test_what_is_fitted_runs(self, client: Client) -> None:
        fitted = client.post("/headroom/fit", {"workflow": text_to_image(seed=45, save_latent=False)})
        result = client.run(fitted["workflow"])
        assert result.outputs["7"]["images"]

    def test_what_is_left_alone_is_said(self, client: Client) -> None:
        workflow = text_to_image()
        del workflow["5"]["inputs"]["model"]
        fitted = client.post("/headroom/fit", {"workflow": workflow})
        assert fitted["notes"] == ["node 5 (KSampler) is left alone: nothing is connected to model"]

    def test_nothing_to_fit(self, client: Client) -> None:
        workflow = {"1": node("SolidMask", value=1.0, width=8, height=8)}
        fitted = client.post("/headroom/fit", {"workflow": workflow})
        assert fitted["workflow"] == workflow
        assert fitted["summary"] == "nothing to fit: no sampler and no VAE for pictures in this workflow"

    @pytest.mark.parametrize(
        ("body", "sentence"),
        [
            (b"{", "the body is no JSON: "),
            (b"[]", 'the body is no JSON object: send {"workflow": workflow}'),
            ({}, "workflow: send a workflow as saved by ComfyUI, in the browser's format or the API format"),
            ({"workflow": []}, "workflow: send a workflow as saved by ComfyUI"),
            ({"workflow": {"a": 1}}, "this is no workflow in the API format: every entry needs class_type and inputs"),
            ({"workflow": {"1": {"inputs": {}}}}, "workflow: an entry of it is not as ComfyUI writes it; save it"),
            ({"workflow": {"nodes": [1]}}, "this is no workflow in the browser's format: save it again from ComfyUI"),
            (
                {"workflow": {"nodes": [{"id": 1, "type": "KSampler", "inputs": [1]}]}},
                "workflow: an entry of it is not as Com",
            ),
            ({"workflow": in_a_circle()}, "the workflow has a circle through node 4"),
            ({"workflow": text_to_image(), "quality": "best"}, "quality: 'best' is not known; choose one of exact, n"),
            ({"workflow": text_to_image(), "quality": []}, "quality: [] is not known; choose one of exact, n"),
            ({"workflow": text_to_image(), "gpu": "sm1"}, "gpu: 'sm1' is not known; choose one of this machine, sm75,"),
            ({"workflow": text_to_image(), "gpu": {}}, "gpu: {} is not known; choose one of this machine, sm75,"),
            ({"workflow": text_to_image(), "vram_gb": -1}, "vram_gb: -1 is no size; send GB as a number, 0 for this"),
            ({"workflow": text_to_image(), "limit": 0.05}, "limit: 0.05 is too small a share of a card; choose from 0"),
            ({"workflow": text_to_image(), "text_node": 2}, "text_node: has to be a string, a node's id such as"),
            ({"workflow": text_to_image(), "text_node": "5"}, "text_node: node 5 "),
            ({"workflow": text_to_image(), "text_node": "7:5"}, "text_node: there is no "),
            ({"workflow": text_to_image(), "train_node": "5"}, "train_node: node 5 "),
            ({"workflow": text_to_image(), "text_node": "2", "train_node": "5"}, "text_node and train_node: send one"),
            ({"workflow": text_to_image(), "ram_gb": 8}, "'ram_gb' is not known; choose from workflow, quality, vram_"),
        ],
    )
    def test_bad_input(self, client: Client, body: Any, sentence: str) -> None:
        error = refused(client, "/headroom/fit", body)["error"]
        assert error.startswith(sentence)
        assert "\n" not in error


class TestRuns:
    def test_of_a_prompt_that_ran(self, client: Client) -> None:
        prompt = client.run(with_headroom(seed=51)).prompt_id
        answer = client.get(f"/headroom/runs/{prompt}")
        assert answer["prompt_id"] == prompt
        rows = {row["id"]: row for row in answer["rows"]}
        assert {number: row["work"] for number, row in rows.items()} == {"5": "sampling", "6": "decode"}
        for row in rows.values():
            assert row["outcome"] == "done"
            assert row["seconds"] > 0
            measured = row["measured"]
            assert measured["growth"] == max(0, measured["highest"] - measured["before"])
            assert measured["source"]
            assert row["notices"] == []
        assert {call["backend"] for call in rows["5"]["attention"]} == {"online"}
        assert sum(call["calls"] for call in rows["5"]["attention"]) > 0
        assert rows["6"]["attention"] is None
        assert rows["5"]["lines"]

    @pytest.mark.parametrize("reported", [True, False])
    def test_tensors_are_followed_for_a_report_alone(self, client: Client, reported: bool) -> None:
        """Following them costs time, and nobody else would see it."""
        workflow = with_headroom(seed=52 + reported, side=64)
        if not reported:
            del workflow["11"]
            workflow["7"]["inputs"]["images"] = ["6", 0]
        prompt = client.run(workflow).prompt_id
        rows = client.get(f"/headroom/runs/{prompt}")["rows"]
        assert [row["live_bytes"] is not None for row in rows] == [reported] * 2

    def test_strips_tell_their_plan_and_are_followed_when_asked(self, client: Client) -> None:
        """A report shows what the plan stays within, at no cost; to the byte it is found for who asks."""
        workflow = with_headroom(seed=54, vae={"method": "exact"})
        prompt = client.run(workflow).prompt_id

        def decode(query: str = "") -> dict[str, Any]:
            rows = client.get(f"/headroom/runs/{prompt}{query}")["rows"]
            (row,) = [row for row in rows if row["work"] == "decode"]
            return row

        planned = decode()
        assert planned["predicted"]["bound"]
        assert planned["live_bytes"] <= planned["predicted"]["live"]
        followed = decode("?follow=1")
        assert followed["live_bytes"] == planned["live_bytes"]
        assert not followed["predicted"]["bound"]
        assert followed["predicted"]["live"] == pytest.approx(followed["live_bytes"], rel=0.02)

    def test_of_an_unknown_prompt(self, client: Client) -> None:
        with pytest.raises(PromptRejected, match=r'"error": "prompt \'x\': nothing was measured of it here') as failure:
            client.get("/headroom/runs/x")
        assert failure.value.status == 404
        assert client.get("/headroom/runs/x?none_too=1") == {"prompt_id": "x", "rows": []}


class TestAdmission:
    def test_what_does_not_fit_is_refused_and_not_queued(self, client: Client) -> None:
        terms = {"gpu": "sm86", "vram_gb": 1.0, "limit": 0.9}
        payload = {"prompt": text_to_image(side=4096, seed=61), "extra_data": {"headroom_limit": terms}}
        expected = forecast(payload["prompt"], Terms(**terms))
        for path in ("/prompt", "/api/prompt"):
            answer = refused(client, path, payload)
            assert answer["node_errors"] == {}
            error = answer["error"]
            assert error["type"] == "headroom_does_not_fit"
            assert error["message"].startswith("not queued, since it does not fit: ")
            assert "at least, 922 MB are allowed" in error["message"]
            assert error["details"].splitlines()[1].startswith("does not fit, by this prediction")
            assert error["extra_info"]["least_vram_gb"] * GB == expected.least
        queue = client.get("/queue")
        assert queue["queue_running"] == queue["queue_pending"] == []

    def test_the_client_gets_the_sentence(self, client: Client) -> None:
        with pytest.raises(PromptRejected, match="not queued, since it does not fit: text needs"):
            client.submit(text_to_image(side=1024), extra_data={"headroom_limit": 1e-9})

    @pytest.mark.parametrize("limit", [0.9, {"vram_gb": 1.0, "gpu": "sm86"}])
    def test_what_fits_runs(self, client: Client, limit: Any) -> None:
        assert client.run(text_to_image(seed=62), extra_data={"headroom_limit": limit}).outputs["7"]["images"]

    @pytest.mark.parametrize(
        ("limit", "sentence"),
        [
            (0, "limit: 0 is no share of the card's memory; send a number above 0, 1 at most"),
            (True, "True is no limit; send a share of the card such as 0.85, or an object of limit, vram_gb, ram_gb"),
            (None, "None is no limit; send a share of the card"),
            ({"gpu": "sm86"}, "vram_gb: say how many GB the sm86 card has"),
            ({"size": 1}, "'size' is not known; choose from limit, vram_gb, ram_gb, gpu"),
        ],
    )
    def test_bad_limits(self, client: Client, limit: Any, sentence: str) -> None:
        error = refused(client, "/prompt", {"prompt": text_to_image(), "extra_data": {"headroom_limit": limit}})
        assert error["error"]["type"] == "headroom_bad_limit"
        assert error["error"]["message"].startswith(f"extra_data.headroom_limit: {sentence}")

    def test_nodes_that_do_not_run_do_not_count(self, client: Client) -> None:
        workflow = text_to_image(seed=63)
        workflow["20"] = node("EmptyLatentImage", width=8192, height=8192, batch_size=8)
        workflow["21"] = {**workflow["5"], "inputs": workflow["5"]["inputs"] | {"latent_image": ["20", 0]}}
        limit = {"vram_gb": 4.0, "gpu": "sm86"}
        assert forecast(workflow, Terms(**limit)).verdict.value == "does_not_fit"
        assert client.run(workflow, extra_data={"headroom_limit": limit}).outputs["7"]["images"]

    def test_what_cannot_be_predicted_is_admitted(self, client: Client, server: Server) -> None:
        workflow = text_to_image(seed=64, save_latent=False)
        workflow["9"] = node("ConditioningSetProperties", cond_NEW=["2", 0], strength=1.0, set_cond_area="default")
        workflow["5"]["inputs"]["positive"] = ["9", 0]
        assert client.run(workflow, extra_data={"headroom_limit": 1e-9}).outputs["7"]["images"]
        assert "Headroom admits a prompt of which not all could be predicted" in server.log_path.read_text()

    def test_what_is_not_followed_does_not_make_room(self, client: Client) -> None:
        """An upscaler behind the decode can only add to what is too much already."""
        workflow = text_to_image(seed=65, save_latent=False)
        (decode,) = (number for number, one in workflow.items() if one["class_type"] == "VAEDecode")
        workflow["30"] = node("UpscaleModelLoader", model_name="any.safetensors")
        workflow["31"] = node("ImageUpscaleWithModel", upscale_model=["30", 0], image=[decode, 0])
        workflow["32"] = node("PreviewImage", images=["31", 0])
        error = refused(client, "/prompt", {"prompt": workflow, "extra_data": {"headroom_limit": 1e-9}})
        assert error["error"]["type"] == "headroom_does_not_fit"

    def test_the_hosts_own_errors_stay(self, client: Client) -> None:
        graph = text_to_image()
        graph["1"]["inputs"]["ckpt_name"] = "missing.safetensors"
        for extra in ({}, {"headroom_limit": 0.5}):
            with pytest.raises(PromptRejected, match=r"missing\.safetensors"):
                client.submit(graph, extra_data=extra)
        with pytest.raises(PromptRejected, match="No prompt provided"):
            client.post("/prompt", {"extra_data": {"headroom_limit": 0.5}})


def latent(client: Client, workflow: dict[str, Any], seed: int) -> bytes:
    """What a prompt samples, computed anew."""
    workflow["5"]["inputs"]["seed"] = seed
    result = client.run(workflow)
    assert "5" not in result.cached
    file = client.latent(result.outputs["8"]["latents"][0])
    return file[8 + struct.unpack("<Q", file[:8])[0] :]


def test_a_prompt_that_runs_meanwhile_is_bit_equal(client: Client) -> None:
    workflow = with_headroom(seed=71, attention={"backend": "sdpa"})
    workflow["5"]["inputs"]["steps"] = 6
    alone = {seed: latent(client, workflow, seed) for seed in (71, 73)}
    asked = with_headroom(side=256, seed=72, attention={"backend": "sdpa_math"}, vae={"method": "feathered"})
    asked["12"] = node("VAEDecodeTiled", samples=["5", 0], vae=["1", 2], tile_size=128, overlap=32)
    asked["12"]["inputs"] |= {"temporal_size": 64, "temporal_overlap": 8}
    question = {"prompt": asked, "gpu": "sm75", "vram_gb": 8.0}
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(client.post, "/headroom/estimate", question) for _ in range(2)]
        prompts = 0
        while not prompts or not all(answer.done() for answer in answers):
            for seed, expected in alone.items():
                assert latent(client, workflow, seed) == expected
                prompts += 1
    first, second = (answer.result() for answer in answers)
    assert first == second
    assert first["complete"]


class TestBesideThePrompt:
    """In this process: what a dry run would do to another thread's prompt, and does not."""

    @at_night
    def test_the_prediction_is_the_same(self) -> None:
        here = chosen_card("this machine", 8.0, CPU)
        for backend, card in (("sdpa_math", here), ("sdpa_math", named_card("sm75", 8.0)), ("sdpa", here)):
            workflow = with_headroom(attention={"backend": backend})
            alone = estimate_workflow(workflow, card, 0.85, ours=OURS).numbers
            with beside_the_prompt():
                assert estimate_workflow(workflow, card, 0.85, ours=OURS).numbers == alone

    def test_numbers_are_not_drawn(self) -> None:
        before = torch.get_rng_state()
        assert estimate_beside(text_to_image(), Terms()).complete
        assert torch.equal(torch.get_rng_state(), before)

    def test_a_cancel_and_the_progress_bar_are_the_prompts(self) -> None:
        seen: list[int] = []
        before = comfy.utils.PROGRESS_BAR_HOOK
        comfy.utils.set_progress_bar_global_hook(lambda value, *_, **__: seen.append(value))
        model_management.interrupt_current_processing(True)
        workflow = text_to_image()
        workflow["6"] = node("VAEDecodeTiled", samples=["5", 0], vae=["1", 2], tile_size=64, overlap=16)
        workflow["6"]["inputs"] |= {"temporal_size": 64, "temporal_overlap": 8}
        workflow["10"] = node(
            "HeadroomCast", model=["1", 0], storage="float8_e4m3fn_scaled", compute="auto", skip="auto"
        )
        workflow["5"]["inputs"]["model"] = ["10", 0]
        try:
            with beside_the_prompt():
                found = estimate_workflow(workflow, named_card("sm86", 8.0), 0.85, ours=OURS)
            assert found.complete, found.unknown
            assert not seen
            assert model_management.processing_interrupted()
        finally:
            model_management.interrupt_current_processing(False)
            comfy.utils.set_progress_bar_global_hook(before)

    def test_attention_kernels_of_other_threads(self) -> None:
        def of_another_thread() -> bool:
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(torch.backends.cuda.flash_sdp_enabled).result()

        with beside_the_prompt(), sdpa_kernel(SDPBackend.MATH):
            assert not torch.backends.cuda.flash_sdp_enabled()
            assert torch._C._get_flash_sdp_enabled()
            assert of_another_thread()
        assert torch.backends.cuda.flash_sdp_enabled()

    def test_the_formula_is_torchs(self) -> None:
        def both(mask: Tensor | None, **options: Any) -> tuple[Tensor, Tensor]:
            q, k, v = torch.randn(3, 2, 4, 9, 8)
            with sdpa_kernel(SDPBackend.MATH):
                expected = functional.scaled_dot_product_attention(q, k, v, mask, **options)
            return by_formula(q, k, v, mask, **options), expected

        for mask in (None, torch.randn(9, 9), torch.randn(9, 9) > 0):
            assert torch.equal(*both(mask, scale=0.3))
        assert torch.equal(*both(None, is_causal=True))

    def test_what_another_thread_puts_back_later_is_nothing_to_this_one(self) -> None:
        """It began within this one's, and so took that for the host's own."""
        host, began, ends = SimpleNamespace(size=lambda: "true"), threading.Event(), threading.Event()

        def other() -> None:
            with replaced(host, "size", lambda: "other"):
                began.set()
                ends.wait(60)

        thread = threading.Thread(target=other)
        with replaced(host, "size", lambda: "own"):
            thread.start()
            assert began.wait(60)
            assert host.size() == "own"
        ends.set()
        thread.join()
        assert host.size() == "true"

    def test_models_of_the_running_prompt_stay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Older hosts' nodes ask for room by themselves."""
        asked: list[Any] = []
        monkeypatch.setattr(model_management, "free_memory", lambda *args, **kwargs: asked.append(args))
        for card in (named_card("sm86", 4.0), chosen_card("this machine", 0.0, torch.device("cpu"))):
            with answering(card_answers(card)):
                assert model_management.free_memory(1e12, torch.device("cpu")) == []
        assert not asked

    def test_what_the_host_keeps_holds_data(self) -> None:
        lightricks.generate_freq_grid_np.cache_clear()
        with answering({}), fake_mode():
            assert isinstance(lightricks.generate_freq_grid_np(7.0, 3, 48), FakeTensor)
        assert not isinstance(lightricks.generate_freq_grid_np(7.0, 3, 48), FakeTensor)

    def test_no_file_is_written(self) -> None:
        workflow = text_to_image()
        settings = {"storage": "float8_e4m3fn_scaled", "compute": "auto", "skip": "auto", "cache_file": "kept"}
        settings["sensitivity"] = "off"  # as the browser sends it
        workflow["10"] = node("HeadroomCast", model=["1", 0], **settings)
        workflow["5"]["inputs"]["model"] = ["10", 0]
        found = estimate_workflow(workflow, named_card("sm86", 8.0), 0.85, ours=OURS)
        assert found.complete, found.unknown
        assert not list(Path(folder_paths.get_output_directory()).rglob("kept*"))
        assert workflow["10"]["inputs"]["cache_file"] == "kept"

    def test_a_cast_that_measures_is_not_followed(self) -> None:
        workflow = text_to_image()
        settings = {"storage": "float8_e4m3fn_scaled", "compute": "auto", "skip": "auto"}
        goal = {"sensitivity": "size", "sensitivity.size_limit": 0.8}
        workflow["10"] = node("HeadroomCast", model=["1", 0], positive=["2", 0], **settings, **goal)
        workflow["5"]["inputs"]["model"] = ["10", 0]
        found = estimate_workflow(workflow, named_card("sm86", 8.0), 0.85, ours=OURS)
        assert not found.complete
        assert found.unknown[0].startswith("node 10: HeadroomCast: ")
