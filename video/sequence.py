"""Sequences of pictures: a file for each frame, and a list beside them by which they are one video.

The list is of FFmpeg's concat demuxer (https://ffmpeg.org/ffmpeg-formats.html#concat-1). What it was found to do with
FFmpeg 8 (PyAV 18): ``av.open(list)`` finds it by its first line and takes relative names of letters, digits, ``_``,
``-`` and ``.`` in its safe mode. All frames come, in order. Without ``duration`` behind each file their times are
nonsense (minus 292,000 years, by turns). With it they are right, but rounded to 1/25 s, because a picture's own demuxer
says that it has 25 frames a second, and so does the whole list: the rate can be set by ``option framerate`` alone,
which the safe mode refuses. So whoever opens the list by itself gets the right frames, at 25 a second; the true rate
stands in it as a comment, which :class:`.reader.FrameReader` reads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
from av.video.reformatter import VideoReformatter
from torch import Tensor

from .formats import FileFormat
from .pixels import check_frames, pictures
from .whole_file import whole_file

HEAD = "ffconcat version 1.0"
RATE = "# frames a second: "
SAFE_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def picture_names(prefix: str, first: int, count: int, form: FileFormat) -> list[str]:
    """``<prefix>_000001.png`` and on: ``first`` is the number of the first frame, counted from 0."""
    return [f"{prefix}_{number + 1:06}.{form.extension}" for number in range(first, first + count)]


def write_pictures(folder: str | Path, prefix: str, first: int, frames: Tensor, form: FileFormat) -> list[str]:
    """Writes frames, each file whole or not at all, over those of the same names.

    PNG and EXR are made by FFmpeg's own encoders, PNG with 16 bits as rgb48be, EXR as float32.

    Args:
        folder: which is there.
        prefix: of the names.
        first: the number of the first of these frames, counted from 0.
        frames: (n, H, W, 3) of a float dtype in [0, 1], on the CPU; values beyond are clamped, NaN is 0.

    Returns:
        The names of the files.

    Raises:
        ValueError: no frames, or a format that is no sequence.
        OSError: a file cannot be written.
    """
    if not form.is_sequence:
        raise ValueError(f"format {form.name} is no sequence of pictures: SegmentWriter writes it")
    height, width = frames.shape[1:3] if frames.dim() == 4 else (0, 0)
    check_frames(frames, width, height)
    names = picture_names(prefix, first, len(frames), form)
    for name, picture in zip(names, pictures(frames, form, VideoReformatter())):
        data = _encoded(picture, form)
        with whole_file(Path(folder, name)) as part:
            part.write_bytes(data)
    return names


def _encoded(picture: av.VideoFrame, form: FileFormat) -> bytes:
    codec = av.CodecContext.create(form.encoder, "w")
    assert isinstance(codec, av.VideoCodecContext)
    codec.width, codec.height, codec.pix_fmt = picture.width, picture.height, form.pixels
    codec.time_base, codec.options = Fraction(1, 25), dict(form.options)
    picture.pts = 0
    return b"".join(bytes(packet) for packet in [*codec.encode(picture), *codec.encode(None)])


def write_list(path: str | Path, names: Sequence[str], rate: Fraction) -> None:
    """Writes the list of a sequence.

    Args:
        path: of the list, ``*.ffconcat``.
        names: of the pictures, in order, relative to the list's folder.
        rate: frames a second.

    Raises:
        ValueError: no names, or one that FFmpeg's safe mode refuses.
        OSError: it cannot be written.
    """
    if not names:
        raise ValueError(f"{Path(path).name} has no pictures: write some before their list")
    for name in names:
        if any(not SAFE_NAME.fullmatch(part) or part.startswith(".") for part in name.split("/")):
            raise ValueError(f"filename prefix: {name!r} cannot stand in a list: use letters, digits, _ and - alone")
    with whole_file(Path(path)) as part, part.open("w", encoding="utf-8", newline="\n") as file:
        file.write(f"{HEAD}\n{RATE}{rate}\n")
        for name in names:
            file.write(f"file {name}\nduration {float(1 / rate):.6f}\n")


def read_list(path: str | Path) -> tuple[list[str], Fraction] | None:
    """The names and the rate of a list that :func:`write_list` wrote; None if it is another file."""
    path = Path(path)
    if path.suffix != ".ffconcat":
        return None
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if lines[:1] != [HEAD] or not lines[1:2] or not lines[1].startswith(RATE):
        return None
    try:
        rate = Fraction(lines[1].removeprefix(RATE))
    except (ValueError, ZeroDivisionError):
        return None
    names = [line.removeprefix("file ") for line in lines if line.startswith("file ")]
    return (names, rate) if names and rate > 0 else None
