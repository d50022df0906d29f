"""How much each layer computes, estimated from the network's structure: multiply-adds of its weights, relatively."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import nn

from .blocks import UNET_LISTS, BlockLists, block_lists

# Weights that are multiplied with the text's tokens alone, of which there are about a tenth of the picture's.
TEXT_SIDE = re.compile(r"(^|\.)(txt_|context_block\.|add_[qkv]_|to_add_|attn_?mod_context)")
TEXT_SHARE = 0.1
# Weights that are multiplied with one vector for the whole picture, as its time and its modulation.
VECTOR_SIDE = re.compile(
    r"(^|[._])(mod(ulation)?(?-i:_?[A-Z]+)?|adaln\w*|emb_layers|time_\w*|t_embedder|vector_in|guidance_in|label_emb|"
    r"y_embedder|distilled_guidance_layer)(\.|_|$)",
    re.IGNORECASE,
)
VECTOR_SHARE = 0.001


def layer_work(root: nn.Module) -> dict[str, float]:
    """Relative multiply-adds of each layer with weights, by its path, in order of registration.

    Every weight of a transformer block meets every token once; those of the text's side meet fewer, and those of a
    modulation one vector. In a UNet a weight meets a quarter of the positions after each downsampling. Attention
    between tokens is left out: it is alike in all blocks of a transformer.
    """
    lists = block_lists(root)
    positions = _positions(root, lists)
    return {
        path: weights * _share(path) * positions.get(lists.block_of(path) or "", 1.0)
        for path, module in root.named_modules()
        if (weights := sum(p.numel() for p in module.parameters(recurse=False) if p.ndim > 1))
    }


def _share(path: str) -> float:
    if VECTOR_SIDE.search(path):
        return VECTOR_SHARE
    return TEXT_SHARE if TEXT_SIDE.search(path) else 1.0


def _positions(root: nn.Module, lists: BlockLists) -> dict[str, float]:
    """Of each block of a UNet, in relation to the first."""
    return dict(_positions_in_turn(root, lists)) if UNET_LISTS[0] in lists.paths else {}


def _positions_in_turn(root: nn.Module, lists: BlockLists) -> Iterator[tuple[str, float]]:
    positions = 1.0
    for path in lists.blocks:
        block = root.get_submodule(path)
        if path.startswith(UNET_LISTS[0]) and _resamples(block, "op"):
            positions /= 4  # a strided convolution computes at the smaller size
        yield path, positions
        if path.startswith(UNET_LISTS[1]) and _resamples(block, "conv"):
            positions *= 4


def _resamples(block: nn.Module, convolution: str) -> bool:
    """Whether a UNet's block changes the resolution: a module with nothing but that one convolution."""
    return any([name for name, _ in module.named_children()] == [convolution] for module in block.children())
