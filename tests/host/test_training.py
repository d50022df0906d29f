"""Blocks behind checkpoints in the host's own training: the same adapter, the model as it was."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from comfy.ldm.modules import attention
from comfy.patcher_extension import WrapperExecutor
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from headroom.attention import parse_blocks
from headroom.host.training.checkpointed import BehindCheckpoints, apply_checkpoints
from headroom.host.training.plan import (
    ATTENTION,
    BUDGET,
    EVERY_BLOCK,
    EVERY_KTH,
    FEED_FORWARD,
    TrainedBlocks,
    TrainingPlan,
)

from ..nightly import grid
from . import diffusion_models
from .families import FAMILIES, Family
from .training import train, training_node

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


def loaded(family: Family) -> Any:
    """A model that the host's node can load for itself once more."""
    model = family.load()
    if model.cached_patcher_init is None:
        model = model.clone()
        model.cached_patcher_init = (lambda disable_dynamic: diffusion_models.load.__wrapped__(family.file), ())
    return model


def with_one_attention(model: Any) -> Any:
    """With torch's attention, which is what a training by ours takes where the host's looks at the memory."""
    torchs = attention.attention_pytorch
    model.model_options["transformer_options"]["optimized_attention_override"] = lambda _, *q, **k: torchs(*q, **k)
    return model


def noise(family: Family) -> Tensor:
    x = family.latent(8 * family.reach, 8 * family.reach)
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("name", "plan"), grid(TRAINED, list(PLANS)))
def test_the_adapter_is_the_same_bits(name: str, plan: str) -> None:
    """As without checkpoints; of families that write to what autograd has saved, which it refuses, it saves copies."""
    node, family = training_node(), FAMILIES[name]
    with saved_tensors_hooks(Tensor.clone, lambda saved: saved) if name in IN_PLACE else nullcontext():
        expected = train(node, with_one_attention(loaded(family)), family, noise(family), "fp32")
    ours = train(node, apply_checkpoints(loaded(family), PLANS[plan])[0], family, noise(family), "fp32")
    assert any(value.abs().max() > 0 for value in expected.values())
    assert ours.keys() == expected.keys()
    assert not [key for key in expected if not torch.equal(ours[key], expected[key])]


def test_the_hosts_checkpoints_within_ours_are_left_out() -> None:
    """At any depth: theirs within ours would be computed three times, ours within theirs would save nothing."""
    node, family = training_node(), FAMILIES["flux"]
    model = apply_checkpoints(loaded(family), PLANS["pairs"])[0]
    expected = train(node, model, family, noise(family), "fp32")
    for depth in (1, 2, 3):
        both = train(node, model, family, noise(family), "fp32", gradient_checkpointing=True, checkpoint_depth=depth)
        assert not [key for key in expected if not torch.equal(both[key], expected[key])]


def test_the_hosts_own_checkpoint_learns_something_else_of_flux() -> None:
    """What a block writes to is saved by its norm before: computed again, it is overwritten, and nobody asks."""
    node, family = training_node(), FAMILIES["flux"]
    right = train(node, apply_checkpoints(loaded(family), PLANS["each"])[0], family, noise(family), "fp32")
    stock = train(node, with_one_attention(loaded(family)), family, noise(family), "fp32", gradient_checkpointing=True)
    away = {key: float((stock[key] - right[key]).norm() / right[key].norm()) for key in right if right[key].norm()}
    assert max(away.values()) > 0.01


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
