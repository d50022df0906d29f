"""Which layers of a network to cast, and why the others stay."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum

from torch import nn

from .blocks import BlockLists, block_lists
from .skip import SkipRules

FEWEST_WEIGHTS = 4096
# Modulation is kept where that costs next to nothing. Flux and SD3 have a third of a block's weights in it: kept, a
# model would shrink to 0.64 instead of 0.53 of its size.
MODULATION_SHARE = 0.02
# A convolution without scales adds as much error whether it is large or small: the small ones are kept, as many as make
# up this share of the weights. In SD1.5 they are more than half of the layers.
CONVOLUTION_SHARE = 0.05

_NORM = re.compile(r"norm", re.IGNORECASE)
_EMBEDDER = re.compile(
    r"(^|\.)(img_in|txt_in|x_embedder|t_embedder|y_embedder|cap_embedder|context_embedder|\w*_embed(der|ding)?s?|"
    r"time_in|vector_in|guidance_in|refiner_in|caption_projection|distilled_guidance_layer)(\.|$)"
)
_MODULATION = re.compile(
    r"(^|[._])(mod(ulation)?(?-i:_?[A-Z]+)?|adaln\w*|emb_layers|scale_shift\w*)(\.|_|$)", re.IGNORECASE
)
_ATTENTION = re.compile(
    r"(^|[._])(\w*attn\w*|\w*attention\w*|qkv\w*|to_[qkv]|[qkvo]|proj_in|proj_out|[qkvo]_proj)(\.|_|$)", re.IGNORECASE
)
_MLP = re.compile(
    r"(^|[._])(\w*mlp\w*|ff\w*|feed_?forward|fc\d?|\w*dense\w*|w[123i]|(gate|up|down)_proj)(\.|_|$)", re.I
)


class LayerKind(Enum):
    """What a layer is to a cast."""

    LINEAR = "linear"
    CONVOLUTION = "convolution"
    EMBEDDING = "embedding"


@dataclass(frozen=True)
class Layer:
    """One layer with a weight.

    Attributes:
        name: path of its module in the network.
        kind: None where it is none of the kinds that can be cast.
        weights: number of values in its weight.
        block: path of the block it is part of.
        reason: why it stays as it is; None: it is cast.
    """

    name: str
    kind: LayerKind | None
    weights: int
    block: str | None
    reason: str | None

    @property
    def group(self) -> str:
        """Block and role: layers that are judged together."""
        return layer_group(self.name, self.block)


def plan_layers(
    root: nn.Module,
    skip: SkipRules,
    kind_of: Callable[[nn.Module], LayerKind | None] | None = None,
    spare_convolutions: bool = False,
) -> list[Layer]:
    """Decides for each layer with a weight of two or more dimensions.

    Never cast: norms and other weights of one dimension, embeddings (they are read by row), layers of fewer than
    :data:`FEWEST_WEIGHTS` weights. Under ``auto`` also what stands outside the repeated blocks (embedders, first and
    last layers), norms by name, and modulation where it is less than :data:`MODULATION_SHARE` of the weights.

    Args:
        root: a diffusion model or a text encoder.
        skip: what the user wants left alone.
        spare_convolutions: convolutions get no scales, so ``auto`` keeps the small ones, together up to
            :data:`CONVOLUTION_SHARE` of the weights.
        kind_of: tells whether a module can be cast and as what; torch's own classes without it.
    """
    kind_of = kind_of or torch_kind
    lists = block_lists(root)
    layers = [
        _layer(name, module, kind_of(module), lists, skip)
        for name, module in root.named_modules()
        if _weight_count(module) and name
    ]
    if not skip.auto:
        return layers
    layers = _decide_modulation(layers)
    return _keep_small_convolutions(layers) if spare_convolutions else layers


def torch_kind(module: nn.Module) -> LayerKind | None:
    """The kind of torch's own layers and their subclasses."""
    if isinstance(module, nn.Linear):
        return LayerKind.LINEAR
    if isinstance(module, nn.Embedding):
        return LayerKind.EMBEDDING
    if isinstance(module, nn.modules.conv._ConvNd):
        return LayerKind.CONVOLUTION
    return None


def layer_group(name: str, block: str | None) -> str:
    """Block and role of a layer: ``double_blocks.0 attention``; outside the blocks its own name."""
    if block is None:
        return name
    inside = name[len(block) + 1 :]
    for role, pattern in (("modulation", _MODULATION), ("attention", _ATTENTION), ("mlp", _MLP)):
        if pattern.search(inside):
            return f"{block} {role}"
    return f"{block} other"


def cast_layers(layers: Iterable[Layer]) -> list[Layer]:
    """Those that are cast."""
    return [layer for layer in layers if layer.reason is None]


def _weight_count(module: nn.Module) -> int:
    weight = module._parameters.get("weight")
    return weight.numel() if weight is not None else 0


def _layer(name: str, module: nn.Module, kind: LayerKind | None, lists: BlockLists, skip: SkipRules) -> Layer:
    block = lists.block_of(name)
    weights = _weight_count(module)
    reason = _always_kept(module, kind, weights) or _by_pattern(name, skip)
    if reason is None and skip.auto:
        reason = _kept_by_structure(name, block, bool(lists.blocks))
    return Layer(name, kind, weights, block, reason)


def _always_kept(module: nn.Module, kind: LayerKind | None, weights: int) -> str | None:
    weight = module._parameters["weight"]
    if weight is None or weight.ndim < 2:
        return "norm or other vector"
    if kind is LayerKind.EMBEDDING:
        return "embedding, read by row"
    if kind is None:
        return "a kind of layer that cannot be cast"
    return "small" if weights < FEWEST_WEIGHTS else None


def _by_pattern(name: str, skip: SkipRules) -> str | None:
    pattern = skip.pattern_for(name)
    return None if pattern is None else f"skip {pattern}"


def _kept_by_structure(name: str, block: str | None, has_blocks: bool) -> str | None:
    if _NORM.search(name.rpartition(".")[2]):
        return "norm"
    if _EMBEDDER.search(name if block is None else name[: len(block)]):
        return "embedder"
    if has_blocks and block is None:
        return "first, last or embedder: outside the blocks"
    return None


def _decide_modulation(layers: list[Layer]) -> list[Layer]:
    """Keeps the modulation inside the blocks where it is a small part of the whole."""
    modulation = {layer.name for layer in cast_layers(layers) if layer.group.endswith(" modulation")}
    total = sum(layer.weights for layer in layers)
    if sum(layer.weights for layer in layers if layer.name in modulation) > MODULATION_SHARE * total:
        return layers
    return [replace(layer, reason="modulation") if layer.name in modulation else layer for layer in layers]


def _keep_small_convolutions(layers: list[Layer]) -> list[Layer]:
    convolutions = [layer for layer in cast_layers(layers) if layer.kind is LayerKind.CONVOLUTION]
    left = CONVOLUTION_SHARE * sum(layer.weights for layer in layers)
    kept = set()
    for layer in sorted(convolutions, key=lambda layer: layer.weights):
        left -= layer.weights
        if left < 0:
            break
        kept.add(layer.name)
    return [replace(layer, reason="small convolution") if layer.name in kept else layer for layer in layers]
