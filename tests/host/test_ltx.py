"""LTX-2: a video and its sound sampled together, its autoencoder of sound, and what upsamples its latents."""

import gc
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import comfy.model_management
import comfy.sampler_helpers
import comfy.samplers
import comfy.sd
import pytest
import torch
from torch import Tensor

import nodes
from headroom.benchmarks._harness import peak_bytes
from headroom.host.core.internals import find
from headroom.host.following.findings import Findings
from headroom.host.following.inputs import Inputs, NotFollowed
from headroom.host.prediction.step import SAMPLER_LATENTS, Step, predict_step
from headroom.host.workflow.dry_run import FOLLOWERS
from headroom.memory.prediction import Prediction, fake_tree

from .families import load_vae
from .one_step import CPU
from .test_catalogue import since_it_was_made
from .test_prediction import load, one_thread, this_cpu  # noqa: F401

pytestmark = [since_it_was_made, pytest.mark.usefixtures("extra_nodes")]

SMALL = {
    "attention_head_dim": 32, "num_attention_heads": 4, "cross_attention_dim": 128, "audio_attention_head_dim": 16,
    "audio_num_attention_heads": 4, "audio_cross_attention_dim": 64, "num_layers": 3,
    "connector_attention_head_dim": 32, "connector_num_layers": 1, "rope_type": "split",
    "frequencies_precision": "float64", "use_middle_indices_grid": True, "causal_temporal_positioning": True,
}  # fmt: skip
GENERATIONS: dict[str, dict[str, Any]] = {
    "2": {"caption_channels": 96, "connector_num_attention_heads": 3},
    "2.3": {
        "caption_channels": 96, "connector_num_attention_heads": 4, "audio_connector_attention_head_dim": 16,
        "audio_connector_num_attention_heads": 4, "apply_gated_attention": True,
        "connector_apply_gated_attention": True, "caption_projection_first_linear": False,
        "caption_proj_before_connector": True, "cross_attention_adaln": True,
    },
}  # fmt: skip
TEXTS = {"2": 96, "2.3": 128 + 64}
AUDIO_VAE: dict[str, Any] = {
    "model": {"params": {"ddconfig": {
        "double_z": True, "mel_bins": 64, "z_channels": 8, "resolution": 256, "in_channels": 2, "out_ch": 2, "ch": 32,
        "ch_mult": [1, 2, 4], "num_res_blocks": 1, "attn_resolutions": [], "dropout": 0.0,
        "mid_block_add_attention": False, "norm_type": "pixel", "causality_axis": "height",
    }, "sampling_rate": 16000}},
    "preprocessing": {"stft": {"filter_length": 1024, "hop_length": 160}},
}  # fmt: skip
KERNELS = {"resblock_kernel_sizes": [3, 7], "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5]]}
PLAIN_VOCODER = {
    "upsample_initial_channel": 64, "upsample_rates": [6, 5, 4, 2], "upsample_kernel_sizes": [16, 15, 8, 4], **KERNELS,
}  # fmt: skip
SNAKE = {
    "resblock": "AMP1",
    "activation": "snakebeta",
    "use_tanh_at_final": False,
    "use_bias_at_final": False,
    **KERNELS,
}
VOCODERS: dict[str, dict[str, Any]] = {
    "2": PLAIN_VOCODER,
    "2.3": {
        "vocoder": {
            "upsample_initial_channel": 256, "upsample_rates": [5, 4, 4, 2], "upsample_kernel_sizes": [11, 8, 8, 4],
            **SNAKE,
        },
        "bwe": {
            "upsample_initial_channel": 256, "upsample_rates": [6, 5, 4, 2], "upsample_kernel_sizes": [12, 11, 8, 4],
            "input_sampling_rate": 16000, "output_sampling_rate": 48000, "hop_length": 80, "n_fft": 512,
            "num_mels": 64, **SNAKE,
        },
    },
}  # fmt: skip
VIDEO, SOUND = (1, 128, 4, 6, 10), (1, 8, 26, 16)


def drawn(module: torch.nn.Module) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(value.shape, generator=generator) * 0.05 for name, value in module.state_dict().items()}


@cache
def small_model(generation: str) -> Any:
    """By the host's own loader, from tensors and the settings in the header."""
    config = {**SMALL, **GENERATIONS[generation]}
    kind, layers = find("comfy.ldm.lightricks.av_model:LTXAVModel"), find("comfy.ops:disable_weight_init")
    with torch.device("meta"):
        network = kind(operations=layers, device="meta", dtype=torch.float32, **config)
    metadata = {"config": json.dumps({"transformer": config})}
    return comfy.sd.load_diffusion_model_state_dict(drawn(network), metadata=metadata)


def nested(*parts: Tensor) -> Any:
    return find("comfy.nested_tensor:NestedTensor")(parts)


def both() -> Any:
    return nested(torch.zeros(VIDEO), torch.zeros(SOUND))


def texts(generation: str, **more: Any) -> list[list[Any]]:
    generator = torch.Generator().manual_seed(1)
    text = torch.randn(1, 40, TEXTS[generation], generator=generator)
    return [[text, {"unprocessed_ltxav_embeds": True, "frame_rate": 25.0, **more}]]


def one_call(step: Step) -> Callable[[], object]:
    """What a sampler does for a step with several latents, with data, in the host's own functions."""
    comfy.model_management.load_models_gpu([step.model], memory_required=0, force_full_load=True)
    base, packs = step.model.model, find("comfy.utils:pack_latents")
    parts = step.latent.unbind() if step.latent.is_nested else [step.latent]
    packed, shapes = packs(parts) if len(parts) > 1 else (parts[0], [parts[0].shape])

    def call() -> object:
        base.current_patcher = step.model
        given = {"positive": step.positive, "negative": step.negative}
        conds = {name: comfy.sampler_helpers.convert_cond(one) for name, one in given.items()}
        held = [torch.zeros(packed.shape) for _ in range(SAMPLER_LATENTS)]
        x, mask = torch.zeros(packed.shape), None
        if step.mask is not None:
            masks = step.mask.unbind() if step.mask.is_nested else [step.mask]
            masks += [torch.ones(shape) for shape in shapes[len(masks) :]]
            masks = [comfy.sampler_helpers.prepare_mask(one, shape, CPU) for one, shape in zip(masks, shapes)]
            mask = (packs(masks)[0] if len(masks) > 1 else masks[0]).float()
        conds = comfy.samplers.process_conds(
            base, held[0], conds, CPU, held[1], mask, seed=0, latent_shapes=list(shapes)
        )
        options = dict(step.model.model_options)
        inner = dict(options.get("transformer_options", {}))
        options["transformer_options"] = inner | {"sample_sigmas": torch.tensor([1.0, 0.0])}
        asked = [conds["positive"], None if step.cfg == 1.0 else conds["negative"]]
        return comfy.samplers.calc_cond_batch(base, asked, x, torch.full(packed.shape[:1], 0.9), options)

    return call


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def off_by(prediction: Prediction, work: Callable[[], object]) -> float:
    """Relative error of predicted activations against torch's profiler, which must not see what a call before left."""
    work()
    gc.collect()
    return prediction.activations / peak_bytes(work) - 1


@pytest.mark.parametrize("generation", GENERATIONS)
class TestSteps:
    def test_a_video_with_its_sound(self, generation: str) -> None:
        text = texts(generation)
        step = Step(small_model(generation), both(), text, text, 3.0)
        assert abs(off_by(predict_step(step, this_cpu()), one_call(step))) <= 0.02

    def test_the_host_keeps_nothing_without_data(self, generation: str) -> None:
        """It kept tables of angles for all models, of which a prediction made some: a sampling after it went wrong."""
        text, grid = texts(generation), find("comfy.ldm.lightricks.model:generate_freq_grid_np")
        grid.cache_clear()
        predict_step(Step(small_model(generation), both(), text, text, 3.0), this_cpu())
        assert grid.cache_info().currsize == 0

    def test_the_sound_counts(self, generation: str) -> None:
        text = texts(generation)
        step = Step(small_model(generation), nested(torch.zeros(VIDEO), torch.zeros(1, 8, 2600, 16)), text, text, 1.0)
        prediction = predict_step(step, this_cpu())
        assert prediction.activations > 2 * predict_step(replace(step, latent=both()), this_cpu()).activations
        assert abs(off_by(prediction, one_call(step))) <= 0.02

    def test_a_mask_of_whole_frames(self, generation: str) -> None:
        """As of a picture that the video begins with: the model asks whether a frame's mask differs within it."""
        text, mask = texts(generation), torch.ones(1, 1, VIDEO[2], 1, 1)
        mask[:, :, :1] = 0.0
        whole = nested(mask, torch.ones(SOUND))
        step = Step(small_model(generation), both(), text, text, 3.0, whole)
        assert abs(off_by(predict_step(step, this_cpu()), one_call(step))) <= 0.02
        alone = replace(step, mask=mask)  # of the sound, nothing is masked
        assert abs(off_by(predict_step(alone, this_cpu()), one_call(alone))) <= 0.02

    def test_a_mask_within_a_frame(self, generation: str) -> None:
        text, mask = texts(generation), torch.ones(1, 1, *VIDEO[2:])
        mask[..., :3] = 0.0
        step = Step(small_model(generation), both(), text, text, 3.0, nested(mask, torch.ones(SOUND)))
        assert abs(off_by(predict_step(step, this_cpu()), one_call(step))) <= 0.02

    def test_references_beside_the_video(self, generation: str) -> None:
        """Frames at the end that guide, some cells of which are left out, and a voice to be like."""
        generator = torch.Generator().manual_seed(2)
        cells = 2 * VIDEO[3] * VIDEO[4]
        mask = torch.ones(1, 1, VIDEO[2], VIDEO[3], VIDEO[4])
        mask[:, :, -2:] = -1.0
        mask[:, :, -2:, ::2, ::2] = 0.0
        places = torch.rand(1, 3, cells, 2, generator=generator)
        guide = {"pre_filter_count": cells, "strength": 1.0, "pixel_mask": None, "latent_shape": [2, 3, 5]}
        voice = {"tokens": torch.randn(1, 20, 128, generator=generator)}
        text = texts(generation, keyframe_idxs=places, guide_attention_entries=[guide], ref_audio=voice)
        step = Step(small_model(generation), both(), text, text, 3.0, nested(mask, torch.ones(SOUND)))
        prediction = predict_step(step, this_cpu())
        assert abs(off_by(prediction, one_call(step))) <= 0.02


@cache
def sound_vae(generation: str) -> Any:
    """By the host's own loader, which reads what it is made of in the header."""
    config = {"audio_vae": AUDIO_VAE, "vocoder": VOCODERS[generation]}
    module = find("comfy.ldm.lightricks.vae.audio_vae:AudioVAE")({"config": config})
    vae = comfy.sd.VAE(sd=drawn(module), metadata={"config": json.dumps(config)})
    load(vae.patcher)
    return vae


def followed(kind: str, **inputs: Any) -> tuple[Findings, Any]:
    """A node by its rule, on a machine of this CPU."""
    found = Findings(this_cpu())
    with found.mode:
        faked = {name: fake_tree(value) for name, value in inputs.items()}
    return found, FOLLOWERS[kind](found, kind, Inputs(kind, faked))


@pytest.mark.parametrize("generation", GENERATIONS)
class TestSound:
    def test_decoding(self, generation: str) -> None:
        vae, latent = sound_vae(generation), torch.rand(SOUND)
        samples = {"samples": nested(torch.zeros(VIDEO), latent)}
        found, (sound,) = followed("LTXVAudioVAEDecode", samples=samples, audio_vae=vae)
        (stage,) = found.stages
        assert (stage.work, stage.doubt, stage.weights) == ("decode", "", vae.patcher.model_size())
        assert abs(off_by(stage.prediction, lambda: vae.decode(latent))) <= 0.02
        assert sound["waveform"].shape == vae.decode(latent).movedim(-1, 1).shape
        assert sound["sample_rate"] == (24000 if generation == "2" else 48000)

    @pytest.mark.parametrize(("seconds", "rate"), [(3.0, 44100), (2.5, 48000)])
    def test_encoding(self, generation: str, seconds: float, rate: int) -> None:
        vae, sound = sound_vae(generation), torch.rand(1, 2, round(seconds * rate))
        given = {"waveform": sound, "sample_rate": rate}
        found, (latent,) = followed("LTXVAudioVAEEncode", audio=given, audio_vae=vae)
        (stage,) = found.stages
        taken = find("torchaudio.functional:resample")(sound, rate, vae.audio_sample_rate).movedim(1, -1)
        assert (stage.work, stage.doubt) == ("encode", "")
        assert abs(off_by(stage.prediction, lambda: vae.encode(taken))) <= 0.02
        assert latent["samples"].shape == vae.encode(taken).shape


def test_of_both_the_video_is_decoded_to_pictures() -> None:
    vae = load_vae("ltx")
    _, (alone,) = followed("VAEDecode", samples={"samples": torch.zeros(VIDEO)}, vae=vae)
    found, (pictures,) = followed("VAEDecode", samples={"samples": both()}, vae=vae)
    assert pictures.shape == alone.shape
    assert [stage.work for stage in found.stages] == ["decode"]


@pytest.mark.parametrize("resampler", [True, False])
def test_a_network_that_upsamples_latents(resampler: bool) -> None:
    kind, layers = find("comfy.ldm.lightricks.latent_upsampler:LatentUpsampler"), find("comfy.ops:disable_weight_init")
    config = {"mid_channels": 64, "num_blocks_per_stage": 1, "dims": 3, "in_channels": 128}
    network = kind(layers, rational_resampler=resampler, **config)
    network.load_state_dict(drawn(network))
    model = find("comfy.model_patcher:ModelPatcher")(network, CPU, CPU)
    load(model)
    vae, latent = load_vae("ltx"), {"samples": torch.rand(VIDEO)}
    found, (larger, *_) = followed("LTXVLatentUpsampler", samples=latent, upscale_model=model, vae=vae)
    (stage,) = found.stages
    upsampler = nodes.NODE_CLASS_MAPPINGS["LTXVLatentUpsampler"]
    assert (stage.work, stage.weights) == ("upscale", model.model_size())
    assert abs(off_by(stage.prediction, lambda: upsampler.execute(latent, model, vae))) <= 0.02
    assert larger["samples"].shape == (*VIDEO[:3], 2 * VIDEO[3], 2 * VIDEO[4])


@pytest.mark.parametrize(("compression", "sides"), [(0, (65, 97)), (35, (64, 96))])
def test_a_picture_as_a_codec_leaves_it(compression: int, sides: tuple[int, int]) -> None:
    picture = torch.zeros(2, 65, 97, 3)
    _, (image, *_) = followed("LTXVPreprocess", image=picture, img_compression=compression)
    assert image.shape == (2, *sides, 3)


def test_what_a_file_of_a_lora_says_is_not_known() -> None:
    found, (parameters, *_) = followed("GetICLoRAParameters", iclora_model=small_model("2"))
    assert parameters == {"reference_downscale_factor": 1}
    assert len(found.notes) == 1


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        ("LTXVAudioVAEDecode", {"samples": {"samples": torch.zeros(1, 4, 8, 8)}, "audio_vae": "a VAE of pictures"}),
        ("LTXVAudioVAEEncode", {"audio": None, "audio_vae": "its own"}),
        ("LTXVAudioVAEDecode", {"samples": {"samples": torch.zeros(1, 8, 8)}, "audio_vae": "its own"}),
        ("LTXVLatentUpsampler", {"samples": {"samples": torch.zeros(VIDEO)}, "upscale_model": 3, "vae": None}),
        ("LTXVPreprocess", {"image": torch.zeros(3), "img_compression": 35}),
    ],
)
def test_what_it_is_not_made_for_is_a_sentence(kind: str, inputs: dict[str, Any]) -> None:
    vaes = {"a VAE of pictures": lambda: load_vae("ltx"), "its own": lambda: sound_vae("2")}
    if "audio_vae" in inputs:
        inputs = {**inputs, "audio_vae": vaes[inputs["audio_vae"]]()}
    with pytest.raises(NotFollowed, match=kind):
        followed(kind, **inputs)


def test_a_voice_to_be_like_is_encoded_and_goes_with_the_texts() -> None:
    sound = {"waveform": torch.zeros(1, 2, 44100), "sample_rate": 44100}
    found, (model, positive, negative) = followed(
        "LTXVReferenceAudio", model=small_model("2"), positive=texts("2"), negative=texts("2"), reference_audio=sound,
        audio_vae=sound_vae("2"), identity_guidance_scale=3.0,
    )  # fmt: skip
    assert [stage.work for stage in found.stages] == ["encode"]
    assert model is small_model("2")
    tokens = positive[0][1]["ref_audio"]["tokens"]
    assert tokens is negative[0][1]["ref_audio"]["tokens"]
    assert tokens.shape[0::2] == (1, 128)
