"""Videos that come out of their autoencoder at once: gathered in a file of the host's temp folder, then handed on."""

from __future__ import annotations

from torch import Tensor

from ...memory import Row
from ...memory.prediction import CannotPredict
from ..prediction.stages import own_card
from ..prediction.vae import predict_work
from ..vae.coding import Coder
from .source import Border, Onward, State, Take

AT_ONCE = 16  # frames that are handed on together


def exactly(coder: Coder, x: Tensor, row: Row) -> Tensor:
    """A prepared input in one piece where that fits, else in exact strips, or in bands of several workers; never in
    tiles.

    Args:
        coder: of a VAE whose method is exact.

    Raises:
        BudgetTooSmall, CannotBeExact, OOM_EXCEPTION: as :meth:`Coder.by_method`.
    """
    whole = coder.tiles.plan_whole(x)
    if not coder.geometry.settings.workers and whole.fits and (done := coder.in_one_piece(x, whole, row)) is not None:
        return done
    return coder.by_method(x, row, coder)


class Gathered:
    """One video, or pictures that are decoded as one, whose strips hold some rows of every frame.

    Args:
        coder: of a VAE whose frames lie on disk.
        latent: (1, C, T, h, w), or (T, C, h, w) where the batch is time; prepared.
        row: of the run log.
    """

    has_borders = False

    def __init__(self, coder: Coder, latent: Tensor, row: Row) -> None:
        self.coder, self.latent, self.row = coder, latent, row
        self.count = self._frames() if latent.ndim == 5 else int(latent.shape[0])

    def _frames(self) -> int:
        """As the module gives them, which is not what the host says of each family: by a line through two short
        videos, of an odd or an even length as this one is."""
        vae, cells = self.coder.geometry.vae, self.latent.shape[2]

        def of(length: int) -> int:
            counted: list[int] = []
            x = self.latent[:, :, :1].expand(-1, -1, length, -1, -1)
            predict_work(vae, x, own_card(vae.device), lambda module, x: counted.append(module.decode(x).shape[2]))
            return counted[0]

        short = 2 - cells % 2
        try:
            first, second = of(short), of(short + 2)
            # MiniMax H3's tiny one takes five latent frames at a time: no line.
            if of(short + 4) - second == second - first:
                return first + (second - first) * (cells - short) // 2
        except CannotPredict:
            pass
        return self.coder.geometry.frames(int(cells))

    def lower(self) -> bool:
        """Strips have their own way down."""
        return False

    def run(self, take: Take, border: Border, done: int, state: State | None) -> None:
        """Always from the beginning."""
        onward = Onward(take, border, done)
        onward.begin(0)
        coder, latent = self.coder, self.latent
        out = exactly(coder, latent, self.row)
        frames = out if out.ndim == 5 else out.movedim(0, 1)[None]
        self.count = int(frames.shape[2])
        for piece in frames.split(AT_ONCE, 2):
            onward.take(piece)
        onward.border(dict)
