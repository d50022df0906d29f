"""Streams of any kind of accelerator; none where a device runs everything in order."""

from __future__ import annotations

import torch


def copy_stream(device: torch.device) -> torch.Stream | None:
    """A stream for copies beside the computation; None where the device has none, as a CPU."""
    if device.type == "cpu" or not hasattr(torch, "accelerator"):
        return None
    try:
        return torch.Stream(device)
    except (RuntimeError, NotImplementedError):  # the backend has no streams
        return None


def compute_stream(device: torch.device) -> torch.Stream:
    """The stream to which the caller's operators are queued."""
    # A number is found faster than a device, which counts where hundreds of layers ask.
    return torch.accelerator.current_stream(device if device.index is None else device.index)
