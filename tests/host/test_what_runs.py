"""Which nodes of a workflow are counted: those that ComfyUI runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from comfy_execution.graph import DynamicPrompt

from headroom.host.server.routes import with_what_the_graph_says
from headroom.host.workflow.estimate import NothingToPredict, WorkflowAnswer, estimate_workflow
from headroom.host.workflow.running import NO_ENDS, around, ends_of, part_that_runs
from headroom.memory.prediction import named_card
from headroom.nodes import NODES

from .workflows import Workflow, node, text_to_image

pytestmark = pytest.mark.usefixtures("extra_nodes")
OURS = {one.GET_SCHEMA().node_id: one for one in NODES}


def answer(workflow: Workflow) -> WorkflowAnswer:
    with torch.inference_mode():
        return estimate_workflow(workflow, named_card("sm86", 8.0), 0.85, ours=OURS)


def upscaled(**ends: Any) -> Workflow:
    """Text to image, and a second pass at four times the size; what is behind that is given."""
    workflow = text_to_image(save_latent=False)
    workflow["20"] = node("LatentUpscaleBy", samples=["5", 0], upscale_method="nearest-exact", scale_by=4.0)
    workflow["21"] = {**workflow["5"], "inputs": workflow["5"]["inputs"] | {"latent_image": ["20", 0]}}
    workflow["22"] = node("VAEDecode", samples=["21", 0], vae=["1", 2])
    return workflow | ends


def fitted(workflow: Workflow) -> Workflow:
    fit = node(
        "HeadroomFit", model=["1", 0], vae=["1", 2], samples=["4", 0], cfg=1.0, quality="exact", cfg_source="graph"
    )
    workflow["30"] = fit
    for number in ("5", "21"):
        workflow[number] = {**workflow[number], "inputs": workflow[number]["inputs"] | {"model": ["30", 0]}}
    return workflow


def test_a_branch_that_nothing_saves_is_not_counted_and_told() -> None:
    found, stock = answer(upscaled()), answer(text_to_image(save_latent=False))
    assert found.numbers["stages"] == stock.numbers["stages"]
    assert [note for note in found.notes if "not counted" in note] == [
        "not counted, since nothing behind it is saved or shown and ComfyUI does not run it:"
        " nodes 21 (KSampler), 22 (VAEDecode)"
    ]
    assert found.complete
    saved = answer(upscaled(**{"23": node("SaveImage", images=["22", 0], filename_prefix="x")}))
    assert saved.forecast.peak > found.forecast.peak
    assert not [note for note in saved.notes if "not counted" in note]


def test_what_nobody_here_knows_may_save_what_it_reads() -> None:
    found = answer(upscaled(**{"23": node("SomebodysVideoSaver", images=["22", 0])}))
    assert found.forecast.peak > answer(upscaled()).forecast.peak
    assert found.unknown == ("node 23: SomebodysVideoSaver is not known",)


def test_without_anything_that_is_saved_all_is_counted_and_that_is_said() -> None:
    workflow = text_to_image(save_latent=False)
    del workflow["7"]
    found = answer(workflow)
    assert found.numbers["stages"] == answer(text_to_image(save_latent=False)).numbers["stages"]
    assert NO_ENDS in found.notes


def test_where_nothing_that_runs_takes_memory_what_does_not_run_is_told() -> None:
    workflow = text_to_image(save_latent=False)
    workflow["7"] = node("PreviewAny", source="words")
    with pytest.raises(NothingToPredict, match=r"does not run it: nodes 5 \(KSampler\), 6 \(VAEDecode\)$"):
        answer(workflow)


def test_the_outputs_that_are_asked_for() -> None:
    workflow = upscaled(**{"23": node("SaveImage", images=["22", 0], filename_prefix="x")})
    assert ends_of(workflow) == ["7", "23"]
    assert ends_of(workflow, ["7", "5", {}]) == ["7"]  # no other than those that save can be asked for
    assert "21" not in part_that_runs(workflow, ["7"])


def test_make_it_fit_plans_for_what_runs() -> None:
    """Of a second pass whose picture is not saved neither the size counts nor the guidance."""
    workflow = fitted(upscaled())
    workflow["5"]["inputs"]["cfg"] = 1.0
    queued = with_what_the_graph_says({"prompt": workflow})["prompt"]
    assert queued["30"] == workflow["30"]
    assert set(around("30", DynamicPrompt(workflow)) or ()) == {"1", "2", "3", "4", "5", "6", "7", "30"}
    assert not [note for note in answer(workflow).notes if "the most that is sampled behind it" in note]
    workflow["23"] = node("SaveImage", images=["22", 0], filename_prefix="x")
    queued = with_what_the_graph_says({"prompt": workflow})["prompt"]
    assert queued["30"]["inputs"]["cfg"] == 4.0
    assert set(queued["30"]["inputs"]) - set(workflow["30"]["inputs"]) == {"headroom_behind"}
    assert [note for note in answer(workflow).notes if "the most that is sampled behind it" in note]


def test_a_node_that_others_expanded_to_sees_all() -> None:
    workflow = text_to_image(save_latent=False)
    workflow["9.0.1"] = node("HeadroomFit", model=["1", 0], vae=["1", 2], samples=["4", 0], cfg=1.0, quality="exact")
    assert around("9.0.1", DynamicPrompt(workflow)) == workflow


def test_numbers_that_are_words_count_as_the_host_takes_them() -> None:
    workflow = text_to_image(save_latent=False)
    workflow["4"]["inputs"] |= {"width": "128", "height": "128"}
    workflow["5"]["inputs"] |= {"cfg": "4.0", "steps": "2"}
    found = answer(workflow)
    assert found.complete, found.unknown
    assert found.numbers["stages"] == answer(text_to_image(save_latent=False)).numbers["stages"]
    workflow["4"]["inputs"]["width"] = "wide"
    assert answer(workflow).unknown[0] == "node 4: EmptyLatentImage: width is 'wide', which is no number"
