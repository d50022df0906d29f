"""Softmax attention by random features. Measured, not offered: its error is that of the mean of all values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..tiles import score_dtype
from .checks import check_seed, whole
from .dense import dense, with_text_rows
from .grid import TokenGrid

# Added to every feature, as in the authors' code: keeps a query whose features all vanish from dividing by zero.
EPSILON = 1e-6


@dataclass(frozen=True)
class Performer:
    """The exponential of a score is estimated by a product of positive random features; O(N) time.

    Attributes:
        features: random features; the error falls with their square root.
        seed: of the features.

    Text keys have their exact weight. Values are computed in float32 at least.

    Source: Choromanski et al., "Rethinking Attention with Performers" (arXiv 2009.14794): FAVOR+, positive
    orthogonal features.

    Raises:
        ValueError: a parameter out of range.
    """

    name: ClassVar[str] = "performer"
    features: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        whole("features", self.features, 1)
        check_seed(self.seed)

    def describe(self) -> str:
        """See :class:`Pattern`."""
        return f"Performer: {self.features} positive orthogonal random features"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, grid: TokenGrid) -> Tensor:
        """See :class:`Pattern`; ``scale`` is positive."""
        out = with_text_rows(q, k, v, scale, grid)
        group = q.shape[1] // max(1, k.shape[1])
        queries = q[:, :, grid.span].to(score_dtype(q)) * math.sqrt(scale)
        keys, values, key_text, value_text = (
            x.to(queries.dtype).repeat_interleave(group, 1)
            for x in (k[:, :, grid.span], v[:, :, grid.span], grid.text(k), grid.text(v))
        )
        # Keys may be shifted as one: a softmax does not change, and shorter keys have less variance.
        centre = keys.mean(2, keepdim=True)
        keys, key_text = ((x - centre) * math.sqrt(scale) for x in (keys, key_text))
        result, mass = self._estimate(queries, keys, values)
        if key_text.shape[2]:
            text_mass = (queries @ key_text.transpose(2, 3)).logsumexp(-1, keepdim=True)
            exact = dense(queries, key_text, value_text, 1.0).transpose(1, 2)
            result = torch.lerp(exact, result, (mass - text_mass).sigmoid())
        out[:, grid.span] = result.transpose(1, 2).to(out.dtype)
        return out

    def _estimate(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """(B, H, N, Dv), and (B, H, N, 1) log of the sum of exponentials."""
        directions = self._directions(q.shape[3]).to(q.device, q.dtype)
        features_q, shift_q = _features(q, directions, (-1,))
        features_k, shift_k = _features(k, directions, (-1, -2))
        weights = features_q @ features_k.sum(2).unsqueeze(-1)
        values = features_q @ (features_k.transpose(2, 3) @ v) / weights
        return values, weights.log() + shift_q + shift_k - math.log(self.features)

    def _directions(self, channels: int) -> Tensor:
        """(features, D): orthogonal within every D of them, as long as normal vectors are."""
        generator = torch.Generator().manual_seed(self.seed)
        blocks = []
        for _ in range(0, self.features, channels):
            square, lengths = (torch.randn(channels, channels, generator=generator) for _ in range(2))
            q, r = torch.linalg.qr(square)
            # Without the signs of R the directions are not uniform (Mezzadri, arXiv math-ph/0609050), and their
            # estimate keeps an error that more features do not remove.
            blocks.append((q * r.diagonal().sign()).T * lengths.norm(dim=1, keepdim=True))
        return torch.cat(blocks)[: self.features]


def _features(x: Tensor, directions: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """exp(x w - |x|^2 / 2) of (B, H, N, D), divided by the exponential of the highest over ``dims``."""
    exponent = x @ directions.T - x.square().sum(-1, keepdim=True) / 2
    highest = exponent.amax(dims, keepdim=True)
    return (exponent - highest).exp_() + EPSILON, highest
