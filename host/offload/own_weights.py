"""Dynamic VRAM's layers while they hold weights of their own instead of a page of the host's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...offload.streamed import Streamed

PAGE = "_v"  # Host: a layer's place in dynamic VRAM; its parameters stay in RAM
# Host: what is called with a weight that is brought, and what the page's weights alone go through before: the patches
# that were loaded, as a LoRA's.
FUNCTIONS = {"weight_function": "weight_lowvram_function", "bias_function": "bias_lowvram_function"}
# Host: how the names begin of what it keeps with a model and its layers: pages and what was last read from them,
# page-locked memory, and their owners, which give memory back when they go.
KEPT_BY_HOST = ("_v_", "_pin", "_prefetch", "dynamic_")


def without_page(layer: nn.Module) -> Callable[[], None]:
    """Has a layer of dynamic VRAM compute with the parameters that it holds; gives what undoes it.

    The host patches what it reads from the page, and nothing else: the patches come with the parameters here, in the
    same place, before what is trained. From 0.30.0 on it leaves the page aside by itself where the parameters are on
    the device; older ones do not.
    """
    own = vars(layer)
    if PAGE not in own:
        return _nothing
    before: dict[str, Any] = {name: own[name] for name in (PAGE, *FUNCTIONS) if name in own}
    for name, patch in FUNCTIONS.items():
        if getattr(layer, patch, None) is not None:
            own[name] = [getattr(layer, patch), *getattr(layer, name)]
    del own[PAGE]

    def undo() -> None:
        for name in FUNCTIONS:
            own.pop(name, None)
        own.update(before)

    return undo


def _nothing() -> None:
    pass


def is_kept_by_host(name: str) -> bool:
    """Whether an attribute of a model, layer or patch is dynamic VRAM's, and no part of what it computes."""
    return name == PAGE or name.startswith(KEPT_BY_HOST)


def without_host(own: Mapping[str, Any]) -> dict[str, Any]:
    """A layer's attributes without what the host keeps there: as :func:`without_page` has it compute."""
    kept = {name: thing for name, thing in own.items() if not is_kept_by_host(name)}
    for name, patch in FUNCTIONS.items() if PAGE in own else ():
        if own.get(patch) is not None:
            kept[name] = [own[patch], *own.get(name, ())]
    return kept


def copied(module: nn.Module, device: torch.device) -> nn.Module:
    """A copy of a module with its weights on another device, and nothing of the host's: a second owner of its pages
    would give them back a second time."""
    memo: dict[int, Any] = {}
    for weight in (*module.parameters(), *module.buffers()):
        there = torch.zeros_like(weight, device=device) if weight.is_meta else weight.detach().to(device)
        memo[id(weight)] = nn.Parameter(there, requires_grad=False) if isinstance(weight, nn.Parameter) else there
    for owner in _owners(module):
        for name, thing in vars(owner).items():
            if is_kept_by_host(name) and not isinstance(thing, (bool, int, float, str, type(None))):
                memo[id(thing)] = None
    made = copy.deepcopy(module, memo)
    for layer in made.modules():
        vars(layer).update(kept := without_host(vars(layer)))
        for name in vars(layer).keys() - kept.keys():
            del vars(layer)[name]
    return made


def _owners(module: nn.Module) -> list[Any]:
    """All that the host keeps something with: the module, its layers, and patches that were loaded."""
    patches = (vars(layer).get(patch) for layer in module.modules() for patch in FUNCTIONS.values())
    return [*module.modules(), *(patch for patch in patches if hasattr(patch, "__dict__"))]


class OwnWeights:
    """Copies on a device of all that dynamic VRAM's layers within a module hold in RAM.

    A page is the host's again as soon as its layer has run, to be taken away or written anew; what is recorded of the
    layer and computed later reads these instead. Layers whose weights are quantised, or not read yet, stay as they are.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        paged = () if device.type == "cpu" else (layer for layer in module.modules() if PAGE in vars(layer))
        self._layers = [each for each in map(Streamed.of, paged) if all(map(_is_plain, each.weights.values()))]
        self._device = device
        self._copies: list[list[Tensor]] = []
        self._undo: list[Callable[[], None]] = []

    @property
    def bytes(self) -> int:
        """Of all copies."""
        return sum(
            weight.numel() * _dtype(each.layer, name, weight).itemsize
            for each in self._layers
            for name, weight in each.weights.items()
        )

    def bring(self) -> None:
        """Makes the copies, in the dtypes of the pages; the largest first, as the host brings weights."""
        made: dict[int, Tensor] = {}
        wanted = [(weight, each.layer, name) for each in self._layers for name, weight in each.weights.items()]
        for weight, layer, name in sorted(wanted, key=lambda one: -one[0].nbytes):
            made[id(weight)] = weight.data.to(self._device, _dtype(layer, name, weight))
        self._copies = [[made[id(weight)] for weight in each.weights.values()] for each in self._layers]

    def put_in(self) -> None:
        """The layers compute with the copies, until :meth:`put_back`."""
        for each, copies in zip(self._layers, self._copies):
            if each.is_current():  # else the host has brought it by now
                each.put_in(copies)
                self._undo += [each.put_back, without_page(each.layer)]

    def put_back(self) -> None:
        """The layers are the host's again."""
        while self._undo:
            self._undo.pop()()


def _is_plain(weight: Tensor) -> bool:
    return type(weight.data) is Tensor and not weight.is_meta


def _dtype(layer: nn.Module, name: str, weight: Tensor) -> torch.dtype:
    """In which the host computes with a weight, and puts it into its page."""
    return getattr(layer, f"{name}_comfy_model_dtype", None) or weight.dtype
