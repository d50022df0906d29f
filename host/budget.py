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

from ..offload import block_lists
from ..offload.schedule import BlockCost, least_budget, spread_residents
from ..offload.work import block_work

ATTRIBUTE = "headroom_budget"


@dataclass(frozen=True)
class Budget:
    """Attributes:
    weights: bytes that the model may use on its device for weights, staging included.
    staging: bytes of those that are set aside for prefetched blocks.
    resident: paths of the blocks that are loaded first.
    """

    weights: int
    staging: int = 0
    resident: frozenset[str] = frozenset()

    @property
    def loadable(self) -> int:
        return self.weights - self.staging

    def rank(self, path: str, blocks: Iterable[str]) -> int:
        """What is loaded first, and given up last, has the higher rank: what stands outside the blocks, then
        residents, then what is streamed."""
        inside = next((block for block in blocks if path.startswith(f"{block}.")), None)
        return 2 if inside is None else int(inside in self.resident)


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
    """The host's list of what to load, which it sorts itself: here by our ranks first."""

    def __init__(self, entries: Iterable[tuple[Any, ...]], budget: Budget, blocks: tuple[str, ...]) -> None:
        super().__init__(entries)
        self._budget, self._blocks = budget, blocks

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        super().sort(key=lambda entry: (self._budget.rank(entry[-3], self._blocks), *entry[:-2]), reverse=reverse)


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
                extra_memory = min(extra_memory + self._make_room(budget), budget.loadable - self.loaded_size())
            result = super().partially_load(device_to, extra_memory, force_patch_weights=force_patch_weights)
            if budget is not None and self.is_dynamic():
                _limit_watermark(self, budget)
            return result

        def _make_room(self, budget: Budget) -> int:
            """Begins anew where more is loaded than may be: the host's partial unloading leaves what is no layer.

            Returns:
                Bytes that were freed.
            """
            loaded = int(self.loaded_size())
            if loaded <= budget.loadable:
                return 0
            self.unpatch_model(self.offload_device, unpatch_weights=True)
            return loaded - int(self.loaded_size())

        def _load_list(self, *args: Any, **kwargs: Any) -> list[tuple[Any, ...]]:
            entries = super()._load_list(*args, **kwargs)
            budget = budget_of(self)
            if budget is None or not budget.resident:
                return entries
            blocks = tuple(f"diffusion_model.{block}" for block in block_lists(self.model.diffusion_model).blocks)
            return _Ordered(entries, budget, blocks)

    Budgeted.__name__ = Budgeted.__qualname__ = f"Budgeted{base.__name__}"
    return Budgeted


def _limit_watermark(model: ModelPatcher, budget: Budget) -> None:
    """Dynamic VRAM: the limit above which weights are not kept; the host resets it after every node."""
    memory = getattr(model, "_vbar_get", lambda: None)()
    if memory is not None and hasattr(memory, "set_watermark_limit"):
        memory.set_watermark_limit(budget.weights)


def block_costs(model: ModelPatcher) -> dict[str, BlockCost]:
    """Bytes and relative compute of each block."""
    network = model.model.diffusion_model
    return {
        path: BlockCost(comfy.model_management.module_size(network.get_submodule(path)), work)
        for path, work in block_work(network).items()
    }


def plan_budget(model: ModelPatcher, weights: int, slots: int) -> Budget:
    """A budget with residents and staging for ``slots`` prefetched blocks; none for 0.

    Raises:
        ValueError: less than the least that works, which it names.
    """
    least = least_weights(model, slots)
    if weights < least:
        gb = 2**30
        raise ValueError(
            f"vram_budget_gb: {weights / gb:.3f} GB is less than the {least / gb:.3f} GB that this model needs at least"
            f" ({'block' if slots else 'leaf'} granularity); raise it, or cast the model to 8 bits first"
        )
    if not slots:
        return Budget(weights)
    costs = block_costs(model)
    paths = list(costs)
    inside = sum(cost.bytes for cost in costs.values())
    outside = model.model_size() - inside
    plan = spread_residents(
        list(costs.values()), max(weights - outside, least_budget(list(costs.values()), slots)), slots
    )
    return Budget(weights, plan.staging, frozenset(paths[index] for index in plan.resident))


def least_weights(model: ModelPatcher, slots: int) -> int:
    """Bytes without which a model cannot run: what the host never offloads, room for its largest layer, staging."""
    fixed = 0
    largest = 0
    for module in _leaves(model):
        size = comfy.model_management.module_size(module)
        if hasattr(module, "comfy_cast_weights"):
            largest = max(largest, size)
        else:
            fixed += size
    costs = list(block_costs(model).values()) if slots else []
    return fixed + largest + (least_budget(costs, slots) if costs else 0)


def _leaves(model: ModelPatcher) -> list[torch.nn.Module]:
    """Modules that the host loads one by one."""
    return [entry[-2] for entry in ModelPatcher._load_list(model)]
