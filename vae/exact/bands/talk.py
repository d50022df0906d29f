"""What workers and whoever asked them say to each other about a video that comes, or is handed on, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import torch
from torch import Tensor

from ..cutting.share import Share
from .peers import ASKER, PeerLost, Peers

HOST = torch.device("cpu")
#: What workers say: frames of a chunk, what is kept behind it, which chunk they want, and that it is over; the answer
#: is what they want, or to go on.
FRAMES, STATE, WANTS, END, GO = "frames", "state", "wants", "end", "go"
SAID, ANSWERED = "said", "answered"
#: Called with the frames before a chunk, the chunk in one or more pieces (1, C, t, H, W), and what gives the state
#: behind it.
OnChunk = Callable[[int, list[Tensor], Callable[[], dict[str, Tensor]]], None]


class Talk:
    """A worker's side, with whoever asked: what is done chunk by chunk is handed on, and what comes so is asked for.

    Args:
        kept: what is kept behind a chunk, by name, in host memory: this worker's bands of maps, and what is no map;
            and the names of the former.

    Attributes:
        rows: of the worker's band of a frame.
    """

    def __init__(self, peers: Peers, kept: Callable[[Any], tuple[dict[str, Tensor], list[str]]]) -> None:
        self.peers, self.kept = peers, kept
        self.said = self.heard = self.at = self.rows = 0
        self.pieces: list[Tensor] = []

    def begin(self, at: int) -> None:
        """The work begins at a frame of the result."""
        self.at, self.pieces = at, []

    def take(self, piece: Tensor) -> None:
        """The next frames, in host memory."""
        self.rows = piece.shape[-2]
        self.pieces.append(piece)

    def chunk_is_done(self, chunks: Any) -> None:
        """Gives its frames, and what is kept behind it, if that is asked for."""
        pieces, self.pieces = self.pieces, []
        self._say(FRAMES, self.at, *pieces)
        while self._hear()[0] == STATE:
            kept, bands = self.kept(chunks)
            self._say(STATE, list(kept), bands, *kept.values())
        self.at += sum(piece.shape[2] for piece in pieces)

    def chunk(self, start: int) -> Tensor:
        """The band of the chunk of the input that begins at a frame."""
        self._say(WANTS, start)
        band: Tensor = self._hear()[0]
        return band

    def end(self) -> None:
        """There is no more to be said."""
        self._say(END)

    def _say(self, *things: Any) -> None:
        self.peers.give((SAID, self.said), things, [ASKER])
        self.said += 1

    def _hear(self) -> list[Any]:
        found = self.peers.take((ANSWERED, self.heard), ASKER)(HOST)
        self.heard += 1
        return found


def talk_with(
    peers: Peers, bands: Sequence[Share], on_chunk: OnChunk | None, brings: Callable[[], Iterator[Tensor]] | None
) -> None:
    """The side of whoever asked, with all workers: until it is over, or one of them is gone.

    Args:
        on_chunk: takes what is handed on.
        brings: the chunks of what comes, from the beginning.
    """
    asker, coming = _Asker(peers, bands), iter(list[Tensor]())
    with suppress(PeerLost):  # the workers' answers tell why
        while (word := asker.hear()) != END:
            at, *_ = asker.heard[0]
            if word == WANTS:
                assert brings is not None
                coming = coming if at else brings()  # from the beginning, where another way is tried
                asker.give(next(coming))
                continue
            assert on_chunk is not None
            pieces = [torch.cat(found, -2) for found in zip(*(found for _, *found in asker.heard))]
            on_chunk(at, pieces, asker.state)
            asker.say(GO)


class _Asker:
    """Whoever asked, in talk with all workers.

    Attributes:
        heard: what each of them said last, behind its first word.
    """

    def __init__(self, peers: Peers, bands: Sequence[Share]) -> None:
        self.peers, self.bands = peers, bands
        self.turn, self.answers = count(), count()
        self.heard: list[list[Any]] = []

    def hear(self) -> str:
        """What all of them say next: its first word."""
        key = (SAID, next(self.turn))
        given = [self.peers.take(key, share.rank)(HOST) for share in self.bands]
        self.heard = [list(things) for _, *things in given]
        return str(given[0][0])

    def say(self, word: str) -> None:
        """To all of them."""
        self.peers.give((ANSWERED, next(self.answers)), [word], [share.rank for share in self.bands])

    def give(self, x: Tensor) -> None:
        """Its band to each of them."""
        key = (ANSWERED, next(self.answers))
        for share in self.bands:
            self.peers.give(key, [x[..., slice(*share.rows(x.shape[-2])), :].contiguous()], [share.rank])

    def state(self) -> dict[str, Tensor]:
        """What is kept behind the chunk that they handed on, put together; of what all have, the first one's."""
        self.say(STATE)
        self.hear()
        names, in_bands, *_ = self.heard[0]
        entries = zip(names, zip(*(found for _, _, *found in self.heard)))
        return {name: torch.cat(found, -2) if name in in_bands else found[0] for name, found in entries}
