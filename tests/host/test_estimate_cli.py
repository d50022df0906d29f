"""`estimate` on workflow files: in this process, and as people run it, with models of real size without weights."""

import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import comfy.model_management
import comfy.utils
import folder_paths
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

import nodes
from headroom.cli import estimate as estimate_command
from headroom.host.bands.named import DEVICES
from headroom.host.following.calling import with_choices
from headroom.host.following.kinds import NEUTRAL
from headroom.host.following.stages import sampling
from headroom.host.prediction.header_loading import loading_headers
from headroom.host.vae.wrapper import PLANNED_BY_WORKERS
from headroom.host.workflow import dry_run
from headroom.host.workflow.dry_run import DryRun, nbytes_of
from headroom.host.workflow.estimate import estimate_workflow
from headroom.memory.on_disk import SUFFIX
from headroom.memory.prediction import Forecast, Verdict, fake_mode, forecast_numbers, named_card
from headroom.nodes import NODES
from headroom.nodes.local_attention import HeadroomLocalAttention
from headroom.offload.safetensors_header import NotAHeader, read_header
from headroom.tools.server.server import Server
from headroom.video import FORMATS

from ..nightly import at_night, some_of
from ..unit import gguf
from . import full_size
from .conftest import ENVIRONMENT
from .ui_workflows import text_to_image as as_saved
from .workflows import node, text_to_image

pytestmark = pytest.mark.usefixtures("extra_nodes")

PACK = Path(__file__).parents[2]
Workflow = dict[str, Any]
GB = 2**30


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base directory of ComfyUI's with files of which nothing but the header can be read."""
    folder = tmp_path_factory.mktemp("base")
    full_size.write_all(folder / "models")
    for path in (folder / "models").rglob("*.safetensors"):
        with path.open("rb+") as file:
            header = int.from_bytes(file.read(8), "little")
            if "umt5" not in path.name:  # its tokenizer lies behind the header
                file.truncate(8 + header)
    return folder


def estimate(workflow: Workflow | str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    path = folder / "workflow.json"
    path.write_text(workflow if isinstance(workflow, str) else json.dumps(workflow))
    command = [sys.executable, str(PACK / "cli" / "estimate.py"), str(path), "--comfyui", str(ENVIRONMENT.comfyui)]
    return subprocess.run(
        [*command, "--base-directory", str(folder), *options],
        capture_output=True, text=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["estimate", "calibrate", "check"])
def test_another_python_than_the_hosts_is_told_of_in_a_sentence(name: str, tmp_path: Path) -> None:
    """One that has no torch."""
    (tmp_path / "workflow.json").write_text(json.dumps(text_to_image()))
    asked = [str(tmp_path / "workflow.json")] if name == "estimate" else []
    command = [sys.executable, "-S", str(PACK / "cli" / f"{name}.py"), *asked, "--comfyui", str(ENVIRONMENT.comfyui)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert re.search(r"No module named '\w+'; run it with the Python that ComfyUI runs with\n$", done.stderr)
    assert "Traceback" not in done.stderr


@pytest.fixture
def models(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host of this process looks for models there."""
    for folder in ("checkpoints", "diffusion_models", "text_encoders", "vae"):
        places = ([str(base / "models" / folder)], folder_paths.folder_names_and_paths[folder][1])
        monkeypatch.setitem(folder_paths.folder_names_and_paths, folder, places)
    folder_paths.filename_list_cache.clear()


def answer(workflow: Workflow, vram: float = 12.0) -> Forecast:
    """In this process, as the command line does it."""
    run = DryRun(workflow, named_card("sm86", vram), ours={one.GET_SCHEMA().node_id: one for one in NODES}).run()
    assert run.complete, run.unknown
    return run.forecast()


@cache
def known(workflow: Callable[[], Workflow]) -> Forecast:
    """The answer for a workflow that several tests ask about."""
    return answer(workflow())


def sampled(model: list, clip: list, vae: list, latent: Workflow, cfg: float) -> Workflow:
    return {
        "4": node("CLIPTextEncode", clip=clip, text="a lighthouse at dusk"),
        "5": latent,
        "6": node(
            "KSampler", model=model, positive=["4", 0], negative=["4", 0], latent_image=["5", 0], seed=1, steps=20,
            cfg=cfg, sampler_name="euler", scheduler="simple", denoise=1.0,
        ),
        "7": node("VAEDecode", samples=["6", 0], vae=vae),
        "8": node("SaveImage", images=["7", 0], filename_prefix="x"),
    }  # fmt: skip


def sd15(side: int = 512) -> Workflow:
    latent = node("EmptyLatentImage", width=side, height=side, batch_size=1)
    loader = {"1": node("CheckpointLoaderSimple", ckpt_name="full_sd15.safetensors")}
    return loader | sampled(["1", 0], ["1", 1], ["1", 2], latent, 7.0)


def sdxl() -> Workflow:
    names = {"clip_name1": "full_clip_g.safetensors", "clip_name2": "full_clip_l.safetensors"}
    return {
        "1": node("UNETLoader", unet_name="full_sdxl_unet.safetensors", weight_dtype="default"),
        "2": node("DualCLIPLoader", type="sdxl", **names),
        "3": node("VAELoader", vae_name="full_sd_vae.safetensors"),
    } | sampled(["1", 0], ["2", 0], ["3", 0], node("EmptyLatentImage", width=1024, height=1024, batch_size=1), 7.0)


def flux(weight_dtype: str = "default") -> Workflow:
    names = {"clip_name1": "full_clip_l.safetensors", "clip_name2": "full_t5xxl.safetensors"}
    return {
        "1": node("UNETLoader", unet_name="full_flux.safetensors", weight_dtype=weight_dtype),
        "2": node("DualCLIPLoader", type="flux", **names),
        "3": node("VAELoader", vae_name="full_flux_vae.safetensors"),
    } | sampled(["1", 0], ["2", 0], ["3", 0], node("EmptySD3LatentImage", width=1024, height=1024, batch_size=1), 1.0)


def wan() -> Workflow:
    latent = node("EmptyHunyuanLatentVideo", width=832, height=480, length=81, batch_size=1)
    return {
        "1": node("UNETLoader", unet_name="full_wan14b.safetensors", weight_dtype="default"),
        "2": node("CLIPLoader", clip_name="full_umt5xxl.safetensors", type="wan"),
        "3": node("VAELoader", vae_name="full_wan_vae.safetensors"),
    } | sampled(["1", 0], ["2", 0], ["3", 0], latent, 5.0)


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    ("workflow", "weights", "verdict"),
    some_of(
        [
            (sd15, 1.6, Verdict.RESIDENT),
            (sdxl, 4.78, Verdict.RESIDENT),
            (flux, 22.2, Verdict.STREAMS),
            (wan, 26.6, Verdict.STREAMS),
        ],
        2,
    ),
)
def test_models_of_real_size(workflow: Callable[[], Workflow], weights: float, verdict: Verdict) -> None:
    found = known(workflow)
    assert found.verdict is verdict
    assert [stage.work for stage in found.stages] == ["text", "sampling", "decode"]
    assert not any(stage.doubt for stage in found.stages)
    assert found.stages[1].weights / GB == pytest.approx(weights, rel=0.02)
    assert (found.streamed_per_step > 0) == (verdict is Verdict.STREAMS)


@pytest.mark.usefixtures("models")
def test_nodes_of_ours_count() -> None:
    plain = known(flux)
    cast = flux()
    cast["9"] = node("HeadroomCast", model=["1", 0], storage="float8_e4m3fn_scaled", compute="auto", skip="auto")
    cast["6"]["inputs"]["model"] = ["9", 0]
    strips = {"method": "exact", "vram_budget_gb": 2.0, "tile_size": 0, "overlap": 64, "feather": "cosine"}
    strips |= {"temporal_size": 0, "temporal_overlap": 16, "batch_slice": 0, "store": "same"}
    cast["7"] = node("HeadroomVAEDecode", samples=["6", 0], vae=["3", 0], **strips)
    ours = answer(cast)
    assert ours.stages[1].weights <= 0.55 * plain.stages[1].weights
    assert ours.stages[2].method == "exact, in strips"
    assert ours.stages[2].peak <= 2.01 * GB
    assert answer(flux("fp8_e4m3fn")).stages[1].weights <= 0.51 * plain.stages[1].weights


@pytest.mark.usefixtures("models")
@pytest.mark.usefixtures("models")
@pytest.mark.parametrize("storage", [None, "float8_e4m3fn_scaled", "int8_convrot"])
def test_weights_are_as_large_as_the_host_says(monkeypatch: pytest.MonkeyPatch, storage: str | None) -> None:
    said, seen = comfy.model_management.module_size, list[int]()

    def both(module: torch.nn.Module) -> int:
        seen.append(nbytes_of(module))
        assert seen[-1] == said(module)
        return seen[-1]

    monkeypatch.setattr(dry_run, "nbytes_of", both)
    workflow = sd15()
    if storage is not None:
        workflow["9"] = node("HeadroomCast", model=["1", 0], storage=storage, compute="auto", skip="auto")
        workflow["6"]["inputs"]["model"] = ["9", 0]
    answer(workflow, vram=2.0)  # where some of them stream
    assert len(seen) > 500
    assert comfy.model_management.module_size is said


def test_where_decoded_frames_lie() -> None:
    """In RAM, where they may not fit; in a file, as they are decoded; in a file of their own."""
    latent = node("EmptyHunyuanLatentVideo", width=64, height=48, length=33, batch_size=2)
    plain = {
        "1": node("VAELoader", vae_name="full_wan_vae.safetensors"),
        "2": latent,
        "3": node("VAEDecode", samples=["2", 0], vae=["1", 0]),
    }
    inputs = {"samples": ["2", 0], "vae": ["1", 0]}
    strips = {"method": "auto", "vram_budget_gb": 0.0, "tile_size": 0, "overlap": 64, "feather": "cosine"}
    strips |= {"temporal_size": 0, "temporal_overlap": 16, "batch_slice": 0, "store": "same"}
    mapped = plain | {"3": node("HeadroomVAEDecode", **inputs, **strips, frames_on_disk=True)}
    video = {"fps": 16.0, "format": "mkv ffv1", "crf": -1.0, "filename_prefix": "x", "vram_budget_gb": 0.0}
    to_file = plain | {"3": node("HeadroomVAEDecodeVideo", **inputs, **video)}
    frames = 2 * 33 * 64 * 48 * 3
    found = [answer(workflow) for workflow in (plain, mapped, to_file)]
    assert not any(stage.doubt for one in found for stage in one.stages)
    assert not list(Path(folder_paths.get_temp_directory()).rglob(f"*{SUFFIX}")), "nothing is written"
    assert [(one.ram_frames, one.disk) for one in found] == [
        (4 * frames, 0), (0, 4 * frames), (0, FORMATS["mkv ffv1"].disk(64, 48, 2 * 33)),
    ]  # fmt: skip
    assert forecast_numbers(found[0])["ram_frames_gb"] == 4 * frames / GB
    least = found[0].ram_needed + 4 * frames
    assert replace(found[0], ram=least).verdict is Verdict.RESIDENT
    assert replace(found[0], ram=least - 1).verdict is Verdict.DOES_NOT_FIT
    assert replace(found[2], ram=least - 1).verdict is Verdict.RESIDENT


@pytest.mark.usefixtures("models")
def test_a_video_that_is_not_there_yet_is_encoded_in_its_size() -> None:
    """Of a file that a decode before it will write, the size is known."""
    workflow = {
        "1": node("VAELoader", vae_name="full_wan_vae.safetensors"),
        "2": node("EmptyHunyuanLatentVideo", width=64, height=48, length=33, batch_size=1),
        "3": node("HeadroomVAEDecodeVideo", samples=["2", 0], vae=["1", 0], fps=16.0, format="mkv ffv1",
                  filename_prefix="x"),
        "4": node("Video Slice", video=["3", 0], start_time=0.0, duration=1.0625, strict_duration=False),
        "5": node("HeadroomVAEEncodeVideo", video=["4", 0], vae=["1", 0], width=128, height=0,
                  upscale_method="lanczos", crop="center"),
        "6": node("HeadroomVAEDecode", samples=["5", 0], vae=["1", 0], method="auto", vram_budget_gb=0.0, tile_size=0,
                  overlap=64, feather="cosine", temporal_size=0, temporal_overlap=16, batch_slice=0, store="same"),
    }  # fmt: skip
    found = answer(workflow)
    assert [(stage.work, stage.node) for stage in found.stages] == [("decode", "3"), ("encode", "5"), ("decode", "6")]
    assert found.stages[1].method == "in the module's own chunks, from a file"
    assert found.ram_frames == 17 * 128 * 96 * 3 * 4, "17 frames, twice as large"
    workflow["7"] = node("HeadroomVAE", vae=["1", 0], method="exact", workers=DEVICES)
    workflow["5"]["inputs"]["vae"] = ["7", 0]
    by_workers = answer(workflow).stages[1]
    assert by_workers.doubt == PLANNED_BY_WORKERS, "the host's estimate stands for it"
    assert by_workers.activations > 17 * 128 * 96


@pytest.mark.usefixtures("models")
def test_a_budget_on_a_card_that_is_not_here() -> None:
    """Its report says how fast weights get to the card: to one that is only asked about, nothing is copied."""
    workflow = sd15()
    workflow["9"] = node("HeadroomOffload", model=["1", 0], vram_budget_gb=1.0, granularity="leaf")
    workflow["6"]["inputs"]["model"] = ["9", 0]
    assert answer(workflow).stages[1].budget == GB


def training(**changes: Any) -> Workflow:
    """A LoRA of Flux in its real size."""
    workflow = {number: flux()[number] for number in ("1", "2", "4", "5")}
    widgets = {
        "batch_size": 1, "grad_accumulation_steps": 1, "steps": 100, "learning_rate": 1e-4, "rank": 16,
        "optimizer": "AdamW", "loss_function": "MSE", "seed": 1, "training_dtype": "bf16", "lora_dtype": "bf16",
        "quantized_backward": False, "algorithm": "LoRA", "gradient_checkpointing": True, "checkpoint_depth": 1,
        "offloading": False, "existing_lora": "[None]", "bucket_mode": False, "bypass_mode": False, **changes,
    }  # fmt: skip
    workflow["8"] = node("HeadroomTraining", model=["1", 0], plan="every block", blocks="all")
    workflow["9"] = node("TrainLoraNode", model=["8", 0], latents=["5", 0], positive=["4", 0], **widgets)
    workflow["10"] = node("SaveLoRA", lora=["9", 0], prefix="x", steps=["9", 2])
    return workflow


@at_night
@pytest.mark.usefixtures("models")
def test_a_training_of_real_size() -> None:
    """Flux's blocks: 57 checkpoints instead of all that they keep."""
    ours, plain = training(), training()
    plain["9"]["inputs"]["model"] = ["1", 0]
    (text, behind), (_, own) = answer(ours, 32.0).stages, answer(plain, 32.0).stages
    assert (text.work, behind.work, own.work) == ("text", "training", "training")
    assert behind.method == "Training Memory: every block"
    assert own.method == "Train LoRA's own, depth 1"
    assert not behind.doubt
    assert behind.weights / GB == pytest.approx(22.2, rel=0.02)
    assert behind.activations < own.activations / 8
    assert answer(ours, 32.0).verdict is Verdict.RESIDENT
    assert answer(plain, 32.0).verdict is Verdict.DOES_NOT_FIT  # nothing of a training streams


@pytest.mark.usefixtures("models")
def test_a_training_is_told_of() -> None:
    workflow = training(checkpoint_depth=3, offloading=True, optimizer="AdamW8bit")
    workflow["9"]["inputs"]["model"] = ["1", 0]
    run = DryRun(workflow, named_card("sm86", 12.0)).run()
    assert "optimizer" in run.unknown["9"]
    assert not run.stages_followed
    workflow["9"]["inputs"]["optimizer"] = "SGD"
    notes = "; ".join(DryRun(workflow, named_card("sm86", 12.0)).run().notes)
    assert "does not fit: " in notes
    assert "no plan of checkpoints does" in notes
    assert "predicted at depth 1" in notes
    assert "Train LoRA's offloading keeps them for the backward" in notes


LARGER = {"width": 1024, "height": 768}


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize("way", ["latent", "pixels", "unknown"])
def test_one_plan_for_two_sizes(way: str) -> None:
    """Of a picture that is made larger and sampled again, as the node plans it; what cannot be followed is told."""
    workflow = sd15(256)
    workflow["9"] = node("HeadroomFit", model=["1", 0], vae=["1", 2], samples=["5", 0], cfg=7.0, quality="exact")
    workflow["6"]["inputs"]["model"] = ["9", 0]
    if way == "latent":
        workflow["10"] = node("LatentUpscale", samples=["6", 0], upscale_method="area", crop="disabled", **LARGER)
    elif way == "unknown":
        workflow["10"] = node("AnothersUpscaler", samples=["6", 0])
    else:
        workflow["12"] = node("VAEDecode", samples=["6", 0], vae=["9", 1])
        workflow["13"] = node("ImageScale", image=["12", 0], upscale_method="area", crop="disabled", **LARGER)
        workflow["10"] = node("VAEEncode", pixels=["13", 0], vae=["9", 1])
    workflow["11"] = {**workflow["6"], "inputs": {**workflow["6"]["inputs"], "latent_image": ["10", 0]}}
    run = on_a_small_card(workflow)
    told = of_make_it_fit(run)
    if way == "unknown":
        assert told[0].startswith("how large node 11 samples could not be told beforehand")
        return
    assert told[0] == "planned for 1024 x 768 (node 11), the most that is sampled behind it: 256 x 256, 1024 x 768"
    alone = sd15()
    alone["5"]["inputs"] |= LARGER
    alone["9"] = workflow["9"]
    alone["6"]["inputs"]["model"] = ["9", 0]
    of_larger = on_a_small_card(alone)
    assert told[1:] == of_make_it_fit(of_larger)
    assert budgets(run) == budgets(of_larger) != {None}


def on_a_small_card(workflow: Workflow) -> DryRun:
    return DryRun(workflow, named_card("sm86", 2.0), ours={one.GET_SCHEMA().node_id: one for one in NODES}).run()


def of_make_it_fit(run: DryRun) -> list[str]:
    return [note.removeprefix("HeadroomFit: ") for note in run.notes if note.startswith("HeadroomFit: ")]


def budgets(run: DryRun) -> set[int | None]:
    return {stage.budget for stage in run.stages if stage.work == "sampling"}


@pytest.mark.usefixtures("models")
def test_a_dynamic_list_as_it_is_queued() -> None:
    """Choice and inputs lie side by side in a workflow, and reach the node as one dictionary."""
    workflow = sd15()
    cast = {"storage": "float8_e4m3fn_scaled", "compute": "auto", "skip": "auto", "sensitivity": "off"}
    workflow["9"] = node("HeadroomCast", model=["1", 0], **cast)
    workflow["6"]["inputs"]["model"] = ["9", 0]
    assert answer(workflow).stages[1].weights <= 0.6 * known(sd15).stages[1].weights
    listed = {"pattern": "window", "pattern.radius": 4, "pattern.block": 8, "blocks": "all"}
    nested = with_choices(HeadroomLocalAttention, listed)
    assert nested == {"pattern": {"pattern": "window", "radius": 4, "block": 8}, "blocks": "all"}


def test_8_bit_files_of_the_older_form() -> None:
    """The host writes how their layers are stored, and reads it again."""
    with loading_headers(fake_mode(), named_card("sm86", 8.0)):
        tensors = {"a.weight": torch.empty(4, 4, dtype=torch.float8_e4m3fn), "a.scale_weight": torch.empty(())}
        tensors["scaled_fp8"] = torch.empty(0, dtype=torch.float8_e4m3fn)
        converted, _ = comfy.utils.convert_old_quants(tensors, metadata={})
        assert json.loads(converted["a.comfy_quant"].numpy().tobytes()) == {"format": "float8_e4m3fn"}
        assert isinstance(converted["a.weight"], FakeTensor)


@at_night
@pytest.mark.usefixtures("models")
def test_the_workflows_of_the_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # they name the small models
    folder_paths.filename_list_cache.clear()
    for name in ("flux_low_vram", "sd15_image_to_image", "wan_video_decode"):
        workflow = json.loads((PACK / "workflows" / "api" / f"{name}.json").read_text())
        assert {"text", "sampling", "decode"} <= {stage.work for stage in answer(workflow).stages}
    workflow = json.loads((PACK / "workflows" / "api" / "train_lora.json").read_text())
    workflow["2"] = node("EmptyImage", width=128, height=128, batch_size=1, color=0)
    assert [stage.work for stage in answer(workflow).stages] == ["encode", "text", "training"]


def test_as_people_run_it(base: Path) -> None:
    # The host keeps the one in a file that it can only load behind others.
    picture = {"30": node("EmptyImage", width=64, height=64, batch_size=1, color=0)}
    pair = {"image1": ["30", 0], "image2": ["30", 0]}
    blended = {"31": node("ImageBlend", **pair, blend_factor=0.5, blend_mode="normal")}
    result = estimate({**sd15(4096), **picture, **blended}, base, "--gpu", "RTX 3050 6GB", "--json")
    assert result.returncode == 3, result.stderr[-2000:]
    found = json.loads(result.stdout.strip().splitlines()[-1])
    assert found["verdict"] == "does_not_fit"
    assert found["complete"]
    assert found["card"] == "RTX 3050, 6 GB"
    assert len(str(found["peak_gb"]).partition(".")[2]) <= 3
    told = (PACK / "docs" / "headless.md").read_text(encoding="utf-8")
    assert [key for key in (*found, *found["stages"][0]) if f"`{key}`" not in told] == []
    assert {stage["work"] for stage in found["stages"]} == {"text", "sampling", "decode"}
    assert found["peak_gb"] >= found["least_vram_gb"] > 0.85 * 6


def ask(*arguments: str, path: Path) -> tuple[int, str, str]:
    """The command in this process: it imports no ComfyUI for this."""
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        status = estimate_command.main([str(path), *arguments])
    return status, out.getvalue(), errors.getvalue()


def test_a_server_that_runs_is_asked(server: Server, tmp_path: Path) -> None:
    """For its own card, or another; in both formats of a workflow, as the pack's own route answers."""
    path = tmp_path / "workflow.json"
    path.write_text(json.dumps(text_to_image(save_latent=False)))
    status, said, _ = ask("--server", server.url, path=path)
    assert status == 0
    assert said.startswith("Will it fit? · ")
    assert "\nfits, with all weights" in said
    status, said, _ = ask("--server", f"{server.url}/", "--gpu", "rtx 3060 12gb", "--limit", "0.5", "--json", path=path)
    found = json.loads(said)
    assert status == 0
    assert (found["card_gb"], found["allowed_gb"], found["complete"]) == (12.0, 6.0, True)
    assert "text" not in found
    path.write_text(json.dumps(as_saved()))
    assert ask("--server", server.url, "--vram", "0.05", path=path)[0] == 3
    path.write_text(json.dumps({"1": node("PreviewAny", source="x")}))
    assert ask("--server", server.url, path=path)[::2] == (
        2, "nothing to predict in this workflow: no sampler, no VAE, no text\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["127.0.0.1:8188"], "--server: 127.0.0.1:8188 is no address; give one such as http://127.0.0.1:8188"),
        (["http://127.0.0.1:9"], "--server: nothing answers at http://127.0.0.1:9 ("),
        (["http://127.0.0.1:9", "--comfyui", "x"], "--server: that ComfyUI has its own folders"),
        (["http://127.0.0.1:9", "--limit", "3"], "--limit"),
        (["http://127.0.0.1:9", "--gpu", "rtx 1"], "--gpu"),
    ],
)
def test_a_server_that_cannot_be_asked(arguments: list[str], said: str, tmp_path: Path) -> None:
    path = tmp_path / "workflow.json"
    path.write_text(json.dumps(text_to_image(save_latent=False)))
    status, out, error = ask("--server", *arguments, path=path)
    assert (status, out) == (2, "")
    assert error.startswith(said)


@pytest.mark.parametrize(("status", "body"), [(302, b""), (404, b"no"), (200, b"<html>"), (200, b"[]"), (500, b"{}")])
def test_a_server_that_points_elsewhere_is_not_followed(status: int, body: bytes, tmp_path: Path) -> None:
    """Nor is what another server answers taken for a forecast."""
    asked = []

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    path = tmp_path / "workflow.json"
    path.write_text(json.dumps(text_to_image(save_latent=False)))
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        found, out, error = ask("--server", f"http://127.0.0.1:{other.server_address[1]}", path=path)
        other.shutdown()
    assert asked == ["/headroom/estimate"]
    assert (found, out) == (2, "")
    assert "answers with status 500" in error if status == 500 else "has no Headroom" in error


@pytest.mark.usefixtures("models")
def test_an_unknown_node_is_listed_and_not_guessed() -> None:
    workflow = sd15()
    workflow["9"] = node("SomebodysUpscaler", model=["1", 0])
    workflow["6"]["inputs"]["model"] = ["9", 0]
    run = DryRun(workflow, named_card("sm86", 8.0)).run()
    assert not run.complete
    assert run.unknown["9"] == "SomebodysUpscaler is not known"
    assert run.unknown["6"].startswith("needs node 9")
    assert [stage.work for stage in run.stages] == ["text"]


def behind_the_decode(kind: str, **inputs: Any) -> dict[str, Any]:
    """A node that gets the picture, and a node that saves what it makes."""
    workflow = sd15()
    (decode,) = (number for number, one in workflow.items() if one["class_type"] == "VAEDecode")
    workflow["20"] = node(kind, image=[decode, 0], **inputs)
    workflow["21"] = node("SaveImage", images=["20", 0], filename_prefix="larger")
    return workflow


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize("kind", ["ImageUpscaleWithModel", "SAM3_VideoTrack", "SomebodysUpscaler"])
def test_what_may_take_memory_and_is_not_followed_leaves_it_incomplete(kind: str) -> None:
    """It counted as complete as long as samplers, texts and VAEs were followed."""
    run = DryRun(behind_the_decode(kind), named_card("sm86", 8.0)).run()
    assert [stage.work for stage in run.stages] == ["text", "sampling", "decode"]
    assert not run.complete


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize("kind", ["RebatchImages", "LoadImageMask"])
def test_what_takes_none_does_not(kind: str) -> None:
    run = DryRun(behind_the_decode(kind), named_card("sm86", 8.0)).run()
    assert run.unknown["20"] == f"{kind} is not known"
    assert run.complete


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    ("number", "changes", "said"),
    some_of(
        [
            ("7", {"vae": ["4", 0]}, "VAEDecode: vae gets no VAE"),
            ("7", {"samples": ["1", 0]}, "VAEDecode: samples gets no latent"),
            ("7", {"vae": None}, "VAEDecode: vae gets no VAE"),
            ("6", {"model": ["1", 2]}, "KSampler: model gets no model"),
            ("6", {"positive": [1, 2, 3]}, "KSampler: positive gets no conditioning"),
            ("6", {"cfg": "high"}, "KSampler: cfg is 'high', which is no number"),
            ("4", {"clip": ["1", 0]}, "CLIPTextEncode: clip gets no text encoder"),
            ("9", {"model": ["1", 2]}, "HeadroomOffload: model gets a VAE; connect a MODEL, as loaders give it"),
            ("9", {"vram_budget_gb": "much"}, "HeadroomOffload: vram_budget_gb is 'much', which is no number"),
            (
                "9",
                {"granularity": "finest"},
                "HeadroomOffload: granularity is 'finest', which is none of its choices: auto, block, leaf",
            ),
        ],
        3,
    ),
)
def test_a_workflow_that_is_wired_wrongly_is_told_so(number: str, changes: Workflow, said: str) -> None:
    workflow = sd15()
    workflow["9"] = node("HeadroomOffload", model=["1", 0], vram_budget_gb=1.0, granularity="leaf")
    workflow[number]["inputs"] |= changes
    ours = {one.GET_SCHEMA().node_id: one for one in NODES}
    assert DryRun(workflow, named_card("sm86", 8.0), ours=ours).run().unknown[number] == said


@pytest.mark.usefixtures("models")
def test_an_input_that_is_missing_is_named() -> None:
    workflow = sd15()
    del workflow["7"]["inputs"]["samples"]
    assert DryRun(workflow, named_card("sm86", 8.0)).run().unknown["7"] == "VAEDecode: it has no samples"


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize("error", [KeyError("height"), TypeError("no size"), AssertionError("too small")])
def test_whatever_a_node_of_the_hosts_raises_is_its_answer(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(nodes.EmptyLatentImage, "generate", lambda self, width, height, batch_size: fail())
    run = DryRun(sd15(), named_card("sm86", 8.0)).run()
    assert run.unknown["5"] == f"EmptyLatentImage: {error}"
    assert not run.stages_followed


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize("error", [KeyError, TypeError, AttributeError])
def test_a_fault_of_our_own_code_goes_up(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """It was reported as a node that was not followed."""

    def fail(*_: Any) -> None:
        raise error("a mistake")

    monkeypatch.setattr(sampling, "sampling_stages", fail)
    with pytest.raises(error, match="a mistake"):
        DryRun(sd15(), named_card("sm86", 8.0)).run()


def test_an_answer_that_is_incomplete_is_no_yes(base: Path) -> None:
    result = estimate(behind_the_decode("SAM3_VideoTrack"), base, "--vram", "24")
    assert result.returncode == 2
    assert "INCOMPLETE: some of what takes memory was not followed" in result.stdout
    assert "SAM3_VideoTrack is not known" in result.stdout


def test_every_neutral_node_is_the_hosts() -> None:
    """A name that the host does not know is a mistake, but for those that only some versions have."""
    known = [kind for kind in NEUTRAL if kind in nodes.NODE_CLASS_MAPPINGS]
    assert len(known) >= 0.9 * len(NEUTRAL), set(NEUTRAL) - set(known)


def gguf_workflow(name: str) -> Workflow:
    """SDXL with its diffusion model by another pack's loader."""
    return sdxl() | {"1": node("UnetLoaderGGUF", unet_name=name)}


def test_a_gguf_file_is_told_of_and_not_followed(base: Path) -> None:
    tensors = [("a.weight", (256, 8), 12), ("b.weight", (64, 4), 8), ("b.bias", (64,), 0)]
    content = gguf.written(tensors, {"general.architecture": (8, "sdxl")})
    (base / "models" / "diffusion_models" / "sdxl-Q4_K.gguf").write_bytes(content)
    result = estimate(gguf_workflow("sdxl-Q4_K.gguf"), base, "--json")
    assert result.returncode == 2
    told = json.loads(result.stdout)
    assert not told["complete"]
    assert (
        "node 1: UnetLoaderGGUF is another pack's, and what it loads is not followed; sdxl-Q4_K.gguf holds 0 MB of"
        " weights, as GGUF stores them (tensors: 1 Q4_K, 1 Q8_0, 1 F32)" in told["unknown"]
    )
    assert any(line.startswith("node 6: needs node 1") for line in told["unknown"])
    assert told["stages"], "the text is predicted all the same"


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "UnetLoaderGGUF is another pack's, and what it loads is not followed; 'x.gguf' is not there"),
        (b"PK", "UnetLoaderGGUF: x.gguf is no GGUF file: download it again, or choose another"),
        (
            gguf.written([("a", (256, 2), 12)])[:-1],
            "UnetLoaderGGUF: x.gguf: its header is damaged (its tensors take 288",
        ),
    ],
)
def test_a_gguf_file_that_is_not_whole(base: Path, content: bytes | None, said: str) -> None:
    file = base / "models" / "diffusion_models" / "x.gguf"
    if content is not None:
        file.write_bytes(content)
    try:
        run = DryRun(gguf_workflow("x.gguf"), named_card("sm86", 8.0)).run()
    finally:
        file.unlink(missing_ok=True)
    assert run.unknown["1"].startswith(said)
    assert not run.complete


@pytest.mark.usefixtures("models")
def test_text_encoders_in_gguf_files_are_told_of_too(base: Path) -> None:
    folder = base / "models" / "text_encoders"
    many = [(f"t{number}", (256, 4096), 14 + number) for number in range(6)]
    (folder / "t5.gguf").write_bytes(gguf.written(many))
    names = {"clip_name1": "t5.gguf", "clip_name2": "full_clip_l.safetensors", "type": "flux"}
    workflow = flux() | {"2": node("DualCLIPLoaderGGUF", **names)}
    said = DryRun(workflow, named_card("sm86", 8.0)).run().unknown["2"]
    assert said.endswith(
        "; t5.gguf holds 3 MB of weights, as GGUF stores them (tensors: 1 Q8_K, 1 Q6_K, 1 IQ3_XXS, 1 IQ2_XS,"
        " 2 of other types)"
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is no JSON"),
        ("[1, 2]", "is no ComfyUI workflow"),
        ('{"nodes": [], "links": []}', "nothing to predict"),
    ],
)
def test_files_that_are_no_workflow(tmp_path: Path, content: str, said: str) -> None:
    result = estimate(content, tmp_path)
    assert result.returncode == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("link", "said"), [("7", "links to node 7"), ("1", "circle through node 1")])
def test_workflows_that_do_not_hold_together(link: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        answer({"1": node("VAEDecode", vae=[link, 0])})


@pytest.mark.usefixtures("models")
def test_a_model_that_is_not_there() -> None:
    workflow = sd15()
    workflow["1"]["inputs"]["ckpt_name"] = "nowhere.safetensors"
    run = DryRun(workflow, named_card("sm86", 8.0)).run()
    assert run.unknown["1"] == (
        "CheckpointLoaderSimple: nowhere.safetensors is not there, nor in the catalogue: download it into"
        " models/checkpoints"
    )
    assert (run.missing, "6" in run.waiting) == ({"1"}, True)


@pytest.mark.usefixtures("models")
def test_what_is_missing_is_told_first_and_what_waits_for_it_is_counted() -> None:
    workflow = sd15()
    others = {f"{one}0": node("SomebodysUpscaler", model=["1", 0]) for one in (2, 3)}
    loader = {"50": node("UNETLoader", unet_name="nowhere.safetensors", weight_dtype="default")}
    waiting = {"51": node("ModelSamplingSD3", model=["50", 0], shift=3.0), "52": node("PreviewAny", source=["51", 0])}
    found = estimate_workflow({**workflow, **others, **loader, **waiting}, named_card("sm86", 8.0), 0.85)
    assert found.text.splitlines()[1].startswith("! INCOMPLETE")  # before anything is said to fit
    told = [line for line in found.text.splitlines() if "not followed: " in line]
    assert [line.partition("not followed: ")[2] for line in told] == [
        "node 50: UNETLoader: nowhere.safetensors is not there, nor in the catalogue: download it into"
        " models/diffusion_models",
        "nodes 20, 30: SomebodysUpscaler is not known",
        "2 nodes that need what these would give",
    ]


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "old.ckpt").write_bytes(b"a pickle of some length")
    with pytest.raises(NotAHeader, match="no safetensors file"):
        read_header(tmp_path / "old.ckpt")
