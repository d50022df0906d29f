"""Models with random weights, in memory alone: the host's own classes say which entries, its loaders take them."""

from __future__ import annotations

import importlib
import inspect
import math
import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .sizes import FULL_WIDTH, TEXT_TOKENS, ModelSize, VAESize

HEAD = 128  # channels of an attention head of Flux
CONTEXT, POOLED, CHANNELS, CELL = 512, 768, 16, 8
# Times 1000 it goes into sines: any other would be rounded to another one by 16 bits, in ComfyUI too.
GUIDANCE = 0.0
VAE_CHANNELS = 4
DDCONFIG = {
    "double_z": True, "z_channels": VAE_CHANNELS, "resolution": 256, "in_channels": 3, "out_ch": 3, "ch": FULL_WIDTH,
    "ch_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attn_resolutions": [], "dropout": 0.0,
}  # fmt: skip


def drawn(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Random weights that depend on name and shape alone; matrices and kernels keep the size of what they are given."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    numbers = torch.randn(shape, generator=generator)
    if len(shape) > 1:
        return numbers.mul_(1 / math.sqrt(math.prod(shape[1:]))).to(dtype)
    gain = 1.0 if "norm" in name and not name.endswith("bias") else 0.0
    return numbers.mul_(0.1).add_(gain).to(dtype)


def _state(module: torch.nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: drawn(name, tuple(value.shape), dtype) for name, value in module.state_dict().items()}


def diffusion_model(size: ModelSize, dtype: torch.dtype) -> Any:
    """A MODEL of Flux's kind, as the host's loader hands it out."""
    module = importlib.import_module("comfy.ldm.flux.model").Flux(
        image_model="flux", in_channels=CHANNELS, out_channels=CHANNELS, vec_in_dim=POOLED, context_in_dim=CONTEXT,
        hidden_size=size.width, mlp_ratio=4.0, num_heads=size.width // HEAD, depth=size.double,
        depth_single_blocks=size.single, axes_dim=[16, 56, 56], theta=10000, patch_size=2, qkv_bias=True,
        guidance_embed=True, txt_ids_dims=[], device="meta", dtype=dtype,
        operations=importlib.import_module("comfy.ops").disable_weight_init,
    )  # fmt: skip
    model = importlib.import_module("comfy.sd").load_diffusion_model_state_dict(_state(module, dtype))
    if model is None:
        raise RuntimeError("this ComfyUI did not take the generated model for one of Flux's kind")
    return model


def conditioning() -> list[Any]:
    """CONDITIONING of a prompt."""
    text = drawn("text", (TEXT_TOKENS, CONTEXT), torch.float32)[None] * math.sqrt(CONTEXT)
    return [[text, {"pooled_output": drawn("pooled", (1, POOLED), torch.float32), "guidance": GUIDANCE}]]


def empty_latent(size: ModelSize) -> Tensor:
    """(1, C, h, w), zeros."""
    return torch.zeros(1, CHANNELS, size.side // CELL, size.side // CELL)


def vae_state(size: VAESize) -> dict[str, Tensor]:
    """The entries of an autoencoder of Stable Diffusion's kind, float32."""
    package = importlib.import_module("comfy.ldm.models.autoencoder")
    narrow = {"decoder_ddconfig": DDCONFIG | {"ch": size.width}} if takes_narrow() else {}
    with torch.device("meta"):
        module = package.AutoencoderKL(ddconfig=DDCONFIG, embed_dim=VAE_CHANNELS, **narrow)
    return _state(module, torch.float32)


def takes_narrow() -> bool:
    """Whether this host builds a decoder of the width that it finds in a file; older ones give it the encoder's."""
    return "decoder_ddconfig" in inspect.getsource(importlib.import_module("comfy.ldm.models.autoencoder"))


def vae(state: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> Any:
    """A VAE as the host's loader hands it out.

    Args:
        dtype: to work in; None: the host's choice.
    """
    found = importlib.import_module("comfy.sd").VAE(sd=dict(state), dtype=dtype)
    found.throw_exception_if_invalid()
    return found


def latent(size: VAESize) -> Tensor:
    """(1, C, h, w) of unit variance."""
    return torch.randn(
        1, VAE_CHANNELS, size.side // CELL, size.side // CELL, generator=torch.Generator().manual_seed(3)
    )


def picture(side: int) -> Tensor:
    """(1, H, W, 3) with areas, edges and ripples, in [0, 1]."""
    y, x = torch.meshgrid(torch.linspace(0, 1, side), torch.linspace(0, 1, side), indexing="ij")
    image = torch.stack((x, y, 0.5 + 0.5 * torch.sin(40 * x * y)), -1)
    image[side // 4 : side // 2, side // 3 : side // 2] = torch.tensor([0.9, 0.2, 0.1])
    return image[None]
