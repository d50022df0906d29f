"""Diffusion models of further families, built small in this process: they need no files.

The host's own detection and loader make each one. The detection is shown the few entries by which it knows the family;
what it concludes is narrowed where widths come from the host's code or from such an entry; layers, their kinds and
their order stay the host's. A first construction without memory tells which entries there are in all, and their drawn
weights go through the loader.

Weights are drawn by the rules of the small checkpoints: what goes in comes out beside a disturbance, so that a few
steps of a sampler end at latents of about unit size that depend on every layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import comfy.model_detection
import comfy.sd
import pytest
import torch

from headroom.tools.models.drawing import Rules, around, code, fill, fixed, noise, read
from headroom.tools.models.networks import transformer_rules

WIDTH = 256
TEXT = 256  # of the text's features, where the family leaves it open


@dataclass(frozen=True)
class Recipe:
    """What the detection looks at (entries by shape), what its answer is narrowed to, and how weights are drawn."""

    marks: Mapping[str, tuple[int, ...]]
    narrow: Mapping[str, Any]
    rules: Rules


@cache
def load(name: str) -> Any:
    """The model as the host's loader hands it out, the same one at every call."""
    recipe = RECIPES[name]()
    with _narrowed(recipe):
        weights = fill(_blank(), recipe.rules)
        return comfy.sd.load_diffusion_model_state_dict({key: value.float() for key, value in weights.items()})


def _blank() -> torch.nn.Module:
    """All shapes and no memory."""
    config = comfy.model_detection.model_config_from_unet({}, "")
    config.set_inference_dtype(torch.float32, None)
    return config.get_model({}, "", device="meta").diffusion_model


@contextmanager
def _narrowed(recipe: Recipe) -> Iterator[None]:
    """Within it, the host detects this family at its real width and builds it at the narrow one."""
    detect = comfy.model_detection.model_config_from_unet
    marks = {key: torch.empty(shape, device="meta") for key, shape in recipe.marks.items()}

    def small(state_dict: dict, *args: Any, **kwargs: Any) -> Any:
        config = detect(state_dict | marks, *args, **kwargs)
        config.unet_config |= recipe.narrow
        return config

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comfy.model_detection, "model_config_from_unet", small)
        yield


# ------------------------------------------------------------------------------------------------------ the families


def chroma() -> Recipe:
    """Flux without a pooled text; one small network gives the modulation of all blocks."""
    marks = {
        "distilled_guidance_layer.norms.0.scale": (),
        "double_blocks.0.img_attn.norm.key_norm.scale": (),
        "img_in.weight": (WIDTH, 64),
        "txt_in.weight": (WIDTH, TEXT),
    }
    narrow = {"depth": 2, "depth_single_blocks": 4, "out_dim": WIDTH, "hidden_dim": WIDTH, "n_layers": 2}
    modulation: Rules = (
        (r"guidance_layer\.out_proj\.weight", noise(0.3)),
        (r"guidance_layer\.out_proj\.bias", around(0.0, 0.4)),
    )
    rules = transformer_rules("img_in", r"final_layer\.linear", WIDTH, 64)
    return Recipe(marks, narrow, (*modulation, *rules))


def qwen_image() -> Recipe:
    """Double blocks only, and a mask over the text."""
    marks = {"txt_norm.weight": (TEXT,), "img_in.weight": (WIDTH, 64)}
    narrow = {"num_layers": 3, "num_attention_heads": WIDTH // 128, "joint_attention_dim": TEXT}
    special: Rules = (
        (r"(img|txt)_mod\.1\.bias", around(0.0, 0.4)),
        (r"(img|txt)_mod\.1\.weight", noise(0.3)),
        (r"norm_added_[qk]\.weight", around(1.5, 0.05)),
    )
    return Recipe(marks, narrow, (*special, *transformer_rules("img_in", "proj_out", WIDTH, 64)))


def _next_dit(real: int, width: int, narrow: Mapping[str, Any], modulation: str) -> Recipe:
    """Every branch ends in a norm, which would undo whatever scales attention.

    Weights before it are so small that the norm's epsilon counts. The velocity is what the model says, negated.
    """
    marks = {"cap_embedder.1.weight": (real, TEXT), "noise_refiner.0.attention.k_norm.weight": ()}
    special: Rules = (
        (r"attention\.out\.weight", noise(0.01)),
        (rf"layers.*{modulation}\.bias|refiner.*{modulation}\.bias", around(0.0, 0.4)),
        (rf"layers.*{modulation}\.weight|refiner.*{modulation}\.weight", noise(0.3)),
        (r"pad_token", around(0.0, 1.0)),
        (r"final_layer\.linear\.weight", fixed(-0.8 * read(width, 64), 0.3)),
    )
    rules = transformer_rules("x_embedder", r"final_layer\.linear", width, 64)
    return Recipe(marks, {"dim": width, "n_layers": 3, **narrow}, (*special, *rules))


def z_image() -> Recipe:
    """NextDiT with text and picture both padded to a multiple of 32 tokens."""
    heads = {"n_heads": WIDTH // 128, "n_kv_heads": WIDTH // 128}
    recipe = _next_dit(3840, WIDTH, heads, r"adaLN_modulation\.0")
    return Recipe({**recipe.marks, "cap_pad_token": ()}, recipe.narrow, recipe.rules)


def lumina2() -> Recipe:
    """NextDiT without padding; pairs of heads share keys and values."""
    return _next_dit(2304, 192, {"n_heads": 2, "n_kv_heads": 1}, r"adaLN_modulation\.1")


def hunyuan_video() -> Recipe:
    """Text goes through a refiner of two blocks; a mask over the text holds there and in all blocks."""
    marks = {
        "txt_in.individual_token_refiner.blocks.0.norm1.weight": (),
        "txt_in.input_embedder.weight": (WIDTH, TEXT),
        "img_in.proj.weight": (WIDTH, 16, 1, 2, 2),
        "final_layer.linear.weight": (64, WIDTH),
        "vector_in.in_layer.weight": (),
        "guidance_in.in_layer.weight": (),
    }
    rules = transformer_rules(r"img_in\.proj", r"final_layer\.linear", WIDTH, 64)
    return Recipe(marks, {"depth": 2, "depth_single_blocks": 4}, rules)


def hidream() -> Recipe:
    """The picture comes before the text, which each block gets anew from another layer of its encoder."""
    narrow = {
        "num_attention_heads": WIDTH // 128, "num_layers": 2, "num_single_layers": 2, "llama_layers": [0, 1, 2, 3],
        "caption_channels": [TEXT, TEXT], "text_emb_dim": TEXT,
    }  # fmt: skip
    special: Rules = (
        (r"[qk]_rms_norm(_t)?\.weight", around(1.5, 0.05)),
        (r"final_layer\.linear\.weight", fixed(-0.8 * read(WIDTH, 64), 0.3)),
    )
    rules = transformer_rules(r"x_embedder\.proj", r"final_layer\.linear", WIDTH, 64)
    return Recipe({"caption_projection.0.linear.weight": ()}, narrow, (*special, *rules))


def aura_flow() -> Recipe:
    """Learned tokens before the text; positions are added once, at the entrance."""
    marks = {
        "double_layers.0.attn.w1q.weight": (),
        "positional_encoding": (1, 32 * 32, WIDTH),
        "cond_seq_linear.weight": (WIDTH, 2048),
    }
    narrow = {"dim": WIDTH, "n_heads": 2, "global_conddim": WIDTH, "n_double_layers": 2, "n_layers": 4}
    special: Rules = (
        (r"mod(C|X|CX|F)\.1\.weight", noise(2.0)),
        (r"positional_encoding|register_tokens", around(0.0, 0.3)),
    )
    rules = transformer_rules("init_x_linear", "final_linear", WIDTH, 16, last=True)
    return Recipe(marks, narrow, (*special, *rules))


def cosmos_predict2() -> Recipe:
    """Video and text meet in cross attention; a mask channel comes in beside the latent's."""
    marks = {"blocks.0.mlp.layer1.weight": (), "x_embedder.proj.1.weight": (2048, 68)}
    narrow = {"model_channels": WIDTH, "num_blocks": 3, "num_heads": 2, "crossattn_emb_channels": TEXT}
    entry = torch.cat([code(WIDTH, 64), torch.zeros(WIDTH, 4)], dim=1)
    special: Rules = (
        (r"x_embedder\.proj\.1\.weight", fixed(entry)),
        (r"adaln_modulation(_\w+)?\.2\.weight|t_embedder\.1\.linear_2\.weight", noise(0.4)),
    )
    rules = transformer_rules(r"x_embedder\.proj\.1", r"final_layer\.linear", WIDTH, 64, last=True)
    return Recipe(marks, narrow, (*special, *rules))


RECIPES: dict[str, Callable[[], Recipe]] = {
    recipe.__name__: recipe
    for recipe in (chroma, qwen_image, z_image, lumina2, hunyuan_video, hidream, aura_flow, cosmos_predict2)
}
