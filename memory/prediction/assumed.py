"""What is assumed of data that nobody knows, where the code that is followed looks at them: the most.

A detector keeps the boxes whose scores are high, and draws a mask for each. Without data every box is kept, and every
mask covers everything; a condition is taken to be true, and a number to be zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .known_numbers import ASKS

aten = torch.ops.aten
MASKS = (torch.bool, torch.uint8)


def assumed(func: Any, args: tuple[Any, ...]) -> Any:
    """The result of an operator that looks at data, with the most assumed; None if it is none of those that are known.

    Call it in a fake mode. An operator that asks for a number gets one.
    """
    if func in ASKS:
        return True if args[0].dtype == torch.bool else 0.0 if args[0].dtype.is_floating_point else 0
    if func is aten.nonzero.default:
        return _all_places(args[0])
    if func is aten.masked_select.default:
        return torch.broadcast_tensors(args[0], args[1])[0].reshape(-1).clone()
    if func is aten.index.Tensor:
        return func(args[0], _places(args[1]))
    return None


def _all_places(mask: Tensor) -> Tensor:
    """What ``nonzero`` gives where all is kept: (values, dimensions)."""
    return torch.empty((mask.numel(), mask.ndim), dtype=torch.int64, device=mask.device)


def _places(indices: list[Tensor | None]) -> list[Tensor | None]:
    """The indices with a list of places for each dimension in the place of a mask."""
    result: list[Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in MASKS:
            result.append(index)
        else:
            result += _all_places(index).unbind(1)
    return result
