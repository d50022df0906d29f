"""Attention over a sequence that lies in parts on several processes: keys and values go round, queries stay."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import once_differentiable

from .online import KEY_TILE, QUERY_TILE, online_attention
from .online_backward import attention_gradients
from .tiles import empty_output, score_dtype

Group = Any  # a process group of torch.distributed; None: all processes


def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    mask: Tensor | None = None,
    *,
    group: Group = None,
    query_tile: int = QUERY_TILE,
    key_tile: int = KEY_TILE,
) -> Tensor:
    """Exact attention of this process's queries over the keys of all processes of a group.

    To be called by all of them at a time, with the same heads, channels and dtype; their parts of the sequence may
    differ in length. No process ever holds more than its own part and the one that is under way to it.

    Args:
        q: (B, H, Nq, D), this process's queries. k: (B, Hk, Nk, D), v: (B, Hk, Nk, Dv), its keys and values.
        scale: factor of the scores.
        mask: None or (B|1, H|1, Nq|1, keys of all|1), bool or additive: rows of this process's queries, columns in the
            order of the processes.
        query_tile, key_tile: rows and columns of a score tile, as in :func:`.online.online_attention`.

    Returns:
        (B, Nq, H, Dv), in q's dtype; a row whose keys are all masked is zero.

    Raises:
        ValueError: the mask's columns are not the keys of all processes.

    Source: Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers" (arXiv 2310.01889), section 3; parts
    are merged by their rows' log-sums as in Milakov and Gimelshein (arXiv 1805.02867), algorithm 4.
    """
    out: Tensor = RingAttention.apply(q, k, v, scale, mask, group, query_tile, key_tile)
    return out


class RingAttention(torch.autograd.Function):
    """:func:`ring_attention` with a backward, in which gradients of keys and values go round with them."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, group: Group, *tiles: int
    ) -> Tensor:
        """As :func:`ring_attention`."""
        lengths = _lengths(k, group)
        columns = _columns(lengths, mask)
        wide = q.to(score_dtype(q))  # parts are merged in the scores' precision
        merged = _Merged(wide, v)
        for owner, (keys, values) in _circulate([k, v], lengths, group):
            merged.add(keys, values, scale, _part(mask, columns[owner]), tiles)
            del keys, values  # before the next part comes
        out = merged.out.to(q.dtype)
        ctx.save_for_backward(q, k, v, mask, out, merged.for_the_backward())
        ctx.scale, ctx.group, ctx.tiles, ctx.lengths = scale, group, tiles, lengths
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        """As :func:`.online_backward.attention_gradients`, part by part; each part's sums come home at the end."""
        q, k, v, mask, out, log_sum = ctx.saved_tensors
        columns = _columns(ctx.lengths, mask)
        d_mask = torch.zeros_like(mask, dtype=log_sum.dtype) if ctx.needs_input_grad[4] else None
        d_q = torch.zeros(q.shape, dtype=log_sum.dtype, device=q.device)
        travelling: list[Tensor] = []  # gradients of the part that is here
        for owner, (keys, values) in _circulate([k, v], ctx.lengths, ctx.group):
            if travelling:
                travelling = _hand_on(travelling, ctx.lengths[owner], ctx.group)
            part, of_part = _part(mask, columns[owner]), _part(d_mask, columns[owner])
            # In the scores' precision: what each process adds is not rounded by itself.
            wide_q, keys, values = (x.to(log_sum.dtype) for x in (q, keys, values))
            rows, cols = ctx.tiles
            more = attention_gradients(d_out, wide_q, keys, values, ctx.scale, part, out, log_sum, rows, cols, of_part)
            d_q += more[0]
            if travelling:
                for whole, one in zip(travelling, more[1:]):
                    whole += one
            else:
                travelling = list(more[1:])
            del wide_q, keys, values, more  # before the next part comes
        d_k, d_v = _hand_on(travelling, k.shape[2], ctx.group) if len(ctx.lengths) > 1 else travelling
        d_mask = None if d_mask is None else d_mask.to(mask.dtype)
        return (d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype), None, d_mask, None, None, None)


def ring_bytes(lengths: Sequence[int], rank: int, per_token: int, gradients_per_token: int = 0) -> tuple[int, int]:
    """What a process sends: forward and backward.

    Args:
        lengths: keys of each process.
        rank: the process.
        per_token: bytes of a key and its value, over all batches and heads.
        gradients_per_token: bytes of their gradients, in the scores' dtype.

    Returns:
        Bytes of keys and values in the forward; in the backward they go round again, with gradients that go one
        further, home.
    """
    parts = len(lengths)
    forward = sum(lengths[(rank - step) % parts] for step in range(parts - 1)) * per_token
    gradients = sum(lengths) * gradients_per_token if parts > 1 else 0
    return forward, forward + gradients


class _Merged:
    """Attention over parts of the keys as they come: the output so far, and each row's log-sum."""

    def __init__(self, q: Tensor, v: Tensor) -> None:
        self.q = q
        self.out = empty_output(q, v).zero_()
        self.log_sum = torch.full(q.shape[:3], -math.inf, dtype=q.dtype, device=q.device)

    def add(self, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, tiles: Sequence[int]) -> None:
        """Takes the keys and values of one part."""
        log_sum = torch.empty_like(self.log_sum)
        out = online_attention(self.q, k, v, scale, mask, query_tile=tiles[0], key_tile=tiles[1], log_sum=log_sum)
        log_sum.masked_fill_(log_sum == math.inf, -math.inf)  # rows of which all keys here are masked
        both = torch.logaddexp(self.log_sum, log_sum)
        for total, part in ((self.out, self.log_sum), (out, log_sum)):
            share = (part - both).nan_to_num_(nan=-math.inf).exp_()  # -inf of both: nothing of either
            total.mul_(share.transpose(1, 2).unsqueeze(-1))
        self.out += out
        self.log_sum = both

    def for_the_backward(self) -> Tensor:
        """(B, H, Nq): +inf where all keys are masked, so that the softmax of such a row is zero."""
        return self.log_sum.masked_fill(self.log_sum == -math.inf, math.inf)


def _circulate(block: Sequence[Tensor], lengths: Sequence[int], group: Group) -> Iterator[tuple[int, list[Tensor]]]:
    """Each process's block in turn, this one's first, with the rank that it is of; the next is on its way meanwhile.

    Args:
        block: (B, Hk, tokens, D) each.
        lengths: tokens of each process.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    here = [x.contiguous() for x in block]
    for step in range(size):
        owner = (rank - step) % size
        if step == size - 1:
            yield owner, here
            return
        coming = [_like(x, lengths[(owner - 1) % size]) for x in here]
        under_way = _exchange(here, coming, group)
        yield owner, here
        for one in under_way:
            one.wait()
        here = coming
        del coming, under_way


def _hand_on(block: Sequence[Tensor], length: int, group: Group) -> list[Tensor]:
    """Sends a block to the next process, and takes the one before's, of so many tokens."""
    coming = [_like(x, length) for x in block]
    for one in _exchange([x.contiguous() for x in block], coming, group):
        one.wait()
    return coming


def _exchange(out: Sequence[Tensor], into: Sequence[Tensor], group: Group) -> list[Any]:
    """Begins to send to the next process, and to receive from the one before."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    after, before = ((rank + way) % size for way in (1, -1))
    whole: Any = group if group is not None else dist.group.WORLD
    after, before = (dist.get_global_rank(whole, one) for one in (after, before))
    moves = [dist.P2POp(dist.isend, x, after, group) for x in out if x.numel()]
    moves += [dist.P2POp(dist.irecv, x, before, group) for x in into if x.numel()]
    return dist.batch_isend_irecv(moves) if moves else []


def _like(x: Tensor, tokens: int) -> Tensor:
    return x.new_empty((*x.shape[:2], tokens, x.shape[3]))


def _lengths(k: Tensor, group: Group) -> list[int]:
    """Keys of each process."""
    mine = torch.tensor([k.shape[2]], device=k.device)
    all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(all_of_them, mine, group)
    return [int(one) for one in all_of_them]


def _columns(lengths: Sequence[int], mask: Tensor | None) -> list[slice]:
    """The mask's columns of each process.

    Raises:
        ValueError: it has others.
    """
    ends = torch.tensor(lengths).cumsum(0).tolist()
    if mask is not None and mask.shape[-1] not in (1, ends[-1]):
        raise ValueError(f"mask: {mask.shape[-1]} columns; give one for each of the {ends[-1]} keys of all processes")
    return [slice(end - length, end) for end, length in zip(ends, lengths)]


def _part(mask: Tensor | None, columns: slice) -> Tensor | None:
    return mask if mask is None or mask.shape[-1] == 1 else mask[..., columns]
