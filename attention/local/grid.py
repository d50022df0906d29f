"""Tokens as cells of a picture or a video, with text tokens before and after them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .checks import whole


@dataclass(frozen=True)
class TokenGrid:
    """How a sequence of tokens lies on a picture: raster order, text at either end.

    Attributes:
        height, width: rows and columns of a frame, in tokens.
        frames: frames; the order is frame, row, column.
        before, after: text tokens in front of the picture's and behind them.

    Raises:
        ValueError: a size below 1, or a negative number of text tokens.
    """

    height: int
    width: int
    frames: int = 1
    before: int = 0
    after: int = 0

    def __post_init__(self) -> None:
        for name in ("height", "width", "frames"):
            whole(name, getattr(self, name), 1)
        for name in ("before", "after"):
            whole(name, getattr(self, name), 0)

    @property
    def cells(self) -> int:
        """Tokens of the picture."""
        return self.frames * self.height * self.width

    @property
    def tokens(self) -> int:
        """Tokens of the picture and of the text."""
        return self.before + self.cells + self.after

    @property
    def shape(self) -> tuple[int, int, int]:
        """Frames, rows and columns."""
        return self.frames, self.height, self.width

    @property
    def span(self) -> slice:
        """Where the picture's tokens are among all."""
        return slice(self.before, self.before + self.cells)

    def picture(self, x: Tensor) -> Tensor:
        """(B, H, N, D) -> the (B, H, F, Y, X, D) view of its picture tokens."""
        return x[:, :, self.span].unflatten(2, self.shape)

    def text(self, x: Tensor) -> Tensor:
        """(B, H, N, D) -> (B, H, before + after, D), a view where all text is at one end."""
        front, back = x[:, :, : self.before], x[:, :, self.span.stop :]
        return torch.cat((front, back), 2) if self.before and self.after else front if self.before else back

    def picture_rows(self, out: Tensor) -> Tensor:
        """(B, N, H, Dv) -> the (B, F, Y, X, H, Dv) view of its picture tokens, to write into."""
        return out[:, self.span].unflatten(1, self.shape)

    def put_text(self, out: Tensor, rows: Tensor) -> None:
        """Writes the text's (B, before + after, H, Dv) into (B, N, H, Dv)."""
        out[:, : self.before] = rows[:, : self.before]
        out[:, self.span.stop :] = rows[:, self.before :]

    def check(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """
        Raises:
            ValueError: operands that are not self-attention over exactly these tokens.
        """
        if any(x.ndim != 4 or x.shape[2] != self.tokens for x in (q, k, v)):
            raise ValueError(
                f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)} are not self-attention over the "
                f"{self.tokens} tokens of {self}: pass (B, H, {self.tokens}, D)"
            )
        heads, key_heads = q.shape[1], k.shape[1]
        batches, channels = {x.shape[0] for x in (q, k, v)}, {q.shape[3], k.shape[3]}
        if len(batches) > 1 or len(channels) > 1 or key_heads != v.shape[1] or heads % max(1, key_heads):
            raise ValueError(
                f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)} do not fit: pass one batch size, one "
                "channel count of q and k, and key heads that divide the query heads"
            )
