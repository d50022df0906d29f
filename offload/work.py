"""How much a block computes, told from its structure: multiply-adds of its weights, in relation to the other blocks."""

from __future__ import annotations

import re

from torch import nn

from .blocks import UNET_LISTS, BlockLists, block_lists

# Weights that only the text's tokens go through, a tenth or so of the picture's.
TEXT_SIDE = re.compile(r"(^|\.)(txt_|context_block\.|add_[qkv]_|to_add_|attn_?mod_context)")
TEXT_SHARE = 0.1


def block_work(root: nn.Module, lists: BlockLists | None = None) -> dict[str, float]:
    """Relative multiply-adds of each block, by its path.

    Every weight of a transformer block meets every token once; those of the text's side meet fewer. In a UNet a weight
    meets a quarter of the positions after each downsampling. Attention between tokens is left out: it is alike in all
    blocks of a transformer.
    """
    lists = lists or block_lists(root)
    work = {path: _weights(root.get_submodule(path)) for path in lists.blocks}
    if UNET_LISTS[0] not in lists.paths:
        return work
    positions = 1.0
    for path in lists.blocks:
        block = root.get_submodule(path)
        if path.startswith(UNET_LISTS[0]) and _resamples(block, "op"):
            positions /= 4  # a strided convolution computes at the smaller size
        work[path] *= positions
        if path.startswith(UNET_LISTS[1]) and _resamples(block, "conv"):
            positions *= 4
    return work


def _weights(block: nn.Module) -> float:
    return sum(
        parameter.numel() * (TEXT_SHARE if TEXT_SIDE.search(name) else 1.0)
        for name, parameter in block.named_parameters()
        if parameter.ndim > 1
    )


def _resamples(block: nn.Module, convolution: str) -> bool:
    """Whether a UNet's block changes the resolution: a module with nothing but that one convolution."""
    return any([name for name, _ in module.named_children()] == [convolution] for module in block.children())
