"""Exact attention on plain tensors: call normalisation, backends, and where they apply.

Knows nothing of ComfyUI; usable from any PyTorch program::

    from headroom.attention import AttentionCall, BACKENDS
    call = AttentionCall.bind(q, k, v, heads, mask=mask)
    out = call.pack(BACKENDS["online"].run(call))
"""

from .backends import BACKENDS, Backend, Decision, choose, compute
from .blocks import BlockPlace, BlockSelection, parse_blocks
from .call import AttentionCall
from .online import online_attention
from .online_backward import online_attention_with_gradients
from .sdpa import sdpa_attention
from .sliced import sliced_attention

__all__ = [
    "BACKENDS",
    "AttentionCall",
    "Backend",
    "BlockPlace",
    "BlockSelection",
    "Decision",
    "choose",
    "compute",
    "online_attention",
    "online_attention_with_gradients",
    "parse_blocks",
    "sdpa_attention",
    "sliced_attention",
]
