"""What stands between prompt and latent: a text encoder, UNets, transformers, and a LoRA for one of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .drawing import (
    BINOMIAL,
    CENTRE,
    Draw,
    Rules,
    Shape,
    Weights,
    around,
    code,
    convolution,
    fill,
    fixed,
    generator,
    noise,
    read,
    relay,
)
from .from_host import blank, host
from .signals import LATENT


def clip_l() -> Weights:
    """CLIP-L at full size: the loader knows no smaller one."""
    package = host("comfy")
    config = json.loads((Path(package.__path__[0]) / "sd1_clip_config.json").read_text())
    module = host("comfy.clip_model").CLIPTextModel(config, **blank())
    rules: Rules = (
        (r"token_embedding", around(0.0, 0.5)),
        (r"position_embedding", around(0.0, 0.1)),
        (r"[qk]_proj\.weight", noise(1.5)),
    )
    return fill(module, rules)


def merge(coarse: float, skip: float) -> Draw:
    """Where coarse features meet a skip: how much of each goes on."""

    def draw(shape: Shape, rng: torch.Generator) -> Tensor:
        through = torch.eye(shape[0])
        return torch.cat([coarse * through, skip * through], dim=1).reshape(shape)

    return draw


def unet(coarse: float, **config: Any) -> Weights:
    """A UNet that predicts its input plus a disturbance: the sampler leaves only the latter."""
    module = host("comfy.ldm.modules.diffusionmodules.openaimodel").UNetModel(
        image_size=32, in_channels=LATENT, out_channels=LATENT, model_channels=320,
        use_spatial_transformer=True, legacy=False, **blank(), **config,
    )  # fmt: skip
    last = sum(config["num_res_blocks"]) + len(config["num_res_blocks"]) - 1
    rules: Rules = (
        (r"input_blocks\.0\.0\.weight", fixed(convolution(code(320, LATENT), CENTRE, CENTRE))),
        (r"^out\.2\.weight", fixed(convolution(2 * read(320, LATENT), CENTRE, CENTRE))),
        (r"^out\.2\.bias", around(0.0, 0.0)),
        # The last skip comes from the first layer and holds the noise: let little else in beside it.
        (rf"output_blocks\.{last}\.0\.skip_connection\.weight", merge(coarse, 1.0)),
        (r"skip_connection\.weight", merge(0.8, 0.6)),
        (r"\.op\.weight|\d\.conv\.weight", relay(BINOMIAL, BINOMIAL)),
        (r"out_layers\.3\.weight", noise(0.15)),
        (r"\d\.proj_out\.weight", noise(0.25)),
        (r"attn\d\.to_[qk]\.weight", noise(1.5)),
    )
    return fill(module, rules)


def sd15_unet() -> Weights:
    """Two levels; the loader pins 320 channels and a context of 768, neither depth nor multipliers."""
    return unet(
        coarse=0.12, num_res_blocks=[1, 1], channel_mult=[1, 1], transformer_depth=[1, 1],
        transformer_depth_output=[1, 1, 1, 1], transformer_depth_middle=1, context_dim=768,
        num_heads=8, num_head_channels=-1, use_linear_in_transformer=False,
    )  # fmt: skip


def sdxl_unet() -> Weights:
    """The transformer depths are those of Segmind Vega, which the loader takes for a kind of SDXL."""
    return unet(
        coarse=0.25, num_res_blocks=[2, 2, 2], channel_mult=[1, 1, 1], transformer_depth=[0, 0, 1, 1, 2, 2],
        transformer_depth_output=[0, 0, 0, 0, 0, 0, 1, 1, 1], transformer_depth_middle=1, context_dim=2048,
        adm_in_channels=2816, num_classes="sequential", num_heads=-1, num_head_channels=64,
        use_linear_in_transformer=True,
    )  # fmt: skip


def transformer_rules(entry: str, leaving: str, width: int, channels: int, last: bool = False) -> Rules:
    """The velocity is the noisy input plus a disturbance, which gates of about 0.4 keep worth having.

    ``last`` is for models that take patches of 2x2 channels-first and return them channels-last.
    """
    out = read(width, channels)
    if last:
        out = out.view(channels // 4, 4, width).transpose(0, 1).reshape(channels, width)
    modulation = r"(mod|modulation|adaLN_modulation\.1|adaln_single\.linear|time_projection\.1)(\.lin)?"
    query_key_norm = r"(query_norm|key_norm|norm_q|norm_k|q_norm|k_norm|ln_q|ln_k)"
    return (
        (rf"^{entry}\.weight", fixed(code(width, channels))),
        (rf"^{leaving}\.weight", fixed(0.8 * out, 0.3)),
        (rf"{modulation}\.bias", around(0.0, 0.4)),
        (rf"{modulation}\.weight", noise(0.3)),
        (r"modulation$|scale_shift_table$", around(0.0, 0.4)),
        (rf"{query_key_norm}\.weight", around(1.5, 0.05)),
    )


def flux() -> Weights:
    """Flux.1 with the width of CLIP-L as its context, so that CLIP-L alone can drive it."""
    module = host("comfy.ldm.flux.model").Flux(
        image_model="flux", in_channels=16, out_channels=16, vec_in_dim=768, context_in_dim=768,
        hidden_size=256, mlp_ratio=4.0, num_heads=2, depth=2, depth_single_blocks=4, axes_dim=[16, 56, 56],
        theta=10000, patch_size=2, qkv_bias=True, guidance_embed=True, txt_ids_dims=[], **blank(),
    )  # fmt: skip
    return fill(module, transformer_rules("img_in", r"final_layer\.linear", 256, 64))


def flux_lora() -> Weights:
    """A LoRA of rank 4 for the blocks of :func:`flux`, strong enough to be seen."""
    rank, lora = 4, {}
    for key, weight in flux().items():
        layer, is_weight = key.removesuffix(".weight"), key.endswith(".weight") and weight.ndim == 2
        if is_weight and "_blocks." in key and "mod" not in key:
            out, into = weight.shape
            name = f"diffusion_model.{layer}"
            lora[f"{name}.lora_up.weight"] = torch.randn(out, rank, generator=generator(f"{key} up")) * 0.1
            lora[f"{name}.lora_down.weight"] = torch.randn(rank, into, generator=generator(f"{key} down")) * 0.1
    return lora


def flux2() -> Weights:
    """Flux.2: modulation shared by all blocks, no biases, gated feed-forward layers."""
    module = host("comfy.ldm.flux.model").Flux(
        image_model="flux2", in_channels=128, out_channels=128, vec_in_dim=None, context_in_dim=768,
        hidden_size=256, mlp_ratio=3.0, num_heads=2, depth=2, depth_single_blocks=4,
        axes_dim=[32, 32, 32, 32], theta=2000, patch_size=1, qkv_bias=False, guidance_embed=True,
        global_modulation=True, mlp_silu_act=True, ops_bias=False,
        txt_ids_dims=[3], **blank(),
    )  # fmt: skip
    rules = transformer_rules("img_in", r"final_layer\.linear", 256, 128)
    return fill(module, ((r"modulation.*lin\.weight", noise(0.8)), *rules))


def sd3() -> Weights:
    """SD 3.5: 64 channels per block by design, and one block with a second self-attention."""
    depth, side = 3, 128
    module = host("comfy.ldm.modules.diffusionmodules.mmdit").MMDiT(
        input_size=None, patch_size=2, in_channels=16, out_channels=16, depth=depth, adm_in_channels=2048,
        num_patches=side * side, pos_embed_max_size=side, pos_embed_scaling_factor=None, qk_norm="rms",
        x_block_self_attn_layers=[0], **blank(),
        context_embedder_config={
            "target": "torch.nn.Linear", "params": {"in_features": 4096, "out_features": 64 * depth},
        },
    )  # fmt: skip
    rules = transformer_rules(r"x_embedder\.proj", r"final_layer\.linear", 192, 64, last=True)
    return fill(module, ((r"pos_embed", around(0.0, 0.3)), *rules))


def wan21() -> Weights:
    """Wan 2.1 text-to-video: heads are 128 wide by design."""
    module = host("comfy.ldm.wan.model").WanModel(
        model_type="t2v", patch_size=(1, 2, 2), in_dim=16, dim=256, ffn_dim=512, freq_dim=256, text_dim=4096,
        out_dim=16, num_heads=2, num_layers=4, qk_norm=True, cross_attn_norm=True, eps=1e-6,
        **blank(),
    )  # fmt: skip
    return fill(module, transformer_rules("patch_embedding", r"head\.head", 256, 64, last=True))


def ltxv() -> Weights:
    """LTX-Video: 32 heads by design, here 8 wide."""
    module = host("comfy.ldm.lightricks.model").LTXVModel(
        cross_attention_dim=256, attention_head_dim=8, num_attention_heads=32, caption_channels=4096,
        num_layers=4, **blank(),
    )  # fmt: skip
    return fill(module, transformer_rules("patchify_proj", "proj_out", 256, 128))
