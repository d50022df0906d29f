"""Whether a copy of a weight is all of it.

Other programs store weights as tensors of a class of their own, with what their layers read them by (a format, a shape)
among the attributes. A copy of the bytes has none of those: such a weight is left to its layer.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

PLAIN = (Tensor, nn.Parameter, FakeTensor)


def is_whole(weight: Tensor) -> bool:
    """Whether a weight is no more than its bytes, or says what it is made of, as torch's wrapper subclasses do."""
    return type(weight) in PLAIN or is_traceable_wrapper_subclass(weight)


def holds_whole(layer: nn.Module) -> bool:
    """Whether all of a layer's own weights are."""
    return all(weight is None or is_whole(weight) for weight in layer._parameters.values())
