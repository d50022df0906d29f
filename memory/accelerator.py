"""What torch can tell of a device's memory: CUDA, ROCm, XPU, NPU, MLU, MPS and others, by ability and not by name.

A device's own module, such as ``torch.xpu``, is asked first, since older versions of torch have it too. What it lacks
is looked for in ``torch.accelerator`` (torch 2.6; its functions for memory 2.9), which also serves backends without a
module of their own. Where a device cannot do something the answer is None or False, and the caller has to say so.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

# Types of devices that use the machine's memory as it is. Other integrated GPUs have a part of it set aside.
IN_RAM = ("cpu", "mps")
PEAK_FUNCTIONS = ("memory_allocated", "max_memory_allocated", "reset_peak_memory_stats")


def has_own_memory(device: torch.device) -> bool:
    """Whether a device has memory beside the machine's, so that weights can lie in one while the other works."""
    return device.type not in IN_RAM


def is_here(device: torch.device) -> bool:
    """Whether this machine has such a device."""
    available = getattr(_own_module(device), "is_available", None)
    return bool(available()) if available is not None else _is_current(device)


def device_name(device: torch.device) -> str:
    """For people: its driver's name of it, else its type. The device must be in this machine."""
    if device.type == "cpu":
        return "CPU"
    named = getattr(_own_module(device), "get_device_name", None)
    return device.type if named is None else str(named(device))


def counts_peaks(device: torch.device) -> bool:
    """Whether the device's allocator keeps its peak, the most bytes that were allocated at a time."""
    return all(_function(device, name) is not None for name in PEAK_FUNCTIONS)


def allocated_bytes(device: torch.device) -> int | None:
    """Bytes that tensors have allocated; None where the device does not say."""
    ask = _function(device, "memory_allocated")
    if ask is not None:
        return int(ask(device))
    ask = getattr(_own_module(device), "current_allocated_memory", None)  # MPS says it so, of its one device
    return None if ask is None else int(ask())


def peak_bytes(device: torch.device) -> int | None:
    """The most bytes allocated at a time since :func:`reset_peak`; None where the device does not keep it."""
    ask = _function(device, "max_memory_allocated")
    return int(ask(device)) if ask is not None and counts_peaks(device) else None


def reset_peak(device: torch.device) -> None:
    """Sets the peak to what is allocated now; does nothing where the device keeps none."""
    reset = _function(device, "reset_peak_memory_stats")
    if reset is not None:
        reset(device)


def allocator_statistics(device: torch.device) -> Mapping[str, int]:
    """torch's statistics of the device's allocator, by name; empty where it has none."""
    ask = _function(device, "memory_stats")
    return {} if ask is None else dict(ask(device))


def synchronise(device: torch.device) -> None:
    """Waits for all work that was queued on the device; a CPU has none."""
    wait = getattr(_own_module(device), "synchronize", None)
    if device.type == "mps" and wait is not None:
        wait()  # it takes no device
    elif wait is not None:
        wait(device)
    elif _is_current(device):
        torch.accelerator.synchronize(device)


def host_bytes(size: int) -> Tensor:
    """Uninitialised host memory (size,), uint8; page-locked where the machine can do that."""
    with contextlib.suppress(RuntimeError, NotImplementedError):
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return torch.empty(size, dtype=torch.uint8)


def seconds_of(device: torch.device, work: Callable[[], object]) -> float:
    """Seconds that work on the device's current stream takes, by the device's own clock where it has one."""
    events = _timing_events(device)
    synchronise(device)
    start = time.perf_counter()
    if events:
        events[0].record()
    work()
    if events:
        events[1].record()
    synchronise(device)
    waited = time.perf_counter() - start
    return (events[0].elapsed_time(events[1]) / 1000 if events else 0.0) or waited


def random_state(device: torch.device) -> list[Tensor]:
    """Which of the global random numbers come next: of the CPU, and of a device that has some of its own."""
    own, states = _own_module(device), [torch.get_rng_state()]
    if device.type == "mps":  # which is one device
        states.append(own.get_rng_state())
    elif device.type != "cpu" and hasattr(own, "get_rng_state"):
        states.append(own.get_rng_state(device))
    return states


def set_random_state(device: torch.device, states: Sequence[Tensor]) -> None:
    """Has those numbers come next; of a device none where the state is of a CPU alone."""
    own = _own_module(device)
    torch.set_rng_state(states[0])
    if device.type == "mps" and len(states) > 1:
        own.set_rng_state(states[1])
    elif device.type != "cpu" and len(states) > 1:
        own.set_rng_state(states[1], device)


def random_numbers(device: torch.device) -> Callable[[], None]:
    """What is called to draw those of the global random numbers that come next now, of the CPU and of a device."""
    return partial(set_random_state, device, random_state(device))


def _timing_events(device: torch.device) -> list[Any]:
    """Two events that tell time; none where the device has no clock."""
    make = getattr(_own_module(device), "Event", None)
    with contextlib.suppress(RuntimeError, NotImplementedError, TypeError):
        return [] if make is None else [make(enable_timing=True) for _ in range(2)]
    return []


def _function(device: torch.device, name: str) -> Callable[..., Any] | None:
    own: Callable[..., Any] | None = getattr(_own_module(device), name, None)
    if own is None and _is_current(device) and _general_statistics(device.type):
        own = getattr(torch.accelerator, name, None)
    return own


def _own_module(device: torch.device) -> Any:
    """As ``torch.get_device_module``, which older versions of torch lack; None for a backend without one."""
    return getattr(torch, device.type, None)


def _is_current(device: torch.device) -> bool:
    """Whether ``torch.accelerator`` speaks of this type of device."""
    general = getattr(torch, "accelerator", None)
    current = general.current_accelerator() if general is not None else None
    return current is not None and bool(current.type == device.type)


@cache
def _general_statistics(device_type: str) -> bool:
    """Whether ``torch.accelerator`` knows this backend's allocator."""
    try:
        torch.accelerator.memory_stats(torch.device(device_type))
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return True
