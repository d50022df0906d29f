"""How a narrow network that was trained becomes the wide one that the host's loader knows, and computes the same."""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor

from .drawing import Shape

QUERY = re.compile(r"attn_1\.q\.|\.to_q\.|\.q_proj\.")


def widened(key: str, tensor: Tensor, shape: Shape) -> Tensor:
    """A layer with every channel several times in a row, as often as ``shape`` has room for, in half precision.

    Groups keep their means and deviations, and a sum over channels is divided by how often each stands in it. A product
    of queries and keys has grown by that number, and is divided by the root of a width that has grown too: queries
    make up for the difference.
    """
    outputs = shape[0] // tensor.shape[0]
    wide = tensor.float().repeat_interleave(outputs, 0)
    if tensor.dim() > 1:
        inputs = shape[1] // tensor.shape[1]
        wide = wide.repeat_interleave(inputs, 1) / inputs
    if QUERY.search(key):
        wide = wide / math.sqrt(outputs)
    return wide.to(torch.float16)
