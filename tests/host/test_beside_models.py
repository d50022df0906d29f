"""What a sampler runs beside a model: ControlNets, and patches with a network of their own."""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import comfy.controlnet
import comfy.latent_formats
import comfy.model_patcher
import comfy.ops
import pytest
import torch
from torch import Tensor, nn

import nodes
from headroom.host.attention.backend import apply_attention
from headroom.host.measure.runs import LOG
from headroom.host.offload.block_offload import apply_offload
from headroom.host.offload.budget import budget_of
from headroom.host.planning.fit import apply_fit, find_fit
from headroom.host.prediction.conditions import fake_conditions
from headroom.host.prediction.stages import Question, estimate, notes_of, sampling_stage
from headroom.host.prediction.step import Step, predict_step
from headroom.memory.prediction import named_card

from .families import FAMILIES, Family, load_vae
from .one_step import CPU, one_call
from .test_prediction import off_by, this_cpu

pytestmark = pytest.mark.usefixtures("one_thread")
GB = 2**30
SHAPE = (256, 192)


def filled(network: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    for weight in network.parameters():
        weight.data.normal_(std=0.02, generator=generator)
    return network


def of_pixels(model: Any) -> Any:
    """A ControlNet of SD1.5's kind, as small as the model."""
    other = ("out_channels", "disable_unet_model_creation", "use_temporal_attention", "use_temporal_resblock")
    config = {name: value for name, value in model.model.model_config.unet_config.items() if name not in other}
    made = importlib.import_module("comfy.cldm.cldm").ControlNet
    network = filled(made(hint_channels=3, operations=comfy.ops.manual_cast, **config))
    return comfy.controlnet.ControlNet(network, load_device=CPU)


def of_latents(model: Any) -> Any:
    """A ControlNet of SD3's kind, whose hint goes through a VAE."""
    config = {name: value for name, value in model.model.model_config.unet_config.items() if name != "image_model"}
    made = importlib.import_module("comfy.cldm.mmdit").ControlNet
    network = filled(made(num_blocks=1, control_latent_channels=16, operations=comfy.ops.manual_cast, **config))
    return comfy.controlnet.ControlNet(
        network, compression_ratio=1, latent_format=comfy.latent_formats.SD3(), load_device=CPU
    )


def hint(height: int = 200, width: int = 300) -> Tensor:
    return torch.rand(1, 3, height, width, generator=torch.Generator().manual_seed(5))


def guided(family: Family, seed: int, control: Any) -> list[Any]:
    return [[text, {**options, "control": control}] for text, options in family.conditioning(seed)]


def two_of_pixels(model: Any) -> Any:
    """Two that share a network, one before the other."""
    first = of_pixels(model).set_cond_hint(hint())
    return first.copy().set_cond_hint(hint(128, 128), 0.5).set_previous_controlnet(first)


CONTROLS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "pixels": ("sd15", lambda model: of_pixels(model).set_cond_hint(hint())),
    "two": ("sd15", two_of_pixels),
    "latents": ("sd3", lambda model: of_latents(model).set_cond_hint(hint(), vae=load_vae("flux"))),
}


def controls(control: Any) -> Iterator[Any]:
    while control is not None:
        yield control
        control = control.previous_controlnet


@pytest.mark.parametrize("kind", CONTROLS)
@pytest.mark.parametrize("cfg", [3.0, 1.0])
def test_a_controlnet_counts(kind: str, cfg: float) -> None:
    name, make = CONTROLS[kind]
    family = FAMILIES[name]
    model, latent = family.load(), family.latent(*SHAPE)
    control = make(model)
    positive, negative = guided(family, 1, control), guided(family, 2, control)
    step = Step(model, latent, positive, negative, cfg)
    call = one_call(model, family, tuple(latent.shape), cfg, positive=positive, negative=negative)

    def first_step() -> object:
        for one in controls(control):
            one.cond_hint = None
        return call()

    prediction = predict_step(step, this_cpu())
    if kind != "latents":  # its hint is encoded within, which is a stage of its own
        assert off_by(prediction, first_step) <= 0.02
    else:
        first_step()
        assert off_by(prediction, call) <= 0.02
    plain = predict_step(Step(model, latent, family.conditioning(1), family.conditioning(2), cfg), this_cpu())
    networks = {id(one.control_model): one.control_model for one in controls(control)}
    held = sum(weight.nbytes for one in networks.values() for weight in (*one.parameters(), *one.buffers()))
    assert prediction.weights - plain.weights == held


def test_a_sampling_with_a_controlnet_is_measured_without_its_weights_and_not_predicted() -> None:
    """A row must keep no network, and without it a prediction would be of another step."""
    family = FAMILIES["sd15"]
    model = apply_attention(family.load(), backend="auto")
    control = of_pixels(model).set_cond_hint(hint())
    positive, negative = guided(family, 1, control), guided(family, 2, control)
    latent = family.latent(64, 64)
    nodes.KSampler().sample(model, 7, 1, 3.0, "euler", "normal", positive, negative, {"samples": latent})
    row = LOG.rows("", "")[-1]
    assert row.question is None
    found = predict_step(Step(model, latent, positive, negative, 3.0), this_cpu())
    assert row.live == pytest.approx(found.live, rel=0.02)


def test_nothing_of_a_controlnet_is_changed() -> None:
    family = FAMILIES["sd15"]
    model = family.load()
    control = of_pixels(model).set_cond_hint(hint())
    before, weights = dict(vars(control)), [weight.clone() for weight in control.control_model.parameters()]
    positive = guided(family, 1, control)
    predict_step(Step(model, family.latent(*SHAPE), positive, positive), this_cpu())
    assert all(vars(control)[key] is value for key, value in before.items())
    assert all(map(torch.equal, weights, control.control_model.parameters()))


def test_nothing_is_loaded_for_a_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its first step such a ControlNet has the host load again what was loaded: a prompt may be running beside."""
    family = FAMILIES["sd3"]
    model = family.load()
    control = of_latents(model).set_cond_hint(hint(), vae=load_vae("flux"))
    positive, asked = guided(family, 1, control), []
    monkeypatch.setattr(comfy.model_management, "load_models_gpu", lambda *args, **_: asked.append(args))
    predict_step(Step(model, family.latent(*SHAPE), positive, positive, 1.0), this_cpu())
    assert not asked


def test_its_weights_and_its_encode_are_in_the_answer() -> None:
    family = FAMILIES["sd3"]
    model, card = family.load(), named_card("sm86", 8.0)
    control = of_latents(model).set_cond_hint(hint(), vae=load_vae("flux"))
    positive = guided(family, 1, control)
    question = Question(model, {"samples": family.latent(*SHAPE)}, positive=positive, negative=positive)
    encode, sampling = estimate(question, card).forecast.stages
    assert encode.work == "encode"
    assert sampling.beside == control.control_model_wrapped.model_size()
    assert sampling.weights == model.model_size() + sampling.beside
    limited, _ = apply_offload(model, 2**24 / GB)
    stage = sampling_stage(Question(limited, question.latent, positive=positive, negative=positive), card)
    assert stage.budget == 2**24 + sampling.beside


def test_make_it_fit_leaves_room_for_it() -> None:
    """The budget that it sets is the model's alone."""
    family = FAMILIES["sd15"]
    model, vae = family.load(), load_vae("sd")
    control = of_pixels(model).set_cond_hint(hint())
    positive = guided(family, 1, control)
    latent = {"samples": family.latent(512, 512)}
    question = Question(model, latent, vae, positive=positive, negative=positive, cfg=3.0)
    card = named_card("sm86", 1.0)
    stage = sampling_stage(question, card)
    allowed = stage.peak - 2**19
    fit = find_fit(question, card, "exact", allowed / card.total)
    assert fit.found
    assert fit.sampling is not None
    budget = fit.sampling.budget(fit.allowed)
    assert budget is not None
    made, _ = apply_fit(model, vae, fit)
    again = sampling_stage(Question(made, latent, vae, positive=positive, negative=positive, cfg=3.0), card)
    assert again.budget == budget
    assert again.peak <= fit.allowed


def test_make_it_fit_where_it_takes_more_than_there_is() -> None:
    """The host streams it then, and the model keeps what it cannot run without."""
    family = FAMILIES["sd15"]
    model, vae = family.load(), load_vae("sd")
    control = of_pixels(model).set_cond_hint(hint())
    positive = guided(family, 1, control)
    question = Question(model, {"samples": family.latent(*SHAPE)}, vae, positive=positive, negative=positive, cfg=3.0)
    fit = find_fit(question, named_card("sm86", 1.0))
    assert fit.sampling is not None
    stage = fit.sampling.stage
    fit = replace(fit, limit=(stage.activations + stage.beside // 2) / fit.card.total)
    assert fit.sampling is not None
    room = fit.sampling.budget(fit.allowed)
    assert room is not None
    assert room < stage.beside
    made, _ = apply_fit(model, vae, fit)
    budget = budget_of(made)
    assert budget is not None
    assert budget.weights == stage.least_weights


class OfAnotherPack:
    """A ControlNet with ways of its own."""

    previous_controlnet = None


def test_one_of_another_pack_is_told_and_left_out() -> None:
    family = FAMILIES["sd15"]
    positive = guided(family, 1, OfAnotherPack())
    question = Question(family.load(), {"samples": family.latent(*SHAPE)}, positive=positive, negative=positive)
    assert notes_of(question) == ("a ControlNet of another pack is not counted",)
    stage = sampling_stage(question, this_cpu())
    assert not stage.doubt
    assert stage.beside == 0
    assert "control" not in fake_conditions(positive)[0]


def test_one_of_another_pack_is_told_wherever_it_stands() -> None:
    """Before one of the host's, and in the negative alone."""
    family = FAMILIES["sd15"]
    model, plain = family.load(), family.conditioning(1)
    control = of_pixels(model).set_cond_hint(hint())
    control.previous_controlnet = OfAnotherPack()
    for texts in ((guided(family, 1, control), plain), (plain, guided(family, 2, OfAnotherPack()))):
        question = Question(model, {"samples": family.latent(*SHAPE)}, positive=texts[0], negative=texts[1])
        assert notes_of(question) == ("a ControlNet of another pack is not counted",)


# ----------------------------------------------------------------------------------- patches with a network


def test_a_patch_with_a_network_counts() -> None:
    """Qwen-Image's DiffSynth ControlNet: it adds to every block, and encodes its picture when it is made."""
    patches = pytest.importorskip("comfy_extras.nodes_model_patch")
    family = FAMILIES["qwen_image"]
    model, latent = family.load(), family.latent(*SHAPE)
    width = model.model.diffusion_model.img_in.weight.shape[0]
    network = filled(patches.QwenImageBlockWiseControlNet(num_layers=3, dim=width, operations=comfy.ops.manual_cast))
    patcher = comfy.model_patcher.ModelPatcher(network, CPU, CPU)
    picture = hint(*SHAPE).movedim(1, -1)
    (patched,) = patches.QwenImageDiffsynthControlnet().diffsynth_controlnet(
        model, patcher, load_vae("wan21"), picture, 1.0
    )
    texts = family.conditioning(1), family.conditioning(2)
    prediction = predict_step(Step(patched, latent, *texts, 3.0), this_cpu())
    assert off_by(prediction, one_call(patched, family, tuple(latent.shape))) <= 0.02
    stage = sampling_stage(Question(patched, {"samples": latent}, positive=texts[0], negative=texts[1]), this_cpu())
    assert not stage.doubt
    assert stage.beside == patcher.model_size()
    assert prediction.weights == model.model_size() + stage.beside
