"""A small graph of text to image through our nodes, and which nodes are ours."""

from __future__ import annotations

import time
from typing import Any

from headroom.tools.server.client import NOTHING, Client, Workflow

SIDE = 128
REPORT, PREVIEW, CHART = "8", "9", "11"


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def graph(*, blocks: str = "all") -> Workflow:
    sampler = {"steps": 1, "cfg": 4.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    return {
        "1": node("CheckpointLoaderSimple", ckpt_name="tiny_sd15.safetensors"),
        "2": node("CLIPTextEncode", clip=["1", 1], text="a lighthouse at dusk"),
        "3": node("CLIPTextEncode", clip=["1", 1], text="blurry"),
        "4": node("EmptyLatentImage", width=SIDE, height=SIDE, batch_size=1),
        "5": node("HeadroomAttention", model=["10", 0], backend="sliced", blocks=blocks),
        "10": node("HeadroomLocalAttention", model=["1", 0], **{"pattern": "kv_pool", "pattern.factor": 3}),
        "6": node(
            "KSampler",
            model=["5", 0],
            positive=["2", 0],
            negative=["3", 0],
            latent_image=["4", 0],
            seed=1,
            **sampler,
        ),
        "7": node("HeadroomVAEDecode", samples=["6", 0], vae=["1", 2]),
        REPORT: node("HeadroomReport", anything=["7", 0]),
        PREVIEW: node("PreviewImage", images=[REPORT, 0]),
        CHART: node("PreviewImage", images=[REPORT, 2]),
    }


def our_nodes(client: Client) -> dict[str, dict[str, Any]]:
    """Definitions of the pack's nodes by id."""
    every = client.object_info()
    return {name: about for name, about in every.items() if about["category"].partition("/")[0] == "headroom"}


def ran(client: Client, workflow: Workflow) -> dict[str, Any]:
    """Runs a workflow for nobody's page: what each node sent to its face, by id.

    To wait for its messages takes an event loop, and Playwright has this thread's.
    """
    prompt = client.submit(workflow)
    deadline = time.monotonic() + 300
    while not (found := client.history(prompt)):
        assert time.monotonic() < deadline, "the prompt did not end"
        time.sleep(0.1)
    assert found["status"]["status_str"] == "success", found["status"]
    return dict(found["outputs"])


def tells_again(client: Client) -> bool:
    """Whether the host sends what a node told once more where it reuses a result; 0.18.2 does not."""
    return bool(our_nodes(client)["HeadroomFit"].get("has_intermediate_output"))


def forget(client: Client) -> None:
    """Has the host compute everything of the next prompt."""
    client.post("/free", {"unload_models": True, "free_memory": True})
    ran(client, NOTHING)  # the worker forgets before the next prompt
