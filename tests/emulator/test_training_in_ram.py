"""Checkpoints of a training in RAM: what is on the card does not grow with the blocks, each is copied once each way."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from comfy.cli_args import args as host_arguments
from torch import Tensor, nn
from torch.nn import functional

from headroom.host.prediction.stages import own_card
from headroom.host.training import checkpointed
from headroom.host.training.estimate import forecast_training
from headroom.host.training.plan import BUDGET, EVERY_KTH, TrainingPlan
from headroom.host.training.settings import TrainingSettings
from headroom.host.training.without_data import Training
from headroom.training import CheckpointedChain, InRam, every

from ..host.families import FAMILIES
from ..host.training import loadable, repeats_on_a_card
from ..nightly import some_of
from .conftest import Card
from .test_training import ALL, EACH, trained

pytestmark = pytest.mark.usefixtures("one_thread")
CUDA = torch.device("cuda", 0)
WIDTH, ROWS = 256, 4096  # activations of 4 MiB


@pytest.fixture(autouse=True)
def _in_single_precision() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_arguments, "fp32_unet", True)
        yield


def chain_of(depth: int) -> list[nn.Module]:
    torch.manual_seed(1)
    return [nn.Linear(WIDTH, WIDTH, device=CUDA) for _ in range(depth)]


@torch.inference_mode(False)
@torch.enable_grad()
def step(depth: int, plan: Any, ram: InRam | None) -> tuple[list[Tensor], int]:
    """Gradients of a chain, and the most that lay on the card beside its weights."""
    layers = chain_of(depth)
    shared = torch.linspace(0, 1, ROWS, device=CUDA)[:, None].expand(ROWS, WIDTH).clone()
    x = torch.sin(torch.arange(ROWS * WIDTH, device=CUDA, dtype=torch.float32)).view(ROWS, WIDTH).requires_grad_()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run, hidden = CheckpointedChain(plan, ram=ram), x * 1

    def block(layer: nn.Module, one: Tensor, extra: Tensor) -> Tensor:
        return functional.gelu(layer(one)) + one * extra

    for number, layer in enumerate(layers):
        hidden = run.run(number, partial(block, layer), hidden, shared)
    hidden.square().mean().backward()
    torch.cuda.synchronize()
    found = [x.grad, *(parameter.grad for layer in layers for parameter in layer.parameters())]
    return found, torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("k", [1, 2])
def test_what_is_on_the_card_does_not_grow_with_the_blocks(card: Card, k: int) -> None:
    card.set(lazy=True, races=True)
    peaks = {}
    for depth in (6, 24):
        expected, on_card = step(depth, every(depth, k), None)
        ram = InRam(CUDA)
        found, peaks[depth] = step(depth, every(depth, k), ram)
        assert all(map(torch.equal, found, expected))
        size = 4 * ROWS * WIDTH
        assert ram.sent == ram.fetched == (depth // k + 1) * size, "each once, what all blocks share once"
        assert peaks[depth] < on_card
    weights = 4 * WIDTH * (WIDTH + 1)
    assert peaks[24] - peaks[6] <= 1.1 * 18 * weights, "the gradients of their weights alone"
    assert not card.races


@torch.inference_mode(False)
@torch.enable_grad()
def test_an_error_leaves_no_copy_behind(card: Card) -> None:
    card.set(lazy=True, races=True)
    layers, ram = chain_of(4), InRam(CUDA)
    run, hidden = CheckpointedChain(every(4, 1), ram=ram), torch.ones(ROWS, WIDTH, device=CUDA, requires_grad=True) * 1
    for number, layer in enumerate(layers):
        hidden = run.run(number, layer, hidden)

    class Stop(Exception):
        pass

    def stop(*_: Any) -> None:
        raise Stop

    layers[1].register_forward_pre_hook(stop)
    with pytest.raises(Stop):
        hidden.sum().backward()
    del run, hidden, ram
    expected, _ = step(6, every(6, 1), None)
    found, _ = step(6, every(6, 1), InRam(CUDA))
    assert all(map(torch.equal, found, expected))
    assert not card.races


@repeats_on_a_card
@pytest.mark.parametrize("name", ["flux", "z_image"])
def test_the_adapter_is_the_same_bits_late_and_raced(card: Card, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[InRam] = []

    def seen(device: torch.device) -> InRam:
        made.append(InRam(device))
        return made[-1]

    monkeypatch.setattr(checkpointed, "InRam", seen)
    card.set()
    expected, on_card = trained(name, EACH)
    card.set(lazy=True, races=True)
    ours, row = trained(name, replace(EACH, in_ram=True))
    assert not card.races
    assert not [key for key in expected if not torch.equal(ours[key], expected[key])]
    assert len(made) == 3
    assert all(0 < one.sent == one.fetched for one in made)
    # Of six blocks and seven: the peak is where the last one runs again, and nearly all checkpoints are gone.
    assert row.live < 1.02 * on_card.live
    assert row.predicted.activations == pytest.approx(row.live, rel=0.05)


@repeats_on_a_card
@pytest.mark.parametrize("kind", some_of([BUDGET, EVERY_KTH], 2))
def test_other_plans(card: Card, kind: str) -> None:
    card.set()
    expected, each = trained("z_image", replace(EACH, in_ram=True))
    _, without = trained("z_image", None)
    wanted = int(each.predicted.weights + (each.live + without.live) / 2)
    card.set(lazy=True, races=True)
    plan = TrainingPlan(kind, ALL, k=2, budget=wanted if kind == BUDGET else 0, in_ram=True)
    ours, row = trained("z_image", plan)
    assert not card.races
    assert not [key for key in expected if not torch.equal(ours[key], expected[key])]
    if kind == BUDGET:
        assert each.live < row.live <= 1.02 * (wanted - each.predicted.weights)
    else:
        assert row.predicted.activations == pytest.approx(row.live, rel=0.05)


def test_it_takes_what_was_said_beforehand(card: Card) -> None:
    card.set()
    family = FAMILIES["z_image"]
    model, report = checkpointed.apply_checkpoints(loadable(family), replace(EACH, in_ram=True))
    assert "checkpoints are kept in RAM" in report
    settings = TrainingSettings(rank=2, training_dtype="fp32", lora_dtype="fp32")
    x = family.latent(16 * family.reach, 16 * family.reach)
    found = forecast_training(Training(model, x, family.conditioning(1), settings), own_card(model.load_device))
    _, row = trained("z_image", replace(EACH, in_ram=True))
    assert found.peak(found.way) - found.weights - found.adapter - found.constant == pytest.approx(row.live, rel=0.05)
    assert "every block, checkpoints in RAM" in {way.name for way in found.ways}
