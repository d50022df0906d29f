"""The attention of a training: the same function in the forward and when it is computed again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ...attention import BlockPlace, BlockSelection
from ...memory.prediction.fused_attention import FusedAttention
from ...training import run_alone
from ..attention.places import current_place
from ..core.internals import find
from ..prediction.stages import own_card

# The host's functions that choose their pieces by the memory that is free: computed again, they save other tensors.
BY_FREE_MEMORY = ("attention_split", "attention_sub_quad")


@dataclass
class TrainedAttention:
    """An override of the host's attention in a training.

    Attributes:
        previous: what was there before; it is asked for every call.
        behind: calls of these blocks lie behind a checkpoint each; None: none does.
        ends: the first and the last block.
    """

    previous: Callable[..., Tensor] | None
    behind: BlockSelection | None = None
    ends: tuple[BlockPlace, BlockPlace] | None = None

    def __call__(self, func: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        if func.__name__ in BY_FREE_MEMORY:
            func = find("comfy.ldm.modules.attention:attention_pytorch")
        whole = func if self.previous is None else partial(self.previous, func)
        options = kwargs.pop("transformer_options", None) or {}
        whole = partial(whole, transformer_options=options)
        if (
            self.behind is None
            or not torch.is_grad_enabled()
            or not self.behind.holds(current_place(options), self.ends)
        ):
            return whole(*args, **kwargs)
        result: Tensor = run_alone(partial(_by_the_cards_kernel, whole), *args, **kwargs)
        return result


def _by_the_cards_kernel(whole: Callable[..., Tensor], q: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Without data, and when it is computed again too: what chooses a kernel around a forward is gone in a backward."""
    if not isinstance(q, FakeTensor) or q.device.type != "cuda":
        return whole(q, *args, **kwargs)
    with FusedAttention(own_card(q.device)):
        return whole(q, *args, **kwargs)
