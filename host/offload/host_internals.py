"""What Block Offload relies on in the host's loader. None of it is documented, so that any of it may change.

Each piece is named where it is used, with "Host:". They are the same in the sources of ComfyUI 0.18.2, 0.30.0 and
0.33.0; tests/host/test_offload.py runs on these, 0.24.1 and 0.27.0 every night.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import comfy.model_management
from comfy import model_patcher
from torch import nn

from ..core.internals import NEWEST_TESTED, OLDEST_TESTED, find

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

LoadEntry = tuple[Any, ...]
# Methods of ModelPatcher, with parameters that are passed to them.
METHODS: dict[str, tuple[str, ...]] = {
    "_load_list": (),
    "partially_load": ("extra_memory", "force_patch_weights"),
    "unpatch_model": ("unpatch_weights",),
    "clone": (),
    "loaded_size": (),
    "model_size": (),
    "is_dynamic": (),
    "get_additional_models_with_key": (),
    "remove_wrappers_with_key": (),
}
MANAGEMENT = ("module_size", "vram_state", "VRAMState")
ATTRIBUTES = ("load_device", "offload_device", "attachments", "wrappers", "model")
APPLY_MODEL = ("self", "x", "t", "c_concat", "c_crossattn", "control", "transformer_options")


class HostChangedError(RuntimeError):
    """This ComfyUI lacks something that Block Offload relies on; the message names it and says what to do."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"Block Offload relies on ComfyUI's {what}, which this version lacks or has changed; take a ComfyUI from"
            f" {OLDEST_TESTED} to {NEWEST_TESTED} or a newer Headroom, or bypass the node"
        )


def check_loader(model: ModelPatcher) -> None:
    """
    Raises:
        HostChangedError: something is missing that any patcher's weights are judged by.
    """
    for what in _missing(model):
        raise HostChangedError(what)


def check_model(model: ModelPatcher) -> None:
    """
    Raises:
        HostChangedError: something is missing that a MODEL's budget needs.
    """
    check_loader(model)
    if not hasattr(model.model, "diffusion_model"):
        raise HostChangedError("BaseModel.diffusion_model")


def check_calls(model: ModelPatcher) -> None:
    """
    Raises:
        HostChangedError: something is missing that prefetching needs.
    """
    apply_model = find("comfy.model_base:BaseModel.apply_model")
    names = () if apply_model is None else tuple(inspect.signature(apply_model).parameters)
    if names[: len(APPLY_MODEL)] != APPLY_MODEL:
        raise HostChangedError("BaseModel.apply_model")
    if not hasattr(model.model, "current_patcher"):
        raise HostChangedError("BaseModel.current_patcher")


def check_loaded(model: ModelPatcher) -> None:
    """
    Raises:
        HostChangedError: weights are loaded, and no layer says that it is.
    """
    if getattr(model, "weight_wrapper_patches", None):
        return  # Host: in a training what is trained counts as loaded, though no layer is
    if model.loaded_size() and not any(hasattr(m, "comfy_patched_weights") for m in model.model.modules()):
        raise HostChangedError("mark of loaded layers (comfy_patched_weights)")


def layers_by_path(model: ModelPatcher) -> dict[str, nn.Module]:
    """Modules that the host loads one by one.

    Raises:
        HostChangedError: the host has another loader.
    """
    check_loader(model)
    # Host: an entry of this list ends with a module's path, the module, and the names of its weights. Not the model's
    # own method, whose list may be one of ours.
    entries = model_patcher.ModelPatcher._load_list(model)
    if not all(len(entry) > 3 and isinstance(entry[-3], str) and isinstance(entry[-2], nn.Module) for entry in entries):
        raise HostChangedError("ModelPatcher._load_list")
    return {entry[-3]: entry[-2] for entry in entries}


class LoadOrder(list[LoadEntry]):
    """The host's list of what to load, with the resident layers first and nothing set aside for streaming them.

    Host: the loader sorts the list itself, by ``.sort(reverse=True)`` to load and by ``.sort()`` to unload, and goes
    through it from the front. An entry is (bytes set aside for streaming the layer, bytes, path, module, weights);
    those of dynamic VRAM begin otherwise, and are one longer.
    """

    SPARED = -(1 << 60)  # bytes set aside for streaming a layer that is to be loaded: never the reason not to

    def __init__(self, entries: Iterable[LoadEntry], resident: frozenset[str]) -> None:
        super().__init__(entries)
        self._resident = resident
        self.was_sorted = False

    def sort(self, *, key: Callable[[LoadEntry], Any] | None = None, reverse: bool = False) -> None:
        self.was_sorted = True
        super().sort(key=lambda entry: (entry[-3] in self._resident, *entry[:-2]), reverse=reverse)
        if reverse:  # to load; otherwise to unload
            self[:] = [(self.SPARED, *entry[1:]) if self._is_spared(entry) else entry for entry in self]

    def _is_spared(self, entry: LoadEntry) -> bool:
        return len(entry) == 5 and entry[-3] in self._resident


def _missing(model: ModelPatcher) -> Iterator[str]:
    for name, parameters in METHODS.items():
        method = getattr(model_patcher.ModelPatcher, name, None)
        if method is None or not _takes(method, parameters):
            yield f"ModelPatcher.{name}"
    yield from (f"ModelPatcher.{name}" for name in ATTRIBUTES if not hasattr(model, name))
    yield from (f"model_management.{name}" for name in MANAGEMENT if not hasattr(comfy.model_management, name))


def _takes(method: Callable[..., Any], names: tuple[str, ...]) -> bool:
    parameters = inspect.signature(method).parameters
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return anything or all(name in parameters for name in names)
