"""The host's own chunks: the frames that its video autoencoders take at a time, with the cache between them.

A family's borders are those of the host's own code, so that each chunk is what the host would have computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ...vae.exact import kept_of
from ..core.cancel import AskedAtEachFunction

Borders = list[tuple[int, int]]
TEXT = ".text"  # of a place of the cache that holds a word
#: Tensors by which a video goes on at a border: what the module carries from one chunk to the next.
State = dict[str, Tensor]


class Chunks:
    """A video's way through an autoencoder of the host's, chunk by chunk; a new one for every video.

    Args:
        model: the autoencoder.
        frames: of the whole input, latent ones for a decode.

    Attributes:
        borders: first frame and end of each chunk, in what :meth:`head` gives.
        given: frames of the whole result.
        cache: what a chunk leaves for the next one; None where there is only one chunk, without any.
    """

    #: As :meth:`step`, before the chunk is counted.
    compute: Callable[..., Sequence[Tensor]]
    #: The half of the autoencoder that is run so, by its name there.
    half: str
    #: Something is computed of all frames before the chunks, or behind them.
    has_head = has_tail = False
    #: Strips are cut of chunks from the start, also where rows of all frames might do.
    comes_first = False
    #: Frames of a chunk are given with later ones, which they depend on: strips are not cut of such chunks.
    looks_ahead = False
    #: How it runs by the module itself, for the report.
    by_module = "in the host's own chunks, by the VAE's own module: its result bit for bit"

    def __init__(self, model: Any, frames: int) -> None:
        self.model, self.frames = model, frames
        self.borders, self.given = self.cut(frames), self.frames_of(frames)
        self.done = 0
        self.cache: list[Any] | None = [None] * self.places()

    def places(self) -> int:
        """How many places the cache has from the beginning."""
        return 0

    @property
    def part(self) -> Any:
        """The half of the autoencoder that has the cache."""
        return getattr(self.model, self.half)

    @classmethod
    def knows(cls, model: Any) -> bool:
        """Whether this host's module is the one that this is made for."""
        return True

    def cut(self, frames: int) -> Borders:
        """The borders of so many frames."""
        raise NotImplementedError

    def frames_of(self, frames: int) -> int:
        """Frames of the result: four to a latent one, but one to the first."""
        raise NotImplementedError

    @property
    def reach(self) -> int:
        """Latent frames on each side that one of the result depends on, where chunks look ahead."""
        return 0

    def given_by(self, chunks: int) -> int:
        """Frames of the result that are given when so many chunks, one or more, are done."""
        return self.frames_of(self.borders[chunks - 1][1])

    def head(self, x: Tensor) -> Sequence[Tensor]:
        """What the chunks are cut from, each of (1, C, T, H, W), of the whole input: the input, unless there is a
        :attr:`has_head`."""
        return [x]

    def step(self, *parts: Tensor) -> Sequence[Tensor]:
        """The next chunk, (1, C, t, H, W) of each of what :meth:`head` gave: the frames that it gives, in one or more
        pieces; none yet, sometimes."""
        results = self.compute(*parts)
        self.done += 1
        return results

    def handed(self, *parts: Tensor) -> Iterator[Tensor]:
        """As :meth:`step`, for results that are taken one by one: where a chunk gives them so, the next is computed
        when the one before was taken."""
        yield from self.step(*parts)

    def tail(self, x: Tensor) -> Tensor:
        """The result, of what all chunks gave: that itself, unless there is a :attr:`has_tail`."""
        return x

    def held(self, shape: Sequence[int]) -> list[tuple[int, ...]]:
        """Shapes of the maps of all frames that :meth:`head` gives, or that :meth:`tail` is given, for an input of a
        shape (1, C, T, H, W): room for them is asked for beforehand."""
        return []

    def kept(self) -> dict[str, Any]:
        """What is in the cache, by place: tensors, and words."""
        return {str(place): entry for place, entry in enumerate(self.cache or ()) if entry is not None}

    def keep(self, found: Mapping[str, Any]) -> None:
        """Puts back what :meth:`kept` gave."""
        if self.cache is not None:
            self.cache += [None] * (max(map(int, found), default=-1) + 1 - len(self.cache))
            for place, entry in found.items():
                self.cache[int(place)] = entry


def gone_on(
    kind: type[Chunks],
    model: Any,
    frames: int,
    done: int = 0,
    state: State | None = None,
    put: Callable[[str, Tensor], Any] | None = None,
) -> Chunks:
    """The way through a video, from a border on.

    Args:
        frames: of the whole input.
        done: frames of the result before the border; where no chunk begins behind so many, it begins anew.
        state: what :func:`saved` gave there.
        put: makes what lies in the cache of a tensor of the state, by its name there.
    """
    chunks = kind(model, frames)
    chunks.done = chunk_at(kind, model, frames, done)
    if chunks.done:
        assert put is not None
        kept: dict[str, Any] = {}
        for name, value in (state or {}).items():
            word = name.endswith(TEXT)
            kept[name.removesuffix(TEXT)] = bytes(value.tolist()).decode() if word else put(name, value)
        chunks.keep(kept)
    return chunks


def chunk_at(kind: type[Chunks], model: Any, frames: int, done: int) -> int:
    """The chunk that begins behind so many frames of the result; 0 where none does."""
    chunks = kind(model, frames)
    numbers = range(1, len(chunks.borders)) if done else ()
    return next((number for number in numbers if chunks.given_by(number) == done), 0)


def saved(chunks: Any) -> State:
    """What is kept at a border, or a worker's bands of it, in host memory."""
    state: State = {}
    for place, entry in chunks.kept().items():
        if isinstance(entry, str):
            state[f"{place}{TEXT}"] = torch.tensor(list(entry.encode()), dtype=torch.uint8)
        else:
            held = kept_of(entry.node) if hasattr(entry, "node") else entry
            state[place] = held.detach().cpu().contiguous()
    return state


def in_steps(step: int, frames: int) -> Borders:
    """So many frames at a time, from the first on."""
    return list(pairwise([*range(0, frames, step), frames]))


def by_step(step: int, frames: int) -> Borders:
    """One frame, then so many at a time."""
    return list(pairwise([0, *range(1, frames, step), frames]))


def head_of(
    chunks: Chunks, x: Tensor, bring: Callable[[Tensor], Tensor], aside: Callable[[Tensor], Tensor]
) -> Sequence[Tensor]:
    """What chunks are cut from, in host memory, by the module itself.

    Args:
        x: the whole input, in host memory.
        bring: to the device.
        aside: what is computed of all frames to where it waits for its chunks.
    """
    if not chunks.has_head:
        return [x]
    with AskedAtEachFunction():
        parts = chunks.head(bring(x))
    return list(map(aside, parts))
