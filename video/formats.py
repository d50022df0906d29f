"""The formats in which frames are written: container, encoder and pixels of each, and what they refuse.

What an encoder takes was asked of it (``av.Codec(name, "w").video_formats``) and tried; its options are those of
https://ffmpeg.org/ffmpeg-codecs.html.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import av

LEAST_FPS, MOST_FPS = 0.01, 1000
MOST_SIDE = 16384
BITS_8, BITS_16, FLOAT = "rgb24", "rgb48le", "gbrpf32le"
# Of a pixel: what lossy files take at most as a rule; of lossless ones the values, which noise alone fills.
TYPICAL_BYTES, BYTES, SHARE = 0.2, {BITS_8: 1, BITS_16: 2, FLOAT: 4}, 0.75


@dataclass(frozen=True)
class FileFormat:
    """A kind of file.

    Attributes:
        name: as the node's widget has it.
        extension: of the file and of its segments, without a dot.
        container: FFmpeg's muxer; "" where each picture is a file.
        encoder: FFmpeg's name.
        pixels: what the encoder is given.
        frames: what frames are made into before that: 8-bit RGB, 16-bit RGB or float32 RGB.
        tooltip: what it is, in a line.
        crf: the usual one; None if the format is lossless.
        crf_range: the least and the greatest that the encoder knows.
        options: of the encoder, besides ``crf``.
        even: whether widths and heights must be: in 4:2:0 two pixels share a colour. H.264's encoder refuses others,
            and for VP9 and AV1 FFmpeg 7's conversion spoils their last columns.
        least, most: widths and heights.
        is_sequence: whether each frame is a file of its own.
    """

    name: str
    extension: str
    container: str
    encoder: str
    pixels: str
    frames: str
    tooltip: str
    crf: float | None = None
    crf_range: tuple[int, int] = (0, 0)
    options: tuple[tuple[str, str], ...] = ()
    even: bool = False
    least: int = 1
    most: int = MOST_SIDE
    is_sequence: bool = False

    def disk(self, width: int, height: int, frames: int, kept: int = 0) -> int:
        """Bytes of disk that a video takes at most, as a rule: the segments that are missing, and the file that all are
        joined to; pictures are moved.

        Args:
            kept: frames that lie there already.
        """
        return self.bytes_of(width, height, frames - kept + (0 if self.is_sequence else frames))

    def bytes_of(self, width: int, height: int, frames: int) -> int:
        """What frames take at most, as a rule."""
        of_pixel = 3 * BYTES[self.frames] if self.crf is None else TYPICAL_BYTES
        return int(width * height * frames * of_pixel * SHARE)

    @property
    def segment_extension(self) -> str:
        """Of a segment's file: the list of its pictures for a sequence."""
        return "ffconcat" if self.is_sequence else self.extension


_FFV1 = (("level", "3"), ("g", "1"), ("slicecrc", "1"))  # each frame a keyframe
_H264 = (("flags", "+cgop"),)
_PNG = (("compression_level", "4"), ("pred", "paeth"))

FORMATS: dict[str, FileFormat] = {
    one.name: one
    for one in (
        FileFormat(
            "mp4 h264", "mp4", "mp4", "libx264", "yuv420p", BITS_8,
            "H.264 in MP4, as Save Video writes it: plays everywhere; lossy",
            crf=23, crf_range=(0, 51), options=_H264, even=True,
        ),
        FileFormat(
            "mp4 h264 10-bit", "mp4", "mp4", "libx264", "yuv420p10le", BITS_16,
            "H.264 with 10 bits a channel: smoother gradients, but few browsers play it; lossy",
            crf=23, crf_range=(0, 51), options=_H264, even=True,
        ),
        FileFormat(
            "webm vp9", "webm", "webm", "libvpx-vp9", "yuv420p", BITS_8,
            "VP9 in WebM, as Save WEBM writes it: plays in browsers, slow to write; lossy",
            crf=32, crf_range=(0, 63), even=True,
        ),
        FileFormat(
            "webm av1", "webm", "webm", "libsvtav1", "yuv420p10le", BITS_16,
            "AV1 with 10 bits a channel in WebM: the smallest files; lossy",
            crf=32, crf_range=(1, 63), options=(("preset", "6"),),
            # SVT-AV1 before 3 refuses less than 64; at 4 a process died (PyAV 16), at 16384 one stood still (PyAV 18).
            even=True, least=64, most=8192,
        ),
        FileFormat(
            "mkv ffv1", "mkv", "matroska", "ffv1", "bgr0", BITS_8,
            "FFV1 in Matroska: lossless, the 8 bits a channel that pictures have; large files",
            options=_FFV1,
        ),
        FileFormat(
            "mkv ffv1 16-bit", "mkv", "matroska", "ffv1", "rgb48le", BITS_16,
            "FFV1 in Matroska: lossless with 16 bits a channel; very large files",
            options=_FFV1,
        ),
        FileFormat(
            "png", "png", "", "png", "rgb24", BITS_8,
            "a PNG of 8 bits a channel for each frame: lossless",
            options=_PNG, is_sequence=True,
        ),
        FileFormat(
            "png 16-bit", "png", "", "png", "rgb48be", BITS_16,
            "a PNG of 16 bits a channel for each frame: lossless",
            options=_PNG, is_sequence=True,
        ),
        FileFormat(
            "exr", "exr", "", "exr", "gbrpf32le", FLOAT,
            "an OpenEXR of 32-bit floats for each frame, values as they are (not made linear): lossless",
            options=(("compression", "zip16"), ("format", "float")), is_sequence=True,
        ),
    )
}  # fmt: skip


def rate(fps: float | Fraction) -> Fraction:
    """Frames a second as a fraction: in thousandths, as ComfyUI's own Save Video rounds it.

    Integers stay integers, and 23.976 is 2997/125, not 24000/1001: the same files as stock ones. A fraction, which a
    file that was read gives, stays as it is.

    Raises:
        ValueError: not a number from 0.01 to 1000.
    """
    if not (math.isfinite(fps) and LEAST_FPS <= fps <= MOST_FPS):
        raise ValueError(f"fps is {float(fps):g}: set it to a number from {LEAST_FPS} to {MOST_FPS}")
    return fps if isinstance(fps, Fraction) else Fraction(round(fps * 1000), 1000)


def check(name: str, width: int, height: int, fps: float | Fraction, crf: float | None = None) -> FileFormat:
    """The format of a name, if a video of such frames can be written in it.

    Args:
        width, height: of the frames in pixels.
        fps: frames a second.
        crf: quality, less is better; None for the usual. Lossless formats ignore it.

    Raises:
        ValueError: it cannot; the sentence names the node's input and what to do.
    """
    if name not in FORMATS:
        raise ValueError(f"format is {name!r}, which is not known: choose one of {', '.join(FORMATS)}")
    form = FORMATS[name]
    rate(fps)
    if not has_encoder(form):
        others = ", ".join(other.name for other in FORMATS.values() if has_encoder(other))
        raise ValueError(f"format {name} needs the encoder {form.encoder}, which this FFmpeg lacks: choose {others}")
    check_size(form, width, height)
    least, most = form.crf_range
    if crf is not None and form.crf is not None and not least <= crf <= most:
        raise ValueError(f"crf is {crf:g}: {name} takes {least} to {most}, usually {form.crf:g}")
    return form


def has_encoder(form: FileFormat) -> bool:
    """Whether this build of FFmpeg can write it."""
    try:
        av.Codec(form.encoder, "w")
    except (ValueError, av.error.FFmpegError):
        return False
    return True


def check_size(form: FileFormat, width: int, height: int) -> None:
    """Raises ValueError, as :func:`check` does, for sizes in pixels that the format does not take."""
    if form.even and (width % 2 or height % 2):
        raise ValueError(
            f"format {form.name} needs even sizes, and the frames are {width}x{height}: choose mkv ffv1, "
            f"or decode at {max(2, width - width % 2)}x{max(2, height - height % 2)}"
        )
    if not form.least <= min(width, height) <= max(width, height) <= form.most:
        raise ValueError(
            f"format {form.name} takes {form.least} to {form.most} pixels a side, and the frames are {width}x{height}: "
            "choose png, or decode at another size"
        )
