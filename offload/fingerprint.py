"""Tells one set of weights from another without reading all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

SAMPLES = 64  # values of each tensor


def fingerprint(weights: Iterable[tuple[str, Tensor]], *notes: str) -> str:
    """A hash of names, shapes, dtypes, and up to :data:`SAMPLES` evenly spaced values of every tensor.

    A fine-tune or a merge moves nearly every value of a layer it touches, so a sample of each layer sees it.

    Args:
        weights: by name; quantised ones by their stored parts.
        notes: what else the hash is to depend on.
    """
    digest = hashlib.sha256("".join(f"{note}\0" for note in notes).encode())
    for name, weight in weights:
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}\n".encode())
        flat = weight.detach().reshape(-1)
        step = -(-flat.numel() // SAMPLES) | 1  # an odd one meets every column of a matrix of even width
        sample = flat[::step].cpu().contiguous()
        digest.update(sample.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
