"""What the host's code does not tell of a family of diffusion models: one entry per family.

A family without an entry works all the same: its local attention stays dense and says why, and a prediction without a
prompt asks for one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

FLUX2_TEXT = 512  # shorter texts are padded in front to this length


@dataclass(frozen=True)
class Tokens:
    """Numbers of tokens in a self-attention call.

    Attributes:
        count: all of them.
        picture: those of the latent, all frames.
        text: those of the conditioning.
        extra: those that the model puts in front of everything.
    """

    count: int
    picture: int
    text: int
    extra: int = 0


# Text tokens before and after the picture; None where the numbers do not add up to a sequence of this family.
TokenGridRule = Callable[[Tokens], "tuple[int, int] | None"]


def text_first(tokens: Tokens) -> tuple[int, int] | None:
    """Text and picture together, or the picture alone, as in SD3.5's further attention."""
    before = tokens.count - tokens.picture
    return (before, 0) if before in (0, tokens.text + tokens.extra) else None


def flux(tokens: Tokens) -> tuple[int, int] | None:
    """Text, in Flux.2 padded to :data:`FLUX2_TEXT`, then the picture."""
    before = tokens.count - tokens.picture
    return (before, 0) if before in (tokens.text, max(FLUX2_TEXT, tokens.text)) else None


def picture_only(tokens: Tokens) -> tuple[int, int] | None:
    """The picture; a text as long as the picture could be what is attended to."""
    return (0, 0) if tokens.count == tokens.picture and tokens.text != tokens.picture else None


def padded_parts(multiple: int) -> TokenGridRule:
    """Text and picture, each padded to a multiple. The refiners see one of them alone and stay dense."""

    def layout(tokens: Tokens) -> tuple[int, int] | None:
        text, picture = (-(-count // multiple) * multiple for count in (tokens.text, tokens.picture))
        return (text, picture - tokens.picture) if tokens.count == text + picture else None

    return layout


def next_dit(tokens: Tokens) -> tuple[int, int] | None:
    """Lumina 2 as it is, Z-Image padded to multiples of 32."""
    return padded_parts(1)(tokens) or padded_parts(32)(tokens)


@dataclass(frozen=True)
class Family:
    """What is to be known of models that are built alike.

    Attributes:
        name: for people.
        network: module and class of the diffusion model in the host; no subclass counts, for it may lay its tokens out
            in another way. None: no layout is needed (a UNet's blocks say which map they work on).
        layout: of its self-attention; None: not known, local attention stays dense.
        text_width: entry of the host's ``unet_config`` that holds the channels of the conditioning, with dots between
            nested ones.
        text_layer: path of the layer whose input features are those channels, where ``unet_config`` does not hold them.
        told_by: pattern of the layer by whose shape the host tells which model a file holds.
    """

    name: str
    network: tuple[str, str] | None = None
    layout: TokenGridRule | None = None
    text_width: str = ""
    text_layer: str = ""
    told_by: str = ""


# Several families share an entry of unet_config: the first that is there counts.
FAMILIES = (
    Family("SD1.5, SDXL", text_width="context_dim", told_by=r"transformer_blocks\.0\.attn2\.to_k$"),
    Family("Flux", ("comfy.ldm.flux.model", "Flux"), flux, "context_in_dim"),
    Family("Chroma", ("comfy.ldm.chroma.model", "Chroma"), text_first, "context_in_dim"),
    Family("HunyuanVideo", ("comfy.ldm.hunyuan_video.model", "HunyuanVideo"), text_first, "context_in_dim"),
    Family("Wan", ("comfy.ldm.wan.model", "WanModel"), picture_only, "text_dim", "text_embedding.0"),
    Family("PixArt", text_width="caption_channels"),
    Family("Lumina 2, Z-Image", ("comfy.ldm.lumina.model", "NextDiT"), next_dit, "cap_feat_dim"),
    Family(
        "Qwen-Image", ("comfy.ldm.qwen_image.model", "QwenImageTransformer2DModel"), text_first, "joint_attention_dim"
    ),
    Family("Cosmos Predict2", ("comfy.ldm.cosmos.predict2", "MiniTrainDIT"), picture_only, "crossattn_emb_channels"),
    Family("AuraFlow", ("comfy.ldm.aura.mmdit", "MMDiT"), text_first, "cond_seq_dim"),
    Family(
        "LTX-Video", ("comfy.ldm.lightricks.model", "LTXVModel"), picture_only, "cross_attention_dim",
        "caption_projection.linear_1",
    ),
    Family(
        "SD3", ("comfy.ldm.modules.diffusionmodules.mmdit", "OpenAISignatureMMDITWrapper"), text_first,
        "context_embedder_config.params.in_features",
    ),
)  # fmt: skip
TOLD_BY = re.compile("|".join(family.told_by for family in FAMILIES if family.told_by))


def layout_of(network: nn.Module) -> TokenGridRule | None:
    """How the tokens of a diffusion model lie; None for one that is not known here."""
    kind = type(network).__module__, type(network).__name__
    return next((family.layout for family in FAMILIES if family.network == kind), None)


def text_width(network: nn.Module, config: Mapping[str, Any]) -> int | None:
    """Channels of a model's conditioning; None where neither its layers nor its ``unet_config`` tell."""
    widths = (
        *(_features(network, family.text_layer) for family in FAMILIES if family.text_layer),
        *(_entry(config, family.text_width) for family in FAMILIES),
    )
    return next((width for width in widths if width is not None), None)


def _features(network: nn.Module, path: str) -> int | None:
    try:
        features: Any = network.get_submodule(path).in_features
    except AttributeError:
        return None
    return int(features)


def _entry(config: Any, path: str) -> int | None:
    for name in path.split("."):
        config = config.get(name) if isinstance(config, Mapping) else None
    return config if isinstance(config, int) else None
