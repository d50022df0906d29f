"""What a run of blocks depends on beside its arguments: automatic casts, and random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


class Surroundings:
    """As they are now."""

    def __init__(self) -> None:
        self.cached = torch.is_autocast_cache_enabled()
        self.casts = {
            device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in ("cpu", *_accelerators())
        }
        self.random = torch.get_rng_state()
        self.on_device = {device: torch.get_device_module(device).get_rng_state() for device in _accelerators()}

    @contextmanager
    def restored(self) -> Iterator[None]:
        """As it was, for the time of a run."""
        with ExitStack() as stack:
            for device in _accelerators():
                stack.enter_context(torch.random.fork_rng(device_type=device))
            stack.enter_context(torch.random.fork_rng(devices=[]))
            torch.set_rng_state(self.random)
            for device, state in self.on_device.items():
                torch.get_device_module(device).set_rng_state(state)
            for device, (enabled, dtype) in self.casts.items():
                cast = torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=self.cached)
                stack.enter_context(cast)
            yield


def _accelerators() -> list[str]:
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return [] if found is None else [found.type]
