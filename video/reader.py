"""Frames of a file in windows: as many as are asked for at a time, and no more of them in RAM."""

from __future__ import annotations

import io
from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import av
import numpy as np
import torch
from torch import Tensor

from .pixels import Values
from .sequence import read_list


class FrameReader:
    """A video's frames, decoded as they are asked for; it can be gone through more than once.

    Frames count from ``start_time`` up to, and without, ``start_time + duration``, as in ComfyUI's own reader.

    Args:
        source: a file's name, the whole of a file, or the list of a sequence of pictures (``*.ffconcat``).
        start_time: seconds that are left out at the beginning.
        duration: seconds from there; 0 for all.
        yuv: what YUV is made into, ``rgb24`` or ``gbrpf32le``, as ComfyUI's own reader does it; None for as many bits
            as the file has. RGB keeps its values.

    Attributes:
        width, height: of a frame as it is shown, turned as the file says.
        rate: frames a second; 1 where the file does not tell.

    Raises:
        ValueError: no video in it, or it cannot be read.
    """

    def __init__(
        self,
        source: str | Path | io.BytesIO,
        start_time: float = 0.0,
        duration: float = 0.0,
        yuv: str | None = None,
    ) -> None:
        if start_time < 0 or duration < 0:
            raise ValueError(f"start_time is {start_time:g} and duration {duration:g}: neither can be below 0")
        self._source, self._start, self._duration = source, start_time, duration
        self._yuv = yuv
        self._name = "the video" if isinstance(source, io.BytesIO) else Path(source).name
        try:
            self._list = None if isinstance(source, io.BytesIO) else read_list(source)
            with self._open() as container:
                stream = self._stream(container)
                self.rate = self._list[1] if self._list else Fraction(stream.average_rate or 1)
                first = next(container.decode(stream), None)
        except (av.error.FFmpegError, OSError) as error:
            raise ValueError(f"{self._name} cannot be read as a video: {_why(error)}") from error
        if first is None:
            raise ValueError(f"{self._name} has no frames in its video")
        turned = _quarters(first) % 2
        self.height, self.width = (first.width, first.height) if turned else (first.height, first.width)

    @cached_property
    def frames(self) -> int:
        """How many frames there are: by the packets, none decoded; of a list of pictures by their names.

        What a file itself tells is wrong where it was cut off, or cut without encoding, or dropped frames.

        Raises:
            ValueError: it cannot be read.
        """
        if self._list and not self._start and not self._duration:
            return len(self._list[0])
        try:
            with self._open() as container:
                stream = self._stream(container)
                shown = (packet for packet in _packets(container, stream) if _is_shown(packet, stream))
                return sum(self._place(packet, number) == 0 for number, packet in enumerate(shown))
        except (av.error.FFmpegError, OSError) as error:
            raise ValueError(f"{self._name} cannot be read further: {_why(error)}") from error

    def windows(self, count: int) -> Iterator[Tensor]:
        """Windows of ``count`` frames, the last with what is left: float32 (n, H, W, 3) in [0, 1], on the CPU.

        8-bit sources are over 255, deeper ones over 65535, if ``yuv`` does not say otherwise. Each window is a tensor
        of its own.

        Raises:
            ValueError: ``count`` is not positive, frames cannot be decoded, or there are more or fewer than
                :attr:`frames`; the last window is not given then.
        """
        if count < 1:
            raise ValueError(f"a window is of {count} frames: it must be of one at least")
        window, filled, read = None, 0, 0
        for frame in self._decoded():
            read += 1
            if read > self.frames:
                break
            if window is not None and filled == count:
                yield window
                window, filled = None, 0
            if window is None:
                window = torch.empty(count, self.height, self.width, 3)
            window[filled] = torch.from_numpy(frame)
            filled += 1
        if read != self.frames:
            raise ValueError(
                f"{self._name} has {self.frames} frames by its packets, and {read} were decoded: it is damaged, or was"
                f" cut where it cannot be; encode it anew, as ffmpeg -i {self._name} new.mp4 does, and load that"
            )
        if window is not None:
            yield window if filled == count else window[:filled].clone()

    def _decoded(self) -> Iterator[np.ndarray]:
        values = Values(self._yuv)
        try:
            with self._open() as container:
                stream = self._stream(container)
                stream.thread_type = "AUTO"
                if self._start and not self._list and stream.time_base:
                    container.seek(int(self._start / stream.time_base), stream=stream)
                frames = (frame for packet in _packets(container, stream) for frame in packet.decode())
                for number, frame in enumerate(frames):
                    place = self._place(frame, number)
                    if place > 0:
                        return
                    if place == 0:
                        yield np.ascontiguousarray(np.rot90(values.of(frame), _quarters(frame)))
        except (av.error.FFmpegError, OSError) as error:
            raise ValueError(f"{self._name} cannot be read further: {_why(error)}") from error

    def _open(self) -> av.container.InputContainer:
        if isinstance(self._source, io.BytesIO):
            self._source.seek(0)
            return av.open(self._source, "r")
        return av.open(str(self._source), "r")

    def _stream(self, container: av.container.InputContainer) -> av.VideoStream:
        if not container.streams.video:
            raise ValueError(f"{self._name} has no video in it: give a file with one")
        return container.streams.video[0]

    def _place(self, one: av.Packet | av.VideoFrame, number: int) -> int:
        """-1 for before what is asked for, 0 for inside, 1 for behind: by its time, or, where it has none, its number.

        Borders are rounded down to the file's clock, so that a frame counts whose own time was.
        """
        if self._list or one.pts is None or not one.time_base:
            time, unit = number, 1 / self.rate
        else:
            time, unit = one.pts, one.time_base
        if time < _exact(self._start) // unit:
            return -1
        return int(bool(self._duration) and time >= _exact(self._start + self._duration) // unit)


def _packets(container: av.container.InputContainer, stream: av.VideoStream) -> Iterator[av.Packet[av.VideoStream]]:
    """Without half of one at the end of a file that was cut off."""
    return (packet for packet in container.demux(stream) if not packet.is_corrupt)


def _is_shown(packet: av.Packet[av.VideoStream], stream: av.VideoStream) -> bool:
    """Whether a frame comes of it: VP8 has packets that others alone refer to (RFC 6386, 9.1: ``show_frame``)."""
    if not packet.size or packet.is_discard:
        return False
    return stream.codec_context.name != "vp8" or bool(memoryview(packet)[0] & 0x10)


def _exact(seconds: float) -> Fraction:
    """What was meant by a float: a third of a second is no binary fraction."""
    return Fraction(seconds).limit_denominator(10**6)


def _quarters(frame: av.VideoFrame) -> int:
    """Quarter turns to the left until a frame stands as it is shown; PyAV tells it since version 13."""
    return round(getattr(frame, "rotation", 0) / 90) % 4


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
