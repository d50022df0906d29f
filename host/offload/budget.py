"""A memory budget for the weights of one model, executed by the host's own loader.

The host loads a model into what it thinks is free. A MODEL with a budget is a clone whose patcher tells it less: the
class of its patcher, with one method that lowers that number and one that says in which order to load. Nothing is moved
behind the host's back; its books stay right, and other patchers of the same model know nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import comfy.model_management
import torch
from comfy.model_patcher import ModelPatcher

from ...offload import block_lists
from ...offload.costs import LayerCost
from ...offload.schedule import Plan, least_budget, ring_bytes, spread_residents
from ...offload.staging import flat_bytes
from ...offload.work import layer_work

ATTRIBUTE = "headroom_budget"
NETWORK = "diffusion_model."
# Layers that are not worth a copy each, together, of the model's bytes: biases, norms.
SMALL_SHARE = 0.002
ALWAYS = -(1 << 60)  # what is set aside for streaming a layer that is to be loaded


@dataclass(frozen=True)
class Budget:
    """Attributes:
    weights: bytes that the model may use on its device for weights, staging included.
    staging: bytes of those for the ring that streamed weights go through.
    resident: paths of the modules that are loaded, all others are streamed; None: as the host does it.
    loaded: bytes of those, as the host counts.
    streamed: bytes that are copied in every step.
    """

    weights: int
    staging: int = 0
    resident: frozenset[str] | None = None
    loaded: int = 0
    streamed: int = 0

    @property
    def loadable(self) -> int:
        """What the host is told that it may load: less than which it stays."""
        return self.weights if self.resident is None else self.loaded + 1


def set_budget(model: ModelPatcher, budget: Budget | None) -> None:
    """Gives a clone a budget in place of the one it had, or lifts it."""
    base = _base(type(model))
    model.__class__ = base if budget is None else _with_budget(base)  # type: ignore[arg-type]
    if budget is None:
        model.__dict__.pop(ATTRIBUTE, None)
    else:
        setattr(model, ATTRIBUTE, budget)


def budget_of(model: ModelPatcher) -> Budget | None:
    budget: Budget | None = getattr(model, ATTRIBUTE, None)
    return budget


def loads_by_the_host(model: ModelPatcher) -> bool:
    """Whether a model's loading is the host's own: another pack may have put its code in the place of it."""
    loading = _base(type(model)).partially_load
    return loading.__module__ == ModelPatcher.__module__ and "comfy" in loading.__module__


def _base(kind: type[ModelPatcher]) -> type[Any]:
    return next(base for base in kind.__mro__ if not getattr(base, "headroom_has_budget", False))


class _Ordered(list):
    """The host's list of what to load, which it sorts itself: here what is to be resident stands first, and nothing is
    set aside for streaming it."""

    def __init__(self, entries: Iterable[tuple[Any, ...]], resident: frozenset[str]) -> None:
        super().__init__(entries)
        self._resident = resident

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        super().sort(key=lambda entry: (entry[-3] in self._resident, *entry[:-2]), reverse=reverse)
        if reverse:  # to load; otherwise to unload
            self[:] = [(ALWAYS, *entry[1:]) if self._is_always(entry) else entry for entry in self]

    def _is_always(self, entry: tuple[Any, ...]) -> bool:
        return (
            len(entry) == 5 and entry[-3] in self._resident
        )  # with what streaming takes, bytes, path, module, weights


@cache
def _with_budget(base: type[Any]) -> type[Any]:
    class Budgeted(base):
        """A patcher that asks its host for less."""

        headroom_has_budget = True

        def clone(self, *args: Any, **kwargs: Any) -> ModelPatcher:
            copy: ModelPatcher = super().clone(*args, **kwargs)
            set_budget(copy, budget_of(self))  # the host may have chosen another class
            return copy

        def partially_load(self, device_to: Any, extra_memory: float = 0, force_patch_weights: bool = False) -> Any:
            budget = budget_of(self)
            if budget is not None and not self.is_dynamic():
                extra_memory += self._make_room(budget)
                if extra_memory >= 0:  # below zero the host unloads, and prepares no layer to be streamed
                    extra_memory = max(0, extra_memory - budget.staging)
                extra_memory = min(extra_memory, budget.loadable - self.loaded_size())
            result = super().partially_load(device_to, extra_memory, force_patch_weights=force_patch_weights)
            if budget is not None and self.is_dynamic():
                _limit_watermark(self, budget)
            return result

        def _make_room(self, budget: Budget) -> int:
            """Begins anew where more is loaded than may be, or other layers: the host's partial unloading leaves what
            is no layer.

            Returns:
                Bytes that were freed.
            """
            loaded = int(self.loaded_size())
            if loaded <= budget.loadable and not _loaded_besides(self, budget):
                return 0
            self.unpatch_model(self.offload_device, unpatch_weights=True)
            return loaded - int(self.loaded_size())

        def _load_list(self, *args: Any, **kwargs: Any) -> list[tuple[Any, ...]]:
            entries = super()._load_list(*args, **kwargs)
            budget = budget_of(self)
            if budget is None or budget.resident is None:
                return entries
            return _Ordered(entries, budget.resident)

    Budgeted.__name__ = Budgeted.__qualname__ = f"Budgeted{base.__name__}"
    return Budgeted


def _limit_watermark(model: ModelPatcher, budget: Budget) -> None:
    """Dynamic VRAM: the limit above which weights are not kept; the host resets it after every node."""
    memory = getattr(model, "_vbar_get", lambda: None)()
    if memory is not None and hasattr(memory, "set_watermark_limit"):
        memory.set_watermark_limit(budget.weights)


def _loaded_besides(model: ModelPatcher, budget: Budget) -> bool:
    """Whether layers are loaded that are to be streamed."""
    if budget.resident is None:
        return False
    return any(
        getattr(module, "comfy_patched_weights", False) and path not in budget.resident
        for path, module in model.model.named_modules()
    )


def layer_costs(model: ModelPatcher) -> dict[str, LayerCost]:
    """Bytes and relative compute of each layer that can be streamed, in order of registration.

    All that the host can stream in the network, without the smallest.
    """
    found = {path: module_bytes(module) for path, module in _leaves(model).items() if _can_stream(path, module)}
    spared = SMALL_SHARE * sum(found.values())
    for path in sorted(found, key=lambda path: found[path]):
        spared -= found[path]
        if spared < 0:
            break
        del found[path]
    work = layer_work(model.model.diffusion_model) if found else {}
    return {path: LayerCost(size, work.get(path.removeprefix(NETWORK), 0.0)) for path, size in found.items()}


def plan_budget(model: ModelPatcher, weights: int, ahead: int) -> Budget:
    """A budget with residents and staging for up to ``ahead`` blocks; without for 0, which is the host's own streaming.

    Raises:
        ValueError: less than the least that works, which it names.
    """
    least = least_weights(model, ahead)
    if weights < least:
        gb = 2**30
        raise ValueError(
            f"vram_budget_gb: {weights / gb:.3f} GB is less than the {least / gb:.3f} GB that this model needs at least"
            f" ({'block' if ahead else 'leaf'} granularity); raise it, or cast the model to 8 bits first"
        )
    if not ahead:
        return Budget(weights, streamed=max(0, model.model_size() - weights))
    leaves, costs = _leaves(model), layer_costs(model)
    sizes = {path: module_bytes(module) for path, module in leaves.items()}
    fixed = sum(size for path, size in sizes.items() if path not in costs)
    if not costs or sum(sizes.values()) <= weights:
        return Budget(weights)
    plan = spread_residents(list(costs.values()), weights - fixed, _most_staging(model, ahead))
    resident = _resident(leaves, costs, plan)
    loaded = sum(comfy.model_management.module_size(leaves[path]) for path in resident)
    return Budget(weights, plan.staging, resident, loaded, plan.streamed_bytes)


def least_weights(model: ModelPatcher, ahead: int) -> int:
    """Bytes without which a model cannot run: what is never offloaded, and room for its largest layer."""
    leaves = _leaves(model)
    costs = layer_costs(model) if ahead else {}
    if costs:
        fixed = sum(module_bytes(module) for path, module in leaves.items() if path not in costs)
        return fixed + least_budget(list(costs.values()))
    can = {path for path, module in leaves.items() if hasattr(module, "comfy_cast_weights")}
    sizes = {path: comfy.model_management.module_size(module) for path, module in leaves.items()}
    return sum(size for path, size in sizes.items() if path not in can) + max((sizes[path] for path in can), default=0)


def usual_staging(model: ModelPatcher) -> int | None:
    """Bytes of a ring that hides copies in most models; None where nothing can be streamed."""
    sizes = sorted((cost.bytes for cost in layer_costs(model).values()), reverse=True)
    return ring_bytes(sizes[0] + 2 * sizes[1]) if len(sizes) > 1 else None


def module_bytes(module: torch.nn.Module) -> int:
    """Of a module's own weights on a device."""
    return sum(flat_bytes(tensor) for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)))


def _resident(leaves: dict[str, torch.nn.Module], costs: dict[str, LayerCost], plan: Plan) -> frozenset[str]:
    paths = list(costs)
    return frozenset(leaves) - {paths[index] for index in plan.streamed}


def _most_staging(model: ModelPatcher, ahead: int) -> int:
    """Bytes of so many of the largest blocks; without bounds for a model without."""
    network = model.model.diffusion_model
    blocks = [comfy.model_management.module_size(network.get_submodule(path)) for path in block_lists(network).blocks]
    return sum(sorted(blocks)[-ahead:]) if blocks else int(model.model_size())


def _can_stream(path: str, module: torch.nn.Module) -> bool:
    return path.startswith(NETWORK) and hasattr(module, "comfy_cast_weights") and bool(module._parameters)


def _leaves(model: ModelPatcher) -> dict[str, torch.nn.Module]:
    """Modules that the host loads one by one, by path."""
    return {entry[-3]: entry[-2] for entry in ModelPatcher._load_list(model)}
