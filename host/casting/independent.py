"""A second model on the weights of a loaded one: modules of its own, nothing of the host's notes on the first.

While a model is loaded, the host writes on its modules where their weights lie: places in VRAM, pinned buffers, patches
still to be applied, recorded graphs. A copy that shared such a note would free or overwrite memory of the original.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import nn

from ...offload import copy_structure
from ..core.compat import unload_with_clones

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

# Names that the host gives to its notes on one loaded copy, by form: newer hosts add to them (0.33 `_v_block` and
# `_comfy_graph`), and sets them anew when it loads the copy.
NOTE = re.compile(
    r"_v(_\w+)?|_pins?|_pin_\w+|_prefetch|_?comfy_\w+|prev_comfy_\w+|\w*lowvram\w*|(weight|bias)_function|seed_key"
    r"|dynamic_(vbars|pins|patchers)|current_(patcher|weight_patches_uuid)|model_(loaded_weight|offload_buffer)_memory"
)
# What has such a name and is no note: a module's constructor sets it, or a caster of weights.
SHARED = {"comfy_cast_weights", "comfy_need_lazy_init_bias"}
# Whoever holds an object of these modules holds memory, a stream or the loading of one copy.
OF_ONE_COPY = re.compile(
    r"(comfy_aimdo|torch\.cuda|comfy\.(model_patcher|model_management|memory_management|pinned_memory|model_prefetch))\b"
)


def independent(model: ModelPatcher) -> ModelPatcher:
    """A patcher on modules of its own that share all weights, with the LoRAs, options and wrappers of ``model``.

    Raises:
        ValueError: the host notes something on its modules that is not known here and that two models must not share.
    """
    unload_with_clones(model)  # weights as they were loaded, without LoRA, where they wait
    copy = copy_structure(model.model, notes_on(model.model))
    copy.current_patcher = None  # type: ignore[assignment]
    result = model.clone(model_override=(copy, ({}, {}, {}, set())))
    result.parent = None
    result.hook_backup = {}
    result.patches_uuid = uuid.uuid4()
    if hasattr(result, "clone_base_uuid"):
        result.clone_base_uuid = uuid.uuid4()
    if hasattr(result, "register_load_device"):
        result.register_load_device(result.load_device)
    return result


def notes_on(root: nn.Module) -> set[str]:
    """Names of the attributes in a module tree that belong to one loaded copy.

    Raises:
        ValueError: an attribute of another name that holds what loads or streams this copy.
    """
    notes: set[str] = set()
    for path, module in root.named_modules():
        for name, value in vars(module).items():
            if NOTE.fullmatch(name) and name not in SHARED:
                notes.add(name)
            elif (kind := _of_one_copy(value)) is not None:
                raise ValueError(
                    f"model: this ComfyUI keeps a {kind.__module__}.{kind.__qualname__} as '{name}' of"
                    f" {path or 'the model'}, which two models must not share; update Headroom, or take this node out"
                )
    return notes


def _of_one_copy(value: Any) -> type | None:
    """The class of what belongs to one copy, in a value or an item of it; None where nothing does."""
    return next((type(item) for item in _items(value) if OF_ONE_COPY.match(type(item).__module__)), None)


def _items(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple | set):
        yield from value
