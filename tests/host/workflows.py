"""Small graphs in the host's API format."""

from __future__ import annotations

from typing import Any

from headroom.tools.server.client import Workflow


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def text_to_image(*, side: int = 128, seed: int = 1, save_latent: bool = True) -> Workflow:
    """Stock SD1.5-type text to image. The sampler is node 5, the decode node 6."""
    graph = {
        "1": node("CheckpointLoaderSimple", ckpt_name="tiny_sd15.safetensors"),
        "2": node("CLIPTextEncode", clip=["1", 1], text="a lighthouse at dusk"),
        "3": node("CLIPTextEncode", clip=["1", 1], text="blurry"),
        "4": node("EmptyLatentImage", width=side, height=side, batch_size=1),
        "5": node(
            "KSampler",
            model=["1", 0],
            positive=["2", 0],
            negative=["3", 0],
            latent_image=["4", 0],
            seed=seed,
            steps=2,
            cfg=4.0,
            sampler_name="euler",
            scheduler="normal",
            denoise=1.0,
        ),
        "6": node("VAEDecode", samples=["5", 0], vae=["1", 2]),
        "7": node("SaveImage", images=["6", 0], filename_prefix="stock"),
    }
    if save_latent:
        graph["8"] = node("SaveLatent", samples=["5", 0], filename_prefix="latents/stock")
    return graph


ATTENTION = {
    "backend": "online",
    "blocks": "all",
    "start_percent": 0.0,
    "end_percent": 1.0,
    "slice_rows": 0,
    "min_tokens": 0,
}
VAE = {
    "method": "auto",
    "vram_budget_gb": 0.0,
    "tile_size": 0,
    "overlap": 64,
    "feather": "cosine",
    "temporal_size": 0,
    "temporal_overlap": 16,
    "batch_slice": 0,
    "store": "same",
}


def with_headroom(*, attention: dict | None = None, vae: dict | None = None, **options: Any) -> Workflow:
    """The same graph through our nodes: attention 10, decode 6, report 11."""
    graph = text_to_image(**options)
    graph["10"] = node("HeadroomAttention", model=["1", 0], **ATTENTION | (attention or {}))
    graph["5"]["inputs"]["model"] = ["10", 0]
    graph["6"] = node("HeadroomVAEDecode", samples=["5", 0], vae=["1", 2], **VAE | (vae or {}))
    graph["11"] = node("HeadroomReport", anything=["6", 0])
    graph["7"]["inputs"]["images"] = ["11", 0]
    return graph
