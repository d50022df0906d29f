"""What templates are made of: the files that people have, and the nodes that load them and write their prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Node = dict[str, Any]
HUB = "https://huggingface.co"
COMFY = f"{HUB}/Comfy-Org"


@dataclass(frozen=True)
class Template:
    """One template.

    Attributes:
        title: heads its note and names its file: what people look for in the template browser.
        about: what it shows, in Markdown.
        stages: heading of each group, and the ids of its nodes, from left to right.
        values: widgets that differ from the twin's, as ``id.input``.
        nodes: nodes that take the place of the twin's, or are added: what people have instead of generated stand-ins.
        links: outputs of the twin that are others in the template, as ``id:slot``.
        without: ids of the twin that the template lacks.
        previews: ids of decodes whose picture needs room: something stands below them.
    """

    title: str
    about: str
    stages: Mapping[str, str]
    values: Mapping[str, Any] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    without: str = ""
    previews: str = ""


# File: its folder below models/, and where it is offered.
MODELS: dict[str, tuple[str, str]] = {
    "v1-5-pruned-emaonly-fp16.safetensors": ("checkpoints", f"{COMFY}/stable-diffusion-v1-5-archive/resolve/main"),
    "sd_xl_base_1.0.safetensors": ("checkpoints", f"{HUB}/stabilityai/stable-diffusion-xl-base-1.0/resolve/main"),
    "sd3.5_large.safetensors": ("checkpoints", f"{HUB}/stabilityai/stable-diffusion-3.5-large/resolve/main"),
    "ltx-video-2b-v0.9.5.safetensors": ("checkpoints", f"{HUB}/Lightricks/LTX-Video/resolve/main"),
    "flux1-dev.safetensors": ("diffusion_models", f"{COMFY}/flux1-dev/resolve/main"),
    "qwen_image_fp8_e4m3fn.safetensors": (
        "diffusion_models", f"{COMFY}/Qwen-Image_ComfyUI/resolve/main/split_files/diffusion_models",
    ),
    "z_image_turbo_bf16.safetensors": (
        "diffusion_models", f"{COMFY}/z_image_turbo/resolve/main/split_files/diffusion_models",
    ),
    "wan2.1_t2v_1.3B_fp16.safetensors": (
        "diffusion_models", f"{COMFY}/Wan_2.1_ComfyUI_repackaged/resolve/main/split_files/diffusion_models",
    ),
    "clip_l.safetensors": ("text_encoders", f"{HUB}/comfyanonymous/flux_text_encoders/resolve/main"),
    "clip_g.safetensors": ("text_encoders", f"{COMFY}/stable-diffusion-3.5-fp8/resolve/main/text_encoders"),
    "t5xxl_fp16.safetensors": ("text_encoders", f"{HUB}/comfyanonymous/flux_text_encoders/resolve/main"),
    "qwen_2.5_vl_7b_fp8_scaled.safetensors": (
        "text_encoders", f"{COMFY}/Qwen-Image_ComfyUI/resolve/main/split_files/text_encoders",
    ),
    "qwen_3_4b.safetensors": ("text_encoders", f"{COMFY}/z_image_turbo/resolve/main/split_files/text_encoders"),
    "umt5_xxl_fp8_e4m3fn_scaled.safetensors": (
        "text_encoders", f"{COMFY}/Wan_2.1_ComfyUI_repackaged/resolve/main/split_files/text_encoders",
    ),
    "ae.safetensors": ("vae", f"{COMFY}/Lumina_Image_2.0_Repackaged/resolve/main/split_files/vae"),
    "qwen_image_vae.safetensors": ("vae", f"{COMFY}/Qwen-Image_ComfyUI/resolve/main/split_files/vae"),
    "wan_2.1_vae.safetensors": ("vae", f"{COMFY}/Wan_2.1_ComfyUI_repackaged/resolve/main/split_files/vae"),
    "Hyper-FLUX.1-dev-8steps-lora.safetensors": ("loras", f"{HUB}/ByteDance/Hyper-SD/resolve/main"),
}  # fmt: skip
SD15, SDXL, FLUX = "v1-5-pruned-emaonly-fp16.safetensors", "sd_xl_base_1.0.safetensors", "flux1-dev.safetensors"
T5, CLIP_L, FLUX_VAE = "t5xxl_fp16.safetensors", "clip_l.safetensors", "ae.safetensors"
PROMPT = "a lighthouse on a rocky coast at dusk, calm sea, photograph"
NEGATIVE = "blurry, low contrast, text, watermark"


def node(kind: str, title: str, **inputs: Any) -> Node:
    return {"class_type": kind, "_meta": {"title": title}, "inputs": inputs}


def checkpoint(name: str) -> Node:
    return node("CheckpointLoaderSimple", "Load Checkpoint", ckpt_name=name)


def prompt(clip: list[Any], text: str = PROMPT, title: str = "Positive Prompt") -> Node:
    return node("CLIPTextEncode", title, clip=clip, text=text)


def negative(clip: list[Any]) -> Node:
    return prompt(clip, NEGATIVE, "Negative Prompt")


def two_clips(kind: str) -> Node:
    return node("DualCLIPLoader", "Load CLIP", clip_name1=CLIP_L, clip_name2=T5, type=kind, device="default")


def one_clip(name: str, kind: str) -> Node:
    return node("CLIPLoader", "Load CLIP", clip_name=name, type=kind, device="default")


def picture(latent: str, width: int, height: int | None = None) -> dict[str, int]:
    return {f"{latent}.width": width, f"{latent}.height": height or width}


def movie(latent: str, width: int, height: int, frames: int) -> dict[str, int]:
    return {**picture(latent, width, height), f"{latent}.length": frames}


def strips(decode: str) -> dict[str, Any]:
    """As high as fit this card, instead of those that show it on a small picture."""
    return {f"{decode}.method": "auto", f"{decode}.tile_size": 0}
