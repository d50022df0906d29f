"""What a dry run follows of models that work together, look back on what they sampled, or keep something of a step."""

from pathlib import Path
from typing import Any

import folder_paths
import pytest
import torch

from headroom.host.workflow.dry_run import DryRun
from headroom.memory.prediction import named_card

from .test_catalogue import since_it_was_made
from .workflows import node

pytestmark = pytest.mark.usefixtures("extra_nodes")

SD15, DREAMSHAPER = "v1-5-pruned-emaonly-fp16.safetensors", "DreamShaper_8_pruned.safetensors"


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders for models with nothing in them."""
    for folder in ("checkpoints", "diffusion_models", "text_encoders", "vae"):
        (tmp_path / folder).mkdir()
        kinds = folder_paths.folder_names_and_paths[folder][1]
        monkeypatch.setitem(folder_paths.folder_names_and_paths, folder, ([str(tmp_path / folder)], kinds))
    folder_paths.filename_list_cache.clear()


def followed(workflow: dict[str, Any]) -> DryRun:
    with torch.inference_mode():
        return DryRun(workflow, named_card("sm86", 24.0)).run()


def sampled(guider: dict[str, Any], latent: dict[str, Any], sampler: dict[str, Any]) -> dict[str, Any]:
    """A sampler behind a guider; node 1 is the model."""
    return {
        "5": latent,
        "6": guider,
        "7": node("RandomNoise", noise_seed=1),
        "8": sampler,
        "9": node("BasicScheduler", model=["1", 0], scheduler="simple", steps=4, denoise=1.0),
        "10": node(
            "SamplerCustomAdvanced", noise=["7", 0], guider=["6", 0], sampler=["8", 0], sigmas=["9", 0],
            latent_image=["5", 0],
        ),
    }  # fmt: skip


EULER = node("KSamplerSelect", sampler_name="euler")


def by_two(cfg: float = 3.0, **models: Any) -> dict[str, Any]:
    guider = node("DualModelGuider", model=["1", 0], positive=["4", 0], negative=["4", 0], cfg=cfg, **models)
    return {
        "1": node("CheckpointLoaderSimple", ckpt_name=SD15),
        "2": node("CheckpointLoaderSimple", ckpt_name=DREAMSHAPER),
        "4": node("CLIPTextEncode", clip=["1", 1], text="a lighthouse at dusk"),
    } | sampled(guider, node("EmptyLatentImage", width=256, height=256, batch_size=1), EULER)


@since_it_was_made
class TestTwoModels:
    def test_the_weights_of_both_are_wanted_at_once(self) -> None:
        both, off = followed(by_two(model_negative=["2", 0])), followed(by_two(1.0, model_negative=["2", 0]))
        one = followed(by_two())
        assert both.complete, both.unknown
        two, alone, single = both.stages[-1], off.stages[-1], one.stages[-1]
        assert two.method == "two models"
        assert two.weights == 2 * alone.weights == pytest.approx(two.prediction.weights, rel=0.001)
        # Each computes one text at a time; one model computes both in a batch.
        assert two.activations == alone.activations < single.activations
        assert single.weights == alone.weights
        assert both.forecast().verdict == off.forecast().verdict

    def test_where_the_card_holds_one_of_them_the_rest_comes_over_the_bus(self) -> None:
        run = followed(by_two(model_negative=["2", 0]))
        stage = run.stages[-1]
        small = named_card("sm86", (1.5 * stage.weights / 2 + stage.activations) / 2**30)
        forecast = type(run.forecast())(small, (stage,), 1.0)
        assert forecast.streamed_per_step == pytest.approx(stage.weights / 4, rel=0.01)

    def test_a_negative_without_a_text(self) -> None:
        workflow = by_two(model_negative=["2", 0])
        del workflow["6"]["inputs"]["negative"]
        run = followed(workflow)
        assert "10" not in run.unknown  # SD 1.5 cannot do without a text, which is said and does not end the run
        assert "ComfyUI" not in str(run.unknown)


def by_blocks(length: int, frames: int = 1) -> dict[str, Any]:
    return {
        "1": node("UNETLoader", unet_name="causal_forcing-framewise.safetensors", weight_dtype="default"),
        "3": node("CLIPLoader", clip_name="umt5_xxl_fp8_e4m3fn_scaled.safetensors", type="wan"),
        "4": node("CLIPTextEncode", clip=["3", 0], text="a lighthouse at dusk"),
    } | sampled(
        node("BasicGuider", model=["1", 0], conditioning=["4", 0]),
        node("EmptyARVideoLatent", width=256, height=128, length=length, batch_size=1),
        node("SamplerARVideo", num_frame_per_block=frames),
    )


@since_it_was_made
def test_a_text_encoder_that_is_put_on_the_cpu_takes_nothing_of_the_card() -> None:
    runs = []
    for device in ("default", "cpu"):
        workflow = by_blocks(21)
        workflow["3"]["inputs"]["device"] = device
        runs.append(followed(workflow).forecast(0))
    (text, sampling), (beside, _) = (run.stages for run in runs)
    assert not text.ram
    assert beside.peak == 0
    assert beside.ram > text.weights // 2
    assert runs[1].peak == sampling.peak < runs[0].peak
    assert runs[1].ram_needed == sampling.weights + beside.ram


@since_it_was_made
class TestBlockByBlock:
    def test_keys_and_values_of_all_blocks_are_kept(self) -> None:
        short, long = (followed(by_blocks(length)) for length in (21, 81))
        assert long.complete, long.unknown
        assert not long.stages[-1].doubt
        cells = (81 - 21) // 4 * 8 * 16  # more tokens; 30 layers of 1536 channels, keys and values in 16 bits
        more = long.stages[-1].activations - short.stages[-1].activations
        assert more == pytest.approx(cells * 30 * 1536 * 2 * 2, rel=0.05)

    def test_larger_blocks_take_more(self) -> None:
        one, three = (followed(by_blocks(81, frames)).stages[-1].activations for frames in (1, 3))
        assert three > one

    def test_a_block_of_no_frames_is_a_sentence(self) -> None:
        workflow = by_blocks(21)
        workflow["11"] = node("PrimitiveInt", value=0)
        workflow["8"]["inputs"]["num_frame_per_block"] = ["11", 0]
        assert followed(workflow).unknown["8"].endswith("a block has a frame at least")


@since_it_was_made
def test_tracks_have_the_shapes_that_are_asked_for() -> None:
    given = {"width": 64, "height": 64, "start_x": 0.0, "start_y": 0.0, "end_x": 1.0, "end_y": 1.0, "mid_x": 0.5}
    given |= {"mid_y": 0.5, "track_spread": 0.02, "bezier": False, "interpolation": "linear"}
    workflow = {
        "1": node("GenerateTracks", num_frames=21, num_tracks=3, **given),
        "2": node("GenerateTracks", num_frames=21, num_tracks=5, **given),
        "3": node("WanMoveConcatTrack", tracks_1=["1", 0], tracks_2=["2", 0]),
        "4": node("PrimitiveInt", value=0),
        "5": node("GenerateTracks", num_frames=21, num_tracks=["4", 0], **given),
    }
    run = followed(workflow)
    (tracks,) = run.results["3"]
    assert tracks["track_path"].shape == (21, 8, 2)
    assert tracks["track_visibility"].shape == (21, 8)
    assert run.results["1"][1] == 21
    assert run.unknown == {"5": "GenerateTracks: 0 tracks of 21 frames are none"}


@since_it_was_made
def test_a_text_encoder_with_experts_says_what_is_taken_of_them() -> None:
    workflow = {
        "1": node("CLIPLoader", clip_name="gpt_oss_20b_nvfp4.safetensors", type="lens"),
        "2": node("CLIPTextEncode", clip=["1", 0], text="a lighthouse at dusk"),
    }
    run = followed(workflow)
    assert run.complete, run.unknown
    (file,) = run.absent.used.values()
    assert run.stages[0].weights == pytest.approx(file.nbytes, rel=0.01)
    assert any("experts" in note for note in run.notes)
