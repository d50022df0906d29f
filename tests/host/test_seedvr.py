"""SeedVR2, predicted: against torch's profiler, and its nodes that cut and join videos and match colours."""

from typing import Any

import comfy.model_management
import comfy.sd
import pytest
import torch
from torch import Tensor

import nodes
from headroom.benchmarks._harness import peak_bytes
from headroom.host.core.internals import find
from headroom.host.following.findings import Findings
from headroom.host.following.inputs import Inputs, NotFollowed
from headroom.host.following.stages.coding import code
from headroom.host.following.stages.sampling import sample
from headroom.host.following.stages.seedvr import OF_SEEDVR
from headroom.host.planning.decode_in_graph import decode_in_graph
from headroom.host.planning.fit import find_fit
from headroom.host.prediction.host_answers import free_memory_answer
from headroom.host.prediction.stages import Question, coding_stage
from headroom.host.prediction.step import Step, predict_step
from headroom.host.prediction.vae import Coding, predict_coding
from headroom.host.vae.settings import VAESettings
from headroom.host.vae.wrapper import low_memory_vae
from headroom.memory.prediction import Forecast, fake_tree, named_card
from headroom.memory.render import render_fit, render_forecast

from .families import FAMILIES
from .one_step import one_call
from .sound_models import Song, drawn, model_of
from .test_catalogue import since_it_was_made
from .test_networks import given_by, shapes_of
from .test_prediction import load, off_by, one_thread, this_cpu  # noqa: F401  # a fixture

pytestmark = [since_it_was_made, pytest.mark.usefixtures("one_thread", "extra_nodes")]

SHAPE = (1, 16, 2, 12, 16)


def upscaler() -> Song:
    config = {
        "image_model": "seedvr2", "vid_dim": 256, "heads": 2, "num_layers": 4, "mm_layers": 2, "mlp_type": "swiglu",
        "norm_eps": 1e-5, "vid_out_norm": True,
    }  # fmt: skip

    def text(seed: int) -> tuple[Tensor, dict[str, Any]]:
        generator = torch.Generator().manual_seed(seed)
        condition = torch.randn(1, 17, *SHAPE[2:], generator=generator)
        return torch.randn(1, 58, 5120, generator=generator), {"condition": condition}

    return Song(model_of("SeedVR2", config), SHAPE, text)


@pytest.mark.parametrize("cfg", [1.0, 4.0])
def test_a_step(cfg: float) -> None:
    made = upscaler()
    step = Step(made.model, torch.zeros(SHAPE), made.conditioning(1), made.conditioning(2), cfg)
    assert off_by(predict_step(step, this_cpu()), one_call(made.model, made, SHAPE, cfg)) <= 0.02


@pytest.mark.parametrize("encodes", [False, True])
def test_a_decode_and_an_encode(encodes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own tiles, as the host's tiled nodes ask for."""
    monkeypatch.setattr(comfy.model_management, "get_free_memory", free_memory_answer(this_cpu()))
    vae = comfy.sd.VAE(drawn(find("comfy.ldm.seedvr.vae:VideoAutoencoderKLWrapper")()).state_dict())
    load(vae.patcher)
    if encodes:
        x, tiles = torch.rand(1, 5, 64, 80, 3), {"tile_x": 64, "tile_y": 64, "overlap": 16}
        found = predict_coding(Coding(vae, x, encodes=True, tiles=tiles), this_cpu()).prediction
        assert off_by(found, lambda: vae.encode_tiled(x, **tiles)) <= 0.02
    else:
        x, tiles = torch.zeros(1, 16, 2, 8, 10), {"tile_x": 8, "tile_y": 8, "overlap": 2}
        found = predict_coding(Coding(vae, x, tiles=tiles), this_cpu()).prediction
        assert off_by(found, lambda: vae.decode_tiled(x, **tiles)) <= 0.02


def test_its_own_tiles_stay_its_own() -> None:
    """Low-Memory VAE and Make It Fit leave this VAE as it is: a tiled node's tiles count, and a decode in one piece
    that is too large is no reason to refuse, since the host goes on in tiles."""
    vae = comfy.sd.VAE(drawn(find("comfy.ldm.seedvr.vae:VideoAutoencoderKLWrapper")()).state_dict())
    card = named_card("sm86", 8.0)
    low, x = low_memory_vae(vae, VAESettings()), torch.zeros(1, 16, 2, 8, 10)
    tiled = {"tile_size": 64, "overlap": 16, "temporal_size": 64, "temporal_overlap": 8}
    sizes = []
    for one in (vae, low):
        found = Findings(card)
        code(found, "VAEDecodeTiled", Inputs("VAEDecodeTiled", {"vae": one, "samples": {"samples": x}, **tiled}))
        (coding,) = (stage for stage in found.stages if stage.work == "decode")
        assert coding.method.startswith("core's tiles")
        sizes.append(coding.peak)
    assert sizes[0] == sizes[1]
    behind = {"class_type": "VAEDecodeTiled", "inputs": {"samples": ["1", 0], "vae": ["3", 0], **tiled}}
    running = {"1": {"class_type": "KSampler", "inputs": {}}, "2": behind}
    found_behind = decode_in_graph("1", running, low, {"samples": x})
    assert found_behind is not None
    assert found_behind.tiles is not None
    stage = coding_stage(Coding(low, x), card)
    assert stage.or_tiles
    assert not stage.cuts
    told = render_forecast(Forecast(card, (stage,), limit=1e-4))
    assert "go on in tiles" in told.splitlines()[1]
    assert "Low-Memory VAE" not in told
    family = FAMILIES["wan21"]
    model, latent = family.load(), family.latent(64, 80)
    question = Question(model, {"samples": latent}, vae, positive=family.conditioning(1))
    decode = coding_stage(Coding(vae, latent), card)
    fit = find_fit(question, card, limit=(decode.peak - 1) / card.total)
    assert fit.found
    assert fit.vae is not None
    assert fit.vae.settings is None
    assert fit.vae.stage == decode
    assert "ComfyUI goes on in tiles" in render_fit(fit)
    here = coding_stage(Coding(vae, latent), this_cpu())
    assert not here.or_tiles  # nothing catches it where RAM ends
    assert find_fit(question, this_cpu(), limit=(here.peak - 1) / this_cpu().total).vae is None


def followed(kind: str, **inputs: Any) -> tuple[Findings, Any]:
    found = Findings(this_cpu())
    with found.mode:
        faked = {name: fake_tree(value) for name, value in inputs.items()}
    return found, OF_SEEDVR[kind](found, kind, Inputs(kind, faked))


@pytest.mark.parametrize(("method", "above"), [("lab", 0.02), ("wavelet", 0.15), ("adain", 0.02)])
def test_colours(method: str, above: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of wavelets a bound: on a CPU a result's copy is counted that oneDNN does not make of a channel each."""
    monkeypatch.setattr(comfy.model_management, "get_free_memory", free_memory_answer(this_cpu()))
    kind, frames, others = "SeedVR2PostProcessing", torch.rand(2, 96, 112, 3), torch.rand(2, 94, 110, 3)
    inputs = {"images": frames, "original_resized_images": others, "color_correction_method": method}
    found, results = followed(kind, **inputs)
    assert shapes_of(results) == shapes_of(given_by(kind, **inputs))
    (stage,) = found.stages
    work = lambda: nodes.NODE_CLASS_MAPPINGS[kind].execute(**inputs)  # noqa: E731
    assert -0.02 <= stage.prediction.activations / peak_bytes(work) - 1 <= above


def test_without_a_change_of_colours_nothing_is_on_the_card() -> None:
    frames = torch.rand(3, 64, 64, 3)
    found, (result,) = followed(
        "SeedVR2PostProcessing", images=frames, original_resized_images=frames, color_correction_method="none"
    )
    assert result.shape == frames.shape
    assert not found.stages


def test_each_part_of_a_video_is_sampled_by_itself() -> None:
    made, found = upscaler(), Findings(named_card("sm86", 12.0))
    with found.mode:
        faked = fake_tree({"samples": torch.zeros(*SHAPE[:2], 9, *SHAPE[3:])})
    mode = {"chunking_mode": "manual", "chunking_mode.frames_per_chunk": 5}
    cut = Inputs("SeedVR2TemporalChunk", {"latent": faked, "temporal_overlap": 0, **mode})
    part, _ = OF_SEEDVR["SeedVR2TemporalChunk"](found, cut.kind, cut)
    assert part["samples"].shape == SHAPE
    texts = {"positive": made.conditioning(1), "negative": made.conditioning(2)}
    asked = {"model": made.model, "latent_image": part, "cfg": 1.0, "steps": 3, "sampler_name": "euler", **texts}
    with torch.inference_mode():
        sample(found, "KSampler", Inputs("KSampler", asked))
    assert [stage.times for stage in found.stages] == [3 * 5]  # five parts: the last is of one frame


@pytest.mark.parametrize(("mode", "cells"), [({"chunking_mode": "auto"}, 9), ({"chunking_mode": "manual"}, 3)])
def test_parts_of_a_video_are_joined_again(mode: dict[str, Any], cells: int) -> None:
    latent = {"samples": torch.zeros(1, 16, 9, 8, 8)}
    found = Findings(named_card("sm86", 12.0))
    with found.mode:
        faked = fake_tree(latent)
    frames = {"chunking_mode.frames_per_chunk": 4 * (cells - 1) + 1} if mode["chunking_mode"] == "manual" else {}
    cut = Inputs("SeedVR2TemporalChunk", {"latent": faked, "temporal_overlap": 1, **mode, **frames})
    part, overlap = OF_SEEDVR["SeedVR2TemporalChunk"](found, cut.kind, cut)
    assert part["samples"].shape == (1, 16, cells, 8, 8)
    joined = Inputs("SeedVR2TemporalMerge", {"latents": part, "temporal_overlap": overlap})
    (whole,) = OF_SEEDVR["SeedVR2TemporalMerge"](found, joined.kind, joined)
    assert whole["samples"].shape == latent["samples"].shape
    assert set(whole) == {"samples"}


def test_what_is_no_picture_is_a_sentence() -> None:
    with pytest.raises(NotFollowed, match="images gets no pictures"):
        followed("SeedVR2PostProcessing", images=3, original_resized_images=3, color_correction_method="lab")
