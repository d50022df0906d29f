"""Attention inside a VAE, which does not pass the host's attention hook: reached by a patch on a cloned patcher."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...attention.backends import choose
from ...attention.call import AttentionCall
from ...attention.online import online_bytes
from ...attention.sdpa import memory_refusal
from ...vae.exact import Recorded

ATTRIBUTES = ("optimized_attention", "optimized_vae_attention")


@dataclass(frozen=True)
class AttentionInStrips:
    """In place of the attention function of a VAE's block: the host's own, except on recorded maps.

    Takes (B, C, [T,] H, W) query, key and value. Tokens are taken row by row of the picture, over all frames where
    there are several, so that strips of queries can run against all keys; their order makes no difference.
    """

    original: Callable[..., Tensor]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not isinstance(q, Recorded):
            return self.original(q, k, v, *args, **kwargs)
        in_time = q.ndim == 5
        if in_time:
            q, k, v = (x.transpose(2, 3) for x in (q, k, v))
        shape = q.shape
        q, k, v = (x.reshape(shape[0], 1, shape[1], -1).transpose(2, 3) for x in (q, k, v))
        out = functional.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(shape)
        return out.transpose(2, 3) if in_time else out


def with_attention_in_strips(patcher: Any) -> Any:
    """A clone of a VAE's patcher whose attention blocks take recorded maps; the original is not changed."""
    clone = patcher.clone()
    for name, module in patcher.model.named_modules():
        for attribute in ATTRIBUTES:
            function = module.__dict__.get(attribute)
            if callable(function):
                original = function.original if isinstance(function, AttentionInStrips) else function
                clone.add_object_patch(f"{name}.{attribute}", AttentionInStrips(original))
    return clone


class Attend:
    """(B, 1, N, C) attention by the exact backend that suits the call best."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        call = AttentionCall(q, k, v, None, q.shape[-1] ** -0.5 if scale is None else scale)
        return choose("auto", call).backend.run(call).transpose(1, 2)

    @staticmethod
    def beside(device: torch.device, dtype: torch.dtype, queries: int, keys: int, channels: int, values: int) -> int:
        """Bytes beyond the result. A fused kernel takes none, and what a CPU takes is a share of every strip."""
        if device.type == "cpu" or memory_refusal(device, dtype, channels, values) is None:
            return 0
        return online_bytes(queries, keys, channels, values, dtype=dtype)


attend = Attend()
