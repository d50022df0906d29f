"""Queries against the clusters of keys that matter most to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from ..tiles import LOG2E, score_dtype
from .checks import check_seed, whole
from .dense import with_text_rows
from .grid import TokenGrid
from .merge import MergedSoftmax


@dataclass(frozen=True)
class KMeans:
    """Picture keys are clustered; every query attends the keys of its best clusters, and the text.

    A cluster's rank for a query is the weight it would have were all its keys at the centroid:
    scale * q . centroid + log(size).

    Attributes:
        clusters: of the picture keys of every head, at most as many as there are.
        top: clusters that a query attends.
        iterations: of Lloyd's algorithm.
        seed: of the keys it starts from.

    Exact where ``top`` is ``clusters``. Heads run one after the other: made for CPUs; an accelerator is left idle.

    Source: Roy et al., "Efficient Content-Based Sparse Attention with Routing Transformers" (arXiv 2003.05997);
    clusters of keys alone, since here queries and keys are trained apart.

    Raises:
        ValueError: a parameter out of range.
    """

    name: ClassVar[str] = "kmeans"
    clusters: int = 32
    top: int = 4
    iterations: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        whole("clusters", self.clusters, 1)
        whole("top", self.top, 1, self.clusters)
        whole("iterations", self.iterations, 0)
        check_seed(self.seed)

    def describe(self) -> str:
        """See :class:`Pattern`."""
        return f"k-means: the best {self.top} of {self.clusters} clusters of keys"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, grid: TokenGrid) -> Tensor:
        """See :class:`Pattern`."""
        out = with_text_rows(q, k, v, scale, grid)
        dtype, group = score_dtype(q), q.shape[1] // max(1, k.shape[1])
        key_text, value_text = grid.text(k), grid.text(v)
        for batch in range(k.shape[0]):
            for head in range(k.shape[1]):
                keys, values = (x[batch, head, grid.span].to(dtype) for x in (k, v))
                clusters = self._cluster(keys)
                text = [x[batch, head].to(dtype) for x in (key_text, value_text)]
                for query_head in range(head * group, (head + 1) * group):
                    queries = q[batch, query_head, grid.span].to(dtype) * (scale * LOG2E)
                    softmax = self._route(queries, keys, values, clusters)
                    softmax.attend(torch.arange(grid.cells, device=q.device), queries, *text)
                    out[batch, grid.span, query_head] = softmax.result().to(out.dtype)
        return out

    def _cluster(self, keys: Tensor) -> _Clusters:
        """Lloyd's algorithm on (N, D) keys. Sums are matrix products: those are the same in every run."""
        start = torch.randperm(len(keys), generator=torch.Generator().manual_seed(self.seed))[: self.clusters]
        centroids = keys[start.to(keys.device)]
        for _ in range(self.iterations):
            member = functional.one_hot(_nearest(keys, centroids), len(centroids)).to(keys.dtype)
            sizes = member.sum(0)[:, None]
            centroids = torch.where(sizes > 0, member.T @ keys / sizes.clamp_min(1), centroids)
        return _Clusters(centroids, _nearest(keys, centroids))

    def _route(self, q: Tensor, k: Tensor, v: Tensor, clusters: _Clusters) -> MergedSoftmax:
        """(N, D) queries, scaled to scores in units of log2, against the keys of their best clusters."""
        softmax = MergedSoftmax(len(q), v.shape[1], q)
        rank = q @ clusters.centroids.T + clusters.sizes.to(q.dtype).log2()
        best = rank.topk(min(self.top, rank.shape[1]), dim=1).indices
        choices, sizes = _sorted_members(best.flatten(), rank.shape[1])
        by_cluster = zip((choices // best.shape[1]).split(sizes), clusters.members())
        for rows, keys in by_cluster:
            if len(rows) and len(keys):
                softmax.attend(rows, q, k[keys], v[keys])
        return softmax


@dataclass(frozen=True)
class _Clusters:
    """(C, D) centroids, and the cluster (N,) of every key."""

    centroids: Tensor
    cluster: Tensor

    @property
    def sizes(self) -> Tensor:
        """(C,) keys of every cluster."""
        return torch.bincount(self.cluster, minlength=len(self.centroids))

    def members(self) -> tuple[Tensor, ...]:
        """The places of every cluster's keys."""
        order, sizes = _sorted_members(self.cluster, len(self.centroids))
        return order.split(sizes)


def _nearest(keys: Tensor, centroids: Tensor) -> Tensor:
    """(N,) index of the centroid nearest to every key."""
    half_square = centroids.square().sum(1) / 2
    return (keys @ centroids.T - half_square).argmax(1)


def _sorted_members(labels: Tensor, count: int) -> tuple[Tensor, list[int]]:
    """Indices of ``labels`` (n,) in the labels' order, and how many there are of each."""
    return labels.argsort(stable=True), torch.bincount(labels, minlength=count).tolist()
