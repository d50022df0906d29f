"""Predicted memory against what torch's own profiler sees of the same work with data."""

import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import comfy.clip_vision
import comfy.model_management
import comfy.sampler_helpers
import comfy.samplers
import comfy.sd
import comfy.utils
import folder_paths
import psutil
import pytest
import torch
from torch import Tensor

import nodes
from headroom.benchmarks._harness import peak_bytes
from headroom.host.attention.backend import apply_attention
from headroom.host.casting.cast import CastSettings, cast_model
from headroom.host.core import device
from headroom.host.core.compat import out_of_memory_kind
from headroom.host.core.internals import find
from headroom.host.offload.block_offload import apply_offload
from headroom.host.prediction.encoders import PROMPT, predict_encoding, predict_text, predict_vision
from headroom.host.prediction.header_loading import loading_headers
from headroom.host.prediction.stages import Question, chosen_card, coding_stage, estimate
from headroom.host.prediction.step import SAMPLER_LATENTS, Step, predict_step
from headroom.host.prediction.vae import Coding, predict_coding
from headroom.host.sampling.conditioning import usual_conditioning
from headroom.host.vae.settings import VAESettings
from headroom.host.vae.wrapper import low_memory_vae
from headroom.memory.prediction import (
    THIS_MACHINE,
    CannotPredict,
    Card,
    Forecast,
    LiveBytes,
    Prediction,
    Verdict,
    fake_mode,
    fake_tree,
    named_card,
)
from headroom.memory.render import forecast_bar, render_forecast
from headroom.memory.units import format_bytes
from headroom.nodes.estimate import HeadroomEstimate

from ..nightly import grid, some_of
from . import full_size
from .drawn import drawn
from .families import FAMILIES, VAES, Family, load_vae
from .one_step import CPU, one_call
from .test_casting import HELD

PREDICTED = [name for name in FAMILIES if name != "hidream"]
GB = 2**30
MiB = 2**20
ROTATION = 256 * 256 * 4  # bytes that comfy-kitchen keeps from one call to the next


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Kernels have a buffer per thread, and another choice of kernels with several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def this_cpu() -> Card:
    return Card("cpu", CPU, comfy.model_management.get_total_memory(CPU), threads=1)


def step_of(model: Any, family: Family, latent: Tensor, cfg: float = 3.0) -> Step:
    return Step(model, latent, family.conditioning(1), family.conditioning(2), cfg)


def off_by(prediction: Prediction, work: Callable[[], object], scratch: bool = True) -> float:
    """Relative error of predicted activations against torch's profiler.

    Args:
        prediction: of the work.
        work: called twice.
        scratch: with what only some CPUs take within a convolution.
    """
    work()
    return abs(prediction.activations / peak_bytes(work, scratch) - 1)


def looking(family: Family) -> Any:
    """The model with a function around it that looks at the latent's values."""
    model = family.load().clone()

    def look(apply: Callable[..., Tensor], given: dict[str, Any]) -> Tensor:
        assert given["input"].nonzero() is not None
        return apply(given["input"], given["timestep"], **given["c"])

    model.set_model_unet_function_wrapper(look)
    return model


@contextmanager
def alike_experts(model: Any) -> Iterator[None]:
    """Within it, the gates of a model find all experts equal."""
    weights = [weight for name, weight in model.model.named_parameters() if name.endswith("gate.weight")]
    before = [weight.clone() for weight in weights]
    for weight in weights:
        weight.data.zero_()
    try:
        yield
    finally:
        for weight, one in zip(weights, before):
            weight.data.copy_(one)


def causal_wan() -> Any:
    """The small Wan as a model that looks back on what it has sampled."""
    path = folder_paths.get_full_path_or_raise("diffusion_models", "tiny_wan21.safetensors")
    metadata = {"config": json.dumps({"transformer": {"causal_ar": True}})}
    return comfy.sd.load_diffusion_model_state_dict(comfy.utils.load_torch_file(path), metadata=metadata)


def sample_by_blocks(model: Any, text: Any, x: Tensor, block: int) -> Tensor:
    """The host's sampler of such a model, for two steps, with what a sampler holds beside it."""
    base, texts = model.model, {"positive": comfy.sampler_helpers.convert_cond(text)}
    held = [torch.zeros_like(x) for _ in range(SAMPLER_LATENTS)]
    conds = comfy.samplers.process_conds(base, held[0], texts, CPU, held[1], None, seed=0)["positive"]
    options: dict[str, Any] = {"transformer_options": {"sample_sigmas": torch.tensor([1.0, 0.5, 0.0])}}

    class Sampled:
        inner_model = SimpleNamespace(inner_model=base)

        def __call__(self, part: Tensor, sigma: Tensor, model_options: Any, seed: int) -> Tensor:
            return comfy.samplers.calc_cond_batch(base, [conds, None], part, sigma, model_options)[0]

    sigmas, extra = torch.tensor([1.0, 0.5, 0.0]), {"model_options": options, "seed": 0}
    base.current_patcher = model
    sample = find("comfy.k_diffusion.sampling:sample_ar_video")
    return sample(Sampled(), x.clone(), sigmas, extra, disable=True, num_frame_per_block=block)


STORED = ("float8_e4m3fn_scaled", "int8_convrot", "mxfp8", "float8_e4m3fn_unscaled", "bfloat16", "asym_w4a8_int8")


class TestSteps:
    @pytest.mark.parametrize(
        ("name", "height", "width", "batch"),
        [
            *((name, 256, 192, 1) for name in PREDICTED),
            ("sd15", 136, 200, 2),
            ("flux", 192, 320, 3),
            ("ltxv", 128, 224, 2),
        ],
    )
    def test_in_single_precision(self, name: str, height: int, width: int, batch: int) -> None:
        """More cases, with their numbers, are in benchmarks/prediction.md."""
        family = FAMILIES[name]
        model, latent = family.load(), family.latent(height, width, batch)
        prediction = predict_step(step_of(model, family, latent), this_cpu())
        kept = 0.1 * MiB / prediction.activations  # what a model keeps from one call to the next
        assert off_by(prediction, one_call(model, family, tuple(latent.shape))) <= max(0.005, kept)

    @pytest.mark.parametrize("name", ["sd15", "sdxl", "sd3", "flux", "wan21", "ltxv"])
    def test_with_weights_in_half_precision(self, name: str) -> None:
        """The host computes them in float32 here, from a copy that each layer makes."""
        family, model = FAMILIES[name], drawn(name, 0.02, 3 if name == "sd3" else 2)
        latent = family.latent(192, 160)
        prediction = predict_step(step_of(model, family, latent), this_cpu())
        assert off_by(prediction, one_call(model, family, tuple(latent.shape))) <= 0.02

    @pytest.mark.parametrize("storage", [name for name in STORED if name in HELD])
    def test_with_cast_weights(self, storage: str) -> None:
        family = FAMILIES["flux"]
        model, _ = cast_model(family.load(), CastSettings(storage))
        latent = family.latent(256, 192)
        prediction = predict_step(step_of(model, family, latent), this_cpu())
        assert prediction.weights == pytest.approx(model.model_size(), rel=0.001)
        kept = ROTATION / prediction.activations if storage == "int8_convrot" else 0.0
        assert off_by(prediction, one_call(model, family, tuple(latent.shape))) <= 0.02 + kept

    @pytest.mark.parametrize("name", ["wan21"])
    @pytest.mark.parametrize("backend", ["auto", "sdpa", "sdpa_math", "sliced", "online", "host"])
    def test_with_an_attention_of_ours(self, name: str, backend: str) -> None:
        family = FAMILIES[name]
        model = apply_attention(family.load(), backend=backend)
        latent = family.latent(256, 192)
        prediction = predict_step(step_of(model, family, latent), this_cpu())
        assert off_by(prediction, one_call(model, family, tuple(latent.shape))) <= 0.02

    def test_guidance_of_one_leaves_the_negative_out(self) -> None:
        family = FAMILIES["flux"]
        model, latent = family.load(), family.latent(256, 256)
        both, alone = (predict_step(step_of(model, family, latent, cfg), this_cpu()) for cfg in (3.0, 1.0))
        assert alone.activations < 0.7 * both.activations
        assert off_by(alone, one_call(model, family, tuple(latent.shape), 1.0)) <= 0.005

    @pytest.mark.parametrize("name", ["sd15", "flux", "lumina2"])
    def test_guidance_by_two_texts(self, name: str) -> None:
        """OmniGen2 and HiDream-E1 edit pictures by it: three conditionings a step."""
        family = FAMILIES[name]
        model, latent, middle = family.load(), family.latent(192, 160), family.conditioning(3)
        two = predict_step(step_of(model, family, latent), this_cpu())
        three = predict_step(replace(step_of(model, family, latent), middle=middle), this_cpu())
        assert three.activations > two.activations
        assert off_by(three, one_call(model, family, tuple(latent.shape), middle=middle)) <= 0.02

    @pytest.mark.parametrize("name", ["sd15", "ltxv", "wan21"])
    def test_a_part_of_the_noise(self, name: str) -> None:
        """LTX-Video takes a mask that says how noisy each frame is; before, its own broadcast ended the prediction."""
        family = FAMILIES[name]
        model, latent = family.load(), family.latent(192, 160)
        mask = torch.ones(1, 1, *latent.shape[2:-2], 1, 1) if latent.ndim == 5 else torch.ones(1, 24, 20)
        prediction = predict_step(replace(step_of(model, family, latent), mask=mask), this_cpu())
        assert off_by(prediction, one_call(model, family, tuple(latent.shape), mask=mask)) <= 0.02

    def test_the_host_splits_guidance_where_memory_is_short(self) -> None:
        family = FAMILIES["sd15"]
        model, latent = family.load(), family.latent(512, 512)
        large, small = (predict_step(step_of(model, family, latent), Card("cpu", CPU, n)) for n in (GB * 64, GB))
        assert small.activations < 0.7 * large.activations

    @pytest.mark.parametrize("name", ["flux", "z_image", "wan21", "hunyuan_video"])
    def test_equal_blocks_are_followed_once(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        family, card = FAMILIES[name], named_card("sm86", 24.0)
        model = drawn(name, 0.02, 6) if name == "flux" else family.load()
        step = step_of(model, family, family.latent(256, 256))
        once = predict_step(step, card)
        monkeypatch.setattr("headroom.host.prediction.step._treats_blocks_alike", lambda model: False)
        each = predict_step(step, card)
        assert (once.weights, once.activations, once.kernels) == (each.weights, each.activations, each.kernels)
        assert once.operators < each.operators

    def test_the_model_is_only_read(self) -> None:
        family = FAMILIES["flux"]
        model = family.load()
        before = {name: (value.data_ptr(), value.device) for name, value in model.model.named_parameters()}
        patcher, options = model.model.current_patcher, dict(model.model_options)
        predict_step(step_of(model, family, family.latent()), named_card("sm86", 8.0))
        assert before == {name: (value.data_ptr(), value.device) for name, value in model.model.named_parameters()}
        assert model.model.current_patcher is patcher
        assert model.model_options == options
        assert not model.model.diffusion_model._forward_pre_hooks

    @pytest.mark.skipif("int8_convrot" not in HELD, reason="this ComfyUI has no weights that are kept turned")
    def test_nothing_without_data_is_kept(self) -> None:
        """The host and its libraries keep tensors for all models."""
        kept = importlib.import_module("comfy_kitchen.tensor.int8_utils")._HADAMARD_CACHE
        family, kept_before = FAMILIES["flux"], dict(kept)
        model, _ = cast_model(family.load(), CastSettings("int8_convrot"))
        kept.clear()
        try:
            predict_step(step_of(model, family, family.latent()), this_cpu())
            assert not kept
        finally:
            kept.update(kept_before)

    def test_the_operator_that_looks_at_data_is_named(self) -> None:
        family = FAMILIES["flux"]
        with pytest.raises(CannotPredict, match="nonzero"):
            predict_step(step_of(looking(family), family, family.latent()), this_cpu())

    @pytest.mark.parametrize(("height", "width"), [(256, 192), (128, 320)])
    def test_tokens_that_choose_experts_are_taken_to_choose_the_same(self, height: int, width: int) -> None:
        """As they do where all experts are worth the same: a choice that leaves none of them more to do."""
        family = FAMILIES["hidream"]
        model, latent = family.load(), family.latent(height, width)
        prediction = predict_step(step_of(model, family, latent), this_cpu())
        work = one_call(model, family, tuple(latent.shape))
        work()
        assert peak_bytes(work) <= prediction.activations * 1.005
        with alike_experts(model):
            assert off_by(prediction, work) <= 0.02

    @pytest.mark.skipif(not find("comfy.ldm.wan.ar_model:CausalWanModel"), reason="this ComfyUI has no such models")
    @pytest.mark.parametrize("block", [1, 2])
    def test_a_video_block_by_block(self, block: int) -> None:
        """Against the host's own sampler, which keeps the keys and values of all blocks."""
        model, text, x = causal_wan(), FAMILIES["wan21"].conditioning(1), torch.zeros(1, 16, 6, 16, 12)
        prediction = predict_step(Step(model, x, text, text, 1.0, block=block), this_cpu())
        load(model)
        assert off_by(prediction, lambda: sample_by_blocks(model, text, x, block)) <= 0.02

    @pytest.mark.skipif(not find("comfy_extras.nodes_flux:FluxKVCache"), reason="this ComfyUI has no such node")
    def test_a_step_that_keeps_keys_and_values_for_those_behind_it(self) -> None:
        family, latent = FAMILIES["flux2"], FAMILIES["flux2"].latent(192, 160)
        (model,) = find("comfy_extras.nodes_flux:FluxKVCache").execute(family.load()).args
        text = [[one, {**options, "reference_latents": [latent]}] for one, options in family.conditioning(1)]
        asked = Step(model, latent, text, text, 1.0)
        prediction, again = (predict_step(asked, this_cpu()) for _ in range(2))
        assert prediction == again
        call = one_call(model, SimpleNamespace(conditioning=lambda seed: text), tuple(latent.shape), 1.0)

        def first_step() -> None:
            call()
            model.model_patches_call_function()

        assert off_by(prediction, first_step) <= 0.02
        plain = predict_step(replace(asked, model=family.load()), this_cpu())
        assert prediction.activations > plain.activations

    @pytest.mark.parametrize("name", ["z_image", "lumina2"])
    def test_a_mask_that_hides_nothing_is_left_out_as_the_host_does(self, name: str) -> None:
        """The host looks at the mask's data, which a prediction does not have."""
        family = FAMILIES[name]
        model, plain = family.load(), family.conditioning(1)

        def masked(hidden: int) -> Any:
            mask = torch.ones(plain[0][0].shape[:2])
            mask[:, :hidden] = 0
            return replace(
                step_of(model, family, family.latent()),
                positive=[[text, {**options, "attention_mask": mask}] for text, options in plain],
            )

        without = replace(step_of(model, family, family.latent()), positive=plain)
        mask = predict_step(masked(0), this_cpu()).activations - predict_step(without, this_cpu()).activations
        assert 0 <= mask <= 256  # bytes of itself, while it is looked at
        with pytest.raises(CannotPredict):
            predict_step(masked(1), this_cpu())


class TestCoding:
    @pytest.mark.parametrize("name", some_of(list(VAES), 2))
    def test_in_one_piece(self, name: str) -> None:
        vae, latent, pixels = load_vae(name), small_latent(name), small_pixels(name)
        load(vae.patcher)
        found = predict_coding(Coding(vae, latent), this_cpu()).prediction
        assert off_by(found, lambda: vae.decode(latent)) <= 0.02
        found = predict_coding(Coding(vae, pixels, encodes=True), this_cpu()).prediction
        assert off_by(found, lambda: vae.encode(pixels)) <= 0.02

    @pytest.mark.parametrize("name", some_of(list(VAES)[::-1], 2))
    def test_in_tiles_of_the_host(self, name: str) -> None:
        vae, latent = load_vae(name), small_latent(name)
        load(vae.patcher)
        side = {"flux2": 4, "ltx": 4, "wan21": 8}.get(name, 16)
        tiles = {"tile_x": side, "tile_y": side, "overlap": side // 4}
        if latent.ndim == 5:
            tiles |= {"tile_t": 2, "overlap_t": 1}
        found = predict_coding(Coding(vae, latent, tiles=tiles), this_cpu()).prediction
        assert off_by(found, lambda: vae.decode_tiled(latent, **tiles)) <= 0.05

    @pytest.mark.parametrize("name", ["sd", "flux", "flux2", "ltx"])
    def test_in_feathered_tiles(self, name: str) -> None:
        vae = low_memory_vae(load_vae(name), VAESettings(method="feathered", tile_size=128))
        latent = small_latent(name)
        load(vae.patcher)
        found = predict_coding(Coding(vae, latent), this_cpu())
        assert off_by(found.prediction, lambda: vae.decode(latent)) <= 0.05
        assert found.method.startswith("feathered" if name != "flux2" else "feathered, 1 tiles")

    @pytest.mark.parametrize("name", list(VAES))
    def test_in_strips_it_is_the_plan_of_the_strips(self, name: str) -> None:
        vae = low_memory_vae(load_vae(name), VAESettings(method="exact"))
        latent = small_latent(name)
        load(vae.patcher)
        found = predict_coding(Coding(vae, latent), this_cpu())
        assert found.method == "exact, in strips"
        work = lambda: vae.decode(latent)  # noqa: E731
        work()
        # The plan's bound, for pictures so small that rows beside a strip weigh as much as the strip. What the profiler
        # sees of such a run differs by the megabyte that a kernel takes or finds.
        assert 0.95 <= found.prediction.activations / peak_bytes(work) <= 1.8

    @pytest.mark.parametrize(("name", "cells"), grid(["sd", "flux"], [24, 32]))
    def test_few_strips_are_followed_to_the_byte(self, name: str, cells: int) -> None:
        """For reports; the tracker on the same strips with data."""
        vae, latent = (
            low_memory_vae(load_vae(name), VAESettings(method="exact")),
            torch.zeros(1, VAES[name], cells, cells),
        )
        load(vae.patcher)
        found = predict_coding(Coding(vae, latent, follow=True), this_cpu()).prediction
        tracker = LiveBytes("cpu")
        tracker.leave_out([latent, *vae.first_stage_model.parameters(), *vae.first_stage_model.buffers()])
        with tracker:
            vae.decode(latent)
        assert not found.bound
        assert found.live == pytest.approx(tracker.live_peak, rel=0.005)
        planned = predict_coding(Coding(vae, latent), this_cpu()).prediction
        assert planned.bound
        assert planned.live >= tracker.live_peak

    def test_many_strips_are_not_followed(self) -> None:
        vae, latent = low_memory_vae(load_vae("sd"), VAESettings(method="exact")), torch.zeros(1, 4, 96, 96)
        asked, planned = (
            predict_coding(Coding(vae, latent, follow=one), this_cpu()).prediction for one in (True, False)
        )
        assert asked.bound
        assert asked.live == planned.live

    def test_a_budget_that_is_too_small_says_so_before_any_work(self) -> None:
        vae = low_memory_vae(load_vae("sd"), VAESettings(method="exact", vram_budget_gb=0.2))
        with pytest.raises(ValueError, match=r"vram_budget_gb.*at least"):
            predict_coding(Coding(vae, torch.zeros(1, 4, 64, 64)), this_cpu())


def small_latent(name: str) -> Tensor:
    shapes = {"ltx": (3, 8, 6), "flux2": (8, 6), "wan21": (3, 12, 10)}
    return torch.zeros(1, VAES[name], *shapes.get(name, (24, 20)))


def small_pixels(name: str) -> Tensor:
    return (
        torch.zeros(5 if name == "wan21" else 9, 96, 64, 3) if name in ("wan21", "ltx") else torch.zeros(1, 192, 160, 3)
    )


def load(patcher: Any) -> None:
    comfy.model_management.load_models_gpu([patcher], memory_required=0, force_full_load=True)


def test_what_runs_on_the_cpu_takes_nothing_of_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this machine has the card, a text encoder or a VAE on its CPU is there since somebody wants it so."""
    family, vae = FAMILIES["sd15"], load_vae("sd")
    (clip,) = nodes.CLIPLoader().load_clip("tiny_clip_l.safetensors", device="cpu")
    question = Question(family.load(), {"samples": family.latent(512, 512)}, vae, clip)
    card = named_card("sm86", 8.0)
    elsewhere = estimate(question, card).forecast
    monkeypatch.setattr(device, "is_here", lambda one: True)
    forecast = estimate(question, card).forecast
    text, sampling, decode = forecast.stages
    assert [stage.peak for stage in (text, decode)] == [forecast.streamed(text), forecast.streamed(decode)] == [0, 0]
    assert text.ram > clip.patcher.model_size()
    assert decode.ram > vae.patcher.model_size() + 3 * 4 * 512 * 512
    assert forecast.peak == sampling.peak < elsewhere.peak
    assert forecast.ram_needed == sampling.weights + text.ram + decode.ram
    assert not forecast.timed
    report = render_forecast(forecast)
    assert f"\ntext: on the CPU, {format_bytes(text.ram)} of RAM and nothing of the card\n" in report
    assert [load.name for load in forecast_bar(forecast).loads] == ["sampling"]


@pytest.mark.parametrize("name", ["sd", "wan21", "ltx"])
def test_a_stock_decode_that_runs_out_of_memory_is_done_in_tiles(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The host's own way out, which a forecast that says no has to name; ours and tiled nodes have others."""
    vae, card = load_vae(name), named_card("sm86", 8.0)
    x, decode, parts = small_latent(name), vae.first_stage_model.decode, list[Tensor]()

    def runs_out(part: Tensor, *given: Any, **options: Any) -> Tensor:
        parts.append(part)
        if len(parts) == 1:
            raise out_of_memory_kind()("CUDA out of memory.")
        return decode(part, *given, **options)

    monkeypatch.setattr(vae.first_stage_model, "decode", runs_out)
    assert vae.decode(x).isfinite().all()
    assert len(parts) > 1
    assert "retrying with tiled VAE decoding" in caplog.text
    monkeypatch.undo()
    forecast = Forecast(card, (coding_stage(Coding(vae, x), card),), limit=0.001)
    assert forecast.verdict is Verdict.DOES_NOT_FIT
    assert forecast.or_tiles
    for other in (Coding(low_memory_vae(vae, VAESettings()), x), Coding(vae, x, tiles={"tile_x": 64, "tile_y": 64})):
        assert not coding_stage(other, card).or_tiles


def test_a_text_encoder() -> None:
    import nodes

    clip = nodes.CLIPLoader().load_clip("tiny_clip_l.safetensors", "stable_diffusion")[0]
    load(clip.patcher)
    prediction = predict_text(clip, this_cpu())
    assert off_by(prediction, lambda: clip.encode_from_tokens_scheduled(clip.tokenize(PROMPT))) <= 0.02


NARROW = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}


def vision_model(kind: str, folder: Path) -> Any:
    """One of ComfyUI's own that look at pictures, narrow."""
    file = {"clip": "clip_vision_config_h.json", "siglip": "clip_vision_siglip_384.json"}[kind]
    config = json.loads((Path(comfy.sd.__file__).parent / file).read_text())
    narrow = folder / file  # older hosts take no dictionary
    narrow.write_text(json.dumps({**config, **NARROW, "projection_dim": 64}), encoding="utf-8")
    vision = comfy.clip_vision.ClipVisionModel(str(narrow))
    generator = torch.Generator().manual_seed(0)
    for weight in vision.model.parameters():
        weight.data.normal_(std=0.02, generator=generator)
    load(vision.patcher)
    return vision


@pytest.mark.parametrize("kind", ["clip", "siglip"])
@pytest.mark.parametrize(("shape", "crop"), [((1, 300, 200, 3), True), ((2, 224, 512, 3), False)])
def test_what_looks_at_pictures(kind: str, shape: tuple[int, ...], crop: bool, tmp_path: Path) -> None:
    vision, picture, mode = vision_model(kind, tmp_path), torch.rand(shape), fake_mode()
    with mode:
        fake = fake_tree(picture)
    prediction, found = predict_vision(
        vision, this_cpu(), lambda one: one.encode_image(fake, crop=crop), mode, given=[fake]
    )
    assert off_by(prediction, lambda: vision.encode_image(picture, crop=crop)) <= 0.02
    assert prediction.weights == vision.patcher.model_size()
    expected = vision.encode_image(picture, crop=crop)
    for name in ("last_hidden_state", "penultimate_hidden_states", "image_embeds"):
        assert found[name].shape == expected[name].shape


NARROW = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 2, "num_key_value_heads": 1}


def qwen_image(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Qwen-Image's text encoder, ComfyUI's own with two narrow layers of each kind."""
    llama, vision = map(importlib.import_module, ("comfy.text_encoders.llama", "comfy.text_encoders.qwen_vl"))
    monkeypatch.setattr(llama, "Qwen25_7BVLI_Config", partial(llama.Qwen25_7BVLI_Config, num_hidden_layers=2, **NARROW))
    seen = {"hidden_size": 128, "num_heads": 2, "intermediate_size": 256, "num_layers": 2}
    tower = vision.Qwen2VLVisionTransformer
    monkeypatch.setattr(vision, "Qwen2VLVisionTransformer", lambda **given: tower(**{**given, **seen}))
    encoder = importlib.import_module("comfy.text_encoders.qwen_image")
    return comfy.sd.CLIP(SimpleNamespace(params={}, clip=encoder.te(), tokenizer=encoder.QwenImageTokenizer))


def boogu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Boogu's text encoder, a Qwen3-VL: it keeps what it sees of a picture in several layers."""
    encoder = pytest.importorskip("comfy.text_encoders.boogu")
    qwen = importlib.import_module("comfy.text_encoders.qwen3vl")
    monkeypatch.setitem(
        qwen.QWEN3VL_CONFIGS, "qwen3vl_8b", partial(qwen.Qwen3VL_8BConfig, num_hidden_layers=3, **NARROW)
    )
    seen = {"hidden_size": 128, "intermediate_size": 256, "depth": 3, "deepstack_visual_indexes": [0, 1]}
    monkeypatch.setitem(qwen.QWEN3VL_VISION, "qwen3vl_8b", seen)
    monkeypatch.setitem(qwen.QWEN3VL_VISION_COMMON, "num_heads", 2)
    return comfy.sd.CLIP(SimpleNamespace(params={}, clip=encoder.te(), tokenizer=encoder.BooguTokenizer))


@pytest.mark.parametrize(
    "sides", [(), ((224, 224),), ((196, 308), (252, 140))], ids=["text", "picture", "two odd ones"]
)
@pytest.mark.parametrize("made", [qwen_image, boogu])
def test_a_text_encoder_that_asks_about_its_mask_and_looks_at_pictures(
    made: Callable[[pytest.MonkeyPatch], Any], sides: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = made(monkeypatch)
    generator = torch.Generator().manual_seed(1)
    for weight in clip.cond_stage_model.parameters():
        weight.data.normal_(std=0.02, generator=generator)
    load(clip.patcher)
    pictures = [torch.rand(1, *side, 3, generator=generator) for side in sides]
    template = "<|im_start|>Picture: " + "<|vision_start|><|image_pad|><|vision_end|> " * len(pictures) + PROMPT
    tokens, mode = clip.tokenize(template, images=pictures), fake_mode()
    with mode:
        fakes = fake_tree(pictures)
    asked = clip.tokenize(template, images=fakes)
    prediction, result = predict_encoding(
        clip, this_cpu(), lambda one: one.encode_from_tokens_scheduled(asked), mode, given=fakes
    )
    assert off_by(prediction, lambda: clip.encode_from_tokens_scheduled(tokens)) <= 0.02
    (expected, options), (found, also) = clip.encode_from_tokens_scheduled(tokens)[0], result[0]
    assert found.shape == expected.shape
    assert also.keys() == options.keys()


class TestAnswers:
    def question(self, **changes: Any) -> Question:
        family = FAMILIES["flux"]
        latent = {"samples": family.latent(512, 512)}
        settings = {"vae": load_vae("flux"), "positive": family.conditioning(1), "cfg": 1.0} | changes
        return Question(settings.pop("model", family.load()), latent, **settings)

    def test_three_verdicts(self) -> None:
        question = self.question(vae=None)
        whole = estimate(question, named_card("sm86", 24.0)).forecast
        assert whole.verdict is Verdict.RESIDENT
        between, below = (whole.least + whole.peak) / 2 / GB, whole.least / 2 / GB
        assert estimate(question, named_card("sm86", between), limit=1.0).forecast.verdict is Verdict.STREAMS
        assert estimate(question, named_card("sm86", below), limit=1.0).forecast.verdict is Verdict.DOES_NOT_FIT
        assert whole.peak == whole.stages[0].weights + whole.activations
        assert whole.activations < whole.least < whole.peak

    def test_the_limit_is_a_share_of_the_card(self) -> None:
        question = self.question(vae=None)
        peak = estimate(question, named_card("sm86", 24.0)).forecast.peak
        exactly = peak / GB
        assert estimate(question, named_card("sm86", exactly), limit=1.0).forecast.verdict is Verdict.RESIDENT
        assert estimate(question, named_card("sm86", exactly), limit=0.99).forecast.verdict is not Verdict.RESIDENT

    def test_weights_that_memory_does_not_hold(self) -> None:
        forecast = estimate(self.question(), named_card("sm86", 24.0), ram=100 * MiB).forecast
        assert forecast.verdict is Verdict.DOES_NOT_FIT
        assert "RAM" in render_forecast(forecast)

    def test_a_budget_node_counts(self) -> None:
        model = FAMILIES["flux"].load()
        half = model.model_size() / 2 / GB
        limited, _ = apply_offload(model, half, "leaf", 0)
        forecast = estimate(self.question(vae=None, model=limited), named_card("sm86", 24.0)).forecast
        assert forecast.verdict is Verdict.STREAMS
        assert forecast.streamed_per_step == pytest.approx(model.model_size() / 2, rel=0.01)

    def test_a_cast_model_is_smaller_by_what_was_cast(self) -> None:
        model = drawn("flux", 0.02, 4)
        cast, _ = cast_model(model, CastSettings("float8_e4m3fn_scaled"))
        plain, small = (
            estimate(self.question(vae=None, model=one), named_card("sm86", 24.0)).forecast for one in (model, cast)
        )
        assert small.peak - small.activations <= 0.55 * (plain.peak - plain.activations)

    @pytest.mark.parametrize("name", PREDICTED)
    def test_without_a_prompt_one_of_usual_length_is_taken(self, name: str) -> None:
        family = FAMILIES[name]
        answer = estimate(Question(family.load(), {"samples": family.latent()}), chosen_card(THIS_MACHINE, 0.0, CPU))
        assert not answer.forecast.stages[0].doubt
        assert "positive is not connected" in answer.notes[0]
        text = usual_conditioning(family.load())[0][0]
        assert text.shape[-1] == family.context

    @pytest.mark.parametrize(("name", "channels", "side"), [("flux", 16, 32), ("flux2", 128, 16)])
    def test_an_empty_latent_of_another_kind_is_what_the_sampler_makes_of_it(
        self, name: str, channels: int, side: int
    ) -> None:
        """The host changes its channels and, where it knows the ratio, its size."""
        (empty,) = nodes.EmptyLatentImage().generate(256, 256)
        family, right = FAMILIES[name], {"samples": torch.zeros(1, channels, side, side)}
        model, vae = family.load(), load_vae(name)
        other, own = (
            estimate(Question(model, latent, vae, positive=family.conditioning(1), cfg=1.0), this_cpu()).forecast.stages
            for latent in (empty, right)
        )
        assert [stage.prediction for stage in other] == [stage.prediction for stage in own]
        assert not any(stage.doubt for stage in other)

    def test_what_cannot_be_predicted_is_the_hosts_estimate_and_says_so(self) -> None:
        family = FAMILIES["flux"]
        latent = family.latent()
        question = Question(looking(family), {"samples": latent}, positive=family.conditioning(1))
        forecast = estimate(question, chosen_card(THIS_MACHINE, 0.0, CPU)).forecast
        report = render_forecast(forecast)
        assert "the host's own estimate, not a prediction: aten.nonzero" in report
        assert forecast.activations == int(family.load().model.memory_required([2, *latent.shape[1:]]))

    def test_what_is_taken_of_experts_is_said(self) -> None:
        answers = [
            estimate(Question(family.load(), {"samples": family.latent()}, positive=family.conditioning(1)), this_cpu())
            for family in (FAMILIES["hidream"], FAMILIES["flux"])
        ]
        assert [any("experts" in note for note in answer.notes) for answer in answers] == [True, False]

    def test_an_answer_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        question, card = self.question(), named_card("sm86", 16.0)
        first = estimate(question, card).forecast
        monkeypatch.setattr("headroom.host.prediction.stages.predict_step", None)
        monkeypatch.setattr("headroom.host.prediction.stages.predict_coding", None)
        assert estimate(question, card).forecast == first

    def test_a_card_needs_its_memory(self) -> None:
        with pytest.raises(ValueError, match="vram_gb"):
            chosen_card("sm86", 0.0, CPU)
        with pytest.raises(ValueError, match="gpu"):
            named_card("sm99", 8.0)

    def test_the_node_stops_a_prompt_before_its_model_is_loaded(self) -> None:
        comfy.model_management.unload_all_models()
        before = list(comfy.model_management.current_loaded_models)  # what another test's leftover holds
        family = FAMILIES["flux"]
        with pytest.raises(ValueError, match=r"^stopped before sampling: sampling needs .* at least"):
            HeadroomEstimate.execute(
                family.load(), {"samples": family.latent(1024, 1024)}, 3.0, "stop", positive=family.conditioning(1),
                vram_gb=0.05, gpu="sm86",
            )  # fmt: skip
        assert comfy.model_management.current_loaded_models == before


class TestFullSize:
    @pytest.fixture(scope="class")
    def files(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("models")
        names = ("full_flux", "full_sd_vae", "full_flux_vae", "full_wan_vae")
        full_size.write_all(folder, [f"{name}.safetensors" for name in names])
        return folder

    def test_from_headers_alone(self, files: Path) -> None:
        """None of the weights is on the disk, let alone in memory."""
        path = files / "diffusion_models" / "full_flux.safetensors"
        assert path.stat().st_blocks * 512 < 2 * MiB < path.stat().st_size
        process, mode, card = psutil.Process(), fake_mode(), named_card("sm86", 12.0)
        before = process.memory_info().rss
        with loading_headers(mode, card):
            model = comfy.sd.load_diffusion_model_state_dict(
                comfy.utils.load_torch_file(str(path)), disable_dynamic=True
            )
        with mode:
            text = [[torch.zeros(1, 256, 4096), {"pooled_output": torch.zeros(1, 768)}]]
            latent = torch.zeros(1, 16, 128, 128)
        prediction = predict_step(Step(model, latent, text, text, 1.0), card)
        assert prediction.weights / GB == pytest.approx(22.17, rel=0.01)
        assert 0 < prediction.activations < GB
        assert prediction.kernels == {"cudnn": 57}
        assert process.memory_info().rss - before < 300 * MiB

    @pytest.mark.parametrize(
        ("name", "share"),
        [
            # Without a budget strips are as tall as is fastest, and count of what convolutions hold a little more than
            # one piece does: 1.08 times in 16 bits, 1.35 times in float32.
            ("full_sd_vae", 1.15),
            ("full_flux_vae", 1.15),
            ("full_wan_vae", 1.25),  # in one piece it takes one frame after another; strips keep all frames of a row
        ],
    )
    def test_a_vae(self, files: Path, name: str, share: float) -> None:
        mode, card = fake_mode(), named_card("sm86", 24.0)
        with loading_headers(mode, card):
            tensors = comfy.utils.load_torch_file(str(files / "vae" / f"{name}.safetensors"))
            vae = comfy.sd.VAE(sd=tensors)
        with mode:
            latent = torch.zeros(1, 16, 3, 24, 24) if "wan" in name else torch.zeros(1, vae.latent_channels, 64, 64)
        plain = predict_coding(Coding(vae, latent), card)
        strips = predict_coding(Coding(low_memory_vae(vae, VAESettings(method="exact")), latent), card)
        assert strips.method == "exact, in strips"
        assert 0 < strips.prediction.activations < share * plain.prediction.activations
        budget = 0.9 * plain.prediction.peak
        tight = VAESettings(method="exact", vram_budget_gb=budget / GB)
        less = predict_coding(Coding(low_memory_vae(vae, tight), latent), card)
        assert less.prediction.peak <= budget
        assert less.prediction.activations < 0.8 * plain.prediction.activations


def test_the_tracker_sees_what_the_profiler_sees() -> None:
    """The same tracker, with data: what it follows is what is there."""
    family = FAMILIES["sd3"]
    model, latent = family.load(), family.latent(256, 256)
    work = one_call(model, family, tuple(latent.shape))
    work()
    tracker = LiveBytes("cpu")
    tracker.add([*model.model.parameters(), *model.model.buffers()])
    held = tracker.peak = tracker.live
    with tracker:
        work()
    assert abs((tracker.peak - held) / peak_bytes(work) - 1) <= 0.005
