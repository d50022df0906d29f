"""What Make It Fit plans for by the graph, and what is advised where memory ran out."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from headroom.graph.fit.advice import advice
from headroom.graph.fit.cfg_source import follow_cfg
from headroom.graph.fit.insert import insert_fit

Prompt = dict[str, dict[str, Any]]


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


def fit(source: str = "graph", **more: Any) -> dict[str, Any]:
    return node("HeadroomFit", model=["1", 0], vae=["1", 2], samples=["2", 0], cfg=8.0, cfg_source=source, **more)


def sampler(cfg: Any = 3.5, model: str = "9", **more: Any) -> dict[str, Any]:
    return node("KSampler", model=[model, 0], latent_image=["2", 0], cfg=cfg, **more)


def graph(**nodes: dict[str, Any]) -> Prompt:
    """A loader 1, a latent 2 and Make It Fit 9, and more nodes by "n" and their number."""
    base = {"1": node("CheckpointLoaderSimple"), "2": node("EmptyLatentImage"), "9": fit()}
    return base | {name[1:]: one for name, one in nodes.items()}


GUIDED = {"n3": node("SamplerCustomAdvanced", guider=["4", 0], latent_image=["2", 0])}
CASES = {
    "a sampler": (graph(n3=sampler()), 3.5),
    "behind a LoRA": (graph(n4=node("LoraLoaderModelOnly", model=["9", 0]), n3=sampler(model="4")), 3.5),
    "another model's text by its LoRA": (
        graph(
            n4=node("LoraLoader", model=["9", 0], clip=["1", 1]),
            n3=sampler(1.0, model="4"),
            n5=node("CLIPTextEncode", clip=["4", 1]),
            n6=sampler(7.0, model="7", positive=["5", 0]),
            n7=node("UNETLoader"),
        ),
        1.0,
    ),
    "another sampler behind a guider that is not known": (
        graph(
            **GUIDED,
            n4=node("OtherGuider", model=["9", 0]),
            n5=node("KSampler", model=["1", 0], latent_image=["3", 0], cfg=6.0),
        ),
        8.0,
    ),
    "a guider": (graph(**GUIDED, n4=node("CFGGuider", model=["9", 0], cfg=5)), 5),
    "no guidance": (graph(**GUIDED, n4=node("BasicGuider", model=["9", 0])), 1.0),
    "the largest of several": (graph(n3=sampler(1.0), n4=sampler(6.0, seed=2)), 6.0),
    "a link": (graph(n3=sampler(["5", 0]), n5=node("PrimitiveFloat", value=4.0)), ["5", 0]),
    "a link that waits for the plan": (graph(n3=sampler(["5", 0]), n5=node("Count", any=["9", 2])), 8.0),
    "nothing behind it": (graph(), 8.0),
    "only its VAE is used": (graph(n3=sampler(model="1", vae=["9", 1])), 8.0),
    "no number": (graph(n3=sampler("much")), 8.0),
    "another plan behind it": (graph(n4=fit(), n3=sampler(model="4")), 8.0),
}
CASES["another plan behind it"][0]["4"]["inputs"]["model"] = ["9", 0]


@pytest.mark.parametrize("name", CASES)
def test_cfg_is_that_of_the_samplers_behind(name: str) -> None:
    prompt, expected = CASES[name]
    before = copy.deepcopy(prompt)
    assert follow_cfg(prompt)["9"]["inputs"]["cfg"] == expected
    assert prompt == before


@pytest.mark.parametrize("change", [{"source": "widget"}, {"source": "other"}])
def test_its_own_stays_where_it_is_asked_for(change: dict[str, str]) -> None:
    prompt = graph(n3=sampler(), n9=fit(**change))
    assert follow_cfg(prompt) is prompt


def test_a_cfg_that_is_linked_stays() -> None:
    prompt = graph(n3=sampler(), n6=node("PrimitiveFloat", value=2.0))
    prompt["9"]["inputs"]["cfg"] = ["6", 0]
    assert follow_cfg(prompt) is prompt


def test_circles_and_long_chains() -> None:
    circle = graph(n3=node("Pass", model=["9", 0]))
    circle["9"]["inputs"]["model"] = ["3", 0]
    assert follow_cfg(circle) == circle
    chain = graph(**{f"n{number}": node("Pass", model=[str(number - 1), 0]) for number in range(10, 20_000)})
    chain["3"] = sampler(2.0, model="19999")
    assert follow_cfg(chain)["9"]["inputs"]["cfg"] == 2.0


def test_what_is_inserted_asks_for_the_graphs() -> None:
    prompt = graph(n3=sampler(model="1"), n4=node("VAEDecode", samples=["3", 0], vae=["1", 2]))
    del prompt["9"]
    fitted = insert_fit(prompt).workflow
    (added,) = (one for one in fitted.values() if one["class_type"] == "HeadroomFit")
    assert (added["inputs"]["cfg"], added["inputs"]["cfg_source"]) == (3.5, "graph")
    fitted["3"]["inputs"]["cfg"] = 1.0
    (followed,) = (one for one in follow_cfg(fitted).values() if one["class_type"] == "HeadroomFit")
    assert followed["inputs"]["cfg"] == 1.0


def without_fit(**nodes: dict[str, Any]) -> Prompt:
    prompt = graph(**nodes)
    del prompt["9"]
    return prompt


DECODE = node("VAEDecode", samples=["3", 0], vae=["1", 2])
PLAIN = without_fit(n3=sampler(model="1"), n4=DECODE, n5=node("CLIPTextEncode", clip=["1", 1]), n6=node("Upscale"))
WRAPPED = node("VAEDecode", samples=["3", 0], vae=["7", 0])
TRAIN = node("TrainLoraNode", model=["1", 0], latents=["2", 0])
ADVICE = {
    "sampling": (PLAIN, "3", "Make It Fit, for node 3 (KSampler) would pick settings that fit this card"),
    "decoding": (PLAIN, "4", "VAE Decode (exact, low memory) in its place"),
    "text": (PLAIN, "5", "Layerwise Casting (text encoder)"),
    "text, cast": (
        without_fit(n4=node("CLIPTextEncode", clip=["5", 0]), n5=node("HeadroomCastCLIP", clip=["1", 1])),
        "4",
        "give the casting of its text encoder (node 5) a storage of 4 bits (less near), or shorten",
    ),
    "loading": (PLAIN, "1", "with a cache_file"),
    "loading on a card": (PLAIN, "1", "Make It Fit, for node 3 (KSampler) would keep less of the models on the card"),
    "other work": (PLAIN, "6", "Make It Fit, for node 3 (KSampler) would keep less of the models on the card"),
    "fitted": (graph(n3=sampler()), "3", "give that a limit of 0.7 instead of 0.85 and quality near_exact, or make"),
    "fitted, may lose": (graph(n3=sampler(), n9=fit(quality="any", limit=0.1)), "3", "already: make the picture"),
    "planned decode": (graph(n3=sampler(), n4=node("VAEDecode", vae=["9", 1])), "4", "give that a limit of 0.7"),
    "planned decode, small limit": (graph(n4=node("VAEDecode", vae=["9", 1]), n9=fit(limit=0.2)), "4", "planned: make"),
    "linked limit": (graph(n3=sampler(), n9=fit(limit=["2", 0])), "3", "give that a smaller limit and quality"),
    "strips": (
        without_fit(n3=sampler(model="1"), n4=WRAPPED, n7=node("HeadroomVAE", vae=["1", 2])),
        "4",
        "give Low-Memory VAE (node 7) a vram_budget_gb below what is there (0 is all of it), or the method feathered",
    ),
    "our decode": (
        without_fit(n4=node("HeadroomVAEDecode", vae=["1", 2], method="auto", vram_budget_gb=4.0)),
        "4",
        "give it a smaller vram_budget_gb, or the method feathered (approximate)",
    ),
    "training": (without_fit(n3=TRAIN), "3", "Training Memory in front of it"),
    "training by a plan": (
        without_fit(n3=node("TrainLoraNode", model=["4", 0]), n4=node("HeadroomTraining", model=["1", 0])),
        "3",
        "give Training Memory (node 4) the plan 'every block' with checkpoints_in_ram",
    ),
}


@pytest.mark.parametrize("name", ADVICE)
def test_the_advice_names_what_is_there(name: str) -> None:
    prompt, number, expected = ADVICE[name]
    said = advice(prompt, number)
    assert expected in said
    assert not said.endswith(".")
    assert "\n" not in said


@pytest.mark.parametrize("kind", ["HeadroomVAEDecodeVideo", "HeadroomVAEEncodeVideo", "HeadroomVAEDecode"])
def test_no_method_is_advised_that_a_node_has_not_or_has_already(kind: str) -> None:
    inputs = {"method": "feathered"} if kind == "HeadroomVAEDecode" else {}
    said = advice(without_fit(n4=node(kind, vae=["1", 2], vram_budget_gb=4.0, **inputs)), "4")
    assert said.endswith("give it a smaller vram_budget_gb")


FRAMES = {
    "GetVideoComponents": "VAE Encode from Video, in place of it and VAE Encode, reads",
    "CreateVideo": "VAE Decode to Video writes",
    "VAEDecode": "in its place gives the same picture in strips that fit",
}


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_that_ram_does_not_hold_go_by_a_file(kind: str) -> None:
    """On the card their nodes are work as any other."""
    prompt = without_fit(n3=sampler(model="1"), n4=node(kind, vae=["1", 2]))
    said = advice(prompt, "4", of_card=False)
    assert said.startswith(f"node 4 ({kind})")
    assert FRAMES[kind] in said
    assert kind == "GetVideoComponents" or "writes each frame to the file as it is decoded" in said
    assert "each frame" not in advice(prompt, "4")


def test_other_work_in_ram_is_not_made_smaller_by_us() -> None:
    assert advice(PLAIN, "6", of_card=False) == ""
    assert advice(without_fit(), "2") == ""  # nothing to fit


def test_a_sampler_that_cannot_be_fitted_is_still_told() -> None:
    assert "Make It Fit between the loader and it" in advice(without_fit(n3=node("KSampler", cfg=1.0)), "3")
