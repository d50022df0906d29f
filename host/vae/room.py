"""Room on a VAE's device: what its work may take, and what the host is asked to bring there and to take away."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import comfy.model_management as model_management
from torch import nn

from ...memory.accelerator import has_own_memory
from ...memory.blocks import uncut_bytes
from ..core.compat import drop_cast_buffers, is_out_of_memory, out_of_memory_kind
from ..core.device import GB, memory_budget
from ..offload.own_weights import OwnWeights

HALVINGS = 3  # of a budget; each may cost a run that fails near its end


class NotExact(Exception):
    """The exact method cannot be had; the message says why."""


class NoRoom(Exception):
    """Memory ran out with the schedule that needs least.

    Attributes:
        least: bytes that it needs, weights not counted; infinite where memory ran out before anything was planned.
    """

    def __init__(self, least: float) -> None:
        super().__init__("out of memory with the lowest strips")
        self.least = least


@dataclass
class Room:
    """The budget of a VAE's work, and the host's memory manager behind it.

    Attributes:
        vae: the host's VAE.
        limit_gb: the budget in GB of 2^30 bytes, weights included; 0 = the device's total minus the host's reserve.
        aside: gives a context in which the host loads: what it does there is no part of the work that is measured.
    """

    vae: Any
    limit_gb: float
    aside: Callable[[], AbstractContextManager[object]] = nullcontext
    _own: OwnWeights | None = None  # while the weights stay

    def budget(self) -> int:
        """Bytes that weights and work may take together."""
        return memory_budget(self.vae.device, self.limit_gb)

    def weights(self) -> int:
        """Bytes that the VAE's weights take on its device, with what the allocator leaves uncut of their blocks."""
        whole = int(self.vae.patcher.model_size())
        return whole + uncut_of(self.vae.first_stage_model) if has_own_memory(self.vae.device) else whole

    def for_work(self) -> int:
        """Bytes that the work may take: the budget without the weights; negative where these are larger."""
        return self.budget() - self.weights()

    def make(self, needed: float, whole: bool = True) -> None:
        """Has the host bring the weights, and free memory beside them.

        Args:
            needed: bytes to free.
            whole: all weights go to the device; else the host may stream some.

        Raises:
            OOM_EXCEPTION: the host's out-of-memory error, where the weights do not fit on an otherwise empty device.
        """
        with self.aside(), self._as_the_host_left_it():
            try:
                model_management.load_models_gpu([self.vae.patcher], memory_required=needed, force_full_load=whole)
                return
            except Exception as error:  # anything but a failure to allocate goes on
                if not is_out_of_memory(error):
                    raise
            # Outside the handler: the exception held what had been loaded.
            free_others(self.vae.patcher)
            try:
                model_management.load_models_gpu([self.vae.patcher], memory_required=needed, force_full_load=whole)
            except Exception as error:  # anything but a failure to allocate goes on
                if not is_out_of_memory(error):
                    raise
                raise out_of_memory_kind()(
                    f"vae: its weights ({gigabytes(self.weights(), up=True)}) do not fit into {self.vae.device},"
                    " nothing else of ComfyUI's there; end what else uses it, or start ComfyUI with --bf16-vae (half"
                    " the weights) or --cpu-vae"
                ) from error

    @contextmanager
    def staying(self) -> Iterator[None]:
        """Within it all weights are on the device and stay there, for a computation that is recorded first and reads
        them later. Under dynamic VRAM, whose pages do not stay, they are copies, which take the pages' room.

        Raises:
            NoRoom: memory ran out with the copies, nothing else of the host's there.
            OOM_EXCEPTION: as of :meth:`make`.
        """
        own = OwnWeights(self.vae.first_stage_model, self.vae.device)
        if self._own is not None or not own.bytes:
            yield
            return
        self.vae.patcher.partially_unload(self.vae.patcher.offload_device, own.bytes)  # the pages; the rest comes again
        self.make(own.bytes)
        with self.aside():
            self._bring(own)
            own.put_in()
        self._own = own
        try:
            yield
        finally:
            self._own = None
            with self.aside():
                own.put_back()
                del own

    def _bring(self, own: OwnWeights) -> None:
        for others_went in (False, True):
            try:
                own.bring()
                return
            except Exception as error:  # anything but a failure to allocate goes on
                if not is_out_of_memory(error):
                    raise
                if others_went:
                    raise NoRoom(math.inf) from error
            # Outside the handler: the exception held the copies.
            free_others(self.vae.patcher)

    @contextmanager
    def _as_the_host_left_it(self) -> Iterator[None]:
        """Within it the layers are the host's, which looks at all of them when it loads."""
        if self._own is None:
            yield
            return
        self._own.put_back()
        try:
            yield
        finally:
            self._own.put_in()


def uncut_of(module: nn.Module) -> int:
    """Bytes that the allocator leaves uncut of the blocks of a module's weights, beyond the weights' own.

    It depends on the order in which they come: the host brings the largest first.
    """
    return uncut_bytes(sorted((one.nbytes for one in module.parameters()), reverse=True))


def free_others(patcher: Any) -> bool:
    """Has the host take every other model off a patcher's device, and the buffers that it keeps there for streaming.

    Returns:
        Whether there was any. Always False on the CPU, where taking a model off frees nothing.
    """
    device, loaded = patcher.load_device, model_management.current_loaded_models
    own = [entry for entry in loaded if entry.model is not None and entry.model.model is patcher.model]
    others = [entry for entry in loaded if entry.device == device and not any(entry is one for one in own)]
    dropped = drop_cast_buffers()
    if device.type == "cpu" or not (others or dropped):
        return False
    model_management.free_memory(1e30, device, own)
    give_back()
    return True


def give_back() -> None:
    """After a failed run: frees its tensors at once, also those in reference cycles, and empties the device's cache."""
    gc.collect()
    model_management.soft_empty_cache()


def gigabytes(size: float, up: bool = False) -> str:
    """Bytes as GB of 2^30 with three decimals; ``up`` rounds up, for a size that has to suffice."""
    thousandths = size / GB * 1000
    return f"{(math.ceil(thousandths) if up else round(thousandths)) / 1000:.3f} GB"


@dataclass
class Rungs:
    """Budgets, one after the other, while memory runs out: halves, then the least that a schedule can do with. What
    the planner gives up to keep to one, it gives up in its own order: the height of strips, stored maps, and last the
    device as the place of stored maps.

    Attributes:
        budget: bytes to plan with.
        failures: to allocate, so far.
        at_least: whether the budget is the least already.
    """

    budget: float
    failures: int = 0
    at_least: bool = False

    def lower(self, planned: float) -> bool:
        """Halves what did not suffice; False where there is nothing below it."""
        self.failures += 1
        if self.at_least or not self.budget:  # nothing was computed with none: it ran out before anything was planned
            return False
        # What is found below the least rises to it before anything is computed.
        self.budget = min(self.budget, planned) / 2 if self.failures <= HALVINGS else 0.0
        return True

    def begin_with(self, budget: float) -> None:
        """Another way, which does with less: it has rungs of its own."""
        self.budget, self.at_least = budget, False

    def rise_to(self, least: float) -> None:
        """The budget is below what any schedule needs."""
        self.budget, self.at_least = least, True
