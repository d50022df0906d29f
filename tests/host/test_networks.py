"""Nodes that run one network over pictures or sound: what is predicted of them, and what torch's profiler sees."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import comfy.model_management
import comfy.model_patcher
import comfy.sd
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
from headroom.host.prediction.host_answers import attending, free_memory_answer
from headroom.host.workflow.dry_run import DryRun
from headroom.memory.prediction import Stage, fake_tree, named_card

from ..nightly import at_night
from .one_step import CPU
from .test_catalogue import since_it_was_made
from .test_prediction import this_cpu
from .workflows import node

pytestmark = pytest.mark.usefixtures("one_thread", "extra_nodes")

ATTENTION = "comfy.ldm.modules.attention"


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
        loaded = sum(one.nbytes for key, one in file.tensors().items() if ".decoder." not in key)
        assert stage.weights == pytest.approx(loaded, rel=0.06)  # one layer is in 32 bits
        assert set(stage.prediction.kernels) == {"efficient"}  # what a card has, and no choice of this machine's


def test_only_this_thread_attends_as_on_the_card() -> None:
    whisper = find("comfy.audio_encoders.wav2vec2:optimized_attention_masked")
    with attending(named_card("sm86", 12.0)):
        inside = find("comfy.audio_encoders.wav2vec2:optimized_attention_masked")
    assert inside is not whisper
    assert find("comfy.audio_encoders.wav2vec2:optimized_attention_masked") is whisper


def moge() -> Any:
    stack = {
        "dim_res_blocks": [48, 32, 16], "num_res_blocks": [0, 1, 0], "res_block_in_norm": "none",
        "res_block_hidden_norm": "none", "resamplers": ["conv_transpose", "bilinear"],
    }  # fmt: skip
    stacks = {
        "neck": {"dim_in": [50, 2, 2], "dim_out": [None] * 3, **stack},
        **{
            name: {"dim_in": [48, 32, 16], "dim_out": [None, None, channels], **stack}
            for name, channels in (("points_head", 3), ("mask_head", 1), ("normal_head", 3))
        },
    }
    backbone = {
        "hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 4, "layer_norm_eps": 1e-6,
        "use_swiglu_ffn": False,
    }  # fmt: skip
    encoder = {"backbone": backbone, "intermediate_layers": [0, 1, 2, 3], "dim_out": 48}
    made = find("comfy.ldm.moge.model:MoGeModelV2")(encoder=encoder, scale_head={"dims": [128, 64, 1]}, **stacks)
    model = find("comfy.ldm.moge.model:MoGeModel")(drawn(made).state_dict())
    model.model.float()
    model.dtype = torch.float32
    return model


def detector() -> Any:
    network = drawn(find("comfy.ldm.rt_detr.rtdetr_v4:RTv4")(operations=find("comfy.ops:disable_weight_init")))
    tensors = {name: tensor.float() for name, tensor in network.state_dict().items()}
    return comfy.sd.load_diffusion_model_state_dict(tensors, model_options={"dtype": torch.float32})


def segmenter() -> Any:
    settings = find("comfy.supported_models:SAM31")({"image_model": "SAM31", "embed_dim": 64, "depth": 2})
    settings.set_inference_dtype(torch.float32, None)
    base = settings.get_model({}, "", device=None)
    drawn(base)
    return comfy.model_patcher.ModelPatcher(base, load_device=CPU, offload_device=CPU)


def interpolation() -> Any:
    network = drawn(find("comfy_extras.frame_interpolation_models.film_net:FILMNet")())
    return comfy.model_patcher.ModelPatcher(network, load_device=CPU, offload_device=CPU)


@since_it_was_made
class TestPictures:
    @pytest.mark.parametrize("pictures", [1, 3])
    def test_a_map_of_depth(self, pictures: int) -> None:
        settings = {"resolution_level": 0, "fov_x_degrees": 0.0, "batch_size": 2, "force_projection": True}
        inputs = {"moge_model": moge(), "image": torch.rand(pictures, 160, 224, 3), **settings, "apply_mask": True}
        stage, (geometry,) = predicted("MoGeInference", **inputs)
        assert off_by(stage, "MoGeInference", **inputs) <= 0.02
        assert shapes_of(geometry) == shapes_of(given_by("MoGeInference", **inputs)[0])
        (drawing,) = OF_NETWORKS["MoGeRender"](
            Findings(this_cpu()), "MoGeRender", Inputs("MoGeRender", {"moge_geometry": geometry, "output": "depth"})
        )
        assert drawing.shape == (pictures, 160, 224, 3)

    def test_boxes(self) -> None:
        inputs = {
            "model": detector(), "image": torch.rand(2, 96, 128, 3), "threshold": 0.5, "class_name": "all",
            "max_detections": 100,
        }  # fmt: skip
        stage, (boxes,) = predicted("RTDETR_detect", **inputs)
        assert off_by(stage, "RTDETR_detect", **inputs) <= 0.02
        assert [len(one) for one in boxes] == [1, 1]
        assert (boxes[0][0]["width"], boxes[0][0]["height"]) == (128, 96)

    @at_night
    @pytest.mark.parametrize(("pictures", "individual", "passes"), [(2, True, 0), (1, False, 1)])
    def test_segments(self, pictures: int, individual: bool, passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """The one that is refined may be as large as the picture; all that the detector sees is kept."""
        of_two = [{"cond": torch.randn(1, 32, 64), "attention_mask": None, "max_detections": count} for count in (1, 2)]
        inputs = {
            "model": segmenter(), "image": torch.rand(pictures, 96, 128, 3), "threshold": 0.0,
            "conditioning": [[of_two[0]["cond"], {"sam3_multi_cond": of_two}]], "refine_iterations": passes,
            "individual_masks": individual,
        }  # fmt: skip
        stage, (masks, boxes) = predicted("SAM3_Detect", **inputs)
        # By what is free it decides how many keys it attends to at a time; other work on this machine changes that.
        monkeypatch.setattr(comfy.model_management, "get_free_memory", free_memory_answer(this_cpu()))
        module = sys.modules[nodes.NODE_CLASS_MAPPINGS["SAM3_Detect"].__module__]
        refine = module._refine_mask
        monkeypatch.setattr(
            module,
            "_refine_mask",
            lambda network, image, mask, _, *more: refine(
                network, image, mask, torch.tensor([0.0, 0.0, 128.0, 96.0]), *more
            ),
        )
        # The first time: it keeps its tables of places then.
        work = partial(nodes.NODE_CLASS_MAPPINGS["SAM3_Detect"].execute, **inputs)
        assert stage.prediction.activations == pytest.approx(peak_bytes(work), rel=0.02)
        assert masks.shape == given_by("SAM3_Detect", **inputs)[0].shape
        assert [len(one) for one in boxes] == [1] * pictures

    def test_segments_of_many_pictures_stay_on_the_card(self, empty: Path) -> None:
        workflow = {
            "1": node("CheckpointLoaderSimple", ckpt_name="sam3.1_multiplex_fp16.safetensors"),
            "2": node("EmptyImage", width=640, height=480, batch_size=7, color=0),
            "3": node("CLIPTextEncode", clip=["1", 1], text="a dog"),
            "4": node(
                "SAM3_Detect", model=["1", 0], image=["2", 0], conditioning=["3", 0], threshold=0.5,
                refine_iterations=1, individual_masks=False,
            ),
        }  # fmt: skip
        many = followed(workflow)
        assert many.complete, many.unknown
        workflow["2"]["inputs"]["batch_size"] = 3
        few = followed(workflow)
        assert many.results["4"][0].shape == (7, 480, 640)
        of_many, of_few = (run.stages[1].prediction.activations for run in (many, few))
        assert of_many - of_few == 4 * 480 * 640 * 4
        assert "what SAM3_Detect finds is not known: it is taken to keep all that it looks at" in many.notes

    def test_frames_between(self) -> None:
        inputs = {"interp_model": interpolation(), "images": torch.rand(4, 70, 96, 3), "multiplier": 3}
        stage, (frames,) = predicted("FrameInterpolate", **inputs)
        assert frames.shape == (10, 70, 96, 3)
        assert off_by(stage, "FrameInterpolate", **inputs) <= 0.02

    @pytest.mark.parametrize(("height", "width"), [(48, 100), (100, 48), (50, 50)])
    def test_pictures_of_a_longer_edge(self, height: int, width: int) -> None:
        kind, inputs = "ResizeImagesByLongerEdge", {"images": torch.rand(2, height, width, 3), "longer_edge": 70}
        found = Findings(this_cpu())
        assert shapes_of(OF_NETWORKS[kind](found, kind, Inputs(kind, inputs))) == shapes_of(given_by(kind, **inputs))

    def test_many_pictures_take_as_much_as_a_few(self, empty: Path) -> None:
        """Each is gone from the card before the next."""
        workflow = {
            "1": node("FrameInterpolationModelLoader", model_name="film_net_fp16.safetensors"),
            "2": node("EmptyImage", width=128, height=64, batch_size=60, color=0),
            "3": node("FrameInterpolate", interp_model=["1", 0], images=["2", 0], multiplier=2),
        }
        many = followed(workflow)
        workflow["2"]["inputs"]["batch_size"] = 3
        few = followed(workflow)
        assert many.results["3"][0].shape == (119, 64, 128, 3)
        assert many.stages[0].prediction.activations == few.stages[0].prediction.activations

    def test_key_points_of_a_checkpoint(self, empty: Path) -> None:
        """The autoencoder is a stage of its own, and the network's peak comes before anything is found."""
        workflow = {
            "1": node("CheckpointLoaderSimple", ckpt_name="sdpose_wholebody_fp16.safetensors"),
            "2": node("EmptyImage", width=640, height=480, batch_size=20, color=0),
            "3": node("SDPoseKeypointExtractor", model=["1", 0], vae=["1", 2], image=["2", 0], batch_size=2),
            "4": node(
                "SDPoseDrawKeypoints", keypoints=["3", 0], draw_body=True, draw_hands=True, draw_face=True,
                draw_feet=False, stick_width=4, face_point_size=3, score_threshold=0.3, draw_head=True,
            ),
        }  # fmt: skip
        run = followed(workflow)
        assert run.complete, run.unknown
        assert [stage.work for stage in run.stages] == ["encode", "vision"]
        assert "heatmap_head" in run.stages[1].prediction.module
        assert run.results["4"][0].shape == (20, 480, 640, 3)

    def test_what_decides_by_data_says_so(self, empty: Path) -> None:
        workflow = {
            "1": node("LoadMoGeModel", model_name="moge_2_vitl_normal_fp16.safetensors"),
            "2": node("EmptyImage", width=640, height=480, batch_size=1, color=0),
            "3": node(
                "MoGeInference", moge_model=["1", 0], image=["2", 0], resolution_level=0, fov_x_degrees=0.0,
                batch_size=1, force_projection=True, apply_mask=True,
            ),
        }  # fmt: skip
        run = followed(workflow)
        assert run.complete, run.unknown
        assert run.notes[-1].startswith("what MoGeInference finds is not known")
        (file,) = run.absent.used.values()
        assert run.stages[0].weights == pytest.approx(file.nbytes, rel=0.01)


def shape_vae(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = find("comfy.ldm.hunyuan3d.vae:ShapeVAE")
    small = partial(module, width=64, heads=4, num_decoder_layers=2, num_encoder_layers=1, num_latents=64)
    monkeypatch.setattr("comfy.ldm.hunyuan3d.vae.ShapeVAE", small)
    vae = comfy.sd.VAE(sd=drawn(small()).state_dict())
    vae.patcher.load(CPU)
    return vae


@since_it_was_made
class TestShapes:
    @pytest.mark.parametrize("points", [1000, 5000])
    def test_a_volume_is_decoded_some_points_at_a_time(self, monkeypatch: pytest.MonkeyPatch, points: int) -> None:
        """13,824 points: 14 times 1,000 at the most, of which three are followed."""
        latent = {"samples": torch.rand(1, 64, 64)}
        inputs = {"vae": shape_vae(monkeypatch), "num_chunks": points, "octree_resolution": 23, "samples": latent}
        stage, _ = predicted("VAEDecodeHunyuan3D", **inputs)
        assert (stage.work, stage.doubt) == ("decode", "")
        assert off_by(stage, "VAEDecodeHunyuan3D", **inputs) <= 0.02

    def test_from_a_picture_to_a_shape(self, empty: Path) -> None:
        sees = {"clip_vision": ["1", 1], "image": ["2", 0], "crop": "none"}
        workflow = {
            "1": node("ImageOnlyCheckpointLoader", ckpt_name="hunyuan3d-dit-v2_fp16.safetensors"),
            "2": node("EmptyImage", width=512, height=512, batch_size=1, color=0),
            "3": node("CLIPVisionEncode", **sees),
            "4": node("Hunyuan3Dv2Conditioning", clip_vision_output=["3", 0]),
            "5": node("EmptyLatentHunyuan3Dv2", resolution=1024, batch_size=1),
            "6": node(
                "KSampler", model=["1", 0], positive=["4", 0], negative=["4", 1], latent_image=["5", 0], seed=1,
                steps=20, cfg=5.0, sampler_name="euler", scheduler="simple", denoise=1.0,
            ),
            "7": node("VAEDecodeHunyuan3D", samples=["6", 0], vae=["1", 2], num_chunks=8000, octree_resolution=64),
            "8": node("VoxelToMesh", voxel=["7", 0], algorithm="surface net", threshold=0.6),
            "9": node("SaveGLB", mesh=["8", 0], filename_prefix="x"),
        }  # fmt: skip
        run = followed(workflow)
        assert run.complete, run.unknown
        assert [(stage.work, stage.doubt) for stage in run.stages] == [
            ("vision", ""), ("sampling", ""), ("decode", ""),
        ]  # fmt: skip

    def test_from_a_picture_to_a_video(self, empty: Path) -> None:
        """What looks at the picture and what encodes it are stages, in one node."""
        workflow = {
            "1": node("ImageOnlyCheckpointLoader", ckpt_name="svd_xt.safetensors"),
            "2": node("EmptyImage", width=512, height=512, batch_size=1, color=0),
            "3": node(
                "SVD_img2vid_Conditioning", clip_vision=["1", 1], init_image=["2", 0], vae=["1", 2], width=512,
                height=256, video_frames=14, motion_bucket_id=127, fps=6, augmentation_level=0.0,
            ),
        }  # fmt: skip
        run = followed(workflow)
        assert run.complete, run.unknown
        assert sorted(stage.work for stage in run.stages) == ["encode", "vision"]
        assert run.results["3"][2]["samples"].shape == (14, 4, 32, 64)


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
