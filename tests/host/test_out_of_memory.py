"""A prompt that really runs out of memory ends with advice, and Make It Fit plans for the graph's cfg."""

from __future__ import annotations

import json
import mmap
import os
import struct
from pathlib import Path
from typing import Any

import execution
import pytest
import torch
from safetensors import safe_open

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


def twice(scale: float, seed: int = 1) -> dict[str, Any]:
    """A picture that is made larger and sampled again, with one Make It Fit."""
    workflow = fitted(3.0)
    workflow["10"] = node("LatentUpscaleBy", samples=["5", 0], upscale_method="nearest-exact", scale_by=scale)
    workflow["11"] = node("KSampler", **{**workflow["5"]["inputs"], "latent_image": ["10", 0], "seed": seed})
    workflow["12"] = node("PreviewAny", source=["9", 2])
    workflow["6"]["inputs"]["samples"] = ["11", 0]
    return workflow


def test_one_plan_for_two_sizes(client: Client) -> None:
    """It is of the larger, and asked for again when that changes, but not when a seed does."""
    first = client.run(twice(2.0, seed=10))
    (plan,) = first.outputs["12"]["text"]
    assert "\nplanned for 256 x 256 (node 11), the most that is sampled behind it: 128 x 128, 256 x 256" in plan
    assert "9" in client.run(twice(2.0, seed=11)).cached
    again = client.run(twice(1.5, seed=11))
    assert "9" not in again.cached
    assert "planned for 192 x 192 (node 11)" in again.outputs["12"]["text"][0]
    alone = fitted(3.0)
    alone["4"]["inputs"] |= {"width": 256, "height": 256}
    alone["12"] = node("PreviewAny", source=["9", 2])
    (of_larger,) = client.run(alone).outputs["12"]["text"]
    assert [line for line in plan.splitlines() if not line.startswith("planned for ")] == of_larger.splitlines()


def test_what_is_no_prompt_is_left_to_the_host() -> None:
    from headroom.host.server.routes import with_what_the_graph_says

    for body in ({}, {"prompt": None}, {"prompt": {"1": {}}}, {"prompt": []}):
        assert with_what_the_graph_says(body) is body


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One whose errors get our advice."""

    class Executor:
        def handle_execution_error(self, prompt_id: str, prompt: Any, error: Any, ex: Exception) -> Any:
            return error["exception_message"]

    monkeypatch.setattr(execution, "PromptExecutor", Executor)
    advised.install()
    return Executor()


SAMPLER = {"1": {"class_type": "KSampler", "inputs": {}}}


def advised_of(executor: Any, raised: Exception) -> bool:
    said = executor.handle_execution_error("p", SAMPLER, {"node_id": "1", "exception_message": "no"}, raised)
    return "Headroom: node 1 (KSampler)" in said


@pytest.mark.parametrize("opening", ["torch", "safetensors", "the system"])
def test_a_file_that_finds_no_room_to_be_mapped(executor: Any, tmp_path: Path, opening: str) -> None:
    """ComfyUI's loader, and its training of a loaded model, map the file of weights."""
    large = tmp_path / "x.safetensors"
    nbytes = 2**32
    header = json.dumps({"x": {"dtype": "U8", "shape": [nbytes], "data_offsets": [0, nbytes]}}).encode()
    with large.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + nbytes)  # takes no room on a disk

    def opened() -> None:
        if opening == "torch":
            torch.UntypedStorage.from_file(str(large), False, nbytes)
        elif opening == "safetensors":
            with safe_open(large, framework="pt"):
                pass
        else:
            with large.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
                pass

    opened()
    with short_of_memory(os.getpid()), pytest.raises((RuntimeError, OSError, MemoryError)) as failure:
        opened()
    assert advised_of(executor, failure.value)


def test_of_windows_too(executor: Any) -> None:
    """As its users have reported them; there is no Windows here to raise them."""
    for raised in (
        RuntimeError("[enforce fail at alloc_cpu.cpp:115] data. DefaultCPUAllocator: not enough memory: you tried ..."),
        OSError("The paging file is too small for this operation to complete. (os error 1455)"),
        OSError("Die Auslagerungsdatei ist zu klein, um diesen Vorgang durchzuführen. (os error 1455)"),
        RuntimeError("Couldn't open shared file mapping: <torch_9832_0>, error code: <1455>"),
    ):
        assert advised_of(executor, raised)
    assert not advised_of(executor, OSError("The system cannot find the file specified. (os error 2)"))


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
