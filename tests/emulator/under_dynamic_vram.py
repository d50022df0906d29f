"""What holds under the host's dynamic VRAM: a LoRA that was loaded before a training, and a budget for weights.

Not collected by itself: `test_dynamic_vram.py` starts each test in a process with a driver and with aimdo begun, as the
host begins it. It ends that process at once: as a model is let go, aimdo frees a buffer of its a second time there.
"""

import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import comfy.memory_management
import comfy.model_patcher
import comfy_aimdo.control
import pytest
import torch
from comfy.cli_args import args as host_arguments
from torch import Tensor

from headroom.attention import parse_blocks
from headroom.host.attention.backend import apply_attention
from headroom.host.measure.runs import LOG
from headroom.host.offload.block_offload import apply_offload
from headroom.host.offload.watermark import PAGE_BYTES
from headroom.host.planning.rows import ask
from headroom.host.training.checkpointed import apply_checkpoints
from headroom.host.training.plan import EVERY_BLOCK, TrainingPlan

from ..host import diffusion_models
from ..host.drawn import drawn
from ..host.families import FAMILIES
from ..host.training import loadable, train, training_node
from .conftest import Card
from .streaming import GB, Case, sampled

pytestmark = pytest.mark.usefixtures("one_thread")
FAMILY = FAMILIES["z_image"]


@contextmanager
def dynamic_vram() -> Iterator[None]:
    """The host loads as it does where it finds a card of NVIDIA's."""
    assert comfy_aimdo.control.init_devices([0])
    load = functools.cache(functools.partial(with_weights, diffusion_models.load.__wrapped__))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comfy.memory_management, "aimdo_enabled", True)
        patch.setattr(comfy.model_patcher, "CoreModelPatcher", comfy.model_patcher.ModelPatcherDynamic)
        patch.setattr(diffusion_models, "load", load)
        yield


def with_weights(draw: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Begun, layers have no weights until they are read from a file, and these are drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comfy.memory_management, "aimdo_enabled", False)
        return draw(*args, **options)


def alone(card: Card, run: Callable[[], None]) -> None:
    """Runs what is tested and ends the process, with 0 where it holds."""
    card.set()
    try:
        with dynamic_vram():
            run()
    except BaseException:
        traceback.print_exc(file=sys.__stdout__)
        sys.__stdout__.flush()
        os._exit(1)
    os._exit(0)


def trained(way: str, patched: bool, **changes: Any) -> dict[str, Tensor]:
    """The adapter of two steps."""
    model, drawn = loadable(FAMILY), torch.Generator().manual_seed(5)
    assert model.is_dynamic()
    if patched:
        weights = {key: one for key, one in model.model.state_dict().items() if one.ndim == 2}
        learnt = {key: 0.02 * torch.randn(one.shape, generator=drawn) for key, one in weights.items()}
        model.add_patches({key: ("diff", (one,)) for key, one in learnt.items()}, 1.0)
    if way == "checkpoints":
        model, _ = apply_checkpoints(model, TrainingPlan(EVERY_BLOCK, parse_blocks("all")))
    if way == "Block Offload":
        model, _ = apply_offload(model, 0.5 * model.model_size() / 2**30)
    x = FAMILY.latent(16 * FAMILY.reach, 16 * FAMILY.reach)
    x = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    lora = train(training_node(), model, FAMILY, x, "fp32", **changes)
    return {key: one.cpu() for key, one in lora.items()}


def compare() -> None:
    """With our nodes what is learnt is what the host learns without them."""
    for bypass in (False, True):
        stock, without = (trained("stock", patched, bypass_mode=bypass) for patched in (True, False))
        assert any(not torch.equal(one, without[key]) for key, one in stock.items())
        for way in ("checkpoints", "Block Offload"):
            ours = trained(way, patched=True, bypass_mode=bypass)
            away = [key for key, one in stock.items() if not torch.equal(ours[key], one)]
            assert not away, (way, bypass, len(away), away[:3])


def keep_to_budgets() -> None:
    """By turns with and without a budget: the weights on the card keep to it, and the latents are the same."""
    case = Case("flux", 8)
    model = with_weights(drawn, case.family, 0.02, case.depth, dtype=torch.float32)
    stock = sampled(case, model, 2)
    whole = model.loaded_size()
    assert whole > 3 * PAGE_BYTES
    for pages in (2.5, 1.9, 0.5, 2.5):
        limited, report = apply_offload(model, pages * PAGE_BYTES / GB)
        assert "resident up to" in report
        assert torch.equal(sampled(case, limited, 2), stock), pages
        # A page beside the buffer of the largest layer: as many are kept as fit.
        assert (pages - 1.5) * PAGE_BYTES < limited.loaded_size() <= pages * PAGE_BYTES, (pages, limited.loaded_size())
        assert torch.equal(sampled(case, model, 2), stock), pages
        assert model.loaded_size() == whole, pages
    plenty, _ = apply_offload(model, whole / GB)
    assert torch.equal(sampled(case, plenty, 2), stock)
    assert plenty.loaded_size() == whole


def tell_pages() -> None:
    """What is measured of a sampling is its own, and the weights that lie in pages are told beside it."""
    case = Case("flux", 8)
    model = with_weights(drawn, case.family, 0.02, case.depth, dtype=torch.float32)
    model = apply_attention(model, backend="auto")
    sampled(case, model, 3)
    (row,) = LOG.rows("", "")
    ask(row)
    assert row.paged == model.loaded_size() - model.model.model_loaded_weight_memory > 3 * PAGE_BYTES
    assert row.peak.highest < PAGE_BYTES
    assert not row.streams
    assert row.expected is None


def test_a_lora_that_was_loaded_before_counts(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_arguments, "fp32_unet", True)
    alone(card, compare)


def test_a_budget_is_kept(card: Card) -> None:
    alone(card, keep_to_budgets)


def test_pages_are_told(card: Card) -> None:
    alone(card, tell_pages)
