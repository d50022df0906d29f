"""A conditioning of the shape that a model wants, for questions that come without a prompt."""

from __future__ import annotations

from typing import Any

import torch
from comfy.model_patcher import ModelPatcher

TOKENS = 256
# What the families call the width of the text in their configuration.
WIDTHS = (
    "context_dim", "context_in_dim", "text_dim", "caption_channels", "cap_feat_dim", "joint_attention_dim",
    "crossattn_emb_channels", "cond_seq_dim", "cross_attention_dim",
)  # fmt: skip
POOLED_SDXL = 1280  # its adm_in_channels hold the sizes of the picture too


def usual_conditioning(model: ModelPatcher) -> list[Any]:
    """CONDITIONING of zeros.

    Raises:
        ValueError: a family whose text is not told by its configuration.
    """
    config = model.model.model_config.unet_config
    width = next((config[name] for name in WIDTHS if isinstance(config.get(name), int)), None)
    embedder = config.get("context_embedder_config")
    if width is None and embedder:
        width = embedder["params"]["in_features"]
    network = model.model.diffusion_model
    if hasattr(network, "text_embedding"):  # Wan
        width = network.text_embedding[0].in_features
    if hasattr(network, "caption_projection") and hasattr(network.caption_projection, "linear_1"):  # LTX
        width = network.caption_projection.linear_1.in_features
    if width is None:
        raise ValueError("positive: this model does not say how wide its text is; connect the prompt")
    pooled = config.get("vec_in_dim") or (POOLED_SDXL if config.get("adm_in_channels") == 2816 else None)
    pooled = pooled or config.get("adm_in_channels")
    # None as the host's own text encoders say it: for Flux.2 and Chroma older hosts look for the entry all the same.
    extra = {"pooled_output": torch.zeros(1, pooled) if pooled else None}
    if "caption_channels" in config or config.get("image_model", "").startswith("ltx"):
        extra["attention_mask"] = torch.ones(1, TOKENS, dtype=torch.long)
    return [[torch.zeros(1, TOKENS, width), extra]]
