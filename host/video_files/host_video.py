"""The host's VIDEO: made of a file, shown in the browser, read frame by frame."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import torch
from comfy_api.latest import InputImpl, io, ui
from torch import Tensor

from ...video import FrameReader
from ...video.formats import BITS_8, FLOAT

if TYPE_CHECKING:
    from .to_file import Written


def video_of(source: Path | str | BytesIO) -> Any:
    """A VIDEO that is read from a file, or the whole of one, when a node asks for it."""
    return InputImpl.VideoFromFile(source if isinstance(source, BytesIO) else str(source))


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
            self._reader = reader = FrameReader(video.get_stream_source(), start, duration, _pixels_of_yuv())
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
    start, duration = (float(inside.get(f"_VideoFromFile__{name}", 0.0)) for name in ("start_time", "duration"))
    if start < 0:  # from the end, which a video that is not trimmed tells
        start = max(float(video_of(video.get_stream_source()).get_duration()) + start, 0.0)
    return start, duration


@cache
def _pixels_of_yuv() -> str:
    """What this host's own reader makes YUV into, floats as newer ones do or 8 bits: a picture in YUV tells."""
    file, side = BytesIO(), 32  # pixels
    with av.open(file, "w", format="matroska") as container:
        stream = container.add_stream("ffv1", rate=1)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = side, side, "yuv420p"
        values = np.arange(side * side * 3 // 2, dtype=np.int64).astype(np.uint8)
        container.mux(stream.encode(av.VideoFrame.from_ndarray(values.reshape(-1, side), format="yuv420p")))
        container.mux(stream.encode(None))
    images = video_of(file).get_components().images
    return BITS_8 if torch.equal(images, (images * 255).round() / 255) else FLOAT
