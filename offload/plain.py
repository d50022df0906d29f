"""A cast without a scale."""

from __future__ import annotations

import torch
from torch import Tensor


def cast_plain(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """``weight`` in ``dtype``, rounded to nearest; what the type cannot hold becomes its largest value.

    torch turns a value beyond the range of float8_e4m3fn into NaN, and beyond that of float16 into infinity.

    Args:
        weight: any floating-point dtype.
        dtype: a floating-point dtype.
    """
    largest = torch.finfo(dtype).max
    if torch.finfo(weight.dtype).max <= largest:
        return weight.to(dtype)
    # bfloat16 would round the bound up, and torch cannot clamp 8-bit floats.
    wide = weight if weight.dtype.itemsize >= 4 else weight.float()
    return wide.clamp(-largest, largest).to(dtype)
