"""Nodes that run one network over pictures or sound: what is predicted of them, and what torch's profiler sees."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import comfy.model_management
import comfy.model_patcher
import folder_paths
import pytest
import torch
from torch import Tensor, nn

import nodes
from headroom.benchmarks._harness import peak_bytes
from headroom.host.core.internals import find
from headroom.host.following.findings import Findings
from headroom.host.following.inputs import Inputs, NotFollowed
from headroom.host.following.stages.networks import OF_NETWORKS
from headroom.host.prediction.host_answers import attending
from headroom.host.workflow.dry_run import DryRun
from headroom.memory.prediction import Card, Stage, fake_tree, named_card

from .one_step import CPU
from .test_catalogue import since_it_was_made
from .workflows import node

ATTENTION = "comfy.ldm.modules.attention"


@pytest.fixture(scope="module", autouse=True)
def extra_nodes() -> None:
    asyncio.run(nodes.init_builtin_extra_nodes())


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of each kind with nothing in it."""
    for folder in list(folder_paths.folder_names_and_paths):
        (tmp_path / folder).mkdir()
        kinds = folder_paths.folder_names_and_paths[folder][1]
        monkeypatch.setitem(folder_paths.folder_names_and_paths, folder, ([str(tmp_path / folder)], kinds))
    monkeypatch.setattr(folder_paths, "input_directory", str(tmp_path))
    folder_paths.filename_list_cache.clear()
    return tmp_path


def this_cpu() -> Card:
    return Card("cpu", CPU, comfy.model_management.get_total_memory(CPU), threads=1)


def followed(workflow: dict[str, Any]) -> DryRun:
    return DryRun(workflow, named_card("sm86", 12.0)).run()


def drawn(network: nn.Module) -> nn.Module:
    for weight in network.parameters():
        weight.data.normal_(0, 0.02)
    return network.eval()


def predicted(kind: str, **inputs: Any) -> tuple[Stage, Any]:
    """The stage of a node on this machine, and what it gives without data."""
    found = Findings(this_cpu())
    with found.mode:
        faked = {name: fake_tree(value) for name, value in inputs.items()}
    results = OF_NETWORKS[kind](found, kind, Inputs(kind, faked))
    (stage,) = found.stages
    return stage, results


def off_by(stage: Stage, kind: str, **inputs: Any) -> float:
    """The relative error of a stage against torch's profiler."""
    node_class = nodes.NODE_CLASS_MAPPINGS[kind]
    work = partial(getattr(node_class, "execute", None) or getattr(node_class(), node_class.FUNCTION), **inputs)
    work()
    return abs(stage.prediction.activations / peak_bytes(work) - 1)


def shapes_of(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tuple(value.shape)
    if isinstance(value, dict):
        return {key: shapes_of(one) for key, one in value.items()}
    return [shapes_of(one) for one in value] if isinstance(value, (list, tuple)) else value


def given_by(kind: str, **inputs: Any) -> Any:
    node_class = nodes.NODE_CLASS_MAPPINGS[kind]
    result = (getattr(node_class, "execute", None) or getattr(node_class(), node_class.FUNCTION))(**inputs)
    return getattr(result, "args", result)


def upscaler() -> Any:
    spandrel = find("spandrel.architectures.ESRGAN:ESRGANArch")
    network = drawn(find("spandrel.architectures.ESRGAN:ESRGAN")(num_filters=8, num_blocks=1, scale=2))
    descriptor = spandrel().load(network.state_dict()).eval()
    descriptor.patcher = comfy.model_patcher.ModelPatcher(descriptor.model, load_device=CPU, offload_device=CPU)
    return descriptor


class TestUpscaling:
    @pytest.mark.parametrize(("height", "width"), [(96, 160), (600, 536)])
    def test_in_one_piece_and_in_the_hosts_tiles(self, height: int, width: int) -> None:
        inputs = {"upscale_model": upscaler(), "image": torch.rand(1, height, width, 3)}
        stage, (picture,) = predicted("ImageUpscaleWithModel", **inputs)
        assert stage.work == "upscale"
        assert picture.shape == (1, 2 * height, 2 * width, 3)
        assert off_by(stage, "ImageUpscaleWithModel", **inputs) <= 0.02

    @since_it_was_made
    def test_before_the_download(self, empty: Path) -> None:
        workflow = {
            "1": node("UpscaleModelLoader", model_name="RealESRGAN_x4plus.safetensors"),
            "2": node("LoadImage", image="x.png"),
            "3": node("ImageUpscaleWithModel", upscale_model=["1", 0], image=["2", 0]),
            "4": node("GetImageSize", image=["3", 0]),
        }
        run = followed(workflow)
        assert run.complete, run.unknown
        assert run.results["4"] == (4096, 4096, 1)
        (stage,) = run.stages
        assert stage.weights == pytest.approx(67.0e6, rel=0.01)  # the size of the published file

    def test_a_file_whose_tensors_cannot_be_told_without_reading_it(self, empty: Path) -> None:
        torch.save({"a": torch.zeros(1)}, empty / "upscale_models" / "x.pth")
        run = followed({"1": node("UpscaleModelLoader", model_name="x.pth")})
        assert "x.pth is no safetensors file" in run.unknown["1"]

    def test_another_model_is_a_sentence(self, empty: Path) -> None:
        found = Findings(this_cpu())
        with found.mode:
            image = torch.empty(1, 64, 64, 3)
        with pytest.raises(NotFollowed, match="upscale_model gets no network"):
            OF_NETWORKS["ImageUpscaleWithModel"](
                found, "ImageUpscaleWithModel", Inputs("ImageUpscaleWithModel", {"upscale_model": 3, "image": image})
            )


def audio_encoder(kind: str) -> Any:
    made = find("comfy.audio_encoders.audio_encoders:AudioEncoderModel")
    sizes = {
        "wav2vec2": {"embed_dim": 64, "num_heads": 4, "num_layers": 3},
        "whisper3": {"n_audio_state": 64, "n_audio_head": 4, "n_audio_layer": 3},
    }
    encoder = made({"model_type": kind, **sizes[kind]})
    drawn(encoder.model)
    return encoder


@pytest.mark.skipif(find("comfy.audio_encoders.whisper:WhisperLargeV3") is None, reason="no audio encoders in it")
class TestSound:
    @pytest.mark.parametrize("kind", ["wav2vec2", "whisper3"])
    def test_an_audio_encoder(self, kind: str) -> None:
        sound = {"waveform": torch.rand(1, 2, 44100 * 3), "sample_rate": 44100}
        inputs = {"audio_encoder": audio_encoder(kind), "audio": sound}
        stage, (heard,) = predicted("AudioEncoderEncode", **inputs)
        assert stage.work == "sound"
        assert off_by(stage, "AudioEncoderEncode", **inputs) <= 0.02
        assert shapes_of(heard) == shapes_of(given_by("AudioEncoderEncode", **inputs)[0])

    @since_it_was_made
    @pytest.mark.parametrize(
        "name", ["wav2vec2-chinese-base_fp16.safetensors", "whisper_large_v3_fp16.safetensors"], ids=["small", "large"]
    )
    def test_before_the_download(self, empty: Path, name: str) -> None:
        workflow = {
            "1": node("AudioEncoderLoader", audio_encoder_name=name),
            "2": node("EmptyAudio", duration=4.0, sample_rate=44100, channels=2),
            "3": node("AudioEncoderEncode", audio_encoder=["1", 0], audio=["2", 0]),
        }
        run = followed(workflow)
        assert run.complete, run.unknown
        (stage,) = run.stages
        (file,) = run.absent.used.values()
        assert (stage.work, stage.doubt) == ("sound", "")
        assert stage.weights == pytest.approx(file.nbytes, rel=0.06)  # one layer is in 32 bits
        assert set(stage.prediction.kernels) == {"efficient"}  # what a card has, and no choice of this machine's


def test_only_this_thread_attends_as_on_the_card() -> None:
    whisper = find("comfy.audio_encoders.wav2vec2:optimized_attention_masked")
    with attending(named_card("sm86", 12.0)):
        inside = find("comfy.audio_encoders.wav2vec2:optimized_attention_masked")
    assert inside is not whisper
    assert find("comfy.audio_encoders.wav2vec2:optimized_attention_masked") is whisper


class TestStyle:
    def inputs(self) -> dict[str, Any]:
        redux = find("comfy.ldm.flux.redux:ReduxImageEncoder")(redux_dim=48, txt_in_features=64)
        seen = find("comfy.clip_vision:Output")()
        seen.last_hidden_state = torch.rand(1, 729, 48)
        text = [[torch.rand(1, 32, 64), {"pooled_output": torch.rand(1, 16)}]]
        given = {"strength": 1.0, "strength_type": "multiply", "clip_vision_output": seen, "conditioning": text}
        return {"style_model": find("comfy.sd:StyleModel")(drawn(redux)), **given}

    def test_on_the_cpu_where_it_runs(self) -> None:
        inputs = self.inputs()
        stage, (style,) = predicted("StyleModelApply", **inputs)
        assert style[0][0].shape == (1, 32 + 729, 64)
        assert off_by(stage, "StyleModelApply", **inputs) <= 0.02

    def test_it_takes_nothing_of_a_card(self) -> None:
        """The host leaves it on the CPU, whatever the card."""
        found = Findings(named_card("sm86", 12.0))
        (style,) = OF_NETWORKS["StyleModelApply"](found, "StyleModelApply", Inputs("StyleModelApply", self.inputs()))
        assert found.stages == []
        assert style[0][0].shape == (1, 32 + 729, 64)
