"""How and where weights live: storage formats, which layers to cast, copies of a module on the same storages.

Knows nothing of ComfyUI; usable from any PyTorch program::

    from headroom.offload import SkipRules, copy_structure, plan_layers
    twin = copy_structure(model)
    for layer in plan_layers(twin, SkipRules.parse("auto")):
        print(layer.name, layer.reason or "cast")
"""

from .blocks import BlockLists, block_lists
from .cast_report import CastLayer, CastReport
from .fingerprint import fingerprint
from .layers import Layer, LayerKind, plan_layers, torch_kind
from .plain import cast_plain
from .quality import NoiseMeter, row_parts
from .sensitivity import GroupCost, keep_for_error, keep_for_size, output_db, ranked
from .skip import SkipRules
from .storage import STORAGES, Layout, Storage, missing_in_torch
from .structure import copy_structure

__all__ = [
    "STORAGES",
    "BlockLists",
    "CastLayer",
    "CastReport",
    "GroupCost",
    "Layer",
    "LayerKind",
    "Layout",
    "NoiseMeter",
    "SkipRules",
    "Storage",
    "block_lists",
    "cast_plain",
    "copy_structure",
    "fingerprint",
    "keep_for_error",
    "keep_for_size",
    "missing_in_torch",
    "output_db",
    "plan_layers",
    "ranked",
    "row_parts",
    "torch_kind",
]
