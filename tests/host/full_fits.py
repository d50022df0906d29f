"""What people want to make with models in their real size, as questions whose models have no data."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headroom.host.prediction.header_loading import loading_headers
from headroom.host.prediction.stages import Question
from headroom.memory.prediction import Card, fake_mode

from . import full_size, public_files

TOKENS = 256


@dataclass(frozen=True)
class Wish:
    """A model's file, a VAE's if there is one, a latent, the text's width, guidance, the weights' dtype if not the
    file's, and whether the text has a mask."""

    model: str
    vae: str
    latent: tuple[int, ...]
    text: int
    pooled: int = 0
    cfg: float = 7.0
    stored: torch.dtype | None = None
    masked: bool = False


WISHES = {
    "SD1.5, 512 px": Wish("checkpoints/full_sd15", "full_sd_vae", (1, 4, 64, 64), 768),
    "SD1.5, 1024 px": Wish("checkpoints/full_sd15", "full_sd_vae", (1, 4, 128, 128), 768),
    "SD1.5, 2048 px": Wish("checkpoints/full_sd15", "full_sd_vae", (1, 4, 256, 256), 768),
    "SDXL, 1024 px": Wish("diffusion_models/full_sdxl_unet", "full_sd_vae", (1, 4, 128, 128), 2048, 1280),
    "Flux.1, 1024 px": Wish("diffusion_models/full_flux", "full_flux_vae", (1, 16, 128, 128), 4096, 768, 1.0),
    "Wan 14B, 832 x 480, 81 frames": Wish(
        "diffusion_models/full_wan14b", "full_wan_vae", (1, 16, 21, 60, 104), 4096, cfg=5.0
    ),
}
CARDS = (6, 8, 12, 16, 24)
# What people train, by the pictures or frames of a usual set.
TRAININGS = {name: wish for name, wish in WISHES.items() if "2048" not in name} | {
    "SD3.5 Large, 1024 px": Wish("checkpoints/sd3.5_large", "", (1, 16, 128, 128), 4096, 2048),
    "Chroma, 1024 px": Wish("diffusion_models/full_chroma", "", (1, 16, 128, 128), 4096),
    "Flux.2, 1024 px": Wish("diffusion_models/full_flux2", "", (1, 128, 64, 64), 15360),
    "Qwen-Image (fp8 file), 1024 px": Wish("diffusion_models/qwen_image_fp8_e4m3fn", "", (1, 16, 1, 128, 128), 3584),
    "Z-Image, 1024 px": Wish("diffusion_models/z_image_turbo_bf16", "", (1, 16, 128, 128), 2560),
    "LTX-Video 2B, 768 x 512, 97 frames": Wish(
        "checkpoints/ltx-video-2b-v0.9.5", "", (1, 128, 13, 16, 24), 4096, masked=True
    ),
    "HunyuanVideo, 960 x 544, 33 frames": Wish(
        "diffusion_models/full_hunyuan_video", "", (1, 16, 9, 68, 120), 4096, 768
    ),
}


def write_files(folder: Path, wishes: Mapping[str, Wish] = WISHES) -> None:
    """The files of wishes, under a ``models`` folder."""
    found = {wish.model.partition("/")[2] for wish in wishes.values()} | {wish.vae for wish in wishes.values()}
    names = [f"{name}.safetensors" for name in found]
    full_size.write_all(folder, names)
    public_files.write_all(folder, names)


def question(folder: Path, wish: Wish, card: Card) -> Question:
    """A wish for a card, loaded from headers by the host's own loaders."""
    sd, utils = importlib.import_module("comfy.sd"), importlib.import_module("comfy.utils")
    mode = fake_mode()
    with loading_headers(mode, card):
        tensors = utils.load_torch_file(str(folder / f"{wish.model}.safetensors"))
        load = sd.load_state_dict_guess_config if "checkpoints" in wish.model else sd.load_diffusion_model_state_dict
        options = {} if wish.stored is None else {"model_options": {"dtype": wish.stored}}
        loaded: Any = load(tensors, disable_dynamic=True, **options)
        vae = sd.VAE(sd=utils.load_torch_file(str(folder / "vae" / f"{wish.vae}.safetensors"))) if wish.vae else None
    with mode:
        extra = {"pooled_output": torch.zeros(1, wish.pooled)} if wish.pooled else {}
        extra |= {"attention_mask": torch.ones(1, TOKENS)} if wish.masked else {}
        text, latent = [[torch.zeros(1, TOKENS, wish.text), extra]], torch.zeros(wish.latent)
    model = loaded[0] if isinstance(loaded, tuple) else loaded
    return Question(model, {"samples": latent}, vae, positive=text, negative=text, cfg=wish.cfg)
