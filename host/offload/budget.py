"""A memory budget for the weights of one model, executed by the host's own loader.

The host loads a model into the memory that it takes to be free. A MODEL with a budget is a clone whose patcher reports
less: a subclass of the patcher's class, in which one method lowers that number and one says in which order to load.
Nothing is moved behind the host's back: its accounts stay right, and other patchers of the same model are unaffected.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import comfy.model_management
from comfy import model_patcher

from ...offload import block_lists
from ...offload.schedule import spread_residents
from .host_internals import HostChangedError, LoadOrder, check_loaded
from .layers import Layers
from .watermark import limit_pages

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

ATTRIBUTE = "headroom_budget"


@dataclass(frozen=True)
class Budget:
    """What a model's weights may take.

    Attributes:
        weights: bytes that the model may use on its device for weights, staging included.
        staging: bytes of those for the ring that streamed weights go through.
        resident: paths of the modules that are loaded, all others are streamed; None: the host chooses.
        loaded: bytes of the resident modules, as the host counts.
        streamed: bytes that are copied in every step.
    """

    weights: int
    staging: int = 0
    resident: frozenset[str] | None = None
    loaded: int = 0
    streamed: int = 0

    @property
    def loadable(self) -> int:
        """Bytes that the host is told it may load; it stays below that number."""
        return self.weights if self.resident is None else self.loaded + 1


def set_budget(model: ModelPatcher, budget: Budget | None) -> None:
    """Gives a clone a budget in place of the one it had, or lifts it."""
    base = _base(type(model))
    # Host: a patcher is an object with a dictionary of attributes, whose class may be exchanged for a subclass.
    model.__class__ = base if budget is None else _with_budget(base)  # type: ignore[arg-type]
    if budget is None:
        model.__dict__.pop(ATTRIBUTE, None)
    else:
        setattr(model, ATTRIBUTE, budget)


def budget_of(model: ModelPatcher) -> Budget | None:
    budget: Budget | None = getattr(model, ATTRIBUTE, None)
    return budget


def loads_by_the_host(model: ModelPatcher) -> bool:
    """Whether a model's loading is the host's own: another pack may have replaced it by its code."""
    loading = _base(type(model)).partially_load
    return loading.__module__ == model_patcher.ModelPatcher.__module__ and "comfy" in loading.__module__


def _base(kind: type[ModelPatcher]) -> type[Any]:
    return next(base for base in kind.__mro__ if not getattr(base, "headroom_has_budget", False))


@cache
def _with_budget(base: type[Any]) -> type[Any]:
    class Budgeted(base):
        """A patcher that has its host load less."""

        headroom_has_budget = True
        headroom_order: LoadOrder | None = None  # the latest, while the host loads

        def clone(self, *args: Any, **kwargs: Any) -> ModelPatcher:
            copy: ModelPatcher = super().clone(*args, **kwargs)
            set_budget(copy, budget_of(self))  # Host: clone makes the class of the original, or another one
            return copy

        def partially_load(self, device_to: Any, extra_memory: float = 0, force_patch_weights: bool = False) -> Any:
            # Host: `extra_memory` is how many bytes may be loaded beyond those that are; below zero, so many are
            # unloaded, and no layer is prepared for streaming.
            budget = budget_of(self)
            if budget is None:
                return super().partially_load(device_to, extra_memory, force_patch_weights=force_patch_weights)
            if self.is_dynamic():
                result = super().partially_load(device_to, extra_memory, force_patch_weights=force_patch_weights)
                limit_pages(self, budget.weights)
                return result
            extra_memory += self._make_room(budget)
            if extra_memory >= 0:
                extra_memory = max(0, extra_memory - budget.staging)
            extra_memory = min(extra_memory, budget.loadable - self.loaded_size())
            result = super().partially_load(device_to, extra_memory, force_patch_weights=force_patch_weights)
            self._check_what_was_loaded()
            return result

        def _make_room(self, budget: Budget) -> int:
            """Unloads fully where more is loaded than may be, or other layers.

            Host: partial unloading would keep parameters that belong to no layer.

            Returns:
                Bytes that were freed.
            """
            loaded = int(self.loaded_size())
            if loaded <= budget.loadable and not _loaded_besides(self, budget):
                return 0
            self.unpatch_model(self.offload_device, unpatch_weights=True)
            return loaded - int(self.loaded_size())

        def _load_list(self, *args: Any, **kwargs: Any) -> list[tuple[Any, ...]]:
            entries: list[tuple[Any, ...]] = super()._load_list(*args, **kwargs)
            budget = budget_of(self)
            if budget is None or budget.resident is None:
                return entries
            self.headroom_order = LoadOrder(entries, budget.resident)
            return self.headroom_order

        def _check_what_was_loaded(self) -> None:
            order, self.headroom_order = self.headroom_order, None
            if order is not None and not order.was_sorted:
                raise HostChangedError("way to sort what it loads (list.sort in ModelPatcher.load)")
            check_loaded(self)

    Budgeted.__name__ = Budgeted.__qualname__ = f"Budgeted{base.__name__}"
    return Budgeted


def _loaded_besides(model: ModelPatcher, budget: Budget) -> bool:
    """Whether layers are loaded that are to be streamed."""
    if budget.resident is None:
        return False
    # Host: a layer that is loaded, with its patches, has `comfy_patched_weights` set.
    return any(
        getattr(module, "comfy_patched_weights", False) and path not in budget.resident
        for path, module in model.model.named_modules()
    )


def plan_budget(layers: Layers, weights: int, ahead: int) -> Budget:
    """A budget with resident layers and a ring.

    Args:
        layers: of the model.
        weights: bytes.
        ahead: the ring is no larger than so many of the largest blocks; 0: no ring, the host's own streaming.

    Raises:
        ValueError: less than the least that works, which it names.
    """
    least = layers.least(ahead)
    if weights < least:
        gb = 2**30
        raise ValueError(
            f"vram_budget_gb: {weights / gb:.3f} GB is less than the {least / gb:.3f} GB that this model needs at least"
            f" ({'block' if ahead else 'leaf'} granularity); raise it, or cast the model to 8 bits first"
        )
    if not ahead:
        return Budget(weights, streamed=max(0, layers.model.model_size() - weights))
    costs = layers.costs
    if not costs or sum(layers.bytes.values()) <= weights:
        return Budget(weights)
    plan = spread_residents(list(costs.values()), weights - layers.fixed, _most_staging(layers.model, ahead))
    paths = list(costs)
    resident = frozenset(layers.all) - {paths[index] for index in plan.streamed}
    loaded = sum(layers.size(path) for path in resident)
    return Budget(weights, plan.staging, resident, loaded, plan.streamed_bytes)


def _most_staging(model: ModelPatcher, ahead: int) -> int:
    """Bytes of the ``ahead`` largest blocks; of the whole model where it has no blocks."""
    network = model.model.diffusion_model
    blocks = [comfy.model_management.module_size(network.get_submodule(path)) for path in block_lists(network).blocks]
    return sum(sorted(blocks)[-ahead:]) if blocks else int(model.model_size())
