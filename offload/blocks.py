"""Finds the repeated blocks of a network by its structure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from torch import nn

FEWEST_LAYERS = 2  # with weights, in a block; Flux.2's single blocks have no more
# Lists of a UNet; their entries differ in kind: the first is the entrance, and some only change the resolution.
UNET_LISTS = ("input_blocks", "output_blocks")
UNET_MIDDLE = "middle_block"


@dataclass(frozen=True)
class BlockLists:
    """The repeated blocks of a network.

    Attributes:
        paths: of the blocks' lists, in order of registration.
        blocks: path of every block, in order of registration.
    """

    paths: tuple[str, ...]
    blocks: tuple[str, ...]

    def block_of(self, name: str) -> str | None:
        """The block that holds a module, outermost first; None outside all of them."""
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            if path in self._known:
                return path
        return None

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.blocks)


def block_lists(root: nn.Module) -> BlockLists:
    """The outermost lists of blocks: two or more modules of one class with several layers each.

    UNets are known by their input, middle and output blocks, whose entries differ.

    Args:
        root: a diffusion model or a text encoder.
    """
    if all(hasattr(root, name) for name in (*UNET_LISTS, UNET_MIDDLE)):
        return _unet(root)
    paths = tuple(_outermost(root, ""))
    return BlockLists(
        paths, tuple(f"{path}.{name}" for path in paths for name, _ in root.get_submodule(path).named_children())
    )


def _unet(root: nn.Module) -> BlockLists:
    entries = [
        f"{path}.{name}"
        for path in UNET_LISTS
        for name, _ in getattr(root, path).named_children()
        if (path, name) != (UNET_LISTS[0], "0")
    ]
    middle = entries.index(f"{UNET_LISTS[1]}.0")
    return BlockLists((UNET_LISTS[0], UNET_MIDDLE, UNET_LISTS[1]), (*entries[:middle], UNET_MIDDLE, *entries[middle:]))


def _outermost(module: nn.Module, path: str) -> Iterator[str]:
    for name, child in module.named_children():
        where = f"{path}.{name}" if path else name
        if _is_block_list(child):
            yield where
        else:
            yield from _outermost(child, where)


def _is_block_list(module: nn.Module) -> bool:
    if not isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential)):
        return False
    children = list(module.children())
    return (
        len(children) >= 2
        and len({type(child) for child in children}) == 1
        and all(_layers(child) >= FEWEST_LAYERS for child in children)
    )


def _layers(module: nn.Module) -> int:
    """Layers with a matrix or a kernel of weights."""
    return sum(
        1 for child in module.modules() if (weight := child._parameters.get("weight")) is not None and weight.ndim >= 2
    )
