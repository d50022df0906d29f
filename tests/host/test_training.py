"""Blocks behind checkpoints in the host's own training: the same adapter, the model as it was."""

import gc
import itertools
import re
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from comfy import model_management, model_patcher, ops
from comfy.ldm.modules import attention
from comfy.patcher_extension import WrapperExecutor
from comfy.weight_adapter import adapter_maps
from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch.autograd.graph import saved_tensors_hooks
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.checkpoint import CheckpointError

from headroom.attention import parse_blocks
from headroom.host.measure.runs import LOG
from headroom.host.measure.wrappers import measure_sampling
from headroom.host.offload.own_weights import without_page
from headroom.host.training import checkpointed
from headroom.host.training.checkpointed import BehindCheckpoints, apply_checkpoints
from headroom.host.training.first_step import FirstStep
from headroom.host.training.plan import (
    ATTENTION,
    BUDGET,
    EVERY_BLOCK,
    EVERY_KTH,
    FEED_FORWARD,
    TrainedBlocks,
    TrainingPlan,
)

from ..nightly import grid, some_of
from .families import FAMILIES, Family, sample, stock_latents
from .training import loadable, train, training_node

pytestmark = pytest.mark.usefixtures("one_thread")
ALL = parse_blocks("all")
PLANS = {
    "each": TrainingPlan(EVERY_BLOCK, ALL),
    "root": TrainingPlan(EVERY_KTH, ALL),
    "pairs": TrainingPlan(EVERY_KTH, ALL, k=2),
    "attention": TrainingPlan(ATTENTION, ALL),
    "feed-forward": TrainingPlan(FEED_FORWARD, ALL),
    "some": TrainingPlan(EVERY_BLOCK, parse_blocks("double:0, middle, output:2-8")),
    "budget": TrainingPlan(BUDGET, ALL, budget=2**40),
}
TRAINED = [name for name in FAMILIES if name != "cosmos_predict2"]  # which the host cannot: an operator has no gradient
IN_PLACE = {"flux", "flux2", "chroma", "ltxv", "hunyuan_video", "qwen_image"}


def with_one_attention(model: Any) -> Any:
    """With torch's attention, which is what a training by ours takes where the host's looks at the memory."""
    torchs = attention.attention_pytorch
    model.model_options["transformer_options"]["optimized_attention_override"] = lambda _, *q, **k: torchs(*q, **k)
    return model


def noise(family: Family) -> Tensor:
    x = family.latent(8 * family.reach, 8 * family.reach)
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(1))


def forwards_of(model: Any) -> list[Any]:
    """What stands in the place of modules' own forwards; older hosts leave the own one there after a training."""
    return [vars(module).get("forward") for module in model.model.modules()]


@pytest.mark.parametrize(("name", "plan"), some_of(grid(TRAINED, list(PLANS)), 2))
def test_the_adapter_is_the_same_bits(name: str, plan: str) -> None:
    """As without checkpoints; of families that write to what autograd has saved, which it refuses, it saves copies."""
    node, family = training_node(), FAMILIES[name]
    with saved_tensors_hooks(Tensor.clone, lambda saved: saved) if name in IN_PLACE else nullcontext():
        expected = train(node, with_one_attention(loadable(family)), family, noise(family), "fp32")
    ours = train(node, apply_checkpoints(loadable(family), PLANS[plan])[0], family, noise(family), "fp32")
    assert any(value.abs().max() > 0 for value in expected.values())
    assert ours.keys() == expected.keys()
    assert not [key for key in expected if not torch.equal(ours[key], expected[key])]


def test_the_hosts_checkpoints_within_ours_are_left_out() -> None:
    """At any depth: theirs within ours would be computed three times, ours within theirs would save nothing."""
    node, family = training_node(), FAMILIES["flux"]
    model = apply_checkpoints(loadable(family), PLANS["pairs"])[0]
    expected = train(node, model, family, noise(family), "fp32")
    for depth in (1, 2, 3):
        both = train(node, model, family, noise(family), "fp32", gradient_checkpointing=True, checkpoint_depth=depth)
        assert not [key for key in expected if not torch.equal(both[key], expected[key])]


@pytest.mark.parametrize(("name", "depth"), [("z_image", 3), ("sd15", 2)])
def test_adapters_beside_the_weights_learn_within_the_hosts_checkpoints(name: str, depth: int) -> None:
    """The host puts them around its checkpoints; of a UNet some blocks are layers that have one of each."""
    node, family = training_node(), FAMILIES[name]
    if "bypass_mode" not in {one.id for one in node.GET_SCHEMA().inputs}:
        pytest.skip("this ComfyUI has no adapters beside the weights")
    expected = train(node, with_one_attention(loadable(family)), family, noise(family), "fp32", bypass_mode=True)
    model = apply_checkpoints(loadable(family), PLANS["pairs"])[0]
    both = train(
        node, model, family, noise(family), "fp32", bypass_mode=True, gradient_checkpointing=True,
        checkpoint_depth=depth,
    )  # fmt: skip
    assert not [key for key in expected if not torch.equal(both[key], expected[key])]


@torch.inference_mode(False)
def test_a_layer_that_leaves_its_page_is_patched_all_the_same() -> None:
    """Under dynamic VRAM a LoRA that was loaded before is applied to what comes from the page, and not by the
    functions that are called with any weight."""
    layer = ops.manual_cast.Linear(8, 4)
    layer.weight, layer.bias = (nn.Parameter(torch.randn(shape), requires_grad=False) for shape in ((4, 8), (4,)))
    learnt, page, trained = torch.randn(4, 8), object(), [lambda weight: 2 * weight]
    patches = {"layer.weight": [(1.0, ("diff", (learnt,)), 1.0, None, None)]}
    layer.weight_lowvram_function = model_patcher.LowVramPatch("layer.weight", patches)
    layer._v, layer.weight_function, layer.bias_lowvram_function = page, trained, None
    before = dict(vars(layer))
    x = torch.randn(2, 8)
    undo = without_page(layer)
    found = layer(x)
    undo()
    assert torch.allclose(found, nn.functional.linear(x, 2 * (layer.weight + learnt), layer.bias), atol=1e-5)
    assert vars(layer) == before
    assert layer.weight_function is trained


def test_the_hosts_own_checkpoint_learns_something_else_of_flux() -> None:
    """What a block writes to is saved by its norm before: computed again, it is overwritten, and nobody asks."""
    node, family = training_node(), FAMILIES["flux"]
    right = train(node, apply_checkpoints(loadable(family), PLANS["each"])[0], family, noise(family), "fp32")
    stock = train(
        node, with_one_attention(loadable(family)), family, noise(family), "fp32", gradient_checkpointing=True
    )
    away = {key: float((stock[key] - right[key]).norm() / right[key].norm()) for key in right if right[key].norm()}
    assert max(away.values()) > 0.01


WAYS: dict[str, dict[str, Any]] = {
    **{algorithm: {"algorithm": algorithm} for algorithm in adapter_maps},
    "beside the weights": {"bypass_mode": True},
    "gradients of two steps": {"grad_accumulation_steps": 2},
    "buckets": {"bucket_mode": True},
    "Adam": {"optimizer": "Adam"},
    "bfloat16": {"training_dtype": "bf16", "lora_dtype": "bf16"},
    "an adapter in float32 in bfloat16": {"training_dtype": "bf16", "lora_dtype": "fp32"},
}


@pytest.mark.parametrize("way", [*some_of(list(WAYS), 2), *list(WAYS)[-1:]])
def test_whatever_is_trained(way: str) -> None:
    node, family, changes = training_node(), FAMILIES["z_image"], WAYS[way]
    found = {one.id: one for one in node.GET_SCHEMA().inputs}
    if not changes.keys() <= found.keys() or changes.get("algorithm", "LoRA") not in found["algorithm"].options:
        pytest.skip("this ComfyUI has no such choice")
    expected, ours = (
        train(node, model, family, noise(family), **{"dtype": "fp32", **changes})
        for model in (
            with_one_attention(loadable(family)),
            apply_checkpoints(loadable(family), PLANS["pairs"])[0],
        )
    )
    assert any(value.abs().max() > 0 for value in expected.values())
    assert not [key for key in expected if not torch.equal(ours[key], expected[key])]


# ------------------------------------------------------------------------------------------------- what a step takes


def measured(
    family: Family, plan: TrainingPlan | None, steps: int = 2, pictures: int = 1, **changes: Any
) -> tuple[Any, int]:
    """The row of a training by a plan, or without checkpoints, and the bytes of what was trained."""
    x = family.latent(24 * family.reach, 24 * family.reach, pictures)
    x = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    model = with_one_attention(loadable(family))
    if plan is None:
        measure_sampling(model)
    else:
        model, _ = apply_checkpoints(model, plan)
    copies = plan is None and family.file in {FAMILIES[name].file for name in IN_PLACE}
    with saved_tensors_hooks(Tensor.clone, lambda saved: saved) if copies else nullcontext():
        lora = train(training_node(), model, family, x, "fp32", **{"optimizer": "AdamW", "steps": steps, **changes})
    row = LOG.rows("", "")[-1]
    return row, sum(one.nbytes for one in lora.values())


def test_nothing_of_the_first_step_stays() -> None:
    """What it was seen by holds its latents and texts."""
    seen = list[int]()

    def look(*_: object) -> None:
        seen.append(sum(type(one) is FirstStep for one in gc.get_objects()))

    gc.collect()
    look()  # those of other tests' trainings, whose errors pytest may hold
    hook = register_optimizer_step_pre_hook(look)
    gc.disable()
    try:
        measured(FAMILIES["z_image"], PLANS["each"])
    finally:
        gc.enable()
        hook.remove()
    assert seen == [seen[0]] * 3


PREDICTED = grid(["flux", "z_image", "wan21", "sd15"], ["each", "pairs", "attention", "feed-forward"])


@pytest.mark.parametrize(("name", "plan"), some_of(PREDICTED, 2))
def test_it_takes_what_was_predicted(name: str, plan: str) -> None:
    """Of small models, where texts and what lies outside of the blocks are a large part."""
    row, _ = measured(FAMILIES[name], PLANS[plan])
    assert (row.work, row.outcome) == ("training", "done")
    assert row.predicted.live == pytest.approx(row.live, rel=0.02)


def test_gradients_count_from_when_they_are_there() -> None:
    """Those of steps before from the first block on, where they are added up."""
    rows = [
        measured(FAMILIES["wan21"], PLANS["each"], rank=48, steps=2 * count, grad_accumulation_steps=count)[0]
        for count in (1, 2)
    ]
    once, added_up = rows
    more = added_up.live - once.live
    assert more > 0.05 * once.live
    assert added_up.predicted.live - once.predicted.live == pytest.approx(more, rel=0.1)


@pytest.mark.parametrize("name", some_of(["z_image", "sd15", "qwen_image", "flux"], 3))
@pytest.mark.parametrize("share", some_of([0.3, 0.6, 0.1], 3))
def test_a_budget_is_kept_and_used(name: str, share: float) -> None:
    family = FAMILIES[name]
    (least, adapter), (most, _) = measured(family, PLANS["each"]), measured(family, None)
    wanted = least.live + share * (most.live - least.live)
    budget = int(least.predicted.weights + adapter + wanted)
    row, _ = measured(family, TrainingPlan(BUDGET, ALL, budget=budget), steps=3)
    assert row.live <= 1.02 * wanted
    assert row.live >= least.live  # of three blocks there may be no plan between
    (computed_again,) = (int(found[1]) for line in row.lines if (found := re.search(r"(\d+)% of their forward", line)))
    assert computed_again < 100 or len(TrainedBlocks.of(family.load().model.diffusion_model).paths) < 4


def test_a_budget_is_not_planned_from_one_of_several_sizes() -> None:
    """The host runs the pictures of a step one by one, and keeps all of them until one backward."""
    node, family = training_node(), FAMILIES["z_image"]
    x = family.latent(16 * family.reach, 16 * family.reach)
    sizes = [torch.randn(x.shape), torch.randn(x[..., :8, :].shape)]
    loras, rows = [], []
    for plan, batch in (("each", 2), ("budget", 2), ("budget", 1)):
        model, _ = apply_checkpoints(with_one_attention(loadable(family)), PLANS[plan])
        loras.append(train(node, model, family, sizes, "fp32", batch_size=batch))
        rows.append(LOG.rows("", "")[-1])
    each, both, alone = rows
    assert both.live == pytest.approx(each.live, rel=0.01)
    assert not [key for key, value in loras[0].items() if not torch.equal(value, loras[1][key])]
    assert [len(row.notices) for row in rows] == [1, 1, 0]
    assert both.notices[0].startswith("the pictures have several sizes, so that a step keeps 2 of them")
    assert both.notices[0].endswith("is not predicted: a checkpoint at every block instead of a budget")
    assert both.predicted is None
    assert alone.predicted is not None


def test_another_training_of_the_same_model_is_planned_anew() -> None:
    node, family = training_node(), FAMILIES["z_image"]
    model, _ = apply_checkpoints(loadable(family), PLANS["each"])
    predicted = []
    for rank in (2, 8):
        train(node, model, family, noise(family), "fp32", rank=rank)
        predicted.append(LOG.rows("", "")[-1].predicted.live)
    assert predicted[0] < predicted[1]


def test_too_small_a_budget_names_the_least() -> None:
    family = FAMILIES["flux"]
    with pytest.raises(
        ValueError, match=r"^vram_budget_gb: this training needs 0\.\d+ GB at least, 0\.02 GB are allowed"
    ):
        measured(family, TrainingPlan(BUDGET, ALL, budget=2**30 // 50))


# ------------------------------------------------------------------------------------------------ what does not stay


def test_an_attention_that_looks_at_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's own checkpoint finds that something else was computed the second time; ours computes the same."""
    node, family = training_node(), FAMILIES["z_image"]
    x = torch.randn(family.latent(256, 256).shape, generator=torch.Generator().manual_seed(1))
    expected = train(node, with_one_attention(loadable(family)), family, x, "fp32")
    heads = family.load().model.diffusion_model.layers[0].attention.n_local_heads
    true = model_management.get_free_memory

    def free(device: torch.device | None = None, torch_free_too: bool = False) -> Any:
        """In the backward less than in the forward, so that the host goes by 256 rows of queries."""
        if not torch_free_too:
            return true(device)
        in_the_backward = torch._C._current_graph_task_id() != -1
        return (1_600_000 * heads if in_the_backward else 2**34, 0)

    monkeypatch.setattr(model_management, "get_free_memory", free)
    assert attention.optimized_attention is attention.attention_sub_quad
    with pytest.raises(CheckpointError):
        train(node, loadable(family), family, x, "fp32", gradient_checkpointing=True)
    ours = train(node, apply_checkpoints(loadable(family), PLANS["each"])[0], family, x, "fp32")
    assert not [key for key in expected if not torch.equal(ours[key], expected[key])]


ENDS = [torch.OutOfMemoryError, model_management.InterruptProcessingException]


@pytest.mark.parametrize(("call", "error"), grid(some_of([1, 4, 8, 9, 12, 16, 20], 3), ENDS))
def test_a_run_that_ends_early_leaves_the_model_as_it_was(
    call: int, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the forward of any step or in the backward, where blocks run again."""
    node, family = training_node(), FAMILIES["flux"]
    model, _ = apply_checkpoints(loadable(family), PLANS["each"])
    before = {key: value.clone() for key, value in model.model.state_dict().items()}
    forwards = forwards_of(model)
    expected = train(node, model, family, noise(family), "fp32")
    asked = itertools.count(1)

    def ends() -> None:
        if detect_fake_mode() is None and next(asked) == call:  # what is run without data takes no memory
            raise error

    with monkeypatch.context() as changed:
        changed.setattr(checkpointed, "ask_whether_cancelled", ends)
        with pytest.raises(error):
            train(node, model, family, noise(family), "fp32")
    assert all(torch.equal(value, before[key]) for key, value in model.model.state_dict().items())
    assert forwards_of(model) == forwards
    again = train(node, model, family, noise(family), "fp32")
    assert not [key for key in expected if not torch.equal(again[key], expected[key])]


def test_a_sampling_is_not_changed() -> None:
    family = FAMILIES["flux"]
    ours, _ = apply_checkpoints(family.load(), PLANS["each"])
    assert torch.equal(sample(ours, family), stock_latents("flux"))


# ---------------------------------------------------------------------------------------------------- what is refused


def test_blocks_that_are_not_there() -> None:
    with pytest.raises(
        ValueError, match=r"^blocks: 'single:40' names none of this model's blocks; it has double 2, single 4$"
    ):
        apply_checkpoints(FAMILIES["flux"].load(), TrainingPlan(EVERY_BLOCK, parse_blocks("single:40")))


@pytest.mark.parametrize("text", ["all", "double:0-1", "inner"])
def test_blocks_are_counted_as_the_host_counts_them(text: str) -> None:
    """Z-Image's refiners come before its numbered blocks, and only "all" holds them."""
    network = FAMILIES["z_image"].load().model.diffusion_model
    blocks, count = TrainedBlocks.of(network), len(network.layers)
    held = {path for path, chosen in zip(blocks.paths, blocks.are_in(parse_blocks(text)), strict=True) if chosen}
    numbers = {"all": range(count), "double:0-1": (0, 1), "inner": range(1, count - 1)}[text]
    refiners = {path for path in blocks.paths if "refiner" in path}
    assert refiners
    assert held == {f"layers.{number}" for number in numbers} | (refiners if text == "all" else set())


def test_a_budget_for_some_blocks() -> None:
    with pytest.raises(ValueError, match=r"^blocks: a budget is planned over all blocks; write all, or choose another"):
        apply_checkpoints(FAMILIES["flux"].load(), TrainingPlan(BUDGET, parse_blocks("double"), budget=2**33))


def test_feed_forwards_that_are_not_there() -> None:
    with pytest.raises(ValueError, match=r"^plan: the blocks of this model that were chosen have no feed-forward part"):
        apply_checkpoints(FAMILIES["flux"].load(), TrainingPlan(FEED_FORWARD, parse_blocks("single")))


def test_the_report_names_blocks_and_attention() -> None:
    _, report = apply_checkpoints(FAMILIES["flux"].load(), PLANS["pairs"])
    assert report.startswith(
        "Training Memory · Flux: blocks double 2, single 4 · every k-th block, 2 at a time\n3 checkpoints; "
    )
    assert "attention: torch's instead of ComfyUI's sub_quad" in report


@pytest.mark.parametrize("name", ["flux", "sd15"])
def test_the_blocks_are_as_they_were_after_an_error(name: str) -> None:
    model = FAMILIES[name].load().model
    before = {module: dict(vars(module)) for module in model.modules()}

    def fails(*_: Any) -> Any:
        assert any("forward" in vars(module) for module in model.modules())
        raise KeyboardInterrupt

    executor = WrapperExecutor.new_class_executor(
        fails, model, [BehindCheckpoints(PLANS["each"], TrainedBlocks.of(model.diffusion_model))]
    )
    x = torch.zeros(1)
    with torch.inference_mode(False), torch.enable_grad(), pytest.raises(KeyboardInterrupt):
        executor.execute(x, x, None, None, None, {})
    assert all(vars(module).keys() == kept.keys() for module, kept in before.items())


def test_the_input_is_only_read() -> None:
    model = FAMILIES["flux"].load()
    before = {kind: dict(wrappers) for kind, wrappers in model.wrappers.items()}
    assert apply_checkpoints(model, PLANS["each"])[0] is not model
    assert {kind: dict(wrappers) for kind, wrappers in model.wrappers.items()} == before
