"""Predictions that are kept: the same question finds them, one that differs in anything that is read does not."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from comfy.model_patcher import ModelPatcher
from comfy.patcher_extension import WrappersMP

from headroom.attention.local import PATTERNS
from headroom.host.attention.backend import apply_attention
from headroom.host.attention.local import apply_local_attention
from headroom.host.core.compat import OVERRIDE
from headroom.host.offload.budget import Budget, set_budget
from headroom.host.prediction.kept import KEPT, Same, coding_key, described, kept, step_key
from headroom.host.prediction.stages import Question, sampling_stage
from headroom.host.prediction.step import Step, noise_levels, predict_step
from headroom.host.prediction.vae import Coding
from headroom.host.sampling.conditioning import usual_conditioning
from headroom.host.sampling.guidance import guide_in_turns
from headroom.host.vae.settings import VAESettings
from headroom.host.vae.wrapper import low_memory_vae
from headroom.memory.prediction import Card, named_card

from .families import FAMILIES, load_vae

CARD = named_card("sm86", 8.0)
FAMILY = FAMILIES["sd15"]
Change = Callable[[Step], Step]


@pytest.fixture(scope="module")
def model() -> ModelPatcher:
    return FAMILY.load()


@pytest.fixture
def step(model: ModelPatcher) -> Step:
    text = usual_conditioning(model)
    return Step(model, FAMILY.latent(256, 256), text, text)


def on_model(change: Callable[[ModelPatcher], Any]) -> Change:
    """A step whose MODEL a node has changed: ``change`` gives a clone, or changes the one it is given."""

    def changed(step: Step) -> Step:
        clone = step.model.clone()
        return replace(step, model=change(clone) or clone)

    return changed


def with_text(**options: Any) -> Change:
    def changed(step: Step) -> Step:
        text, old = step.positive[0]
        return replace(step, positive=[[text, {**old, **options}]])

    return changed


def patch_of_a_block(*args: Any) -> Any:
    return args[0]


def wrapper(executor: Any, *args: Any, **kwargs: Any) -> Any:
    return executor(*args, **kwargs)


def foreign(func: Any, *args: Any, **kwargs: Any) -> Any:
    return func(*args, **kwargs)


def budget(size: int) -> Callable[[ModelPatcher], None]:
    return lambda model: set_budget(model, Budget(size))


def foreign_override(model: ModelPatcher) -> None:
    model.model_options["transformer_options"] = {OVERRIDE: foreign}


def add_wrapper(model: ModelPatcher) -> None:
    model.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, "someone", wrapper)


CHANGES: dict[str, Change] = {
    "size": lambda step: replace(step, latent=step.latent[..., :16]),
    "batch": lambda step: replace(step, latent=step.latent.expand(2, -1, -1, -1)),
    "dtype": lambda step: replace(step, latent=step.latent.half()),
    "mask": lambda step: replace(step, mask=torch.ones(1, 32, 32)),
    "cfg": lambda step: replace(step, cfg=1.0),
    "together": lambda step: replace(step, together=True),
    "longer text": lambda step: replace(step, positive=[[step.positive[0][0].repeat(1, 2, 1), step.positive[0][1]]]),
    "a second text": lambda step: replace(step, positive=[*step.positive, *step.positive]),
    "an area": with_text(area=(16, 16, 0, 0)),
    "reference pictures": with_text(reference_latents=[torch.zeros(1, 4, 32, 32)]),
    "larger reference pictures": with_text(reference_latents=[torch.zeros(1, 4, 64, 64)]),
    "a mask of the text": with_text(attention_mask=torch.zeros(1, 77)),
    "a mask that hides nothing": with_text(attention_mask=torch.ones(1, 77)),
    "backend": on_model(lambda model: apply_attention(model, backend="sliced")),
    "slice_rows": on_model(lambda model: apply_attention(model, backend="sliced", slice_rows=64)),
    "blocks": on_model(lambda model: apply_attention(model, backend="sliced", blocks="input:0")),
    "min_tokens": on_model(lambda model: apply_attention(model, backend="sliced", min_tokens=500)),
    "end_percent": on_model(lambda model: apply_attention(model, backend="sliced", end_percent=0.5)),
    "start_percent": on_model(lambda model: apply_attention(model, backend="sliced", start_percent=0.5)),
    "local attention": on_model(lambda model: apply_local_attention(model, PATTERNS["window"]())),
    "max_error": on_model(lambda model: apply_local_attention(model, PATTERNS["window"](), max_error=0.2)),
    "two of ours": on_model(
        lambda model: apply_attention(apply_attention(model, backend="sliced"), backend="online", blocks="input:0")
    ),
    "a foreign override": on_model(foreign_override),
    "guidance in turns": on_model(guide_in_turns),
    "a small budget": on_model(budget(10 << 20)),
    "a larger budget": on_model(budget(20 << 20)),
    "a foreign wrapper": on_model(add_wrapper),
    "a patch of attention": on_model(lambda model: model.set_model_attn1_patch(patch_of_a_block)),
    "a patch in place of one": on_model(lambda model: model.set_model_attn1_replace(patch_of_a_block, "input", 1, 0)),
    "a function around the model": on_model(lambda model: model.set_model_unet_function_wrapper(foreign)),
    "a patched part": on_model(lambda model: model.add_object_patch("latent_format", model.model.latent_format)),
}


def test_every_difference_is_another_question(step: Step) -> None:
    keys = {"unchanged": step_key(step, CARD)} | {name: step_key(one(step), CARD) for name, one in CHANGES.items()}
    keys["another card"] = step_key(step, named_card("sm86", 6.0))
    alike = [(one, other) for one in keys for other in keys if one < other and keys[one] == keys[other]]
    assert alike == []


@pytest.mark.parametrize("name", CHANGES)
def test_the_same_again_is_the_same_question(step: Step, name: str) -> None:
    """Nodes that ran again made their changes anew; only what has no value of its own must be the same object."""
    first, again = CHANGES[name](step), CHANGES[name](step)
    assert step_key(first, CARD) == step_key(again, CARD)
    assert hash(step_key(first, CARD)) == hash(step_key(again, CARD))


def peak_of(model: ModelPatcher, card: Card = CARD) -> int:
    question = Question(model, {"samples": FAMILY.latent(512, 512)})
    return sampling_stage(question, card).prediction.activations


def test_the_second_answer_is_not_the_first_ones(model: ModelPatcher) -> None:
    """As it was with a key that lacked min_tokens: here it leaves every call to the host."""
    taken = apply_attention(model, backend="sdpa_math")
    left = apply_attention(model, backend="sdpa_math", min_tokens=100_000)
    KEPT.clear()
    alone = peak_of(left)
    KEPT.clear()
    assert peak_of(taken) > alone
    assert peak_of(left) == alone


def test_a_patch_that_is_gone_is_not_its_successor(step: Step) -> None:
    """The address of what Python let go may be another's."""
    part = torch.nn.Linear(2, 2)
    key = described({"part": part})
    twin = Same(part)
    assert key == described({"part": part})
    assert twin == Same(part)
    del part
    gc.collect()
    assert twin != twin
    assert key != described({"part": torch.nn.Linear(2, 2)})


def test_a_step_range_is_predicted_at_the_step_that_takes_most(model: ModelPatcher) -> None:
    """It was predicted as if the node were not there."""
    latent, text = FAMILY.latent(512, 512), usual_conditioning(model)

    def predicted(model: ModelPatcher) -> int:
        return predict_step(Step(model, latent, text, text), CARD).activations

    dear, plain = predicted(apply_attention(model, backend="sdpa_math")), predicted(model)
    assert dear > 1.5 * plain
    half = partial(apply_attention, model, backend="sdpa_math")
    assert predicted(half(end_percent=0.5)) == predicted(half(start_percent=0.5)) == dear
    # Where the node takes less, the host's steps are those that take most.
    host = apply_attention(model, backend="sdpa_math")
    spared = apply_attention(host, backend="sdpa", end_percent=0.5)
    assert predicted(spared) == dear
    assert predicted(apply_attention(spared, backend="sdpa", start_percent=0.5)) == plain


def test_noise_levels(model: ModelPatcher) -> None:
    """One between every two ends: no level that no step has."""
    sigma = model.get_model_object("model_sampling").percent_to_sigma
    assert noise_levels(model) == [None]
    assert noise_levels(apply_attention(model, backend="sliced")) == [None]
    below, within = noise_levels(apply_attention(model, backend="sliced", end_percent=0.5))
    assert 0 < below < float(sigma(0.5)) < within < float(sigma(0.0))


CODINGS: dict[str, Callable[[Coding], Coding]] = {
    "size": lambda one: replace(one, x=one.x[..., :16]),
    "dtype": lambda one: replace(one, x=one.x.half()),
    "encodes": lambda one: replace(one, encodes=True),
    "tiles": lambda one: replace(one, tiles={"tile_x": 32}),
    "follow": lambda one: replace(one, follow=True),
    "low memory": lambda one: replace(one, vae=low_memory_vae(one.vae, VAESettings())),
    "budget": lambda one: replace(one, vae=low_memory_vae(one.vae, VAESettings(vram_budget_gb=1.0))),
    "method": lambda one: replace(one, vae=low_memory_vae(one.vae, VAESettings(method="exact"))),
    "to a file": lambda one: replace(one, file_budget_gb=0.0),
    "to a file within a budget": lambda one: replace(one, file_budget_gb=1.0),
}


def test_every_coding_is_another_question() -> None:
    vae = load_vae("sd")
    plain = Coding(vae, torch.zeros(1, 4, 32, 32))
    keys = [coding_key(plain, CARD), coding_key(plain, named_card("sm86", 6.0))]
    keys += [coding_key(one(plain), CARD) for one in CODINGS.values()]
    assert len(set(keys)) == len(keys)
    assert coding_key(Coding(vae, torch.ones(1, 4, 32, 32)), CARD) == keys[0]


def test_the_oldest_go() -> None:
    owner = torch.nn.Linear(1, 1)
    for number in range(100):
        assert kept(owner, number, lambda number=number: number) == number
    assert list(KEPT[owner]) == list(range(68, 100))
