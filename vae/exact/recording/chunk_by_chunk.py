"""What a module that runs a video in chunks has to tell of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor


class ChunkByChunk(Protocol):
    """A video's way through a module, chunk by chunk.

    Attributes:
        borders: first frame and end of each chunk.
        given: frames of the whole result.
        done: chunks that are not to be run any more.
        has_head, has_tail: whether :meth:`head` and :meth:`tail` compute anything.
    """

    done: int

    @property
    def has_head(self) -> bool: ...

    @property
    def has_tail(self) -> bool: ...

    @property
    def borders(self) -> Sequence[tuple[int, int]]: ...

    @property
    def given(self) -> int: ...

    def head(self, x: Any) -> Sequence[Tensor]:
        """What chunks are cut from, of all frames."""

    def step(self, *parts: Any) -> Sequence[Tensor]:
        """The next chunk (1, C, t, H, W): the frames that it gives, in one or more pieces; none yet, sometimes."""

    def tail(self, x: Any) -> Tensor:
        """The result, of what all chunks gave."""
