"""A conditioning of the shape that a model wants, for questions that come without a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..core.families import text_width

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

TOKENS = 256
POOLED_SDXL = 1280  # its adm_in_channels hold the sizes of the picture too


def usual_conditioning(model: ModelPatcher) -> list[Any]:
    """CONDITIONING of zeros: (1, :data:`TOKENS`, channels) in float32, with the pooled output and mask it wants.

    Raises:
        ValueError: a model that does not tell how wide its text is.
    """
    config = model.model.model_config.unet_config
    width = text_width(model.model.diffusion_model, config)
    if width is None:
        raise ValueError("positive: this model does not say how wide its text is; connect the prompt")
    pooled = config.get("vec_in_dim") or (POOLED_SDXL if config.get("adm_in_channels") == 2816 else None)
    pooled = pooled or config.get("adm_in_channels")
    # None as the host's own text encoders say it: for Flux.2 and Chroma older hosts look for the entry all the same.
    extra = {"pooled_output": torch.zeros(1, pooled) if pooled else None}
    if "caption_channels" in config or config.get("image_model", "").startswith("ltx"):
        extra["attention_mask"] = torch.ones(1, TOKENS, dtype=torch.long)
    return [[torch.zeros(1, TOKENS, width), extra]]
