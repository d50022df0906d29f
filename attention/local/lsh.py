"""Queries against keys that hash alike. Measured, not offered: it loses to the others in time and error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..tiles import LOG2E, score_dtype, spans
from .checks import check_seed, whole
from .dense import with_text_rows
from .grid import TokenGrid
from .merge import MergedSoftmax

# Chunks of sorted keys that a chunk of sorted queries sees: its own and one on either side.
CHUNKS_SEEN = 3


@dataclass(frozen=True)
class LSH:
    """Keys and queries are sorted by a random hash; chunks of queries attend the keys of their hash, and the text.

    Attributes:
        buckets: values of the hash, an even number.
        rounds: hashes; a query attends the union of the keys it meets, each once.
        chunk: queries taken together; they see three times as many keys.
        seed: of the rotations.

    Source: Kitaev et al., "Reformer" (arXiv 2001.04451), section 2, with queries and keys of their own: keys get a
    channel that makes their norms equal, queries a zero (asymmetric hashing, Neyshabur & Srebro, arXiv 1410.5518),
    and a chunk of queries looks at the keys of its middle query's bucket.

    Raises:
        ValueError: a parameter out of range.
    """

    name: ClassVar[str] = "lsh"
    buckets: int = 32
    rounds: int = 2
    chunk: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        whole("buckets", self.buckets, 2)
        if self.buckets % 2:
            raise ValueError(f"buckets is {self.buckets}: write an even number, such as {self.buckets + 1}")
        whole("rounds", self.rounds, 1)
        whole("chunk", self.chunk, 1)
        check_seed(self.seed)

    def describe(self) -> str:
        """See :class:`Pattern`."""
        return f"LSH: {self.rounds} rounds of {self.buckets} buckets, chunks of {self.chunk}"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, grid: TokenGrid) -> Tensor:
        """See :class:`Pattern`."""
        out = with_text_rows(q, k, v, scale, grid)
        dtype, group = score_dtype(q), q.shape[1] // max(1, k.shape[1])
        rotations = self._rotations(q.shape[3], dtype, q.device)
        texts = grid.text(k), grid.text(v)
        for batch in range(q.shape[0]):
            for head in range(q.shape[1]):
                queries = q[batch, head, grid.span].to(dtype) * (scale * LOG2E)
                keys, values = (x[batch, head // group, grid.span].to(dtype) for x in (k, v))
                text = [x[batch, head // group].to(dtype) for x in texts]
                softmax = MergedSoftmax(len(queries), values.shape[1], queries)
                softmax.attend(torch.arange(grid.cells, device=q.device), queries, *text)
                self._attend_head(softmax, queries, keys, values, rotations)
                out[batch, grid.span, head] = softmax.result().to(out.dtype)
        return out

    def _rotations(self, channels: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        shape = (channels + 1, self.buckets // 2)
        return [torch.randn(shape, generator=generator).to(device, dtype) for _ in range(self.rounds)]

    def _attend_head(self, softmax: MergedSoftmax, q: Tensor, k: Tensor, v: Tensor, rotations: list[Tensor]) -> None:
        hashed_q, hashed_k = _asymmetric(q, k)
        seen = min(CHUNKS_SEEN * self.chunk, len(k))
        rounds = [_Round(_bucket(hashed_q @ r), _bucket(hashed_k @ r), self.chunk, seen) for r in rotations]
        for this in rounds:
            for span in spans(len(q), self.chunk):
                rows = this.query_order[span]
                first = int(this.first_key[rows[0]])
                keys = this.key_order[first : first + seen]
                # A pair that meets in several rounds shares its one weight among them.
                met = torch.stack([r.meets(rows, keys) for r in rounds]).sum(0)
                softmax.add(rows, q[rows] @ k[keys].T - met.to(q.dtype).log2(), v[keys])


class _Round:
    """One hash: who is sorted where, and the first of the sorted keys that every query sees."""

    def __init__(self, query_buckets: Tensor, key_buckets: Tensor, chunk: int, seen: int) -> None:
        self.seen = seen
        self.query_order, self.key_order = (x.argsort(stable=True) for x in (query_buckets, key_buckets))
        self.key_rank = torch.empty_like(self.key_order)
        self.key_rank[self.key_order] = torch.arange(len(key_buckets), device=key_buckets.device)
        self.first_key = torch.empty_like(self.query_order)
        sorted_keys = key_buckets[self.key_order]
        for span in spans(len(query_buckets), chunk):
            rows = self.query_order[span]
            bucket = query_buckets[rows[len(rows) // 2]]
            middle = (torch.searchsorted(sorted_keys, bucket) + torch.searchsorted(sorted_keys, bucket + 1)) // 2
            self.first_key[rows] = (middle - seen // 2).clamp(0, len(key_buckets) - seen)

    def meets(self, rows: Tensor, keys: Tensor) -> Tensor:
        """(n, m) bool: which of the queries and keys meet in this round."""
        behind = self.key_rank[keys] - self.first_key[rows][:, None]
        return (behind >= 0) & (behind < self.seen)


def _bucket(rotated: Tensor) -> Tensor:
    return torch.cat((rotated, -rotated), 1).argmax(1)


def _asymmetric(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """(N, D + 1) queries and keys whose angles order as their products do."""
    centred = k - k.mean(0)
    squares = centred.square().sum(1, keepdim=True)
    rest = (squares.amax() - squares).clamp_min(0).sqrt()
    return torch.cat((q, q.new_zeros(len(q), 1)), 1), torch.cat((centred, rest), 1)
