"""The model files that the templates name, as headers: shapes and dtypes of the real ones, and nothing behind them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import torch

from headroom.tools.templates.parts import MODELS

from . import full_size
from .full_size import Shapes, blank, host, shapes

SCALE = "scale_weight"
TABLES = ("shared.weight", "embed_tokens.weight", "relative_attention_bias.weight")
HALF, BRAIN, EIGHT, FULL = torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float32


class File(NamedTuple):
    """What is in a file: entries, their dtype, and what its header says besides."""

    entries: Callable[[], Shapes]
    dtype: torch.dtype
    metadata: dict[str, str] = {}
    tokenizer: bool = False


def _prefixed(entries: Shapes, prefix: str) -> Shapes:
    return {prefix + key: shape for key, shape in entries.items()}


def _scaled(entries: Shapes) -> Shapes:
    """With the scale of each matrix that is no table of embeddings, as files in scaled 8 bits have it."""
    matrices = [key for key, shape in entries.items() if len(shape) == 2 and not key.endswith(TABLES)]
    return {**entries, **{key.removesuffix("weight") + SCALE: () for key in matrices}, "scaled_fp8": (0,)}


def _dtype(file: File, entries: Shapes, key: str) -> torch.dtype:
    """Scales are in single precision; of what is in scaled 8 bits the rest is in 16."""
    if key.endswith(SCALE):
        return FULL
    layer = key.removesuffix("weight")
    return HALF if "scaled_fp8" in entries and key != "scaled_fp8" and layer + SCALE not in entries else file.dtype


def _open_clip(entries: Shapes) -> Shapes:
    """CLIP-G under the names in SDXL's checkpoint: query, key and value as one matrix."""
    names = {
        "self_attn.out_proj": "attn.out_proj", "layer_norm1": "ln_1", "layer_norm2": "ln_2", "mlp.fc1": "mlp.c_fc",
        "mlp.fc2": "mlp.c_proj", "text_model.encoder.layers": "transformer.resblocks",
        "text_model.embeddings.token_embedding": "token_embedding", "text_model.final_layer_norm": "ln_final",
        "text_model.embeddings.position_embedding.weight": "positional_embedding",
        "text_projection.weight": "text_projection", "self_attn.q_proj.weight": "attn.in_proj_weight",
        "self_attn.q_proj.bias": "attn.in_proj_bias",
    }  # fmt: skip
    result: Shapes = {}
    for key, shape in entries.items():
        if "k_proj" in key or "v_proj" in key:
            continue
        for before, after in names.items():
            key = key.replace(before, after)
        result[key] = (3 * shape[0], *shape[1:]) if "in_proj" in key else shape
    return result


def sdxl() -> Shapes:
    return {
        **full_size.sdxl_unet(),
        **full_size.autoencoder(4, "first_stage_model."),
        **full_size.clip_l("conditioner.embedders.0.transformer."),
        **_prefixed(_open_clip(full_size.clip_g()), "conditioner.embedders.1.model."),
    }


def sd35_large() -> Shapes:
    depth = 38
    context = {"target": "torch.nn.Linear", "params": {"in_features": 4096, "out_features": 64 * depth}}
    module = host("comfy.ldm.modules.diffusionmodules.mmdit").MMDiT(
        input_size=None, patch_size=2, in_channels=16, out_channels=16, depth=depth, adm_in_channels=2048,
        num_patches=192**2, pos_embed_max_size=192, pos_embed_scaling_factor=None, qk_norm="rms", **blank(),
        context_embedder_config=context,
    )  # fmt: skip
    return {**shapes(module, "model.diffusion_model."), **full_size.autoencoder(16, "first_stage_model.")}


def qwen_image() -> Shapes:
    return shapes(host("comfy.ldm.qwen_image.model").QwenImageTransformer2DModel(**blank()))


def z_image() -> Shapes:
    module = host("comfy.ldm.lumina.model").NextDiT(
        patch_size=2, in_channels=16, dim=3840, n_layers=30, n_heads=30, n_kv_heads=30, qk_norm=True, cap_feat_dim=2560,
        ffn_dim_multiplier=8 / 3, axes_dims=[32, 48, 48], axes_lens=[1536, 512, 512], rope_theta=256.0,
        z_image_modulation=True, time_scale=1000.0, pad_tokens_multiple=32, **blank(),
    )  # fmt: skip
    return shapes(module)


def wan_small() -> Shapes:
    module = host("comfy.ldm.wan.model").WanModel(
        model_type="t2v", patch_size=(1, 2, 2), in_dim=16, dim=1536, ffn_dim=8960, freq_dim=256, text_dim=4096,
        out_dim=16, num_heads=12, num_layers=30, qk_norm=True, cross_attn_norm=True, eps=1e-6, **blank(),
    )  # fmt: skip
    return shapes(module)


LTX_VAE = {
    "_class_name": "CausalVideoAutoencoder", "dims": 3, "in_channels": 3, "out_channels": 3, "latent_channels": 128,
    "encoder_blocks": [
        ["res_x", {"num_layers": 4}], ["compress_space_res", {"multiplier": 2}], ["res_x", {"num_layers": 6}],
        ["compress_time_res", {"multiplier": 2}], ["res_x", {"num_layers": 6}], ["compress_all_res", {"multiplier": 2}],
        ["res_x", {"num_layers": 2}], ["compress_all_res", {"multiplier": 2}], ["res_x", {"num_layers": 2}],
    ],
    "decoder_blocks": [
        ["res_x", {"num_layers": 5, "inject_noise": False}], ["compress_all", {"residual": True, "multiplier": 2}],
        ["res_x", {"num_layers": 5, "inject_noise": False}], ["compress_all", {"residual": True, "multiplier": 2}],
        ["res_x", {"num_layers": 5, "inject_noise": False}], ["compress_all", {"residual": True, "multiplier": 2}],
        ["res_x", {"num_layers": 5, "inject_noise": False}],
    ],
    "scaling_factor": 1.0, "norm_layer": "pixel_norm", "patch_size": 4, "latent_log_var": "uniform",
    "use_quant_conv": False, "causal_decoder": False, "timestep_conditioning": True,
}  # fmt: skip


def ltx_video() -> Shapes:
    module = host("comfy.ldm.lightricks.model").LTXVModel(
        cross_attention_dim=2048, attention_head_dim=64, num_attention_heads=32, caption_channels=4096, num_layers=28,
        **blank(),
    )  # fmt: skip
    with torch.device("meta"):
        vae = host("comfy.ldm.lightricks.vae.causal_video_autoencoder").VideoVAE(config=LTX_VAE)
    return {**shapes(module, "model.diffusion_model."), **shapes(vae, "vae.")}


def text_model(kind: str) -> Shapes:
    return shapes(getattr(host("comfy.text_encoders.llama"), kind)({}, **_blank_text()))


def _blank_text() -> dict[str, object]:
    return {**blank(), "dtype": torch.float16}


def flux_lora(rank: int = 64) -> Shapes:
    """For the matrices of Flux's blocks, under the names of the model."""
    lora: Shapes = {}
    for key, shape in full_size.flux().items():
        if "_blocks." in key and key.endswith(".weight") and len(shape) == 2:
            layer = "diffusion_model." + key.removesuffix(".weight")
            lora |= {f"{layer}.lora_A.weight": (rank, shape[1]), f"{layer}.lora_B.weight": (shape[0], rank)}
    return lora


FILES: dict[str, File] = {
    "v1-5-pruned-emaonly-fp16.safetensors": File(full_size.sd15, HALF),
    "sd_xl_base_1.0.safetensors": File(sdxl, HALF),
    "sd3.5_large.safetensors": File(sd35_large, BRAIN),
    "ltx-video-2b-v0.9.5.safetensors": File(ltx_video, BRAIN, {"config": json.dumps({"vae": LTX_VAE})}),
    "flux1-dev.safetensors": File(full_size.flux, BRAIN),
    "qwen_image_fp8_e4m3fn.safetensors": File(qwen_image, EIGHT),
    "z_image_turbo_bf16.safetensors": File(z_image, BRAIN),
    "wan2.1_t2v_1.3B_fp16.safetensors": File(wan_small, HALF),
    "clip_l.safetensors": File(full_size.clip_l, HALF),
    "clip_g.safetensors": File(full_size.clip_g, HALF),
    "t5xxl_fp16.safetensors": File(lambda: full_size.t5("t5_config_xxl.json"), HALF),
    "qwen_2.5_vl_7b_fp8_scaled.safetensors": File(lambda: _scaled(text_model("Qwen25_7BVLI")), EIGHT),
    "qwen_3_4b.safetensors": File(lambda: text_model("Qwen3_4B"), BRAIN),
    "umt5_xxl_fp8_e4m3fn_scaled.safetensors": File(
        lambda: _scaled(full_size.t5("umt5_config_xxl.json")), EIGHT, tokenizer=True
    ),
    "ae.safetensors": File(lambda: full_size.autoencoder(16), FULL),
    "qwen_image_vae.safetensors": File(full_size.wan_vae, BRAIN),
    "wan_2.1_vae.safetensors": File(full_size.wan_vae, BRAIN),
    "Hyper-FLUX.1-dev-8steps-lora.safetensors": File(flux_lora, BRAIN),
}


def write_all(models: Path, names: Iterable[str] | None = None) -> None:
    """Writes those that are asked for (all) into the host's folders below ``models``."""
    for name, file in FILES.items():
        if names is not None and name not in names:
            continue
        tokenizer = {"spiece_model": full_size.sentence_pieces()} if file.tokenizer else {}
        entries = file.entries()
        dtypes = {key: _dtype(file, entries, key) for key in entries}
        full_size.write(models / MODELS[name][0] / name, entries, dtypes, tokenizer, file.metadata)
