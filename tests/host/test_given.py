"""What a node is given, checked by its own schema: constants that the host lets through, and what links carry."""

import json
import math
from typing import Any

import pytest
import torch

from headroom.graph.to_api import entries_of
from headroom.host.core.given import NotTaken, check_given, check_latent, check_latent_of
from headroom.host.planning.compare import Work, compare
from headroom.host.planning.strategies import Switches
from headroom.host.prediction.stages import Question, estimate, own_card
from headroom.nodes import NODES
from headroom.nodes.estimate import HeadroomEstimate
from headroom.nodes.local_attention import HeadroomLocalAttention
from headroom.nodes.offload import HeadroomOffload
from headroom.tools.server.client import Client, PromptFailed

from .autoencoders import AUTOENCODERS
from .families import FAMILIES
from .workflows import node, text_to_image, with_headroom

CPU = torch.device("cpu")
HUGE = 10**5000
NUMBERS = [
    (one, name, options)
    for one in NODES
    for name, kind, options in entries_of(one.INPUT_TYPES())
    if kind in ("INT", "FLOAT")
]
LINKED = [
    (one, name, kind)
    for one in NODES
    for name, kind, _ in entries_of(one.INPUT_TYPES())
    if kind in ("MODEL", "CLIP", "VAE", "LATENT", "CONDITIONING", "IMAGE")
]


def ids(case: Any) -> str:
    return case.__name__ if isinstance(case, type) else case if isinstance(case, str) else ""


@pytest.mark.parametrize(("kind", "name", "options"), NUMBERS, ids=ids)
def test_every_number(kind: Any, name: str, options: dict[str, Any]) -> None:
    definition = kind.INPUT_TYPES()
    for value in (options["default"], options["min"], options["max"]):
        check_given(definition, {name: value})
    for value in (math.nan, math.inf, -math.inf, "1", [1], {}, True, torch.ones(1)):
        with pytest.raises(NotTaken, match=f"^{name} is .*, which is no number$") as failure:
            check_given(definition, {name: value})
        assert len(str(failure.value)) < 200
    for value in (options["max"] * 2 + 1, HUGE, -HUGE):
        with pytest.raises(NotTaken, match=rf"^{name} is .*; it takes [-\d.e+]+ to [-\d.e+]+$") as failure:
            check_given(definition, {name: value})
        assert len(str(failure.value)) < 200


@pytest.mark.parametrize(("kind", "name", "type_"), LINKED, ids=ids)
def test_every_link(kind: Any, name: str, type_: str) -> None:
    for value in (7, "text", [1, 2], {"samples": 3}, {}, object()):
        if type_ == "CONDITIONING" and value == []:
            continue
        with pytest.raises(NotTaken, match=f"^{name} gets .*; connect an? {type_}"):
            check_given(kind.INPUT_TYPES(), {name: value})


def test_what_the_loaders_give_is_taken() -> None:
    family = FAMILIES["flux"]
    values = {
        "model": family.load(),
        "samples": {"samples": family.latent(64, 64, 1)},
        "positive": family.conditioning(1),
        "vae": AUTOENCODERS["sd"].load(),
        "negative": None,
    }
    check_given(HeadroomEstimate.INPUT_TYPES(), values)
    required = {**values, "samples": None}
    with pytest.raises(NotTaken, match="samples gets None; connect a LATENT"):
        check_given(HeadroomEstimate.INPUT_TYPES(), required)


def test_a_dynamic_list() -> None:
    from headroom.nodes.cast import HeadroomCast

    definition = HeadroomCast.INPUT_TYPES()
    check_given(definition, {"sensitivity": {"sensitivity": "off"}})
    check_given(definition, {"sensitivity": {"sensitivity": "error", "target_db": 30.0}})
    with pytest.raises(NotTaken, match=r"sensitivity\.target_db is nan, which is no number"):
        check_given(definition, {"sensitivity": {"sensitivity": "error", "target_db": math.nan}})
    with pytest.raises(NotTaken, match="sensitivity is 'best', which is none of its choices: off, error, size"):
        check_given(definition, {"sensitivity": {"sensitivity": "best"}})


def test_words_and_choices() -> None:
    definition = HeadroomOffload.INPUT_TYPES()
    with pytest.raises(NotTaken, match=r"^granularity is 7, which is none of its choices: auto, block, leaf$"):
        check_given(definition, {"granularity": 7})


def test_a_node_checks_before_it_works() -> None:
    with pytest.raises(NotTaken, match="model gets 'loader'; connect a MODEL"):
        HeadroomOffload.execute(model="loader", vram_budget_gb=1.0, granularity="auto")


def test_a_choice_that_the_host_leaves_out() -> None:
    """Of a dynamic list it hands on nothing where there is no such choice."""
    with pytest.raises(NotTaken, match=r"^pattern is missing, or none of its choices; choose one of window, "):
        HeadroomLocalAttention.execute(model=FAMILIES["flux"].load(), max_error=0.1)
    with pytest.raises(NotTaken, match=r"^model is missing, or none of its choices$"):
        HeadroomOffload.execute(vram_budget_gb=1.0, granularity="auto")


# ---------------------------------------------------------------------------------------------------------- latents


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_family_takes_its_own_latents(name: str) -> None:
    family = FAMILIES[name]
    model, latent = family.load(), family.latent(64, 64, 1)
    check_latent({"samples": latent}, model)
    check_latent({"samples": torch.ones_like(latent)}, model)


@pytest.mark.parametrize("name", ["sd15", "flux", "wan21"])
@pytest.mark.parametrize("shape", [(4, 8, 8), (1, 4), (), (0, 4, 8, 8), (1, 4, 0, 8), (1, 7, 8, 8), (1, 4, 2, 3, 8, 8)])
def test_other_latents_are_refused_before_any_work(name: str, shape: tuple[int, ...]) -> None:
    family = FAMILIES[name]
    model, latent = family.load(), {"samples": torch.ones(shape)}
    with pytest.raises(NotTaken, match=r"^samples has .*connect (the empty|a) latent") as failure:
        check_latent(latent, model)
    assert type(model.model).__name__ in str(failure.value)
    with pytest.raises(NotTaken, match=r"^samples has"):
        estimate(Question(model, latent), own_card(CPU))
    with pytest.raises(NotTaken, match=r"^samples has"):
        compare(Work(model, latent, family.conditioning(1), family.conditioning(1), 1.0), Switches(backends=False))


def test_an_empty_latent_takes_the_models_channels() -> None:
    check_latent({"samples": torch.zeros(1, 4, 8, 8)}, FAMILIES["flux"].load())


def test_a_vae_of_another_family() -> None:
    family, vae = FAMILIES["flux"], AUTOENCODERS["sd"].load()
    latent = {"samples": torch.ones_like(family.latent(64, 64, 1))}
    with pytest.raises(NotTaken, match="samples has 16 channels, but this VAE decodes latents of 4; connect the VAE"):
        estimate(Question(family.load(), latent, vae), own_card(CPU))


@pytest.mark.parametrize("name", sorted(AUTOENCODERS))
def test_every_vae_takes_its_own_latents(name: str) -> None:
    family = AUTOENCODERS[name]
    check_latent_of(family.load(), family.latent(16, 16))


# --------------------------------------------------------------------------------------------------------- over HTTP


def changed(number: str, **inputs: Any) -> dict[str, Any]:
    workflow = with_headroom(side=64)
    workflow["30"] = node("HeadroomEstimate", model=["1", 0], samples=["4", 0], cfg=1.0, if_too_big="report")
    workflow["31"] = node("HeadroomOffload", model=["1", 0], vram_budget_gb=0.0, granularity="auto")
    workflow["32"] = node("PreviewAny", source=["31", 1])
    workflow[number]["inputs"] |= inputs
    return workflow


@pytest.mark.parametrize(
    ("number", "inputs", "sentence"),
    [
        ("30", {"model": 7}, "model gets 7; connect a MODEL"),
        ("30", {"samples": "latent"}, "samples gets 'latent'; connect a LATENT"),
        ("30", {"positive": {"a": 1}}, "positive gets {'a': 1}; connect a CONDITIONING"),
        ("30", {"vae": 1.5}, "vae gets 1.5; connect a VAE"),
        ("30", {"cfg": math.nan}, "cfg is nan, which is no number"),
        ("30", {"vram_gb": math.nan}, "vram_gb is nan, which is no number"),
        ("31", {"vram_budget_gb": math.nan}, "vram_budget_gb is nan, which is no number"),
        ("31", {"model": {"x": []}}, "model gets {'x': []}; connect a MODEL"),
    ],
)
def test_what_the_host_lets_through(client: Client, number: str, inputs: dict[str, Any], sentence: str) -> None:
    workflow = changed(number, **inputs)
    assert json.loads(json.dumps(workflow)).keys() == workflow.keys()
    with pytest.raises(PromptFailed) as failure:
        client.run(workflow)
    assert failure.value.node_id == number
    assert failure.value.exception_message.startswith(sentence)
    assert client.run(text_to_image(side=64)).outputs
