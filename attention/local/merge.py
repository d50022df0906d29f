"""A softmax over keys that come in parts, for rows that come in any order."""

from __future__ import annotations

import torch
from torch import Tensor

from ..tiles import spans

# Rows and columns of a tile of scores.
TILE = 1024


class MergedSoftmax:
    """``softmax(scores) v`` of N rows, merged from parts by running maximum and sum.

    Scores are in units of log2. Source: Milakov & Gimelshein (arXiv 1805.02867), algorithm 3.
    """

    def __init__(self, rows: int, channels: int, like: Tensor) -> None:
        self.highest = like.new_full((rows, 1), -torch.inf)
        self.total = like.new_zeros(rows, 1)
        self.values = like.new_zeros(rows, channels)

    def add(self, rows: Tensor, scores: Tensor, v: Tensor) -> None:
        """Takes scores (n, m) of the rows ``rows`` (n,), each of which is there once, and values (m, Dv)."""
        earlier = self.highest[rows]
        highest = torch.maximum(earlier, scores.amax(1, keepdim=True))
        finite = highest.masked_fill(highest == -torch.inf, 0.0)
        decay = (earlier - finite).exp2_()
        weights = (scores - finite).exp2_()
        self.highest[rows] = highest
        self.total[rows] = self.total[rows] * decay + weights.sum(1, keepdim=True)
        self.values[rows] = torch.addmm(self.values[rows] * decay, weights, v)

    def attend(self, rows: Tensor, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Takes queries (N, D), already scaled, of ``rows`` against all of k (m, D) and v (m, Dv), tile by tile."""
        for row_span in spans(len(rows), TILE):
            part = rows[row_span]
            q_rows = q[part]
            for span in spans(len(k), TILE):
                self.add(part, q_rows @ k[span].T, v[span])

    def result(self) -> Tensor:
        """(N, Dv)."""
        return self.values / self.total
