"""What a card's convolutions hold while they run, beyond input, weight and result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from ..operations.convolution import SlabConvolution

# Of the bytes of input, weight and result. One GPU's convolutions with 3 x 3 kernels kept to them (an H100, cuDNN): 16
# bits held 1.00 to 1.08 times as much, float32 up to 1.35 times in strips below 60 rows. Strips planned so have not run
# on a GPU since. cuDNN names no figure: it chooses kernels by shape, and what they copy is their own.
OF_16_BITS, OF_OTHERS = 1.08, 1.35


def most_of(dtype: torch.dtype) -> float:
    """What plans count for a dtype, times the bytes of input, weight and result."""
    return OF_16_BITS if dtype.itemsize == 2 else OF_OTHERS


@dataclass(frozen=True)
class ConvolutionWorkspace:
    """The bytes that a plan counts for one call of a convolution.

    Attributes:
        convolution, pointwise: multiples of what that GPU's held, for kernels of several pixels and of one; 0 = none.
        measured: bytes of calls that were measured on the card; they take precedence.
    """

    convolution: float = 1.0
    pointwise: float = 1.0
    measured: Mapping[SlabConvolution, int] = field(default_factory=dict, hash=False)

    def of(self, call: SlabConvolution) -> int:
        """Bytes while it runs."""
        known = self.measured.get(call)
        if known is not None:
            return known
        most = most_of(call.dtype)
        return int((self.pointwise if call.is_pointwise else self.convolution) * most * call.bytes)


BY_RULE = ConvolutionWorkspace()
