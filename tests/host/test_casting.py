"""Layerwise casting around the host's own models, loaders, LoRAs and sampler, in process."""

import copy
import gc
import json
import os
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import comfy.model_management
import comfy.ops
import comfy.sd
import folder_paths
import pytest
import torch
from comfy import quant_ops
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from headroom.benchmarks._noise import sqnr_db
from headroom.host.casting import layers as cast_layers
from headroom.host.casting import quantised, sensitivity
from headroom.host.casting.cast import ATTACHMENT, CastSettings, cast_clip, cast_model
from headroom.host.casting.independent import independent
from headroom.host.casting.quantised import quantise, quantised_linear, why_not
from headroom.host.casting.sensitivity import Goal, cast_by_sensitivity
from headroom.nodes.cast import HeadroomCast, HeadroomCastCLIP
from headroom.offload import STORAGES, CastReport

from ..nightly import at_night, grid, some_of
from .drawn import BLOCKS, drawn, signal_db, velocity
from .families import FAMILIES, Family, each_once
from .families import sample as sampled
from .packed import pack
from .training import train, training_node

pytestmark = pytest.mark.usefixtures("one_thread")

HELD = [name for name, storage in STORAGES.items() if why_not(storage) is None]  # older hosts lack some
SCALED = [name for name in HELD if STORAGES[name].scaled]
EIGHT_BITS = [name for name in HELD if STORAGES[name].bits in (8, 8.25)]

BETTER = "int8_convrot" if "int8_convrot" in HELD else "float8_e4m3fn_scaled"


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_paths, "output_directory", str(tmp_path / "output"))
    monkeypatch.setattr(folder_paths, "user_directory", str(tmp_path / "user"))


def columns_of(storage: str) -> int:
    layout = STORAGES[storage].layout
    return 1 if layout is None else layout.columns


def cast(model: Any, storage: str = "float8_e4m3fn_scaled", **settings: Any) -> Any:
    return cast_model(model, CastSettings(storage, **settings))[0]


def sample(model: Any, family: Family, **settings: Any) -> Tensor:
    """On few tokens: convolutions in half precision are slow on a CPU, and weights are what matters here."""
    return sampled(model, family, **({"latent": family.latent(64, 64)} | settings))


def report_of(model: Any) -> CastReport:
    return model.attachments[ATTACHMENT]


def layers_of(model: Any) -> dict[str, nn.Module]:
    return dict(model.model.diffusion_model.named_modules())


class TestOriginal:
    @pytest.mark.parametrize(("name", "storage"), each_once(["flux", "sd3", "wan21", "sd15"], HELD))
    def test_it_is_bit_exact_before_between_and_after(self, name: str, storage: str) -> None:
        family = FAMILIES[name]
        model = family.load()
        before = sample(model, family)
        ours = cast(model, storage)
        between = sample(model, family)
        stored = sample(ours, family)
        assert torch.equal(between, before)
        assert torch.equal(sample(model, family), before)
        assert torch.equal(sample(ours, family), stored)
        # The file is in float16.
        assert torch.equal(stored, before) == (storage == "float16")

    @pytest.mark.parametrize("name", some_of(list(FAMILIES), 3))
    def test_what_is_kept_shares_its_storage_and_what_is_cast_does_not(self, name: str) -> None:
        model = FAMILIES[name].load()
        ours = cast(model)
        cast_names = {done.layer.name for done in report_of(ours).cast}
        theirs = layers_of(model)
        for layer, module in layers_of(ours).items():
            assert module is not theirs[layer]
            for key, parameter in module.named_parameters(recurse=False):
                original = getattr(theirs[layer], key)
                assert parameter is not original
                shared = parameter.data_ptr() == original.data_ptr()
                assert shared == (layer not in cast_names or key != "weight"), f"{layer}.{key}"

    def test_a_cancel_half_way_leaves_it_usable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        family = FAMILIES["flux"]
        model = family.load()
        before = sample(model, family)
        turns = []

        def interrupt() -> None:
            turns.append(1)
            if len(turns) == 7:
                raise comfy.model_management.InterruptProcessingException

        with monkeypatch.context() as patch:
            patch.setattr(comfy.model_management, "throw_exception_if_processing_interrupted", interrupt)
            with pytest.raises(comfy.model_management.InterruptProcessingException):
                cast(model)
        assert torch.equal(sample(model, family), before)
        assert len(report_of(cast(model)).cast) > 7

    def test_a_failure_half_way_leaves_it_usable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        family = FAMILIES["sd15"]
        model = family.load()
        before = sample(model, family)
        turns = []

        def failing(*args: Any) -> tuple[Tensor, float]:
            turns.append(1)
            if len(turns) == 5:
                raise MemoryError
            return quantise(*args)

        with monkeypatch.context() as patch:
            patch.setattr(cast_layers, "quantise", failing)
            with pytest.raises(MemoryError):
                cast(model)
        assert torch.equal(sample(model, family), before)

    def test_nothing_holds_a_cast_model_that_is_no_longer_used(self) -> None:
        import weakref

        family = FAMILIES["flux"]
        ours = cast(family.load())
        sample(ours, family)
        network = weakref.ref(ours.model)
        comfy.model_management.unload_all_models()
        del ours
        gc.collect()
        assert network() is None


class TestNotes:
    """What the host writes on a loaded model's modules belongs to that model alone."""

    # _v_block and _comfy_graph are of ComfyUI 0.33, the last of none.
    @pytest.mark.parametrize("name", ["_v", "_pins", "weight_function", "_v_block", "_comfy_graph", "_v_of_the_future"])
    def test_they_are_not_copied(self, name: str) -> None:
        model = FAMILIES["flux"].load()
        layer = model.model.diffusion_model.double_blocks[0].img_attn.qkv
        had = name in vars(layer)
        setattr(layer, name, [])
        try:
            copy = independent(model).model.diffusion_model.double_blocks[0].img_attn.qkv
            assert name not in vars(copy)
            assert copy.comfy_cast_weights == layer.comfy_cast_weights
        finally:
            if not had:
                delattr(layer, name)

    def test_a_memory_holder_of_an_unknown_name_is_refused(self) -> None:
        model = FAMILIES["flux"].load()
        network = model.model.diffusion_model
        network.double_blocks[0].somewhere = {"a": model}
        try:
            with pytest.raises(ValueError, match=r"keeps a comfy.model_patcher.\w+ as 'somewhere' of diffusion_model"):
                cast(model)
        finally:
            del network.double_blocks[0].somewhere
        assert report_of(cast(model)).cast


class TestRepeated:
    @pytest.mark.parametrize("storage", HELD)
    def test_a_second_conversion_converts_nothing(self, storage: str) -> None:
        family = FAMILIES["flux"]
        once = cast(family.load(), storage)
        twice, report = cast_model(once, CastSettings(storage))
        assert not report.cast
        assert twice.model is once.model
        assert torch.equal(sample(twice, family), sample(once, family))

    def test_another_storage_leaves_what_is_quantised(self) -> None:
        once = cast(FAMILIES["flux"].load(), skip="auto\nsingle_blocks")
        singles, report = cast_model(once, CastSettings("bfloat16", skip="auto"))
        assert {done.layer.name.split(".")[0] for done in report.cast} == {"single_blocks"}
        assert "already quantised" in report.kept()
        assert singles.model_size() < once.model_size()

    def test_a_model_that_its_file_quantised_is_reported_and_left(self, tmp_path: Path) -> None:
        path = str(tmp_path / "quantised.safetensors")
        comfy.sd.save_checkpoint(path, cast(FAMILIES["flux"].load(), skip="auto\nsingle_blocks.0"))
        loaded = comfy.sd.load_diffusion_model(path)
        result, report = cast_model(loaded, CastSettings("float8_e4m3fn_scaled", skip=""))
        assert not report.cast
        assert result.model is loaded.model
        assert "already quantised" in report.render()
        assert "already left in full by the file's own quantisation" in report.render()

    def test_a_model_loaded_in_fp8_is_reported_and_left(self) -> None:
        model = drawn("flux", 0.02, depth=2, dtype=torch.float8_e4m3fn)
        _, report = cast_model(model, CastSettings("float8_e4m3fn_scaled"))
        assert not report.cast
        assert "already float8_e4m3fn" in report.kept()


@lru_cache(maxsize=1)  # of a size for all storages
def drawn_once(name: str, depth: int) -> Any:
    return drawn(name, 0.02, depth)


SIZES = [("flux", 8), ("sd3", 12), ("wan21", 40), ("sd15", 1)]  # families, and how often their blocks are there


class TestSize:
    @pytest.mark.parametrize(
        ("name", "depth", "storage"), some_of([(*size, storage) for size, storage in grid(SIZES, EIGHT_BITS)], 2)
    )
    def test_half_of_16_bits(self, name: str, depth: int, storage: str) -> None:
        model = drawn_once(name, depth)
        ours = cast(model, storage)
        # Embedders are a tenth of this narrow UNet, and mxfp8 has a scale for every 32 weights: 0.556.
        limit = 0.56 if (name, storage) == ("sd15", "mxfp8") else 0.55
        assert ours.model_size() <= limit * model.model_size()
        assert ours.model_size() == comfy.model_management.module_size(ours.model)
        assert ours.clone().model_size() == ours.model_size()
        assert report_of(ours).bytes_after == ours.model_size()

    def test_nvfp4_is_under_a_third_of_the_converted_layers(self) -> None:
        cast_layers = report_of(cast(drawn("flux", 0.02), "nvfp4")).cast
        assert sum(done.bytes_after for done in cast_layers) <= 0.32 * sum(done.bytes_before for done in cast_layers)

    def test_convolutions_say_their_new_dtype_to_dynamic_vram(self) -> None:
        ours = cast(FAMILIES["sd15"].load())
        kernels = [m for m in layers_of(ours).values() if isinstance(m, nn.Conv2d) and m.weight.dtype.itemsize == 1]
        assert kernels
        assert all(m.weight_comfy_model_dtype == m.weight.dtype for m in kernels)
        assert all(m.comfy_cast_weights for m in kernels)


class TestWeights:
    """Signal to noise of a stored weight."""

    def heavy_tails(self) -> Tensor:
        return torch.from_numpy(torch.distributions.StudentT(3.0).sample((512, 1024)).numpy()) * 0.01

    def outliers(self) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        weight = torch.randn(512, 1024, generator=generator) * 0.02
        return torch.where(torch.rand(512, 1024, generator=generator) < 1e-4, weight.sign() * 2.0, weight)

    LEAST = {"float8_e4m3fn_scaled": 31, "int8_convrot": 41, "mxfp8": 31, "nvfp4": 20, "asym_w4a8_int8": 22.5}

    @pytest.mark.parametrize(
        ("std", "storage", "dtype"),
        grid([0.002, 0.005, 0.01, 0.02, 0.05], list(LEAST), [torch.bfloat16, torch.float16, torch.float32], each=3),
    )
    def test_normal(self, storage: str, std: float, dtype: torch.dtype) -> None:
        if storage not in HELD:
            pytest.skip("this ComfyUI lacks it")
        weight = (torch.randn(512, 1024, generator=torch.Generator().manual_seed(0)) * std).to(dtype)
        stored, quality = quantise(weight, STORAGES[storage], torch.float32)
        assert quality >= self.LEAST[storage]
        assert quality == pytest.approx(sqnr_db(weight, stored.dequantize()), abs=0.01)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    @pytest.mark.parametrize("storage", [name for name in ("mxfp8", "nvfp4") if name in HELD])
    def test_kernels_that_take_16_bits_alone(
        self, storage: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As comfy-kitchen's for CUDA are, which its table says take float32."""
        from comfy_kitchen.registry import registry

        plain = registry._backends["eager"]

        def refusing(name: str) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                asked = (kwargs.get("output_type"), getattr(kwargs.get("x"), "dtype", None))
                if torch.float32 in asked:
                    raise RuntimeError("Unsupported dtype code (only FP16/BF16 supported): 0")
                return getattr(plain, name)(*args, **kwargs)

            return call

        names = [f"{way}quantize_{storage}" for way in ("", "de")]
        card = SimpleNamespace(**{name: refusing(name) for name in names})
        monkeypatch.setitem(registry._backends, "card", card)
        monkeypatch.setitem(registry._capabilities, "card", set(names))
        monkeypatch.setattr(registry, "_priority", ["card", *registry._priority])
        weight = torch.randn(64, 128, generator=torch.Generator().manual_seed(0)) * 0.02
        with pytest.raises(RuntimeError, match="16"):
            quant_ops.QuantizedTensor.from_float(weight, quantised._host_layout(STORAGES[storage]))
        layer = comfy.ops.manual_cast.Linear(128, 64, bias=False, dtype=dtype)
        stored, quality = quantise(weight.to(dtype), STORAGES[storage], dtype)
        assert quality >= self.LEAST[storage]
        linear = quantised_linear(layer, stored, STORAGES[storage], dtype)
        x = torch.randn(3, 128, generator=torch.Generator().manual_seed(1)).to(dtype)
        assert sqnr_db(x.float() @ weight.T, linear(x).float()) >= self.LEAST[storage] - 1

    @pytest.mark.parametrize("which", ["heavy_tails", "outliers"])
    def test_int8_with_heavy_tails_and_outliers(self, which: str) -> None:
        if "int8_convrot" not in HELD:
            pytest.skip("this ComfyUI lacks it")
        torch.manual_seed(0)
        weight = getattr(self, which)()
        stored, _ = quantise(weight, STORAGES["int8_convrot"], torch.float32)
        assert sqnr_db(weight, stored.dequantize()) >= 41

    @pytest.mark.parametrize(
        ("storage", "columns"),
        [(name, columns) for name in SCALED for columns in (320, 640, 96, 100) if columns % columns_of(name) == 0],
    )
    def test_widths_that_the_blocks_do_not_divide(self, storage: str, columns: int) -> None:
        weight = torch.randn(70, columns, generator=torch.Generator().manual_seed(0)) * 0.02
        stored, _ = quantise(weight, STORAGES[storage], torch.bfloat16)
        assert stored.shape == weight.shape
        assert sqnr_db(weight, stored.dequantize()) >= 19

    @pytest.mark.parametrize("shape", [(3000, 640), (129, 320), (100, 96), (1, 4096)])
    @pytest.mark.parametrize("storage", SCALED)
    def test_some_rows_at_a_time_or_all_at_once(
        self, storage: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from headroom.offload import quality

        weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.02
        results = []
        for part in (1, 1 << 40):
            monkeypatch.setattr(quality, "PART", part)
            results.append(quantise(weight, STORAGES[storage], torch.bfloat16)[0].state_dict(""))
        assert results[0].keys() == results[1].keys()
        assert all(torch.equal(bits(results[0][key]), bits(results[1][key])) for key in results[0])

    @pytest.mark.parametrize("storage", SCALED)
    def test_rows_that_the_layout_cannot_hold_are_kept_without_a_scale(self, storage: str) -> None:
        model = drawn("flux", 0.02, depth=2)
        blocks = model.model.diffusion_model.double_blocks
        blocks[0].img_mlp[2] = comfy.ops.manual_cast.Linear(100, 96)
        nn.init.normal_(blocks[0].img_mlp[2].weight, std=0.02)
        done = {layer.layer.name: layer.stored for layer in report_of(cast(model, storage)).cast}
        held = columns_of(storage) == 1
        assert done["double_blocks.0.img_mlp.2"] == (storage if held else "float8_e4m3fn without a scale")
        assert done["double_blocks.1.img_mlp.2"] == storage

    def test_the_table_of_a_matrix_is_one_for_all_its_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        if "asym_w4a8_int8" not in HELD:
            pytest.skip("this ComfyUI lacks it")
        from headroom.offload import quality

        monkeypatch.setattr(quality, "PART", 1)
        weight = self.heavy_tails()
        weight[:128] *= (
            torch.rand(128, 1024) ** 8
        )  # of another distribution: alone they would have a table of their own
        stored, db = quantise(weight, STORAGES["asym_w4a8_int8"], torch.float32)
        assert stored._params.codebook.shape == (16,)
        assert db == pytest.approx(sqnr_db(weight, stored.dequantize()), abs=0.01)

    def test_a_layer_of_zeros_or_of_nan_stays_and_is_named(self) -> None:
        model = drawn("flux", 0.02, depth=2)
        blocks = model.model.diffusion_model.double_blocks
        blocks[0].img_attn.qkv.weight.data.zero_()
        blocks[1].img_attn.qkv.weight.data[0, 0] = torch.nan
        kept = report_of(cast(model)).kept()
        assert kept["all zeros"] == ["double_blocks.0.img_attn.qkv"]
        assert kept["holds infinite or undefined weights"] == ["double_blocks.1.img_attn.qkv"]


class TestOutput:
    """Nearer to the original than the loader's own cast."""

    @pytest.mark.parametrize(
        ("name", "std", "depth", "fp8", "int8"),
        [
            *[("flux", 0.02, 8, 6, 13), ("flux", 0.01, 8, 15, 22)],
            *some_of([(name, std, 8, 3, 3) for name in BLOCKS if name != "flux" for std in (0.01, 0.02)], 9),
        ],
    )
    def test_by_so_many_decibels(self, name: str, std: float, depth: int, fp8: float, int8: float) -> None:
        family = FAMILIES[name]
        model = drawn(name, std, depth)
        reference = velocity(model, family)
        loader = signal_db(velocity(drawn(name, std, depth, dtype=torch.float8_e4m3fn), family), reference)
        assert signal_db(velocity(cast(model), family), reference) >= loader + fp8
        if "int8_convrot" in HELD:
            assert signal_db(velocity(cast(model, "int8_convrot"), family), reference) >= loader + int8

    @pytest.mark.parametrize("name", some_of(list(FAMILIES), 2))
    def test_every_family_samples(self, name: str) -> None:
        family = FAMILIES[name]
        stock = sample(family.load(), family)
        assert signal_db(sample(cast(family.load(), BETTER), family), stock) >= 15

    @pytest.mark.parametrize("compute", ["bfloat16", "float32"])
    def test_it_computes_in_what_was_asked_for(self, compute: str) -> None:
        family = FAMILIES["flux"]
        ours = cast(family.load(), compute=compute)
        seen = []
        block = ours.model.diffusion_model.single_blocks[0].linear1
        block.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
        latents = sample(ours, family)
        dtype = getattr(torch, compute)
        assert set(seen) == {dtype}
        stock = family.load().clone()
        stock.set_model_compute_dtype(dtype)
        assert signal_db(latents, sample(stock, family)) >= 15


class TestLoRA:
    @pytest.fixture
    def lora(self) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(5)
        network = FAMILIES["flux"].load().model.diffusion_model
        keys = [
            "img_in",
            *(name for name, m in network.named_modules() if "_blocks" in name and hasattr(m, "in_features")),
        ]
        result = {}
        for key in keys:
            out, into = network.get_submodule(key).weight.shape
            result[f"diffusion_model.{key}.lora_up.weight"] = torch.randn(out, 4, generator=generator) * 0.1
            result[f"diffusion_model.{key}.lora_down.weight"] = torch.randn(4, into, generator=generator) * 0.1
        return result

    def with_lora(self, model: Any, lora: dict[str, Tensor]) -> Any:
        return comfy.sd.load_lora_for_models(model, None, dict(lora), 0.8, 0.0)[0]

    @pytest.mark.parametrize("storage", some_of(HELD[1:], 2) if len(HELD) > 1 else HELD)
    def test_before_and_after_are_bit_equal(self, lora: dict[str, Tensor], storage: str) -> None:
        family = FAMILIES["flux"]
        before = cast(self.with_lora(family.load(), lora), storage)
        after = self.with_lora(cast(family.load(), storage), lora)
        latents = sample(before, family)
        assert torch.equal(latents, sample(after, family))
        plain = sample(cast(family.load(), storage), family)
        baked = sample(self.with_lora(family.load(), lora), family)
        assert signal_db(latents, baked) > signal_db(plain, baked) + 1, "the LoRA does nothing"

    @pytest.mark.parametrize("storage", some_of(HELD, 2))
    def test_unpatching_is_exact(self, lora: dict[str, Tensor], storage: str) -> None:
        family = FAMILIES["flux"]
        ours = cast(family.load(), storage)
        before = sample(ours, family)
        sample(self.with_lora(ours, lora), family)
        assert torch.equal(sample(ours, family), before)

    @pytest.mark.parametrize(("storage", "share"), some_of(each_once(HELD, [0.5, 0.0]), 3))
    def test_before_and_after_agree_when_partly_offloaded(
        self, lora: dict[str, Tensor], storage: str, share: float
    ) -> None:
        """The host applies a LoRA to an offloaded layer at each use, in the dtype of the computation."""
        family = FAMILIES["flux"]
        before = cast(self.with_lora(family.load(), lora), storage)
        after = self.with_lora(cast(family.load(), storage), lora)
        results = [self.partly_loaded(model, share) for model in (before, after)]
        assert torch.equal(*results)
        assert signal_db(results[0], self.partly_loaded(self.with_lora(family.load(), lora), share)) >= 18

    def hooked(self, model: Any, lora: dict[str, Tensor]) -> Tensor:
        import comfy.hooks

        import nodes

        family = FAMILIES["flux"]
        hooks = comfy.hooks.create_hook_lora(lora=dict(lora), strength_model=0.8, strength_clip=0.0)
        positive = comfy.hooks.set_hooks_for_conditioning(family.conditioning(1), hooks)
        latent = {"samples": family.latent(64, 64)}
        arguments = (model, 7, 2, 1.0, "euler", "normal", positive, family.conditioning(2), latent)
        return nodes.KSampler().sample(*arguments)[0]["samples"]

    @pytest.mark.parametrize("storage", some_of([name for name in HELD if name not in SCALED], 3))
    def test_a_hooked_one_is_as_a_baked_one(self, lora: dict[str, Tensor], storage: str) -> None:
        family = FAMILIES["flux"]
        ours = cast(family.load(), storage)
        before = sample(ours, family, cfg=1.0)
        baked = sample(self.with_lora(ours, lora), family, cfg=1.0)
        assert torch.equal(self.hooked(ours, lora), baked)
        assert torch.equal(sample(ours, family, cfg=1.0), before)

    @pytest.mark.parametrize("storage", some_of(SCALED, 3))
    def test_a_hooked_one_on_scaled_weights_is_an_error_and_leaves_them(
        self, lora: dict[str, Tensor], storage: str
    ) -> None:
        family = FAMILIES["flux"]
        ours = cast(family.load(), storage)
        before = sample(ours, family)
        with pytest.raises(RuntimeError, match="ComfyUI cannot hook a LoRA onto quantised weights: load it with Lora"):
            self.hooked(ours, lora)
        assert torch.equal(sample(ours, family), before)

    def partly_loaded(self, model: Any, share: float) -> Tensor:
        cpu = torch.device("cpu")
        model.partially_load(cpu, int(share * model.model_size()) + 1)
        try:
            assert model.model.model_lowvram
            assert model.lowvram_patch_counter() > 0
            assert (model.loaded_size() > 0) == (share > 0)
            generator = torch.Generator().manual_seed(2)
            x, context = (torch.randn(shape, generator=generator) for shape in ((1, 16, 16, 16), (1, 20, 768)))
            y = torch.randn(1, 768, generator=generator)
            guidance = torch.tensor([3.5])
            return model.model.diffusion_model(x, torch.tensor([0.6]), context=context, y=y, guidance=guidance)
        finally:
            model.detach()


class TestSaved:
    """The host's save node, and its own loader."""

    @pytest.mark.parametrize(("name", "storage"), some_of(each_once(list(BLOCKS), SCALED), 3))
    def test_the_stock_loader_reads_the_same_bits(self, name: str, storage: str, tmp_path: Path) -> None:
        family = FAMILIES[name]
        ours = cast(family.load(), storage)
        path = str(tmp_path / "model.safetensors")
        comfy.sd.save_checkpoint(path, ours)
        loaded = comfy.sd.load_diffusion_model(path)
        saved, read = ours.model.state_dict(), loaded.model.state_dict()
        assert saved.keys() == read.keys()
        for key, tensor in saved.items():
            # Convolutions have no scales in the host: it reads them back in full, with the same values.
            same = tensor.to(read[key].dtype) if read[key].dtype.itemsize > tensor.dtype.itemsize else tensor
            assert torch.equal(bits(same), bits(read[key])), key
        result, stored = sample(loaded, family), sample(ours, family)
        if storage in ("int8_convrot", "asym_w4a8_int8"):  # the stock layer rounds its input to 8 bits too
            assert signal_db(result, stored) >= 30
        else:
            assert torch.equal(result, stored)

    def test_a_baked_lora_is_saved_with_it(self, tmp_path: Path) -> None:
        family = FAMILIES["flux"]
        key = "diffusion_model.single_blocks.1.linear1"
        out, into = family.load().model.get_submodule(key).weight.shape
        lora = {f"{key}.lora_up.weight": torch.ones(out, 2) * 0.1, f"{key}.lora_down.weight": torch.ones(2, into) * 0.1}
        ours = comfy.sd.load_lora_for_models(cast(family.load()), None, lora, 1.0, 0.0)[0]
        path = str(tmp_path / "model.safetensors")
        comfy.sd.save_checkpoint(path, ours)
        assert torch.equal(sample(comfy.sd.load_diffusion_model(path), family), sample(ours, family))

    def test_a_format_without_scales_warns(self) -> None:
        assert "no scales" in report_of(cast(FAMILIES["flux"].load(), "float8_e4m3fn_unscaled")).render()
        assert "no scales" not in report_of(cast(FAMILIES["flux"].load())).render()


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8)


class TestCacheFile:
    @pytest.fixture
    def files(self, tmp_path: Path) -> Iterator[Path]:
        return tmp_path / "output" / "headroom"

    @pytest.mark.parametrize(("name", "storage"), some_of(each_once(["flux", "sd15"], HELD), 2))
    def test_written_once_and_read_back_the_same(self, name: str, storage: str, files: Path) -> None:
        family = FAMILIES[name]
        plain = cast(family.load(), storage)
        latents = sample(plain, family)
        written = cast(family.load(), storage, cache_file="mine")
        (file,) = files.iterdir()
        stamp = file.stat().st_mtime_ns
        read = cast(family.load(), storage, cache_file="mine.safetensors")
        assert list(files.iterdir()) == [file]
        assert file.stat().st_mtime_ns == stamp
        for model in (written, read):
            assert torch.equal(sample(model, family), latents)
            assert report_of(model).done == report_of(plain).done
            assert model.model_size() == plain.model_size()
        assert "written to" in report_of(written).render()
        assert "read from" in report_of(read).render()

    def test_no_weight_of_it_is_the_originals(self, files: Path) -> None:
        """The original may be dropped: pages of the file are the system's to evict."""
        model = FAMILIES["flux"].load()
        theirs = {parameter.data_ptr() for parameter in model.model.parameters()}
        ours = cast(model, cache_file="mine")
        assert not theirs & {parameter.data_ptr() for parameter in ours.model.parameters()}

    def test_other_weights_and_settings_have_files_of_their_own(self, files: Path) -> None:
        for model in (drawn("flux", 0.02, 2), drawn("flux", 0.01, 2)):
            for storage in ("float8_e4m3fn_scaled", "float8_e5m2_unscaled"):
                cast(model, storage, cache_file="mine")
        assert len(list(files.iterdir())) == 4
        model = drawn("flux", 0.02, 2)
        for settings in ({"skip": "auto\n^double_blocks"}, {"skip": ""}, {"compute": "float32"}):
            cast(model, cache_file="mine", **settings)
        assert len(list(files.iterdir())) == 7

    def test_a_cancel_leaves_no_file(self, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt() -> None:
            raise comfy.model_management.InterruptProcessingException

        monkeypatch.setattr(comfy.model_management, "throw_exception_if_processing_interrupted", interrupt)
        with pytest.raises(comfy.model_management.InterruptProcessingException):
            cast(FAMILIES["flux"].load(), cache_file="mine")
        assert not list(files.iterdir())

    @pytest.mark.parametrize(
        "damage",
        [
            lambda file: file.write_bytes(b""),
            lambda file: file.write_bytes(b"no tensors at all, in so many words"),
            lambda file: file.write_bytes(file.read_bytes()[:-1]),
            lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
            lambda file: file.write_bytes(file.read_bytes()[: 8 + int.from_bytes(file.read_bytes()[:8], "little")]),
            lambda file: save_file({"x": torch.zeros(1)}, file, metadata={"other": "yes"}),
            lambda file: save_file({"x": torch.zeros(1)}, file, metadata={"headroom_cast": "{}"}),
            lambda file: save_file({"x": torch.zeros(1)}, file, metadata={"headroom_cast": "[" * 50_000}),
            lambda file: save_file({"x": torch.zeros(1)}, file, metadata={"headroom_cast": "[[1]]"}),
        ],
    )
    def test_a_damaged_file_is_written_anew(
        self, files: Path, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
    ) -> None:
        family = FAMILIES["flux"]
        latents = sample(cast(family.load(), cache_file="mine"), family)
        (file,) = files.iterdir()
        whole = file.read_bytes()
        damage(file)
        again = cast(family.load(), cache_file="mine")
        assert "is damaged and is written anew" in caplog.text
        assert "written to" in report_of(again).render()
        assert torch.equal(sample(again, family), latents)
        assert file.read_bytes() == whole

    def test_layers_that_are_missing_are_named(self, files: Path) -> None:
        """What its header promises is all there; what the cast needs is not."""
        model = FAMILIES["flux"].load()
        cast(model, cache_file="mine")
        (file,) = files.iterdir()
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata()
        save_file({"x": torch.zeros(1)}, file, metadata=metadata)
        with pytest.raises(ValueError, match=r"cache_file: .*mine\..* is damaged .*; delete it"):
            cast(model, cache_file="mine")

    def test_a_folder_in_its_place_is_named(self, files: Path) -> None:
        cast(FAMILIES["flux"].load(), cache_file="mine")
        (file,) = files.iterdir()
        file.unlink()
        file.mkdir()
        with pytest.raises(ValueError, match=r"cache_file: .*mine\..* is a folder; take it away, or choose another"):
            cast(FAMILIES["flux"].load(), cache_file="mine")

    def test_the_longest_name(self, files: Path) -> None:
        cast(FAMILIES["flux"].load(), cache_file="n" * 180)
        assert len(list(files.iterdir())) == 1
        with pytest.raises(ValueError, match=r"cache_file: the name has 181 characters; file systems take 180 bytes"):
            cast(FAMILIES["flux"].load(), cache_file="n" * 181)

    @pytest.mark.parametrize("name", ["../mine", "a/b", ".hidden", "C:\\mine", "two words"])
    def test_a_path_is_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"cache_file: .* is no file name; use letters, digits"):
            cast(FAMILIES["flux"].load(), cache_file=name)

    def test_a_full_disk_is_said_before_anything_is_written(self, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import shutil

        usage = shutil.disk_usage("/")
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
        with pytest.raises(ValueError, match=r"cache_file: up to 0\.0 GB are needed, but .* has 0\.0 GB left; free"):
            cast(FAMILIES["flux"].load(), cache_file="mine")
        assert not list(files.iterdir())

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no disk that is always full")
    def test_a_disk_that_fills_up_meanwhile(self, files: Path) -> None:
        cast(FAMILIES["flux"].load(), cache_file="mine")
        (file,) = files.iterdir()
        file.unlink()
        file.with_name(f"{file.name}.{os.getpid()}.part").symlink_to("/dev/full")
        model = FAMILIES["flux"].load()
        before = sample(model, FAMILIES["flux"])
        with pytest.raises(ValueError, match=r"cache_file: .*mine\..* cannot be written \(No space left .*; free some"):
            cast(model, cache_file="mine")
        assert not list(files.iterdir())
        assert torch.equal(sample(model, FAMILIES["flux"]), before)

    def test_a_file_where_the_folder_should_be(self, files: Path) -> None:
        files.parent.mkdir(parents=True, exist_ok=True)
        files.write_text("a file")
        with pytest.raises(ValueError, match=r"cache_file: .* cannot be written \(.*; free some"):
            cast(FAMILIES["flux"].load(), cache_file="mine")

    def test_what_a_killed_process_left_is_removed(self, files: Path) -> None:
        model = FAMILIES["flux"].load()
        cast(model, cache_file="mine")
        (file,) = files.iterdir()
        file.unlink()
        left, alive, growing, other = (
            file.with_name(name)
            for name in (
                f"{file.name}.4194305.part", f"{file.name}.{os.getppid()}.part", f"{file.name}.4194306.part",
                f"other.{file.name}.4194305.part",
            )
        )  # fmt: skip
        for part in (left, alive, growing, other):
            part.write_bytes(bytes(100))
            if part != growing:
                os.utime(part, (0, 0))
        cast(model, cache_file="mine")
        assert set(files.iterdir()) == {file, alive, growing, other}


class TestReload:
    """The host asks a factory for a fresh model where it wants one that nothing has touched."""

    @pytest.mark.parametrize("storage", ["float8_e4m3fn_scaled", "bfloat16"])
    def test_the_factory_casts_again(self, storage: str) -> None:
        family = FAMILIES["flux"]
        ours = cast(family.load(), storage)
        factory, arguments = ours.cached_patcher_init
        fresh = factory(*arguments, disable_dynamic=True)
        assert fresh.model is not ours.model
        assert fresh.model_size() == ours.model_size()
        assert torch.equal(sample(fresh, family), sample(ours, family))

    def test_of_a_checkpoint_too(self) -> None:
        import nodes

        model = nodes.CheckpointLoaderSimple().load_checkpoint("tiny_sd15.safetensors")[0]
        ours = cast(model)
        if model.cached_patcher_init is None:  # older hosts have none for checkpoints
            assert ours.cached_patcher_init is None
            return
        factory, arguments = ours.cached_patcher_init
        assert factory(*arguments).model_size() == ours.model_size()

    def test_a_model_without_a_factory_stays_without(self) -> None:
        assert cast(FAMILIES["chroma"].load()).cached_patcher_init is None

    def test_a_deep_copy_for_another_device_is_cast(self) -> None:
        family = FAMILIES["flux"]
        ours = cast(family.load())
        if not hasattr(ours, "deepclone_multigpu"):
            pytest.skip("this ComfyUI knows no other devices")
        copy = ours.deepclone_multigpu()
        assert copy.model is not ours.model
        assert torch.equal(sample(copy, family), sample(ours, family))


def compiled(model: Any) -> Any:
    from comfy_api.torch_helpers import set_torch_compile_wrapper

    clone = model.clone()
    set_torch_compile_wrapper(clone, backend="eager")  # nothing is compiled before it runs
    return clone


class Around(nn.Module):
    """A node's own module around one of the model's."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.block(*args, **kwargs)


def patched(model: Any, path: str, make: Any) -> Any:
    clone = model.clone()
    clone.add_object_patch(path, make(clone.model.get_submodule(path.removesuffix(".forward"))))
    return clone


def test_weights_of_another_packs_class_are_kept_whole() -> None:
    """A mixed model, as of a GGUF file and a safetensors one: the one part as it is, the other cast."""
    family, model = FAMILIES["flux"], drawn("flux", 0.02, 2)
    stock, stored = sample(model, family), cast(model, skip="double_blocks\nauto")
    pack(model.model.diffusion_model.double_blocks)
    ours, report = cast_model(model, CastSettings("float8_e4m3fn_scaled"))
    assert report.kept()["in another node pack's own format"]
    assert {done.layer.name for done in report.cast} == {done.layer.name for done in report_of(stored).cast}
    assert torch.equal(sample(ours, family), sample(stored, family))
    assert torch.equal(sample(model, family), stock)
    pack(model.model.diffusion_model.single_blocks)
    every, report = cast_model(model, CastSettings("float8_e4m3fn_scaled"))
    assert not report.cast
    assert torch.equal(sample(every, family), stock)


@pytest.mark.skipif("int8_convrot" not in HELD, reason="this ComfyUI has no weights of whole numbers")
@pytest.mark.parametrize("cache_file", ["", "kept"])
@pytest.mark.parametrize("name", ["wan21", "ltxv"])
def test_feed_forwards_multiply_in_full_precision(name: str, cache_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer hosts fold the activation into a product of 8 bits, by the name of the weight's layout."""
    ours = cast(FAMILIES[name].load(), "int8_convrot", cache_file=cache_file)
    stored = sample(ours, FAMILIES[name])
    plain = lambda layer, x, act: layer(comfy.ops.INPUT_ACT_EAGER[act](x))  # noqa: E731
    monkeypatch.setattr(comfy.ops, "linear_input_act", plain, raising=False)
    assert torch.equal(sample(ours, FAMILIES[name]), stored)


class TestCompiled:
    BEHIND = "stands before Layerwise Casting and would go on running the original; put it behind"
    BLOCK = "diffusion_model.single_blocks.0"

    @pytest.mark.parametrize(
        ("bound", "what"),
        [
            (compiled, "torch.compile"),
            (lambda model: patched(model, "diffusion_model", torch.compile), "torch.compile"),
            (lambda model: patched(model, TestCompiled.BLOCK, torch.compile), "torch.compile"),
            (
                lambda model: patched(model, f"{TestCompiled.BLOCK}.forward", lambda block: block.forward),
                f"a node that patches '{BLOCK}.forward'",
            ),
            (
                lambda model: patched(model, TestCompiled.BLOCK, Around),
                f"a node that patches '{BLOCK}'",
            ),
        ],
        ids=["the host's", "whole", "a block", "a method", "a wrapped block"],
    )
    def test_what_runs_the_original_is_an_error_before_a_cast(self, bound: Any, what: str) -> None:
        with pytest.raises(ValueError, match=f"^model: {re.escape(f'{what} {self.BEHIND}')}$"):
            cast(bound(FAMILIES["flux"].load()))

    @pytest.mark.parametrize("loaded", [False, True], ids=["as it waits", "loaded"])
    def test_a_patch_with_a_module_of_its_own_is_none(self, loaded: bool) -> None:
        """As nodes set how a model's noise is scaled; while it is loaded, it stands in the original's place."""
        family = FAMILIES["flux"]
        model = patched(family.load(), "model_sampling", copy.copy)
        if loaded:
            sample(model, family, steps=1)
        assert report_of(cast(model)).cast

    @pytest.mark.parametrize("loaded", [False, True], ids=["as it waits", "loaded"])
    def test_a_patch_is_known_while_it_stands_in_the_originals_place(self, loaded: bool) -> None:
        family = FAMILIES["flux"]
        model = patched(family.load(), self.BLOCK, Around)
        if loaded:
            sample(model, family, steps=1)
        with pytest.raises(ValueError, match="put it behind"):
            cast(model)

    def test_nothing_to_cast_is_none_either(self) -> None:
        model = drawn("flux", 0.02, 2)  # in which no other clone's patch stands
        _, report = cast_model(compiled(cast(model)), CastSettings("float8_e4m3fn_scaled"))
        assert not report.cast

    @at_night
    def test_a_cast_model_compiles(self) -> None:
        from comfy_api.torch_helpers import set_torch_compile_wrapper

        family = FAMILIES["flux"]
        ours = cast(family.load())
        stored = sample(ours, family, steps=1)
        compiled = ours.clone()
        set_torch_compile_wrapper(compiled, backend="aot_eager")
        try:
            assert signal_db(sample(compiled, family, steps=1), stored) >= 80
        finally:
            torch._dynamo.reset()


class TestTraining:
    def test_the_hosts_training_node_learns_on_stored_weights(self) -> None:
        """It asks the factory for a fresh model, outside inference mode."""
        node = training_node()
        family = FAMILIES["sd3"]
        latents = torch.randn(1, family.channels, 8, 8, generator=torch.Generator().manual_seed(1))
        model = family.load()
        stock, ours = (train(node, each, family, latents) for each in (model, cast(model, BETTER)))
        assert ours.keys() == stock.keys()
        moved = [key for key in stock if stock[key].ndim > 1 and stock[key].abs().max() > 0]
        assert moved
        overall = [torch.cat([lora[key].flatten().float() for key in moved]) for lora in (ours, stock)]
        assert signal_db(*overall) >= 10


class TestTextEncoder:
    @pytest.fixture(scope="class")
    def clip(self) -> Any:
        import nodes

        return nodes.CLIPLoader().load_clip("tiny_clip_l.safetensors")[0]

    def encoded(self, clip: Any) -> Tensor:
        return clip.encode_from_tokens_scheduled(clip.tokenize("a lighthouse at dusk, calm sea"))[0][0]

    @pytest.mark.parametrize(("storage", "compute"), some_of(grid(HELD, ["auto", "bfloat16"]), 3))
    def test_the_original_is_bit_exact_and_the_copy_near(self, clip: Any, storage: str, compute: str) -> None:
        before = self.encoded(clip)
        ours, report = cast_clip(clip, CastSettings(storage, compute))
        stored = self.encoded(ours)
        assert torch.equal(self.encoded(clip), before)
        if STORAGES[storage].bits == 16:  # which it has already
            assert not report.cast
            assert torch.equal(stored, before)
            return
        assert not torch.equal(stored, before)
        assert signal_db(stored, before) >= (8 if STORAGES[storage].packed else 12)
        assert report.cast
        assert ours.patcher.model is ours.cond_stage_model
        assert "embedding, read by row" in report.kept()

    def test_a_lora_before_and_after(self, clip: Any) -> None:
        key = "clip_l.transformer.text_model.encoder.layers.0.mlp.fc1.weight"
        out, into = clip.patcher.model.get_parameter(key).shape
        patch = {key: ("diff", (torch.randn(out, into, generator=torch.Generator().manual_seed(1)) * 0.02,))}

        def patched(model: Any) -> Any:
            clone = model.clone()
            assert clone.add_patches(patch, 0.7)
            return clone

        settings = CastSettings("float8_e4m3fn_scaled")
        before = self.encoded(cast_clip(patched(clip), settings)[0])
        after = self.encoded(patched(cast_clip(clip, settings)[0]))
        assert torch.equal(before, after)
        assert not torch.equal(before, self.encoded(cast_clip(clip, settings)[0]))

    def test_t5(self) -> None:
        """A small T5-XXL of the host's own class."""
        import comfy.text_encoders.lt

        narrow = {"d_model": 256, "d_ff": 512, "num_layers": 4, "num_heads": 4, "d_kv": 64, "vocab_size": 32128}

        class Target:
            clip = comfy.text_encoders.lt.ltxv_te()
            tokenizer = comfy.text_encoders.lt.LTXVT5Tokenizer
            params: dict[str, Any] = {}

        options = {"t5xxl_model_config": narrow, "dtype": torch.bfloat16}
        clip = comfy.sd.CLIP(Target, model_options=options, parameters=1)
        generator = torch.Generator().manual_seed(0)
        for name, parameter in clip.patcher.model.named_parameters():
            # As they are drawn before training: T5 does not scale its scores, its queries are so much smaller.
            std = 256**-0.5 if parameter.ndim > 1 else 0.01
            values = torch.randn(parameter.shape, generator=generator) * (
                std / 8 if name.endswith(".q.weight") else std
            )
            parameter.data = (values + ("norm" in name)).to(parameter.dtype)
        before = self.encoded(clip)
        ours, report = cast_clip(clip, CastSettings("float8_e4m3fn_scaled"))
        assert len(report.cast) == 4 * 7
        assert signal_db(self.encoded(ours), before) >= 15
        assert torch.equal(self.encoded(clip), before)


class TestSensitivity:
    @pytest.mark.parametrize("name", some_of(["flux", "sd15", "wan21"], 2))
    def test_a_size_limit_is_kept_and_helps(self, name: str) -> None:
        family = FAMILIES[name]
        model = family.load()
        stock = velocity(model, family, seed=3)
        settings = CastSettings("float8_e4m3fn_scaled", skip="auto\n^output_blocks")  # half of a UNet is enough here
        everything, _ = cast_model(model, settings)
        limit = everything.model_size() / model.model_size() + 0.1
        ours, report, chart = cast_by_sensitivity(model, settings, Goal(size_limit=limit), family.conditioning(1))
        assert everything.model_size() < ours.model_size() <= limit * model.model_size()
        # Chosen on another latent and another text.
        assert signal_db(velocity(ours, family, seed=3), stock) > signal_db(velocity(everything, family, seed=3), stock)
        assert "kept by sensitivity" in report.kept()
        assert chart.shape[0] == 1
        assert chart.shape[-1] == 3

    def test_an_error_target_is_reached_with_fewer_groups_the_lower_it_is(self) -> None:
        family = FAMILIES["flux"]
        model = family.load()
        sizes = []
        for target in (20.0, 33.0, 36.0):
            ours, _, _ = cast_by_sensitivity(
                model, CastSettings("float8_e4m3fn_scaled"), Goal(target_db=target), family.conditioning(1)
            )
            sizes.append(ours.model_size())
        assert sizes[0] == cast(model).model_size(), "reached without keeping any"
        assert sizes == sorted(sizes)
        assert sizes[0] < sizes[2]

    def test_what_was_measured_is_kept_for_the_next_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from headroom.host.casting.sensitivity import Probe

        family = FAMILIES["flux"]
        arguments = (family.load(), CastSettings("float8_e4m3fn_scaled"), Goal(size_limit=0.5), family.conditioning(1))
        _, first, _ = cast_by_sensitivity(*arguments)
        assert len(list((tmp_path / "user" / "headroom").iterdir())) == 1
        monkeypatch.delattr(Probe, "_measure")
        _, second, _ = cast_by_sensitivity(*arguments)
        assert second.kept() == first.kept()

    @pytest.mark.parametrize(
        "content",
        some_of(
            [b"null", b'"words"', b"[]", b"{", b"\xff", b"[" * 50_000, b"NaN", b"null values", b"strings", b"negative"],
            3,
        ),
    )
    def test_foreign_contents_are_measured_anew(
        self, tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        family = FAMILIES["flux"]
        arguments = (family.load(), CastSettings("float8_e4m3fn_scaled"), Goal(size_limit=0.5), family.conditioning(1))
        _, first, _ = cast_by_sensitivity(*arguments)
        (file,) = (tmp_path / "user" / "headroom").iterdir()
        before = json.loads(file.read_text())
        values = {b"NaN": "NaN", b"null values": "null", b"strings": '"1"', b"negative": "-1.0"}
        damaged = {group: values[content] for group in before} if content in values else None
        text = "{" + ", ".join(f'"{group}": {value}' for group, value in (damaged or {}).items()) + "}"
        file.write_bytes(text.encode() if damaged else content)
        _, second, _ = cast_by_sensitivity(*arguments)
        assert second.kept() == first.kept()
        assert json.loads(file.read_text()) == before
        assert str(file) in caplog.text

    def test_where_nothing_can_be_kept_it_is_measured_each_time(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "user").mkdir(exist_ok=True)
        (tmp_path / "user" / "headroom").write_text("a file where the folder should be")
        family = FAMILIES["flux"]
        arguments = (family.load(), CastSettings("float8_e4m3fn_scaled"), Goal(size_limit=0.5), family.conditioning(1))
        (_, first, _), (_, second, _) = (cast_by_sensitivity(*arguments) for _ in range(2))
        assert second.kept() == first.kept()
        assert "is measured again next time" in caplog.text

    def test_a_conditioning_that_is_no_number_is_named_and_nothing_is_kept(self, tmp_path: Path) -> None:
        family = FAMILIES["flux"]
        settings, goal = CastSettings("float8_e4m3fn_scaled"), Goal(size_limit=0.5)
        ((text, options),) = family.conditioning(1)
        with pytest.raises(ValueError, match="positive: with this conditioning the model's output is not a number"):
            cast_by_sensitivity(family.load(), settings, goal, [[torch.full_like(text, torch.nan), options]])
        assert not list((tmp_path / "user").glob("headroom/*"))
        cast_by_sensitivity(family.load(), settings, goal, family.conditioning(1))

    def test_the_original_is_bit_exact_and_its_lora_stays(self) -> None:
        family = FAMILIES["flux"]
        before = sample(family.load(), family)
        cast_by_sensitivity(family.load(), CastSettings("nvfp4"), Goal(size_limit=0.5), family.conditioning(1))
        assert torch.equal(sample(family.load(), family), before)

    def test_a_bad_cache_file_is_refused_before_any_work(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sensitivity, "cast_model", None)
        family = FAMILIES["flux"]
        settings = CastSettings("float8_e4m3fn_scaled", cache_file="a/b")
        with pytest.raises(ValueError, match=r"cache_file: 'a/b' is no file name"):
            cast_by_sensitivity(family.load(), settings, Goal(size_limit=0.5), family.conditioning(1))

    def test_goals_out_of_reach(self) -> None:
        family = FAMILIES["flux"]
        settings, text = CastSettings("nvfp4"), family.conditioning(1)
        with pytest.raises(
            ValueError, match=r"sensitivity.target_db: 99 dB is out of reach; one group alone costs more"
        ):
            cast_by_sensitivity(family.load(), settings, Goal(target_db=99.0), text)
        with pytest.raises(ValueError, match=r"sensitivity.size_limit: 0.1 is less than 0\.\d+, the size with every"):
            cast_by_sensitivity(family.load(), settings, Goal(size_limit=0.1), text)
        with pytest.raises(ValueError, match="positive: sensitivity runs the model, so connect the prompt's cond"):
            cast_by_sensitivity(family.load(), settings, Goal(size_limit=0.5), None)


class TestBadInput:
    @pytest.mark.parametrize(
        ("settings", "sentence"),
        [
            ({"skip": "auto\n("}, r"skip: line 2, '\(', is no regular expression \(.*\); write part of a layer's name"),
            ({"skip": "."}, "skip: these rules leave no layer to cast; remove one, or write auto"),
        ],
    )
    def test_rules(self, settings: dict[str, str], sentence: str) -> None:
        with pytest.raises(ValueError, match=sentence) as raised:
            cast(FAMILIES["flux"].load(), **settings)
        assert "\n" not in str(raised.value)

    def test_a_dtype_that_torch_lacks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(torch, "float8_e8m0fnu", raising=False)
        with pytest.raises(
            ValueError, match=r"storage: mxfp8 needs torch.float8_e8m0fnu, which torch .* lacks; choose"
        ):
            cast(FAMILIES["flux"].load(), "mxfp8")

    def test_a_format_that_the_host_lacks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from comfy import quant_ops

        monkeypatch.delitem(quant_ops.QUANT_ALGOS, "int8_tensorwise", raising=False)
        with pytest.raises(ValueError, match="storage: int8_convrot needs int8_tensorwise weights, which this ComfyUI"):
            cast(FAMILIES["flux"].load(), "int8_convrot")


def test_the_nodes_hand_out_a_model_and_its_report() -> None:
    import nodes

    family = FAMILIES["flux"]
    settings = {"storage": "float8_e4m3fn_scaled", "compute": "auto", "skip": "auto", "cache_file": ""}
    result = HeadroomCast.execute(family.load(), sensitivity={"sensitivity": "off"}, **settings)
    model, report = result.result
    assert report == report_of(model).render()
    assert result.ui.as_dict() == {"text": (report,)}
    measured = HeadroomCast.execute(
        family.load(),
        sensitivity={"sensitivity": "size", "size_limit": 0.5},
        positive=family.conditioning(1),
        **settings,
    )
    assert measured.ui["images"]
    assert "groups kept" in measured.result[1]
    clip, report = HeadroomCastCLIP.execute(
        nodes.CLIPLoader().load_clip("tiny_clip_l.safetensors")[0], **settings
    ).result
    assert report == clip.patcher.attachments[ATTACHMENT].render()
