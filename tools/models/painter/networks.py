"""The networks that paint, as narrow as they are trained, and how they become those that the host's loader knows.

The host pins a UNet of Stable Diffusion 1.5 to 320 channels and its text encoder to 768, in 12 layers. Trained are 64
and 96 in 2 layers, and only the words that scenes are told with. Written wide, each channel stands 5 or 8 times in a
row and layers that were not trained add nothing, which computes the same (`widening`).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ..drawing import Weights
from ..from_host import blank, host
from ..widening import widened

TRAINED = Path(__file__).resolve().parents[1] / "weights" / "sd_painter.safetensors"
UNET, TEXT, WORDS = "unet.", "text.", "words"

CHANNELS, HOST_CHANNELS = 64, 320
WIDTH, HOST_WIDTH, HEADS = 96, 768, 12
LAYERS, TOKENS = 2, 77
UNET_SHAPE = {
    "num_res_blocks": [1, 1, 1], "channel_mult": [1, 2, 2], "transformer_depth": [0, 1, 1],
    "transformer_depth_output": [0, 0, 1, 1, 1, 1], "transformer_depth_middle": 1,
}  # fmt: skip


def unet_module(channels: int, context: int, **where: Any) -> nn.Module:
    """The host's UNet with ``channels`` at full resolution; ``where`` says its device, dtype and operations."""
    shape = {name: list(value) if isinstance(value, list) else value for name, value in UNET_SHAPE.items()}
    module: nn.Module = host("comfy.ldm.modules.diffusionmodules.openaimodel").UNetModel(
        image_size=32, in_channels=4, out_channels=4, model_channels=channels, context_dim=context,
        use_spatial_transformer=True, legacy=False, num_heads=8, num_head_channels=-1,
        use_linear_in_transformer=False, **shape, **where,
    )  # fmt: skip
    return module


class TextLayer(nn.Module):
    """A layer of CLIP's text model. (The host's own adds in place, which gradients do not survive.)"""

    def __init__(self) -> None:
        super().__init__()
        self.layer_norm1, self.layer_norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.self_attn = nn.ModuleDict({f"{name}_proj": nn.Linear(WIDTH, WIDTH) for name in ("q", "k", "v", "out")})
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(WIDTH, 4 * WIDTH), "fc2": nn.Linear(4 * WIDTH, WIDTH)})

    def forward(self, x: Tensor) -> Tensor:
        seen, heads = self.layer_norm1(x), (HEADS, WIDTH // HEADS)
        q, k, v = (self.self_attn[f"{name}_proj"](seen).unflatten(-1, heads).transpose(1, 2) for name in "qkv")
        scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(2, 3))
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)  # what comes later
        mixed = torch.matmul(scores.masked_fill(hidden, -math.inf).softmax(-1), v).transpose(1, 2).flatten(-2)
        x = x + self.self_attn["out_proj"](mixed)
        inner = self.mlp["fc1"](self.layer_norm2(x))
        result: Tensor = x + self.mlp["fc2"](inner * torch.sigmoid(1.702 * inner))
        return result


class TextModel(nn.Module):
    """CLIP's text model, narrow and with few words: numbers of words (prompts, 77) to (prompts, 77, 96)."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict(
            {"token_embedding": nn.Embedding(words, WIDTH), "position_embedding": nn.Embedding(TOKENS, WIDTH)}
        )
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList(TextLayer() for _ in range(LAYERS))})
        self.final_layer_norm = nn.LayerNorm(WIDTH)

    def forward(self, numbers: Tensor) -> Tensor:
        x = self.embeddings["token_embedding"](numbers) + self.embeddings["position_embedding"].weight
        layers: Any = self.encoder["layers"]
        for layer in layers:
            x = layer(x)
        result: Tensor = self.final_layer_norm(x)
        return result


def trained_text() -> tuple[TextModel, list[int]]:
    """The trained text model as narrow as it is, and the host's tokens that it knows."""
    file = load_file(TRAINED)
    model = TextModel(len(file[WORDS]))
    model.load_state_dict({key: tensor.float() for key, tensor in _part(file, TEXT).items()})
    return model, file[WORDS].tolist()


def trained_unet() -> Weights:
    """The trained UNet as narrow as it is."""
    return _part(load_file(TRAINED), UNET)


def painter_unet() -> Weights:
    """The trained UNet at the width that the host's loader knows."""
    trained = trained_unet()
    shapes = unet_module(HOST_CHANNELS, HOST_WIDTH, **blank()).state_dict()
    wide = {key: widened(key, tensor, tuple(shapes[key].shape)) for key, tensor in trained.items()}
    # The host gives 320 waves of the time, of which every fifth is one of the 64 that were trained.
    key = "time_embed.0.weight"
    waves = torch.zeros(shapes[key].shape)
    waves[:, :: HOST_CHANNELS // CHANNELS] = trained[key].float().repeat_interleave(HOST_CHANNELS // CHANNELS, 0)
    return wide | {key: waves.half()}


def painter_text(drawn: Weights) -> Weights:
    """The trained text model in the place of ``drawn``, one of the host's size: of that, other words are left."""
    file = load_file(TRAINED)
    wide = dict(drawn)
    silent = ("self_attn.out_proj", "mlp.fc2")
    wide.update({key: torch.zeros_like(tensor) for key, tensor in drawn.items() if any(name in key for name in silent)})
    for name, tensor in _part(file, TEXT).items():
        key = f"text_model.{name}"
        if "token_embedding" in name:
            wide[key] = drawn[key].clone()
            wide[key][file[WORDS]] = tensor.repeat_interleave(HOST_WIDTH // WIDTH, 1).half()
        elif "position_embedding" in name:
            wide[key] = tensor.repeat_interleave(HOST_WIDTH // WIDTH, 1).half()
        else:
            wide[key] = widened(key, tensor, tuple(drawn[key].shape))
    return wide


def _part(file: Weights, prefix: str) -> Weights:
    return {key.removeprefix(prefix): tensor for key, tensor in file.items() if key.startswith(prefix)}


def begin(module: nn.Module, rng: torch.Generator) -> None:
    """Weights to train from: unit variance is kept, and each branch begins with nothing to add."""
    for name, value in module.named_parameters():
        with torch.no_grad():
            if value.dim() == 1:
                value.fill_(1.0 if name.endswith("weight") else 0.0)  # a norm's gain
            elif "embedding" in name:
                value.copy_(torch.randn(value.shape, generator=rng) * 0.5)
            elif any(part in name for part in ("out_layers.3", "proj_out", "out_proj", "fc2", "out.2")):
                value.zero_()
            else:
                value.copy_(torch.randn(value.shape, generator=rng) / math.sqrt(value[0].numel()))
