"""The host's VIDEO: made of a file, shown in the browser, read frame by frame."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comfy_api.latest import InputImpl, io, ui
from torch import Tensor

from ...video import FrameReader

if TYPE_CHECKING:
    from .to_file import Written


def video_of(path: Path) -> Any:
    """A VIDEO that is read from a file when a node asks for it."""
    return InputImpl.VideoFromFile(str(path))


def shown(written: Written) -> dict[str, Any]:
    """A video on the face of its node; of a sequence nothing, which no browser plays."""
    if written.path.parent != written.place.folder:
        return {}
    saved = ui.SavedResult(written.path.name, written.place.subfolder, io.FolderType.output)
    return dict(ui.PreviewVideo([saved]).as_dict())


class Frames:
    """The frames of a VIDEO, from its file or, where it has none, from its tensor.

    Args:
        video: the host's; trimmed ones begin and end where they were trimmed.

    Attributes:
        count, width, height: of the frames.

    Raises:
        ValueError: a file without a video in it.
    """

    def __init__(self, video: Any) -> None:
        self._images: Tensor | None = None
        self._reader: FrameReader | None = None
        if isinstance(video, InputImpl.VideoFromFile):
            window = getattr(video, "get_active_trim_window", None)
            start, duration = window() if window is not None else _trim_of(video)
            self._reader = reader = FrameReader(video.get_stream_source(), start, duration)
            self.count, self.width, self.height = reader.frames, reader.width, reader.height
        else:
            self._images = images = video.get_components().images
            self.count, self.height, self.width = (int(size) for size in images.shape[:3])
        if not self.count:
            raise ValueError("video: has no frames; load another, or trim less of it")

    def windows(self, frames: int) -> Iterator[Tensor]:
        """All of them in order, (n, H, W, C) float32 in [0, 1], so many at a time."""
        if self._reader is not None:
            yield from self._reader.windows(frames)
        elif self._images is not None:
            yield from self._images.split(frames)


def _trim_of(video: Any) -> tuple[float, float]:
    """Start and duration of a trimmed video, of hosts that do not tell them."""
    inside = vars(video)
    return float(inside.get("_VideoFromFile__start_time", 0.0)), float(inside.get("_VideoFromFile__duration", 0.0))
