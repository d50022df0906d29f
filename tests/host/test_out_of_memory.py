"""A prompt that really runs out of memory ends with advice, and Make It Fit plans for the graph's cfg."""

from __future__ import annotations

from typing import Any

import execution
import pytest

from headroom.host.server import advised
from headroom.tools.server.client import Client, PromptFailed
from headroom.tools.server.server import Server

from .short_of_memory import short_of_memory
from .workflows import ATTENTION, node, text_to_image

FIT = {"cfg": 8.0, "quality": "exact", "cfg_source": "graph"}


def too_large() -> dict[str, Any]:
    """Its first convolution gives several hundred MB at once."""
    workflow = text_to_image(side=512, save_latent=False)
    workflow["4"]["inputs"]["batch_size"] = 32
    return workflow


def fitted(cfg: float, source: str = "graph") -> dict[str, Any]:
    workflow = text_to_image(save_latent=False)
    links = {"model": ["1", 0], "vae": ["1", 2], "samples": ["4", 0], "positive": ["2", 0], "negative": ["3", 0]}
    workflow["9"] = node("HeadroomFit", **links, **{**FIT, "cfg_source": source})
    workflow["5"]["inputs"] |= {"model": ["9", 0], "cfg": cfg}
    return workflow


def last_error_of(client: Client) -> str:
    (last,) = client.get("/history?max_items=1").values()
    messages = last["status"]["messages"]
    (error,) = (about for kind, about in messages if kind == "execution_error")
    return str(error["exception_message"])


def test_the_history_says_what_to_do(server: Server, client: Client) -> None:
    client.run(text_to_image(save_latent=False))  # loads the model
    with short_of_memory(server.pid), pytest.raises(PromptFailed) as failure:
        client.run(too_large())
    said = "Headroom: Make It Fit, for node 5 (KSampler) would pick settings that fit this card without changing"
    assert said in failure.value.exception_message
    assert said in last_error_of(client)


def test_other_errors_stay_as_they_are(client: Client) -> None:
    workflow = text_to_image(save_latent=False)
    workflow["9"] = node("HeadroomAttention", model=["1", 0], **{**ATTENTION, "blocks": "double:x"})
    workflow["5"]["inputs"]["model"] = ["9", 0]
    with pytest.raises(PromptFailed):
        client.run(workflow)
    assert "Headroom:" not in last_error_of(client)


@pytest.mark.parametrize(("source", "cfg"), [("graph", 1.0), ("graph", 3.0), ("widget", 8.0)])
def test_a_plan_is_for_the_cfg_of_the_graph(client: Client, source: str, cfg: float) -> None:
    prompt = client.run(fitted(3.0 if source == "widget" else cfg, source)).prompt_id
    queued = client.history(prompt)["prompt"][2]
    assert queued["9"]["inputs"]["cfg"] == cfg


def test_what_is_no_prompt_is_left_to_the_host() -> None:
    from headroom.host.server.routes import with_the_graphs_cfg

    for body in ({}, {"prompt": None}, {"prompt": {"1": {}}}, {"prompt": []}):
        assert with_the_graphs_cfg(body) is body


def test_an_error_reaches_its_reader_without_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where advice itself fails, or the host hands over something else."""

    class Executor:
        def handle_execution_error(self, prompt_id: str, prompt: Any, error: Any, ex: Exception) -> Any:
            return error

    monkeypatch.setattr(execution, "PromptExecutor", Executor)
    advised.install()
    first = Executor.handle_execution_error
    advised.install()
    assert Executor.handle_execution_error is first  # once
    error = {"node_id": "1", "exception_message": "no"}
    for prompt in (None, {}, {"1": {}}, {"1": {"class_type": "KSampler", "inputs": {}}}):
        got = Executor().handle_execution_error("p", prompt, dict(error), MemoryError())
        assert got["exception_message"].startswith("no")
    assert "Headroom: node 1 (KSampler)" in got["exception_message"]
    for other in (ValueError("x"), RuntimeError("mat1 and mat2 shapes cannot be multiplied")):
        assert Executor().handle_execution_error("p", prompt, dict(error), other) == error
