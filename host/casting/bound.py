"""What on a model runs its own network, and would go on doing so on a copy whose layers are exchanged.

A compiled module, or a node's own module or method in the place of one, holds the network that it was made from. On a
copy it would compute with the original's weights: nothing would be cast, and the patches of a LoRA would be missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import nn

from ..core.wrapper_kinds import APPLY_MODEL
from ..measure.wrappers import COMPILED

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher


def bound_to_original(model: ModelPatcher, node: str = "Layerwise Casting") -> str | None:
    """Why a copy of a model would run the original's network, and what to do; None: it would not.

    Args:
        node: what people read on the node of ours that would cast the model.
    """
    if COMPILED in model.wrappers.get(APPLY_MODEL, {}):
        return _sentence("torch.compile", node)
    # Host: while a patcher is loaded, its object patches stand in the tree, and what they replace in the backup.
    places = dict(model.model.named_modules())
    patches: dict[str, Any] = model.object_patches
    replaced = model.object_patches_backup
    original = {id(module) for module in places.values()}
    original -= {id(module) for path in replaced for module in _modules(places.get(path))}
    original |= {id(module) for value in replaced.values() for module in _modules(value)}
    for path, patch in patches.items():
        if any(id(module) in original for module in _modules(patch)):
            return _sentence("torch.compile" if hasattr(patch, "_orig_mod") else f"a node that patches '{path}'", node)
    return None


def _sentence(what: str, node: str) -> str:
    return f"{what} stands before {node} and would go on running the original; put it behind"


def _modules(value: Any) -> Iterator[nn.Module]:
    """Modules that a value is, holds as its own, or is a method of."""
    owner = getattr(value, "__self__", value)
    for module in (owner, getattr(owner, "_orig_mod", None)):
        if isinstance(module, nn.Module):
            yield from module.modules()
