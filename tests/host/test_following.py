"""Nodes that a dry run follows by rules of its own: videos, what looks at pictures, what writes, what guides."""

from pathlib import Path
from typing import Any

import av
import folder_paths
import numpy
import pytest
import torch

from headroom.host.following.files import MISSING_VIDEO
from headroom.host.prediction.encoders import PROMPT
from headroom.host.workflow.dry_run import DryRun
from headroom.memory.prediction import named_card

from .test_catalogue import since_it_was_made
from .test_compat import VERSION
from .workflows import node

pytestmark = pytest.mark.usefixtures("extra_nodes")

trims_videos = pytest.mark.skipif(VERSION < (0, 24, 0), reason="this ComfyUI has no node that trims videos")


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders for models and inputs with nothing in them."""
    for folder in ("checkpoints", "diffusion_models", "text_encoders", "vae", "clip_vision"):
        (tmp_path / folder).mkdir()
        kinds = folder_paths.folder_names_and_paths[folder][1]
        monkeypatch.setitem(folder_paths.folder_names_and_paths, folder, ([str(tmp_path / folder)], kinds))
    monkeypatch.setattr(folder_paths, "input_directory", str(tmp_path))
    folder_paths.filename_list_cache.clear()
    return tmp_path


def followed(workflow: dict[str, Any]) -> DryRun:
    with torch.inference_mode():
        return DryRun(workflow, named_card("sm86", 12.0)).run()


def trimmed(file: str, start: float, duration: float) -> dict[str, Any]:
    return {
        "1": node("LoadVideo", file=file),
        "2": node("Video Slice", video=["1", 0], start_time=start, duration=duration, strict_duration=False),
        "3": node("GetVideoComponents", video=["2", 0]),
        "4": node("GetImageSize", image=["3", 0]),
    }


def write_video(path: Path, frames: int, width: int, height: int, rate: int) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for _ in range(frames):
            picture = numpy.zeros((height, width, 3), dtype=numpy.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


@trims_videos
@pytest.mark.parametrize(
    ("start", "duration", "frames"), [(0.0, 0.0, 20), (0.5, 1.0, 10), (1.5, 5.0, 5), (-0.5, 0.0, 5), (0.0, 1.2, 12)]
)
def test_a_video_counts_by_its_header(empty: Path, start: float, duration: float, frames: int) -> None:
    write_video(empty / "clip.mp4", 20, 96, 64, 10)
    run = followed(trimmed("clip.mp4", start, duration))
    assert not run.unknown
    assert run.results["4"] == (96, 64, frames)
    assert run.results["3"][2] == 10
    assert not run.notes


@trims_videos
def test_a_video_that_is_not_there_is_named(empty: Path) -> None:
    run = followed(trimmed("clip.mp4", 0.0, 2.0))
    assert run.results["4"] == (MISSING_VIDEO.width, MISSING_VIDEO.height, 48)
    assert run.notes == ["'clip.mp4' is not there: taken to have 121 frames of 1280 x 720 px, 24 a second"]
    assert run.complete


@trims_videos
def test_a_damaged_video_is_a_sentence(empty: Path) -> None:
    (empty / "clip.mp4").write_bytes(b"no video at all")
    run = followed(trimmed("clip.mp4", 0.0, 0.0))
    assert run.unknown["1"].startswith("LoadVideo: 'clip.mp4' is no video that can be read")


@pytest.mark.parametrize("name", ["../secret.mp4", "a/../../secret.mp4", "/etc/secret.mp4", "../secret.mp4 [output]"])
@pytest.mark.parametrize(("kind", "widget"), [("LoadVideo", "file"), ("LoadImage", "image"), ("LoadAudio", "audio")])
def test_names_that_lead_out_are_refused(empty: Path, kind: str, widget: str, name: str) -> None:
    """A picture outside was decoded, and its size told to whoever sent the workflow."""
    run = followed({"1": node(kind, **{widget: name}), "2": node("PreviewAny", source=["1", 0])})
    assert run.unknown["1"].endswith("leads out of ComfyUI's folders")


def test_a_video_that_lasts_for_no_time(empty: Path) -> None:
    workflow = {
        "1": node("EmptyImage", width=64, height=32, batch_size=7, color=0),
        "2": node("PrimitiveFloat", value=0.0),
        "3": node("CreateVideo", images=["1", 0], fps=["2", 0]),
    }
    assert followed(workflow).unknown["3"] == "CreateVideo: a video of 0 frames a second lasts for no time"


def test_a_video_of_pictures_goes_on(empty: Path) -> None:
    workflow = {
        "1": node("EmptyImage", width=64, height=32, batch_size=7, color=0),
        "2": node("CreateVideo", images=["1", 0], fps=7.0),
        "3": node("GetVideoComponents", video=["2", 0]),
        "4": node("GetImageSize", image=["3", 0]),
        "5": node("SaveVideo", video=["2", 0], filename_prefix="x", format="auto", codec="auto"),
    }
    run = followed(workflow)
    assert run.results["4"] == (64, 32, 7)
    assert run.complete


@pytest.mark.parametrize(
    "name", ["clip_vision_h.safetensors", "sigclip_vision_patch14_384.safetensors"], ids=["clip", "siglip"]
)
def test_looking_at_a_picture_is_a_stage(empty: Path, name: str) -> None:
    workflow = {
        "1": node("CLIPVisionLoader", clip_name=name),
        "2": node("LoadImage", image="x.png"),
        "3": node("CLIPVisionEncode", clip_vision=["1", 0], image=["2", 0], crop="center"),
    }
    run = followed(workflow)
    (stage,) = run.stages
    (file,) = run.absent.used.values()
    assert (stage.work, file.name) == ("vision", name)
    assert stage.weights == pytest.approx(file.nbytes, rel=0.05)
    assert stage.prediction.activations
    assert run.stages_followed


@since_it_was_made
def test_a_text_that_is_written_is_a_stage_and_a_text(empty: Path) -> None:
    given = {
        "clip": ["1", 0], "prompt": "a lighthouse", "sampling_mode": "on", "sampling_mode.temperature": 0.7,
        "sampling_mode.top_k": 64, "sampling_mode.top_p": 0.95, "sampling_mode.min_p": 0.05,
        "sampling_mode.repetition_penalty": 1.05, "sampling_mode.seed": 0, "thinking": False,
    }  # fmt: skip
    workflow = {
        "1": node("CLIPLoader", clip_name="qwen_3_4b.safetensors", type="lumina2", device="default"),
        "2": node("TextGenerate", max_length=256, **given),
        "3": node("PreviewAny", source=["2", 0]),
        "4": node("CLIPTextEncode", clip=["1", 0], text=["3", 0]),
    }
    run = followed(workflow)
    assert not run.unknown
    written, encoded = run.stages
    assert (written.work, written.method, encoded.method) == ("text", "written", "")
    assert written.model == encoded.model
    assert run.results["3"][0] == PROMPT
    workflow["2"]["inputs"]["max_length"] = 8192
    longer = followed(workflow).stages[0]
    # Keys and values of 36 layers, 8 heads of 128 channels, in 16 bits.
    room = (8192 - 256) * 36 * 8 * 128 * 2 * 2
    assert longer.prediction.activations - written.prediction.activations == pytest.approx(room, rel=0.01)


def guided(kind: str, **guider: Any) -> dict[str, Any]:
    return {
        "1": node("CheckpointLoaderSimple", ckpt_name="v1-5-pruned-emaonly-fp16.safetensors"),
        "4": node("CLIPTextEncode", clip=["1", 1], text="a lighthouse at dusk"),
        "5": node("EmptyLatentImage", width=256, height=256, batch_size=1),
        "6": node(kind, model=["1", 0], negative=["4", 0], **guider),
        "7": node("RandomNoise", noise_seed=1),
        "8": node("KSamplerSelect", sampler_name="euler"),
        "9": node("BasicScheduler", model=["1", 0], scheduler="simple", steps=20, denoise=1.0),
        "10": node(
            "SamplerCustomAdvanced", noise=["7", 0], guider=["6", 0], sampler=["8", 0], sigmas=["9", 0],
            latent_image=["5", 0],
        ),
    }  # fmt: skip


def dual(cfg: float, style: str) -> dict[str, Any]:
    texts = {"cond1": ["4", 0], "cond2": ["4", 0]}
    return guided("DualCFGGuider", cfg_conds=4.0, cfg_cond2_negative=cfg, style=style, **texts)


def test_guidance_by_two_texts_takes_three_conditionings(empty: Path) -> None:
    peaks = [
        followed(workflow).stages[-1].prediction.activations
        for workflow in (
            guided("CFGGuider", positive=["4", 0], cfg=3.0), dual(1.0, "regular"), dual(2.0, "regular"),
            dual(1.0, "nested"),
        )
    ]  # fmt: skip
    two, without, three, nested = peaks
    assert without == pytest.approx(two, rel=0.01)  # the text that is left out is on the card all the same
    assert three == nested > two
