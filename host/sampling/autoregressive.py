"""Videos that are sampled block by block: what the host's sampler keeps of the blocks before, without its loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

PATCH = 2  # sides of the cells of a latent that are one token
Call = Callable[[Tensor, dict[str, Any]], Any]


def first_and_last_block(model: Any, frames: int, x: Tensor, call: Call) -> Any:
    """Computes the first block of a video, which notes its text, and the last, which looks back on all others.

    Args:
        model: the host's BaseModel, of a network that keeps keys and values.
        frames: of a latent, in a block.
        x: the latent, (B, C, T, h, w).
        call: computes a block; gets it and what its transformer options have to hold.

    Raises:
        AttributeError: a model that keeps none.
        ValueError: a latent that is no video.
    """
    if x.ndim != 5:
        raise ValueError("a video is sampled block by block, and this latent is none")
    network = model.diffusion_model
    length, height, width = x.shape[2:]
    a_frame = -(-height // PATCH) * -(-width // PATCH)
    kept = network.init_kv_caches(x.shape[0], length * a_frame, x.device, model.get_dtype())
    texts = network.init_crossattn_caches(x.shape[0], x.device, model.get_dtype())
    output = torch.zeros_like(x)
    for start in (0, max(0, length - frames)):
        for cache in kept:
            cache["end"] = start * a_frame
        state = {"start_frame": start, "kv_caches": kept, "crossattn_caches": texts}
        block = call(x[:, :, start : start + frames], {"ar_state": state})
    return output, block
