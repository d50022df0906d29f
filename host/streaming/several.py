"""The videos of a batch, one after the other, as the stock decode lays their frames in a row."""

from __future__ import annotations

from collections.abc import Callable

from .source import Border, FrameSource, Onward, State, Take


class Several:
    """Sources of equal length.

    Args:
        sources: makes the one of each video.
        videos: how many there are.
    """

    def __init__(self, sources: Callable[[int], FrameSource], videos: int) -> None:
        self.sources, self.videos = sources, videos
        self.number, self.source = 0, sources(0)
        self.each = self.source.count
        self.count = self.each * videos

    @property
    def has_borders(self) -> bool:
        """Of the video that is being decoded."""
        return self.source.has_borders

    def lower(self) -> bool:
        """For the video that is being decoded; the next one begins with all there is again."""
        return self.source.lower()

    def run(self, take: Take, border: Border, done: int, state: State | None) -> None:
        """From anywhere in any of them on; between two of them nothing is carried."""
        onward = Onward(take, border, done)
        for number in range(done // self.each, self.videos):
            if number != self.number:
                self.number, self.source = number, self.sources(number)
            inside = max(0, done - number * self.each)
            onward.begin(number * self.each + inside)
            self.source.run(onward.take, onward.border, inside, state if inside else {})
