"""Files of models in their real size that take no room: true headers, and a hole where the weights would be."""

from __future__ import annotations

import importlib
import io
import json
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float8_e4m3fn: "F8_E4M3"}
Shapes = dict[str, tuple[int, ...]]


def host(module: str) -> Any:
    return importlib.import_module(module)


def blank() -> dict[str, Any]:
    return {"device": "meta", "dtype": torch.float16, "operations": host("comfy.ops").disable_weight_init}


def shapes(module: nn.Module, prefix: str = "") -> Shapes:
    return {prefix + key: tuple(value.shape) for key, value in module.state_dict().items()}


def unet(**config: Any) -> Shapes:
    openaimodel = host("comfy.ldm.modules.diffusionmodules.openaimodel")
    module = openaimodel.UNetModel(
        image_size=32, in_channels=4, out_channels=4, model_channels=320, use_spatial_transformer=True, legacy=False,
        **blank(), **config,
    )  # fmt: skip
    return shapes(module, "model.diffusion_model.")


def autoencoder(channels: int, prefix: str = "") -> Shapes:
    config = {
        "double_z": True, "z_channels": channels, "resolution": 256, "in_channels": 3, "out_ch": 3, "ch": 128,
        "ch_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attn_resolutions": [], "dropout": 0.0,
    }  # fmt: skip
    with torch.device("meta"):
        if channels == 4:
            module = host("comfy.ldm.models.autoencoder").AutoencoderKL(ddconfig=config, embed_dim=channels)
        else:
            regulariser = {"target": "comfy.ldm.models.autoencoder.DiagonalGaussianRegularizer"}
            coders = {
                f"{half}_config": {
                    "target": f"comfy.ldm.modules.diffusionmodules.model.{half.title()}", "params": config,
                } for half in ("encoder", "decoder")
            }  # fmt: skip
            module = host("comfy.ldm.models.autoencoder").AutoencodingEngine(regularizer_config=regulariser, **coders)
    return shapes(module, prefix)


def clip_l(prefix: str = "") -> Shapes:
    config = json.loads((_package() / "sd1_clip_config.json").read_text())
    return shapes(host("comfy.clip_model").CLIPTextModel(config, **blank()), prefix)


def clip_g() -> Shapes:
    config = json.loads((_package() / "clip_config_bigg.json").read_text())
    return shapes(host("comfy.clip_model").CLIPTextModel(config, **blank()))


def t5(config: str) -> Shapes:
    settings = json.loads((_package() / "text_encoders" / config).read_text())
    return shapes(host("comfy.text_encoders.t5").T5(settings, **blank()))


def _package() -> Path:
    return Path(host("comfy").__path__[0])


def sd15() -> Shapes:
    """A whole checkpoint: UNet, VAE, CLIP."""
    return {
        **unet(
            num_res_blocks=[2] * 4, channel_mult=[1, 2, 4, 4], transformer_depth=[1] * 6 + [0] * 2,
            transformer_depth_output=[1] * 9 + [0] * 3, transformer_depth_middle=1, context_dim=768, num_heads=8,
            use_linear_in_transformer=False,
        ),
        **autoencoder(4, "first_stage_model."),
        **clip_l("cond_stage_model.transformer."),
    }  # fmt: skip


def sdxl_unet() -> Shapes:
    return unet(
        num_res_blocks=[2] * 3, channel_mult=[1, 2, 4], transformer_depth=[0, 0, 2, 2, 10, 10],
        transformer_depth_output=[0, 0, 0, 2, 2, 2, 10, 10, 10], transformer_depth_middle=10, context_dim=2048,
        adm_in_channels=2816, num_classes="sequential", num_head_channels=64, use_linear_in_transformer=True,
    )  # fmt: skip


FLUX = {
    "in_channels": 16, "out_channels": 16, "vec_in_dim": 768, "context_in_dim": 4096, "hidden_size": 3072,
    "mlp_ratio": 4.0, "num_heads": 24, "depth": 19, "depth_single_blocks": 38, "axes_dim": [16, 56, 56],
    "theta": 10000, "patch_size": 2, "qkv_bias": True,
}  # fmt: skip


def flux() -> Shapes:
    settings = {**FLUX, "guidance_embed": True, "txt_ids_dims": []}
    return shapes(host("comfy.ldm.flux.model").Flux(image_model="flux", **settings, **blank()))


def flux2() -> Shapes:
    """Flux.2 dev."""
    module = host("comfy.ldm.flux.model").Flux(
        image_model="flux2", in_channels=128, out_channels=128, vec_in_dim=None, context_in_dim=15360, hidden_size=6144,
        mlp_ratio=3.0, num_heads=48, depth=8, depth_single_blocks=48, axes_dim=[32, 32, 32, 32], theta=2000,
        patch_size=1, qkv_bias=False, guidance_embed=True, txt_ids_dims=[3], global_modulation=True, mlp_silu_act=True,
        ops_bias=False, **blank(),
    )  # fmt: skip
    return shapes(module)


def chroma() -> Shapes:
    own = {"in_channels": 64, "out_channels": 64, "in_dim": 64, "out_dim": 3072, "hidden_dim": 5120, "n_layers": 5}
    settings = {**FLUX, **own, "txt_ids_dims": []}
    return shapes(host("comfy.ldm.chroma.model").Chroma(**settings, **blank()))


def hunyuan_video() -> Shapes:
    own = {"depth": 20, "depth_single_blocks": 40, "theta": 256, "patch_size": [1, 2, 2]}
    left_out = dict.fromkeys(("byt5", "meanflow", "use_cond_type_embedding", "meanflow_sum"), False)
    settings = {**FLUX, **own, **left_out, "guidance_embed": True, "vision_in_dim": None}
    return shapes(host("comfy.ldm.hunyuan_video.model").HunyuanVideo(**settings, **blank()))


def wan14b() -> Shapes:
    module = host("comfy.ldm.wan.model").WanModel(
        model_type="t2v", patch_size=(1, 2, 2), in_dim=16, dim=5120, ffn_dim=13824, freq_dim=256, text_dim=4096,
        out_dim=16, num_heads=40, num_layers=40, qk_norm=True, cross_attn_norm=True, eps=1e-6, **blank(),
    )  # fmt: skip
    return shapes(module)


def wan_vae() -> Shapes:
    with torch.device("meta"):
        module = host("comfy.ldm.wan.vae").WanVAE(
            dim=96, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=2, attn_scales=[],
            temperal_downsample=[False, True, True], image_channels=3, conv_out_channels=3, dropout=0.0,
        )  # fmt: skip
    return shapes(module)


# Folder in the host's models, file, entries, dtype.
FILES: tuple[tuple[str, str, Callable[[], Shapes], torch.dtype], ...] = (
    ("checkpoints", "full_sd15.safetensors", sd15, torch.float16),
    ("diffusion_models", "full_sdxl_unet.safetensors", sdxl_unet, torch.float16),
    ("diffusion_models", "full_flux.safetensors", flux, torch.bfloat16),
    ("diffusion_models", "full_flux2.safetensors", flux2, torch.bfloat16),
    ("diffusion_models", "full_chroma.safetensors", chroma, torch.bfloat16),
    ("diffusion_models", "full_hunyuan_video.safetensors", hunyuan_video, torch.bfloat16),
    ("diffusion_models", "full_wan14b.safetensors", wan14b, torch.float16),
    ("text_encoders", "full_clip_l.safetensors", clip_l, torch.float16),
    ("text_encoders", "full_clip_g.safetensors", clip_g, torch.float16),
    ("text_encoders", "full_t5xxl.safetensors", lambda: t5("t5_config_xxl.json"), torch.float16),
    ("text_encoders", "full_umt5xxl.safetensors", lambda: t5("umt5_config_xxl.json"), torch.float16),
    ("vae", "full_sd_vae.safetensors", lambda: autoencoder(4), torch.float16),
    ("vae", "full_flux_vae.safetensors", lambda: autoencoder(16), torch.float32),
    ("vae", "full_wan_vae.safetensors", wan_vae, torch.float16),
)


def write_all(models: Path, names: Iterable[str] | None = None) -> None:
    """Writes the files that are asked for (all) under the folders of ``models``."""
    for folder, name, entries, dtype in FILES:
        if names is None or name in names:
            tokenizer = {"spiece_model": sentence_pieces()} if "umt5" in name else {}
            write(models / folder / name, entries(), dtype, tokenizer)


def sentence_pieces() -> bytes:
    """A small tokenizer of the kind that lies in the file of a UMT5."""
    model = io.BytesIO()
    words = (f"{a}{b}{c}" for a in "lmnprst" for b in "aeiou" for c in "dgkmnt")
    host("sentencepiece").SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(words)] * 4), model_writer=model, vocab_size=64, model_type="bpe",
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    return model.getvalue()


def write(
    path: Path,
    entries: Shapes,
    dtype: torch.dtype | Mapping[str, torch.dtype],
    descriptions: Mapping[str, bytes] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """A safetensors file as long as the real one, of which only the header is on the disk.

    What ``descriptions`` holds comes first, as bytes that are there. ``dtype`` is of all entries, or of each.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    data = b"".join((descriptions or {}).values())
    offset = 0
    for key, value in (descriptions or {}).items():
        header[key] = {"dtype": "U8", "shape": [len(value)], "data_offsets": [offset, offset + len(value)]}
        offset += len(value)
    for key, shape in entries.items():
        kind = dtype if isinstance(dtype, torch.dtype) else dtype[key]
        size = torch.Size(shape).numel() * kind.itemsize
        header[key] = {"dtype": NAMES[kind], "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
        file.truncate(8 + len(text) + offset)
