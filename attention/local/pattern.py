"""What every pattern offers."""

from __future__ import annotations

from typing import ClassVar, Protocol

from torch import Tensor

from .grid import TokenGrid


class Pattern(Protocol):
    """Attention that is approximate without training: picture queries leave out or merge keys.

    In every pattern text queries attend to all tokens exactly, and every picture query attends to every text key:
    text is global, as in Longformer (arXiv 2004.05150).
    """

    name: ClassVar[str]

    def describe(self) -> str:
        """One line for people."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, grid: TokenGrid) -> Tensor:
        """Self-attention over ``grid``.

        Args:
            q: (B, H, N, D). k: (B, Hk, N, D). v: (B, Hk, N, Dv). ``Hk`` divides ``H``; any strides; half dtypes too.
            scale: factor of the scores.
            grid: how the N tokens lie on the picture.

        Returns:
            (B, N, H, Dv), contiguous, in q's dtype.

        Raises:
            ValueError: operands that do not fit ``grid``.
        """
