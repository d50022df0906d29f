"""Pictures one after the other: a batch of a VAE that knows no time."""

from __future__ import annotations

from torch import Tensor

from ...memory import Row
from ..vae.coding import Coder
from .gathered import exactly
from .source import Border, State, Take


class Pictures:
    """Each slice of a batch decoded by itself, in one piece where that fits, else in exact strips.

    Args:
        coder: of the VAE.
        latents: (B, C, h, w), prepared.
        row: of the run log.
    """

    has_borders = True

    def __init__(self, coder: Coder, latents: Tensor, row: Row) -> None:
        self.coder, self.latents, self.row = coder, latents, row
        self.count = int(latents.shape[0])

    def run(self, take: Take, border: Border, done: int, state: State | None) -> None:
        """From any picture on: none needs another."""
        step = self.coder.geometry.slice_step(self.latents)
        for start in range(done, self.count, step):
            self.row.lines.clear()
            pictures = exactly(self.coder, self.latents[start : start + step], self.row)
            take(pictures.movedim(0, 1)[None])
            border(dict)

    def lower(self) -> bool:
        """Each picture has its own way down."""
        return False
