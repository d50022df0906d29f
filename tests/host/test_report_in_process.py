"""The memory report on the host's own prompt graph."""

import gc
import weakref
from typing import Any

import comfy.model_management as model_management
import pytest
import torch
from comfy.clip_vision import Output
from comfy.samplers import CFGGuider, calc_cond_batch, sampler_object
from comfy_execution.graph import DynamicPrompt
from torch import Tensor

import nodes
from headroom.host.attention.backend import apply_attention
from headroom.host.measure.runs import LOG
from headroom.host.planning.report import memory_report
from headroom.host.planning.rows import ask
from headroom.memory import Peak

from .families import FAMILIES, sample
from .workflows import node, with_headroom


def ran(prompt: str, node_id: str, work: str) -> None:
    row = LOG.start(prompt, node_id, work)
    row.seconds, row.peak, row.outcome = 1.0, Peak(0, 2**20, "the whole process, sampled"), "done"


def test_order_of_the_graph_and_then_the_rest_of_the_prompt() -> None:
    graph = with_headroom()
    graph["12"] = node("HeadroomVAEDecode", samples=["4", 0], vae=["1", 2])
    for node_id, work in (("12", "decode"), ("6", "decode"), ("5", "sampling")):
        ran("p", node_id, work)
    ran("q", "4", "decode")
    found = memory_report("p", "11", DynamicPrompt(graph), None)
    report, chart = found.text, found.chart
    positions = [report.index(f"#{node_id} ") for node_id in ("5", "6", "12")]
    assert positions == sorted(positions)
    assert "#4 Empty Latent Image" in report.split("Not measured:")[1]
    assert chart.shape[0] == 1
    assert chart.shape[-1] == 3
    assert [load.name for load in found.bar.loads] == ["#5 sampling", "#6 decode", "#12 decode"]
    assert {load.peak for load in found.bar.loads} == {2**20}
    assert found.bar.total == model_management.get_total_memory(None)


def test_a_model_names_its_settings() -> None:
    model = apply_attention(FAMILIES["flux"].load(), backend="sliced", blocks="double:0", slice_rows=64)
    report = memory_report("p", "11", DynamicPrompt(with_headroom()), model).text
    assert "model: asked for: sliced, 64 rows in blocks double:0" in report


class ByTwoCalls(CFGGuider):
    """As the host's guider of two models: the texts are not computed together."""

    def predict_noise(self, x: Tensor, timestep: Tensor, model_options: Any = None, seed: Any = None) -> Tensor:
        both = [[self.conds["positive"]], [self.conds["negative"]]]
        one, other = (calc_cond_batch(self.inner_model, texts, x, timestep, model_options)[0] for texts in both)
        return other + self.cfg * (one - other)


@pytest.mark.parametrize("kind", [CFGGuider, ByTwoCalls])
def test_a_guider_with_a_way_of_its_own_is_not_predicted_by_the_usual_one(kind: Any) -> None:
    family = FAMILIES["flux"]
    guider, latent = kind(apply_attention(family.load(), backend="auto")), family.latent()
    guider.set_conds(family.conditioning(1), family.conditioning(2))
    guider.set_cfg(2.0)
    guider.sample(torch.zeros_like(latent), latent, sampler_object("euler"), torch.tensor([1.0, 0.0]), seed=1)
    assert (LOG.rows("", "")[-1].question is None) == (kind is not CFGGuider)


def test_a_row_keeps_no_data_of_what_it_may_be_asked_about() -> None:
    """Nor of tensors that nodes hand on in objects of their own, as of a picture that a CLIP_VISION saw."""
    family = FAMILIES["flux"]
    model, seen = apply_attention(family.load(), backend="auto"), Output()
    seen["image_embeds"], seen["last_hidden_state"] = torch.zeros(1, 8), torch.zeros(1, 3, 8)
    texts = [[text, {**options, "clip_vision_output": seen}] for text, options in family.conditioning(1)]
    latent = {"samples": family.latent()}
    nodes.KSampler().sample(model, 7, 1, 1.0, "euler", "normal", texts, family.conditioning(2), latent)
    row = LOG.rows("", "")[-1]
    kept = weakref.ref(seen["last_hidden_state"])
    assert row.question.positive[0][1]["clip_vision_output"]["last_hidden_state"].shape == (1, 3, 8)
    del seen, texts
    gc.collect()
    assert kept() is None
    ask(row)
    assert row.predicted is not None


@pytest.mark.parametrize("name", ["flux", "sd15"])
def test_what_a_sampling_took_beyond_the_weights_and_what_was_predicted(name: str) -> None:
    family = FAMILIES[name]
    model = apply_attention(family.load(), backend="auto")  # kept: a prediction needs it
    sample(model, family, steps=1, cfg=2.5)
    row = LOG.rows("", "")[-1]
    assert row.question.cfg == 2.5
    assert row.live > family.latent().nbytes
    ask(row)
    assert row.predicted is not None
    assert row.live == pytest.approx(row.predicted.live, rel=0.02)
