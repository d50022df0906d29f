"""Tells one set of weights from another, for results that are kept in files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

MOST_THREADS = 8  # from there on the disk or the memory is slower than the hash


def fingerprint(weights: Iterable[tuple[str, Tensor]], *notes: str) -> str:
    """SHA-256 of names, shapes, dtypes, and every byte of every tensor: 64 hexadecimal digits.

    Takes about 0.6 s of a core per GB, on all cores (hashlib releases the interpreter's lock), or what the disk takes
    where the weights are mapped from a file. Tensors that lie on another device or are not contiguous are copied,
    one per core at a time.

    Args:
        weights: by name; quantised ones by their stored parts.
        notes: what else the hash is to depend on.
    """
    listed = list(weights)
    digest = hashlib.sha256("".join(f"{note}\0" for note in notes).encode())
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        for (name, weight), mark in zip(listed, pool.map(_digest, (weight for _, weight in listed))):
            digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}\n".encode() + mark)
    return digest.hexdigest()


def _digest(weight: Tensor) -> bytes:
    """Of a tensor's values in row-major order."""
    values = weight.detach().reshape(-1).cpu().contiguous()
    return hashlib.sha256(values.view(torch.uint8).numpy().data).digest()
