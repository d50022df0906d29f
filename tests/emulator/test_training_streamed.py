"""A training on the card whose weights stay in RAM: they come block by block, in the backward too."""

from collections.abc import Iterator

import pytest
import torch
from comfy.cli_args import args as host_arguments
from torch import Tensor

from headroom.host.measure.runs import LOG
from headroom.host.measure.wrappers import measure_sampling
from headroom.host.offload.block_offload import apply_offload
from headroom.host.prediction.stages import own_card
from headroom.host.training.checkpointed import apply_checkpoints
from headroom.host.training.estimate import forecast_training, notes_of
from headroom.host.training.settings import TrainingSettings
from headroom.host.training.without_data import Training
from headroom.memory import Row

from ..host.families import FAMILIES, Family
from ..host.training import loadable, repeats_on_a_card, train, training_node
from ..nightly import some_of
from .conftest import Card
from .test_training import EACH

pytestmark = pytest.mark.usefixtures("one_thread")
GB = 2**30


@pytest.fixture(autouse=True)
def _in_single_precision() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_arguments, "fp32_unet", True)
        yield


def pictures(family: Family) -> Tensor:
    x = family.latent(16 * family.reach, 16 * family.reach)
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(1))


def prepared(name: str, offload: bool, checkpoints: bool) -> object:
    model = loadable(FAMILIES[name])
    if offload:
        model, _ = apply_offload(model, 0.6 * model.model_size() / GB)
    if checkpoints:
        return apply_checkpoints(model, EACH)[0]
    measure_sampling(model)
    return model


def trained(name: str, offload: bool, checkpoints: bool, **settings: bool) -> tuple[dict[str, Tensor], Row, int]:
    """The LoRA of three steps, the row of the run log, and the most that lay on the card, weights and all."""
    family = FAMILIES[name]
    model = prepared(name, offload, checkpoints)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    lora = train(training_node(), model, family, pictures(family), "fp32", optimizer="AdamW", steps=3, **settings)
    torch.cuda.synchronize()
    return lora, LOG.rows("", "")[-1], torch.cuda.max_memory_allocated() - before


WAYS = {
    "Block Offload": {"offload": True},
    "Train LoRA's offloading": {"offload": False, "offloading": True},
    "both": {"offload": True, "offloading": True},
}


@repeats_on_a_card
@pytest.mark.parametrize(
    ("name", "bypass_mode"), some_of([("flux", True), ("flux", False), ("z_image", True), ("z_image", False)], 3)
)
def test_the_adapter_is_the_same_bits_late_and_raced(card: Card, name: str, bypass_mode: bool) -> None:
    card.set()
    expected, resident, whole = trained(name, False, True, bypass_mode=bypass_mode)
    for way, settings in WAYS.items():
        card.set(lazy=True, races=True)
        ours, row, peak = trained(name, checkpoints=True, bypass_mode=bypass_mode, **settings)
        assert not card.races, way
        assert not [key for key in expected if not torch.equal(ours[key], expected[key])], way
        assert peak < 0.85 * whole, way
        weights = row.predicted.weights
        assert weights + row.predicted.activations == pytest.approx(weights + row.live, rel=0.05), way
        assert weights < 0.65 * resident.predicted.weights, way


@repeats_on_a_card
def test_block_offload_alone_is_right_and_says_what_it_costs(card: Card) -> None:
    """In bypass mode the backward reads the weights themselves: from the host's buffers autograd refuses them."""
    card.set()
    expected, _, _ = trained("z_image", False, False, bypass_mode=True)
    card.set(lazy=True, races=True)
    ours, row, _ = trained("z_image", True, False, bypass_mode=True)
    assert not card.races
    assert not [key for key in expected if not torch.equal(ours[key], expected[key])]
    assert any("put Training Memory" in notice for notice in row.notices)


@repeats_on_a_card
@pytest.mark.parametrize("offloading", [False, True])
def test_it_takes_what_was_said_beforehand(card: Card, offloading: bool) -> None:
    card.set()
    model = prepared("z_image", offload=not offloading, checkpoints=True)
    family = FAMILIES["z_image"]
    settings = TrainingSettings(rank=2, training_dtype="fp32", lora_dtype="fp32", offloading=offloading)
    asked = Training(model, pictures(family), family.conditioning(1), settings)
    found = forecast_training(asked, own_card(model.load_device))
    _, _, peak = trained("z_image", offload=not offloading, checkpoints=True, offloading=offloading)
    assert found.peak(found.way) - found.constant == pytest.approx(peak, rel=0.05)
    assert any("wait in RAM" in note for note in notes_of(asked, own_card(model.load_device)))
