"""Videos in chunks of frames, over several workers: each has its band of every chunk, and of what is kept from one to
the next; the state is gathered of them where somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from ...memory import Row
from ...vae.exact import CannotRecord, DoesNotFit
from ..bands.crew import Task
from ..bands.gathered import BandedPass
from ..chunks.chunks import Chunks, chunk_at
from ..vae.coding import Coder
from ..vae.room import NoRoom, NotExact
from .source import Border, Onward, State, Take


class InBands:
    """One video, chunk by chunk.

    Args:
        coder: of a VAE that has workers.
        latent: (1, C, T, h, w), prepared, in host memory.
        row: of the run log.
        kind_of_chunks: how the autoencoder is run in chunks.
    """

    has_borders = True

    def __init__(self, coder: Coder, latent: Tensor, row: Row, kind_of_chunks: type[Chunks]) -> None:
        self.coder, self.latent, self.row = coder, latent, row
        self.kind, self.model = kind_of_chunks, coder.geometry.vae.first_stage_model
        self.count = kind_of_chunks(self.model, latent.shape[2]).given
        self.begins: tuple[int, State] = (0, {})

    def lower(self) -> bool:
        """Workers have their own ways down."""
        return False

    def run(self, take: Take, border: Border, done: int, state: State | None) -> None:
        """From any border on; where a worker is lost, from the last one of which the state was asked for."""
        onward, watch = Onward(take, border, done), self.coder.geometry.watch(1)
        may_go_on = state is not None and chunk_at(self.kind, self.model, self.latent.shape[2], done)
        self.begins = (done, state or {}) if may_go_on else (0, {})
        computed(
            self.coder,
            lambda banded: replace(
                banded.task("decode", self.latent, {}, lambda share: watch.on_strip(share, None)),
                on_chunk=lambda at, pieces, save: self._hand_on(onward, at, pieces, save),
                begins=lambda: self.begins,
            ),
            self.latent,
            self.row,
        )

    def _hand_on(self, onward: Onward, at: int, pieces: list[Tensor], save: Callable[[], State]) -> None:
        if at != onward.at:
            onward.begin(at)
        for piece in pieces:
            onward.take(piece)

        def kept() -> State:
            state = save()
            self.begins = (onward.at, state)
            return state

        onward.border(kept)


def computed(coder: Coder, task: Callable[[BandedPass], Task], x: Tensor, row: Row) -> list[Tensor]:
    """The bands of a video that comes, or is handed on, chunk by chunk.

    Args:
        x: the prepared input, or its likeness.

    Raises:
        BudgetTooSmall, CannotBeExact, OOM_EXCEPTION, RuntimeError: as the VAE nodes do.
    """
    bands: list[Tensor] = []
    try:
        with coder.banded(row) as banded:
            bands, banded.report = banded.crew.compute(task(banded))
            row.lines[:] = banded.describe()
    except CannotRecord as error:
        coder.fallback.unrecorded(NotExact(str(error)), row)
    except DoesNotFit as error:
        coder.fallback.does_not_fit(error, x, row)
    except NoRoom as error:
        coder.fallback.no_room(error, x, row)
    return bands
