"""A LoRA trained on the card by the host's own node, its blocks behind checkpoints: late and raced, in less memory."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from comfy.cli_args import args as host_arguments
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from headroom.attention import parse_blocks
from headroom.host.measure.runs import LOG
from headroom.host.measure.wrappers import measure_sampling
from headroom.host.prediction.stages import own_card
from headroom.host.training.checkpointed import apply_checkpoints
from headroom.host.training.estimate import forecast_training
from headroom.host.training.plan import BUDGET, EVERY_BLOCK, EVERY_KTH, TrainingPlan
from headroom.host.training.settings import TrainingSettings
from headroom.host.training.without_data import Training

from ..host.families import FAMILIES
from ..host.training import loadable, repeats_on_a_card, train, training_node
from .conftest import Card

pytestmark = pytest.mark.usefixtures("one_thread")
ALL = parse_blocks("all")
EACH = TrainingPlan(EVERY_BLOCK, ALL)


@pytest.fixture(autouse=True)
def _in_single_precision() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_arguments, "fp32_unet", True)
        yield


def trained(
    name: str, plan: TrainingPlan | None, copies: bool = False, dtype: str = "fp32", pictures: int = 1
) -> tuple[dict[str, Tensor], Any]:
    """The LoRA of two steps, and the row of the run log."""
    family = FAMILIES[name]
    model = loadable(family)
    if plan is None:
        measure_sampling(model)
    else:
        model, _ = apply_checkpoints(model, plan)
    x = family.latent(16 * family.reach, 16 * family.reach, pictures)
    x = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    with saved_tensors_hooks(Tensor.clone, lambda saved: saved) if copies else nullcontext():
        lora = train(training_node(), model, family, x, dtype, optimizer="AdamW", steps=3)
    torch.cuda.synchronize()
    return lora, LOG.rows("", "")[-1]


@repeats_on_a_card
@pytest.mark.parametrize("name", ["flux", "z_image"])
def test_the_adapter_is_the_same_bits_late_and_raced(card: Card, name: str) -> None:
    card.set()
    expected, without = trained(name, None, copies=name == "flux")
    card.set(lazy=True, races=True)
    ours, row = trained(name, EACH)
    assert not card.races
    assert not [key for key in expected if not torch.equal(ours[key], expected[key])]
    assert row.live < without.live / 2


@pytest.mark.parametrize("plan", [EACH, TrainingPlan(EVERY_KTH, ALL, k=2)], ids=str)
def test_it_takes_what_was_predicted(card: Card, plan: TrainingPlan) -> None:
    card.set()
    _, row = trained("z_image", plan)
    assert row.predicted.activations == pytest.approx(row.live, rel=0.05)


def test_the_rest_of_a_set_counts(card: Card) -> None:
    """Three latents of each picture lie on the card, and none of the texts."""
    card.set()
    (_, one), (_, many) = trained("z_image", EACH), trained("z_image", EACH, pictures=256)
    more = many.live - one.live
    assert more > 0.3 * one.live
    assert many.predicted.activations - one.predicted.activations == pytest.approx(more, rel=0.05)


def test_it_takes_what_was_said_beforehand(card: Card) -> None:
    """By the card's own kernels, forward and backward."""
    card.set()
    family = FAMILIES["z_image"]
    model, _ = apply_checkpoints(loadable(family), EACH)
    settings = TrainingSettings(rank=2, training_dtype="fp32", lora_dtype="fp32")
    x = family.latent(16 * family.reach, 16 * family.reach)
    found = forecast_training(Training(model, x, family.conditioning(1), settings), own_card(model.load_device))
    _, row = trained("z_image", EACH)
    said = found.peak(found.way) - found.weights - found.adapter - found.constant
    assert said == pytest.approx(row.live, rel=0.05)
    assert {"attention", "feed-forward"} <= {way.name for way in found.ways}


@pytest.mark.parametrize("name", ["sd15", "flux", "z_image", "wan21", "ltxv"])
def test_a_machine_without_the_card_says_the_same(card: Card, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU stands for the card, in 16 bits: with CUDA's mixed precision and what its kernels hold."""
    card.set()
    family = FAMILIES[name]
    model = loadable(family)
    x = family.latent(24 * family.reach, 24 * family.reach)
    asked = Training(model, x, family.conditioning(1), TrainingSettings(rank=2))
    own = forecast_training(asked, own_card(model.load_device))
    monkeypatch.setattr("headroom.host.training.without_data.is_here", lambda _: False)
    stood_for = forecast_training(asked, own_card(model.load_device))
    assert [way.name for way in stood_for.ways] == [way.name for way in own.ways]
    for ours, cards in zip(stood_for.ways, own.ways, strict=True):
        assert ours.activations == pytest.approx(cards.activations, rel=0.02), ours.name


def test_a_budget_is_kept(card: Card) -> None:
    card.set()
    (_, least), (_, most) = trained("z_image", EACH), trained("z_image", None)
    wanted = (least.live + most.live) / 2
    _, row = trained("z_image", TrainingPlan(BUDGET, ALL, budget=int(least.predicted.weights + wanted)))
    assert least.live < row.live <= 1.02 * wanted


@repeats_on_a_card
def test_in_16_bits_with_the_hosts_scaler(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model in float16 with an adapter in float32, the losses are scaled before their backward."""
    scaled: list[Any] = []

    class Scaler(torch.amp.GradScaler):
        def scale(self, outputs: Any) -> Any:
            scaled.append(outputs)
            return super().scale(outputs)

    monkeypatch.setattr(torch.amp, "GradScaler", Scaler)
    monkeypatch.setattr(host_arguments, "fp32_unet", False)
    monkeypatch.setattr(host_arguments, "fp16_unet", True)
    card.set()
    expected, _ = trained("z_image", None, dtype="none")
    assert scaled
    card.set(lazy=True, races=True)
    ours, row = trained("z_image", EACH, dtype="none")
    assert not card.races
    assert not [key for key in expected if not torch.equal(ours[key], expected[key])]
    # Host: without guidance it divides nothing by a count of 1e-37, in float16 by 0: no loss is a number, the scaler
    # leaves each step out, and the optimizer has no states, which are predicted.
    assert not any(one.isfinite() for one in scaled), "it learns: look at what is predicted anew"
    assert row.live <= row.predicted.activations <= 1.15 * row.live
