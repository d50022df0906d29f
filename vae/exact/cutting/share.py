"""Which rows of every map are one worker's, where several workers share a picture in bands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..operations.graph import Node


@dataclass(frozen=True)
class Share:
    """One band of every map, of a worker among others.

    A map of any height is cut at the same places of the picture: its borders follow from its rows alone, so that every
    worker knows what the others have.

    Attributes:
        rank: which of the workers.
        cuts: the bands' borders, among ``grain`` rows: the first is 0, the last is ``grain``.
        grain: rows of the map whose borders are met exactly, as are those of maps that have several times as many.
    """

    rank: int = 0
    cuts: tuple[int, ...] = (0, 1)
    grain: int = 1

    @classmethod
    def of(cls, rank: int, weights: Sequence[float], grain: int) -> Share:
        """Bands as high as these weights are large, of a map of ``grain`` rows; a band may be empty."""
        total, so_far, cuts = sum(weights), 0.0, [0]
        for weight in weights:
            so_far += weight
            cuts.append(round(grain * so_far / total))
        return cls(rank, tuple(cuts), grain)

    @property
    def workers(self) -> int:
        """How many there are."""
        return len(self.cuts) - 1

    @property
    def is_whole(self) -> bool:
        """Whether there is one worker, with all rows."""
        return self.workers == 1

    @property
    def others(self) -> list[int]:
        """The other workers."""
        return [rank for rank in range(self.workers) if rank != self.rank]

    def as_seen_by(self, rank: int) -> Share:
        """The same bands for another worker."""
        return Share(rank, self.cuts, self.grain)

    def every(self) -> Iterator[Share]:
        """The same bands for each worker."""
        return map(self.as_seen_by, range(self.workers))

    def rows(self, count: int, rank: int | None = None) -> tuple[int, int]:
        """First row and end of a worker's band (None: of this one's) in a map of ``count`` rows."""
        rank = self.rank if rank is None else rank
        return count * self.cuts[rank] // self.grain, count * self.cuts[rank + 1] // self.grain

    def of_node(self, node: Node) -> tuple[int, int]:
        """First row and end of this worker's band of a map."""
        return self.rows(node.rows.count)

    def height(self, node: Node) -> int:
        """Rows of this worker's band of a map."""
        first, stop = self.of_node(node)
        return stop - first

    def bytes_of(self, node: Node) -> int:
        """Bytes of this worker's band of a map."""
        return node.row_bytes * self.height(node)


WHOLE = Share()
