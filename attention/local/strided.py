"""Strided attention: tokens on the same comb see each other."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import torch
from torch import Tensor

from .checks import whole
from .dense import dense, with_text_rows
from .grid import TokenGrid


@dataclass(frozen=True)
class Strided:
    """Tokens with the same row and column modulo ``stride`` attend each other, over all frames, and the text.

    Attributes:
        stride: rows and columns from one token seen to the next; need not divide the picture.

    Cost: 1 / stride^2 of dense attention; exact for 1.

    Source: the strided pattern of Child et al., "Generating Long Sequences with Sparse Transformers" (arXiv
    1904.10509), section 4.2, in both directions of the picture.

    Raises:
        ValueError: a stride below 1.
    """

    name: ClassVar[str] = "strided"
    stride: int = 2

    def __post_init__(self) -> None:
        whole("stride", self.stride, 1)

    def describe(self) -> str:
        """See :class:`Pattern`."""
        return f"strided: one row in {self.stride} and one column in {self.stride}"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, grid: TokenGrid) -> Tensor:
        """See :class:`Pattern`."""
        out = with_text_rows(q, k, v, scale, grid)
        queries, keys, values = (grid.picture(x) for x in (q, k, v))
        key_text, value_text = grid.text(k), grid.text(v)
        target = grid.picture_rows(out)
        firsts = (range(min(self.stride, n)) for n in (grid.height, grid.width))
        for row, column in product(*firsts):
            rows, columns = slice(row, None, self.stride), slice(column, None, self.stride)
            own = queries[:, :, :, rows, columns]
            comb_keys, comb_values = (
                torch.cat((x[:, :, :, rows, columns].flatten(2, 4), text), 2)
                for x, text in ((keys, key_text), (values, value_text))
            )
            result = dense(own.flatten(2, 4), comb_keys, comb_values, scale)
            target[:, :, rows, columns] = result.unflatten(1, own.shape[2:5])
        return out
