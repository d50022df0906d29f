"""A small graph of text to image through our nodes, and which nodes are ours."""

from __future__ import annotations

from typing import Any

from headroom.tools.server.client import Client, Workflow

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
