"""How far a stored weight is from the original."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

PART = 1 << 20  # values: 4 MiB in float32
ROWS = 128


class NoiseMeter:
    """Adds up the energies of a weight and of its error, part by part."""

    def __init__(self) -> None:
        self._signal = self._noise = 0.0

    def add(self, exact: Tensor, stored: Tensor) -> None:
        """A part of the weight, and the same part as it is stored; any floating-point dtypes."""
        if isinstance(exact, FakeTensor):  # a prediction of memory has no weights to measure
            return
        exact = exact.float()
        self._signal += _energy(exact)
        self._noise += _energy(exact - stored.float())

    @property
    def db(self) -> float:
        """Signal to quantisation noise ratio, 10 log10(sum w^2 / sum (w - s)^2) in dB.

        Infinity where both agree, and for a weight of zeros that stayed zeros; minus infinity where a finite weight
        became infinite or undefined.
        """
        if self._noise == 0:
            return math.inf
        if not math.isfinite(self._noise):
            return -math.inf
        return 10 * math.log10(max(self._signal, 1e-300) / self._noise)


def row_parts(weight: Tensor) -> Iterator[slice]:
    """Slices of a weight's rows, of about :data:`PART` values each, so that what is computed from one stays small.

    They have multiples of :data:`ROWS` rows, at which every layout's blocks end.
    """
    rows = weight.shape[0]
    if isinstance(weight, FakeTensor):
        return iter((slice(0, rows),))
    step = max(1, PART // max(1, weight[0].numel() * ROWS)) * ROWS
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def _energy(values: Tensor) -> float:
    # A norm needs no copy of the squares; float64 sums of float32 values lose nothing that counts here.
    return float(torch.linalg.vector_norm(values, dtype=torch.float64 if values.device.type == "cpu" else None)) ** 2
