"""Models and nodes that look at what they are given are followed: tokens, whole numbers, experts, spectra, pictures."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import comfy.ops
import pytest
import torch

import nodes
from headroom.benchmarks._harness import peak_bytes
from headroom.cli.host import names_one
from headroom.host.core.internals import find
from headroom.host.following.findings import Findings
from headroom.host.following.inputs import Inputs
from headroom.host.following.stages.coding import encodes_counted
from headroom.host.following.stages.encoders import LISTENER, _listening
from headroom.host.prediction.encoders import HeldNetwork, predict_network
from headroom.host.prediction.host_answers import GATES
from headroom.host.workflow.dry_run import FOLLOWERS
from headroom.memory.prediction import fake_tree

from .test_following_models import followed
from .test_prediction import this_cpu
from .workflows import node

pytestmark = pytest.mark.usefixtures("extra_nodes")

SHAPE = "comfy.ldm.hunyuan3dv2_1.hunyuandit:HunYuanDiTPlain"
GATE = "comfy.ldm.hunyuan3dv2_1.hunyuandit:MoEGate"


@pytest.mark.skipif(find("comfy.ldm.hidream_o1.model:HiDreamO1Transformer") is None, reason="an older ComfyUI")
def test_a_model_asks_for_its_texts_tokens() -> None:
    """HiDream-O1 puts its pictures among them, and counts them."""
    run = followed(
        {
            "1": node("CheckpointLoaderSimple", ckpt_name="hidream_o1_image_bf16.safetensors"),
            "2": node("CLIPTextEncode", clip=["1", 1], text="a lighthouse"),
            "3": node("CLIPTextEncode", clip=["1", 1], text=""),
            "4": node("EmptyHiDreamO1LatentImage", width=1024, height=768, batch_size=1),
            "5": node("EmptyImage", width=300, height=500, batch_size=1, color=0),
            "6": node("HiDreamO1ReferenceImages", positive=["2", 0], negative=["3", 0], **{"images.image_1": ["5", 0]}),
            "7": node(
                "KSampler", model=["1", 0], positive=["6", 0], negative=["6", 1], latent_image=["4", 0], seed=1,
                steps=4, cfg=5.0, sampler_name="euler", scheduler="normal", denoise=1.0,
            ),
        }
    )  # fmt: skip
    assert run.complete, run.unknown
    sampling = next(stage for stage in run.stages if stage.work == "sampling")
    assert not sampling.doubt
    tokens = (1024 // 32) * (768 // 32)
    assert sampling.prediction.activations > tokens * 4096 * 2


@pytest.fixture
def of_experts() -> Iterator[Any]:
    made = find(SHAPE)
    if made is None:
        pytest.skip("an older ComfyUI")
    with torch.inference_mode():
        network = made(
            in_channels=8, hidden_size=64, context_dim=32, depth=4, num_heads=4, num_moe_layers=2,
            guidance_cond_proj_dim=None, dtype=torch.float32, device="cpu", operations=comfy.ops.manual_cast,
        ).eval()  # fmt: skip
        for parameter in network.parameters():
            parameter.normal_(std=0.05)
        yield network


def test_experts_take_most_where_all_choose_the_same(of_experts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hunyuan3D 2.1 counts how many tokens chose each of its experts."""
    assert GATE in GATES
    x, t, context = torch.randn(2, 8, 512), torch.rand(2), torch.randn(2, 77, 32)  # older hosts take pairs alone
    held = HeldNetwork(of_experts, lambda network: network)
    work = lambda network: network(fake_tree(x), fake_tree(t), fake_tree(context))  # noqa: E731
    prediction, _ = predict_network(held, this_cpu(), work)
    of_experts(x, t, context)
    spread = peak_bytes(lambda: of_experts(x, t, context))
    assert prediction.activations >= spread
    gate = find(GATE)
    choose = gate.forward

    def the_first(self: Any, *args: Any) -> Any:
        chosen, *more = choose(self, *args)
        return (torch.arange(chosen.shape[1]).repeat(len(chosen), 1), *more)

    monkeypatch.setattr(gate, "forward", the_first)
    together = peak_bytes(lambda: of_experts(x, t, context))
    assert prediction.activations == pytest.approx(together, rel=0.02)


@pytest.mark.parametrize(("samples", "rate"), [(16000, 16000), (100_001, 44100), (5_000_000, 48000), (700, 8000)])
@pytest.mark.parametrize("channels", [1, 2])
def test_gemma_hears_as_many_frames_as_it_would(samples: int, rate: int, channels: int) -> None:
    tokenizer = find(LISTENER)
    if not hasattr(tokenizer, "_extract_audio_features"):
        pytest.skip("an older ComfyUI")
    waveform = torch.rand(channels, samples)
    heard = tokenizer._extract_audio_features(tokenizer, waveform, rate)
    with _listening():
        without = tokenizer._extract_audio_features(tokenizer, waveform, rate)
    assert [(one.shape, one.dtype) for one in without] == [(one.shape, one.dtype) for one in heard]
    assert torch.equal(without[1], heard[1])


@pytest.mark.parametrize("given", [True, False])
def test_what_is_painted_has_its_pictures_size(given: bool) -> None:
    if "Painter" not in nodes.NODE_CLASS_MAPPINGS:
        pytest.skip("an older ComfyUI")
    inputs = {"mask": "", "width": 128, "height": 64, "bg_color": "#102030"}
    inputs |= {"image": torch.rand(2, 40, 56, 3)} if given else {}
    real = nodes.NODE_CLASS_MAPPINGS["Painter"].execute(**inputs).args
    found = Findings(this_cpu())
    with found.mode:
        faked = {name: fake_tree(value) for name, value in inputs.items()}
    without = FOLLOWERS["Painter"](found, "Painter", Inputs("Painter", faked))
    assert [one.shape for one in without] == [one.shape for one in real]


def test_what_is_saved_and_shown_is_handed_on() -> None:
    run = followed(
        {
            "1": node("EmptyImage", width=96, height=64, batch_size=2, color=0),
            "2": node("PreviewImage", images=["1", 0]),
            "3": node("SaveImage", images=["2", 0], filename_prefix="x"),
            "4": node("ImageScaleBy", image=["3", 0], upscale_method="bilinear", scale_by=2.0),
        }
    )
    assert run.results["4"][0].shape == (2, 128, 192, 3)


class SoundVAE:
    """As the host's VAE of MiniMax-H3's sounds."""

    latent_dim, latent_channels, extra_1d_channel, output_channels = 2, 32, None, 2
    downscale_ratio, audio_sample_rate = 800, 32000


def test_a_sound_that_is_encoded_within_a_node_is_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    found, seen = Findings(this_cpu()), list[Any]()
    monkeypatch.setattr("headroom.host.following.findings.Findings.add_coding", lambda _, coding: seen.append(coding))
    monkeypatch.setattr(Inputs, "vae", lambda self, name="vae": self[name])
    monkeypatch.setattr(Findings, "add", lambda self, stage: None)
    vae = SoundVAE()
    with encodes_counted(found, Inputs("MiniMaxH3AddGuide", {"audio_vae": vae, "vae": None})) as counted, found.mode:
        latent = counted["audio_vae"].encode(torch.empty(1, 32000, 2))
        assert counted["audio_vae"].audio_sample_rate == 32000
    assert latent.shape == (1, 32, 2, 40)
    assert [(coding.vae, tuple(coding.x.shape), coding.encodes) for coding in seen] == [(vae, (1, 32000, 2), True)]


def test_a_command_loads_the_nodes_of_its_workflow_alone() -> None:
    """Every class that the host keeps in a file of its own is found there by its name."""
    folder = Path(nodes.__file__).parent / "comfy_extras"
    of_files = [
        (kind, Path(str(sys.modules[made.__module__].__file__)))
        for kind, made in nodes.NODE_CLASS_MAPPINGS.items()
        if "comfy_extras" in made.__module__
    ]
    assert len(of_files) > 100
    assert [kind for kind, file in of_files if not names_one(file, {kind})] == []
    assert not names_one(folder / "nodes_mask.py", {"KSampler", "SaveImage"})
