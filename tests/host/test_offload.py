"""A budget for one model and block prefetch, around the host's own loading and sampling, in process.

On a CPU the host executes the budget as it does on a GPU, only that "loaded" and "offloaded" are the same memory. The
prefetch is made to act there, with weights outside their window poisoned: a layer that ran on one of them would give
NaN.
"""

import dataclasses
import gc
import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import comfy.model_management
import comfy.sd
import folder_paths
import psutil
import pytest
import torch
from comfy.model_base import BaseModel
from comfy.model_patcher import ModelPatcher
from torch import Tensor

from headroom.host.casting.cast import CastSettings, cast_model
from headroom.host.casting.quantised import is_quantised
from headroom.host.core import compat
from headroom.host.measure.runs import LOG
from headroom.host.offload import block_offload, offloaded_sampling
from headroom.host.offload.block_offload import apply_offload
from headroom.host.offload.budget import budget_of, set_budget
from headroom.host.offload.host_internals import ATTRIBUTES, MANAGEMENT, METHODS, HostChangedError
from headroom.host.offload.layers import ALL_STREAMS, NOTHING_STREAMS, Layers, least_weights
from headroom.host.offload.offloaded_sampling import is_streamed
from headroom.host.prediction.stages import Question, notes_of, sampling_stage
from headroom.memory import file_backed_bytes
from headroom.memory.prediction import Forecast, Verdict, named_card
from headroom.offload import block_lists
from headroom.offload.brought import layers_off
from headroom.offload.prefetch import LayerPrefetch
from headroom.offload.work import layer_work

from ..nightly import at_night, some_of
from .conftest import ENVIRONMENT
from .drawn import drawn, velocity
from .families import FAMILIES, each_once, sample
from .packed import Packed, pack
from .test_casting import HELD

pytestmark = pytest.mark.usefixtures("one_thread")
GB = 2**30


def poison(weight: Tensor) -> Tensor:
    """NaN of the same kind: a quantised weight by its scales."""
    if is_quantised(weight):
        return weight._copy_with(params=weight._params.clone(), clone_params=False).__class__(
            torch.zeros_like(weight._qdata), weight._layout_cls, _with_nan_scale(weight._params)
        )
    return torch.full(weight.shape, torch.nan).to(weight.dtype)


def _with_nan_scale(params: Any) -> Any:
    return dataclasses.replace(params, scale=torch.full(params.scale.shape, torch.nan).to(params.scale.dtype))


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[LayerPrefetch]:
    """Lets the prefetch act on the CPU, poisoned; the engines that were made."""
    made: list[LayerPrefetch] = []

    class Noted(LayerPrefetch):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(offloaded_sampling, "LayerPrefetch", Noted)
    monkeypatch.setattr(block_offload, "acts_on", lambda device: True)
    monkeypatch.setattr(offloaded_sampling, "hidden", poison)
    return made


def budgeted(model: Any, share: float, granularity: str = "block", ahead: int = 2) -> Any:
    """``share`` of the way from the least budget to the whole model."""
    least = least_weights(model, ahead if granularity == "block" else 0)
    wanted = least + share * (model.model_size() - least)
    return apply_offload(model, (wanted + 1024) / GB, granularity, ahead)[0]


def untouched(model: Any) -> bool:
    """No hook, wrapper, class or budget of ours."""
    hooks = any(m._forward_hooks or m._forward_pre_hooks for m in model.model.modules())
    ours = any(key.startswith("headroom") for kind in model.wrappers.values() for key in kind if key)
    return not hooks and not ours and budget_of(model) is None and "Budgeted" not in type(model).__name__


class TestBudget:
    @pytest.mark.parametrize(
        ("name", "granularity", "share"),
        each_once(["flux", "sd15", "wan21", "sd3"], ["leaf", "auto"], [0.3, 0.0, 0.6, 1.2]),
    )
    def test_it_is_kept_by_the_host_and_the_latents_are_the_same(
        self, name: str, granularity: str, share: float
    ) -> None:
        family = FAMILIES[name]
        model = family.load()
        stock = sample(model, family)
        ours = budgeted(model, share, granularity)
        assert torch.equal(sample(ours, family), stock)
        assert ours.loaded_size() <= budget_of(ours).weights
        assert (ours.loaded_size() < model.model_size()) or share > 1
        assert torch.equal(sample(model, family), stock)
        assert not model.model.model_lowvram
        assert untouched(model)

    def test_clones_carry_it_and_a_later_node_changes_or_lifts_it(self) -> None:
        family = FAMILIES["flux"]
        model = family.load()
        half = budgeted(model, 0.5, "leaf")
        clone = half.clone()
        sample(clone, family)
        loaded = clone.loaded_size()
        assert loaded <= budget_of(half).weights
        smaller = budgeted(half, 0.2, "leaf")
        sample(smaller, family)
        assert smaller.loaded_size() < loaded
        assert budget_of(half) == budget_of(clone)
        lifted = apply_offload(half, 0.0)[0]
        sample(lifted, family)
        assert lifted.loaded_size() == model.model_size()
        assert type(lifted) is type(model)

    def test_a_smaller_one_after_a_larger_one_shrinks_what_is_loaded(self) -> None:
        family = FAMILIES["flux"]
        model = family.load()
        sizes = []
        for share in (0.8, 0.2, 0.6):
            ours = budgeted(model, share, "leaf")
            sample(ours, family)
            sizes.append(ours.loaded_size())
            assert sizes[-1] <= budget_of(ours).weights
        assert sizes[1] < sizes[2] < sizes[0]

    def test_less_than_the_least_is_an_error_that_names_it(self) -> None:
        model = FAMILIES["flux"].load()
        for granularity in ("leaf", "block"):
            least = least_weights(model, 0)
            with pytest.raises(
                ValueError, match=rf"vram_budget_gb: 0\.001 GB is less than the {least / GB:.3f} GB that"
            ):
                apply_offload(model, 0.001, granularity)
        assert apply_offload(model, (least + 1) / GB, "leaf")

    def test_another_packs_loading_is_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def partially_load(self: Any, *args: Any, **kwargs: Any) -> int:
            return 0

        partially_load.__module__ = "some_pack"
        monkeypatch.setattr(ModelPatcher, "partially_load", partially_load)
        ours, text = apply_offload(FAMILIES["flux"].load(), 0.03)
        assert "no budget: another node pack has put its own loading" in text
        assert budget_of(ours) is None

    def test_high_vram_is_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        state = comfy.model_management.VRAMState.HIGH_VRAM
        monkeypatch.setattr(comfy.model_management, "vram_state", state)
        assert "--highvram" in apply_offload(FAMILIES["flux"].load(), 0.03)[1]

    def test_high_vram_streams_nothing_in_a_prediction(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What streams elsewhere does not fit there."""
        family = FAMILIES["flux"]
        asked = Question(family.load(), {"samples": family.latent()}, positive=family.conditioning(1), cfg=1.0)
        with torch.inference_mode():
            usual = sampling_stage(asked, named_card("sm86", 12.0))
            small = named_card("sm86", (usual.least + usual.peak) / 2 / GB)
            assert Forecast(small, (sampling_stage(asked, small),), 1.0).verdict is Verdict.STREAMS
            state = comfy.model_management.VRAMState.HIGH_VRAM
            monkeypatch.setattr(comfy.model_management, "vram_state", state)
            assert Forecast(small, (sampling_stage(asked, small),), 1.0).verdict is Verdict.DOES_NOT_FIT
        assert NOTHING_STREAMS in notes_of(asked)

    def test_without_vram_all_streams_in_a_prediction(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """However much the card has."""
        family, card = FAMILIES["flux"], named_card("sm86", 12.0)
        asked = Question(family.load(), {"samples": family.latent()}, positive=family.conditioning(1), cfg=1.0)
        with torch.inference_mode():
            usual = sampling_stage(asked, card)
            assert usual.resident == usual.weights
            state = comfy.model_management.VRAMState.NO_VRAM
            monkeypatch.setattr(comfy.model_management, "vram_state", state)
            stage = sampling_stage(asked, card)
            assert stage.resident == stage.least_weights < stage.weights
            assert stage.activations == usual.activations
            assert Forecast(card, (stage,), 1.0).streamed(stage) == stage.weights - stage.least_weights
        assert ALL_STREAMS in notes_of(asked)
        told = apply_offload(family.load(), 0.03)[1]
        assert ALL_STREAMS in told
        assert "resident up to" not in told

    def test_the_cpu_is_told_that_nothing_is_gained(self) -> None:
        assert "no memory is gained" in apply_offload(FAMILIES["flux"].load(), 0.03)[1]


class TestHostInternals:
    """What is relied on in the host, each piece missing or changed in turn: one sentence that names it, at the node."""

    def refused(self, model: Any, name: str) -> None:
        with pytest.raises(HostChangedError, match=rf"relies on ComfyUI's .*{name}.*, which this version lacks"):
            apply_offload(model, 0.03, "block")

    @pytest.mark.parametrize("name", METHODS)
    def test_a_method_is_missing(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        model = FAMILIES["flux"].load()
        monkeypatch.delattr(ModelPatcher, name)
        self.refused(model, name)

    @pytest.mark.parametrize("name", [name for name, parameters in METHODS.items() if parameters])
    def test_a_method_takes_something_else(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        model = FAMILIES["flux"].load()
        monkeypatch.setattr(ModelPatcher, name, lambda self, device: None)
        self.refused(model, name)

    @pytest.mark.parametrize("name", ATTRIBUTES)
    def test_an_attribute_is_missing(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        model = FAMILIES["flux"].load()
        monkeypatch.delattr(model, name)
        self.refused(model, name)

    @pytest.mark.parametrize("name", MANAGEMENT)
    def test_its_manager_lacks_something(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        model = FAMILIES["flux"].load()
        monkeypatch.delattr(comfy.model_management, name)
        self.refused(model, name)

    def test_the_network_is_elsewhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = FAMILIES["flux"].load()
        monkeypatch.delattr(model.model, "diffusion_model")
        self.refused(model, "diffusion_model")

    def test_its_list_holds_something_else(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = FAMILIES["flux"].load()
        monkeypatch.setattr(ModelPatcher, "_load_list", lambda self: [("diffusion_model", 1024)])
        self.refused(model, "_load_list")
        with pytest.raises(HostChangedError, match="_load_list"):
            least_weights(model, 0)

    def test_the_model_no_longer_knows_its_patcher(
        self, engines: list[LayerPrefetch], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = FAMILIES["flux"].load()
        monkeypatch.delattr(model.model, "current_patcher")
        with pytest.raises(HostChangedError, match="current_patcher"):
            budgeted(model, 0.3)

    def test_models_are_called_in_another_way(
        self, engines: list[LayerPrefetch], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = FAMILIES["flux"].load()
        monkeypatch.setattr(BaseModel, "apply_model", lambda self, x, options: x)
        with pytest.raises(HostChangedError, match="apply_model"):
            budgeted(model, 0.3)

    def test_its_loader_sorts_in_another_way(
        self, engines: list[LayerPrefetch], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ours = budgeted(FAMILIES["flux"].load(), 0.3)
        monkeypatch.setattr(ModelPatcher, "load", lambda self, *args, **kwargs: sorted(self._load_list()[:0]))
        with pytest.raises(HostChangedError, match=r"list\.sort"):
            sample(ours, FAMILIES["flux"])

    def test_its_loader_marks_layers_in_another_way(
        self, engines: list[LayerPrefetch], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ours, load = budgeted(FAMILIES["flux"].load(), 0.3), ModelPatcher.load

        def unmarked(self: Any, *args: Any, **kwargs: Any) -> None:
            load(self, *args, **kwargs)
            for module in self.model.modules():
                module.__dict__.pop("comfy_patched_weights", None)

        monkeypatch.setattr(ModelPatcher, "load", unmarked)
        with pytest.raises(HostChangedError, match="comfy_patched_weights"):
            sample(ours, FAMILIES["flux"])

    def test_without_a_budget_nothing_is_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = FAMILIES["flux"].load()
        monkeypatch.delattr(ModelPatcher, "_load_list")
        assert budget_of(apply_offload(model, 0.0)[0]) is None


@pytest.mark.parametrize("name", ["sd15", "sdxl", "flux", "sd3", "wan21", "qwen_image", "z_image", "hunyuan_video"])
def test_what_a_block_computes_is_told_from_its_structure(name: str) -> None:
    """Against torch's own count, without attention, which is alike in all blocks of a transformer."""
    from torch.utils.flop_counter import FlopCounterMode

    family = FAMILIES[name]
    model = family.load()
    network = model.model.diffusion_model
    work = block_work(network)
    counted = dict.fromkeys(work, 0.0)
    handles = []
    with FlopCounterMode(display=False) as counter:
        for path in work:
            block = network.get_submodule(path)
            first, last = (block[0], block[-1]) if isinstance(block, torch.nn.Sequential) else (block, block)

            def before(module: Any, args: Any, path: str = path) -> None:
                counted[path] -= linear_flops(counter)

            def after(module: Any, args: Any, output: Any, path: str = path) -> None:
                counted[path] += linear_flops(counter)

            handles += [first.register_forward_pre_hook(before), last.register_forward_hook(after)]
        sample(model, family, steps=1, latent=family.latent(256, 256))
    for handle in handles:
        handle.remove()
    blocks = [path for path in work if "refiner" not in path]  # of the text or the noise alone
    ratios = [counted[path] / work[path] for path in blocks]
    middle = sorted(ratios)[len(ratios) // 2]
    assert middle > 0
    assert all(0.5 * middle <= ratio <= 2 * middle for ratio in ratios), dict(zip(blocks, ratios))


def block_work(network: torch.nn.Module) -> dict[str, float]:
    """Of each block, by its path."""
    lists = block_lists(network)
    work = dict.fromkeys(lists.blocks, 0.0)
    for path, amount in layer_work(network).items():
        block = lists.block_of(path)
        if block is not None:
            work[block] += amount
    return work


def linear_flops(counter: Any) -> float:
    """Of products with weights and of convolutions."""
    ops = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.convolution)
    return float(sum(flops for op, flops in counter.get_flop_counts().get("Global", {}).items() if op in ops))


class TestPrefetch:
    @pytest.mark.parametrize(
        ("kind", "ahead", "share"),
        [
            *some_of(list(itertools.product(["bfloat16"], [1, 2], [0.0, 0.3, 0.6, 1.2])), 3),
            *itertools.product(
                ["float16", "float8_e4m3fn_scaled", "int8_convrot", "nvfp4", "asym_w4a8_int8"], [2], [0.3]
            ),
        ],
    )
    def test_bit_exact_within_the_budget_and_each_layer_copied_once(
        self, kind: str, ahead: int, share: float, engines: list[LayerPrefetch]
    ) -> None:
        if kind not in HELD:
            pytest.skip("this ComfyUI lacks it")
        family = FAMILIES["flux"]
        plain = drawn("flux", 0.02, 4, dtype=getattr(torch, kind, torch.bfloat16))
        model = plain if hasattr(torch, kind) else cast_model(plain, CastSettings(kind))[0]
        stock = sample(model, family, steps=3)
        ours = budgeted(model, share, ahead=ahead)
        assert torch.equal(sample(ours, family, steps=3), stock)
        self.check(ours, engines, share)
        assert torch.equal(sample(model, family, steps=3), stock)

    def check(self, ours: Any, engines: list[LayerPrefetch], share: float) -> None:
        budget = budget_of(ours)
        if share > 1:
            assert not any(engine.traffic.steps for engine in engines)
            return
        (engine,) = engines
        traffic = engine.traffic
        assert traffic.steps >= 3
        assert ours.loaded_size() == budget.loaded
        assert traffic.staged <= engine.staging_bytes == budget.staging
        assert budget.loaded + budget.staging <= budget.weights
        assert engine.streamed_bytes == budget.streamed
        assert not engine.left
        assert set(traffic.copies) == set(engine.streamed)
        ahead = set(engine.learned.order[: len(traffic.copies)])  # perhaps for a call that never came
        assert all(
            traffic.steps <= copies <= traffic.steps + (name in ahead) for name, copies in traffic.copies.items()
        )
        assert traffic.late <= len(engine.streamed)  # the first call, in which the order is not known

    @pytest.mark.parametrize("name", some_of(list(FAMILIES), 2))
    def test_every_family(self, name: str, engines: list[LayerPrefetch]) -> None:
        family = FAMILIES[name]
        model = family.load()
        stock = sample(model, family)
        ours = budgeted(model, 0.2)
        assert torch.equal(sample(ours, family), stock)
        assert engines[0].traffic.bytes > 0
        assert untouched(model)

    @pytest.mark.parametrize("share", [0.0, 0.4])
    def test_with_a_lora_baked_or_on_the_fly(self, share: float, engines: list[LayerPrefetch]) -> None:
        from safetensors.torch import load_file

        family = FAMILIES["flux"]
        lora = load_file(folder_paths.get_full_path("loras", "tiny_flux_lora.safetensors"))
        model = comfy.sd.load_lora_for_models(family.load(), None, lora, 0.8, 0.0)[0]
        leaf = sample(budgeted(model, share, "leaf"), family)
        ours = sample(budgeted(model, share), family)
        assert engines[0].traffic.bytes > 0
        # On the fly the host adds the LoRA in the dtype of the computation; which layers that are differs.
        assert (ours - leaf).abs().max() <= 1e-3 * leaf.abs().max()
        assert not torch.equal(sample(family.load(), family), ours)

    def test_what_is_planned_is_loaded(self, engines: list[LayerPrefetch]) -> None:
        model = drawn("flux", 0.02, 8)
        ours = budgeted(model, 0.6)
        sample(ours, FAMILIES["flux"])
        budget = budget_of(ours)
        assert budget.resident
        layers = {
            path: m for path, m in ours.model.named_modules() if hasattr(m, "comfy_cast_weights") and m._parameters
        }
        assert {path for path, m in layers.items() if not is_streamed(m)} == budget.resident & set(layers)

    def test_other_residents_of_the_same_size_are_loaded_anew(self, engines: list[LayerPrefetch]) -> None:
        family = FAMILIES["flux"]
        model = drawn("flux", 0.02, 4)
        stock = sample(model, family)
        first = budgeted(model, 0.5)
        sample(first, family)
        budget = budget_of(first)
        costs = Layers(model).costs
        sizes = {path: cost.bytes for path, cost in costs.items()}
        out, back = next(
            (a, b) for a in costs for b in costs
            if a in budget.resident and b not in budget.resident and sizes[a] == sizes[b]
        )  # fmt: skip
        other = first.clone()
        set_budget(other, dataclasses.replace(budget, resident=budget.resident - {out} | {back}))
        assert torch.equal(sample(other, family), stock)
        assert is_streamed(other.model.get_submodule(out))
        assert not is_streamed(other.model.get_submodule(back))

    @pytest.mark.parametrize("error", [RuntimeError, comfy.model_management.InterruptProcessingException])
    def test_an_error_or_a_cancel_in_the_middle_of_a_step(
        self, error: type[BaseException], engines: list[LayerPrefetch]
    ) -> None:
        family = FAMILIES["flux"]
        model = family.load()
        stock = sample(model, family)
        ours = budgeted(model, 0.2)
        turns = []

        def fail(module: Any, args: Any) -> None:
            turns.append(1)
            if len(turns) == 2:
                raise error

        handle = model.model.diffusion_model.single_blocks[2].register_forward_pre_hook(fail)
        with pytest.raises(error):
            sample(ours, family, steps=3)
        handle.remove()
        assert untouched(model)
        assert torch.equal(sample(ours, family), stock)
        assert torch.equal(sample(model, family), stock)

    def test_poison_is_seen_without_the_hooks(
        self, engines: list[LayerPrefetch], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Or the tests above would show nothing."""
        family = FAMILIES["flux"]
        monkeypatch.setattr(LayerPrefetch, "_before", lambda self, name: lambda module, args: None)
        assert sample(budgeted(family.load(), 0.2), family).isnan().any()

    def test_layers_out_of_order_are_copied_when_they_run(self, engines: list[LayerPrefetch]) -> None:
        """Nodes that skip layers let blocks run that were not the next."""
        family = FAMILIES["flux"]
        model = family.load()

        def skipping(clone: Any) -> Any:
            def skip(args: dict, extra: dict) -> dict:
                return {"img": args["img"], "txt": args["txt"]} if "txt" in args else {"img": args["img"]}

            clone.set_model_patch_replace(skip, "dit", "single_block", 1)
            clone.set_model_patch_replace(skip, "dit", "double_block", 0)
            return clone

        stock = sample(skipping(model.clone()), family)
        assert torch.equal(sample(skipping(budgeted(model, 0.0)), family), stock)
        assert not stock.isnan().any()

    @at_night
    def test_a_compiled_model_passes_through(self, engines: list[LayerPrefetch]) -> None:
        from comfy_api.torch_helpers import set_torch_compile_wrapper

        family = FAMILIES["flux"]
        ours = budgeted(family.load(), 0.3)
        set_torch_compile_wrapper(ours, backend="eager")
        try:
            sample(ours, family, steps=1)
        finally:
            torch._dynamo.reset()
        assert not engines

    def test_a_host_that_may_replay_steps_streams_by_itself(
        self, engines: list[LayerPrefetch], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compat, "_recording_pause", lambda: nullcontext)
        family = FAMILIES["flux"]
        stock = sample(family.load(), family, steps=1)
        model = family.load()
        budget = (least_weights(model, 2) + model.model_size()) / 2
        ours, said = apply_offload(model, budget / GB, "block")
        assert "replay" in said
        assert torch.equal(sample(ours, family, steps=1), stock)
        assert not engines

    def test_what_ran_is_in_the_run_log(self, engines: list[LayerPrefetch]) -> None:
        family = FAMILIES["flux"]
        sample(budgeted(family.load(), 0.2), family)
        lines = "\n".join(LOG.rows("", "")[-1].lines)
        assert "VRAM budget" in lines
        assert "weights on the device: " in lines
        assert "prefetched " in lines


@pytest.mark.parametrize("granularity", ["auto", "block"])
def test_weights_of_another_packs_class_stay_with_their_layers(granularity: str, engines: list[LayerPrefetch]) -> None:
    family, model = FAMILIES["flux"], drawn("flux", 0.02, 2)
    stock = sample(model, family)
    pack(model.model.diffusion_model.double_blocks)
    assert torch.equal(sample(model, family), stock)
    ours, report = apply_offload(model, 0.5 * model.model_size() / GB, granularity)
    assert "nothing is prefetched: its weights are in another node pack's own format" in report
    assert torch.equal(sample(ours, family), stock)
    assert not engines
    network = model.model.diffusion_model
    packed = {name for name, layer in network.named_modules() if isinstance(getattr(layer, "weight", None), Packed)}
    assert packed
    assert not {name.removeprefix("diffusion_model.") for name in Layers(model).costs} & packed
    assert not any(is_streamed(network.get_submodule(name)) for name in packed)
    assert not set(layers_off(network, torch.device("meta"))) & {network.get_submodule(name) for name in packed}


def test_an_aimdo_without_watermarks_keeps_no_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamic VRAM of a release that 0.18 to 0.24 still take: the report says that nothing is limited."""
    model = FAMILIES["sd15"].load()
    monkeypatch.setattr(ModelPatcher, "is_dynamic", lambda self: True)
    monkeypatch.setattr("comfy_aimdo.model_vbar.ModelVBAR.set_watermark", lambda self, size: None, raising=False)
    limited, report = apply_offload(model, model.model_size() / 2 / GB)
    assert budget_of(limited) is not None
    assert "no budget" not in report
    monkeypatch.delattr("comfy_aimdo.model_vbar.ModelVBAR.set_watermark")
    limited, report = apply_offload(model, model.model_size() / 2 / GB)
    assert budget_of(limited) is None
    assert "no budget: this comfy-aimdo cannot limit the weights that dynamic VRAM keeps; update it" in report


def test_budgets_stack_with_casting_in_either_order() -> None:
    family = FAMILIES["flux"]
    model = family.load()
    settings = CastSettings("float8_e4m3fn_scaled")
    stored = sample(cast_model(model, settings)[0], family)
    after = budgeted(cast_model(model, settings)[0], 0.4, "leaf")
    before = cast_model(budgeted(model, 0.2, "leaf"), settings)[0]
    for ours in (after, before):
        assert torch.equal(sample(ours, family), stored)
        assert ours.loaded_size() <= budget_of(ours).weights
    set_budget(after, None)
    assert torch.equal(sample(after, family), stored)


def test_weights_in_a_file_are_streamed_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A casting's cache file: neither the casting nor the budget copies its pages into memory of their own."""
    monkeypatch.setattr(folder_paths, "output_directory", str(tmp_path))
    family = FAMILIES["flux"]
    settings = CastSettings("float8_e4m3fn_scaled", cache_file="mapped")
    stored = sample(cast_model(family.load(), settings)[0], family)
    ours, text = apply_offload(cast_model(family.load(), settings)[0], 0.008, "leaf")
    assert torch.equal(sample(ours, family), stored)
    parameters = [parameter.data for parameter in ours.model.diffusion_model.parameters()]
    # 0.18.2 clones what it loads; what it streams stays where it is.
    cloned = ours.loaded_size() if ENVIRONMENT.version == "0.18.2" else 0
    assert file_backed_bytes(parameters) >= sum(parameter.nbytes for parameter in parameters) - cloned
    assert "as pages of a file" in text
    assert "as pages of a file" not in apply_offload(family.load(), 0.02, "leaf")[1]


@at_night
def test_eighty_prompts_with_changing_budgets_do_not_grow() -> None:
    family = FAMILIES["flux"]
    model = family.load()
    process = psutil.Process()
    stock = velocity(model, family)
    sizes = []
    for turn in range(80):
        assert torch.equal(velocity(budgeted(model, (turn % 7) / 6, ("leaf", "auto")[turn % 2]), family), stock)
        if turn % 10 == 9:
            gc.collect()
            sizes.append(process.memory_info().rss)
    assert sizes[-1] <= 1.02 * sizes[0]
    assert untouched(model)
