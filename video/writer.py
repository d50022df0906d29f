"""A closed segment of a video: frames encoded as they come, into a file that is there when it is whole."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from fractions import Fraction
from pathlib import Path
from types import TracebackType

import av
import torch
from av.video.reformatter import VideoReformatter
from torch import Tensor

from .formats import FileFormat, check_size
from .pixels import check_frames, pictures
from .whole_file import naming, whole_file

# Without it Matroska's muxer draws numbers, and the same frames give another file each time.
REPRODUCIBLE = {"fflags": "+bitexact"}


def encoder_options(form: FileFormat, crf: float | None) -> dict[str, str]:
    """Of an encoder, by FFmpeg's names."""
    options = dict(form.options)
    if form.crf is not None and crf is not None:
        options["crf"] = f"{crf:g}"
    if form.encoder == "libx264" and torch.backends.cpu.get_cpu_capability() == "AVX512":
        # With 8 bits x264's code for AVX-512 reads memory that nobody has written (seen with PyAV 14 to 18: other bytes
        # for the same frames, and by MALLOC_PERTURB_ another file for each fill). That for AVX2, which such a
        # processor has too, does not, and writes what the other does in memory of zeros.
        options["x264-params"] = "asm=AVX2"
    return options


class SegmentWriter:
    """Context manager; the file appears under its name on a clean exit, and not at all after an error.

    A segment begins with a keyframe and refers to nothing before or behind it. Those of the same format, size, rate
    and crf are written with the same parameters, so that :func:`.join.join` can put their packets into one file.
    Frame i is shown at i / rate seconds, to the millisecond in WebM and Matroska, whose clock is no finer.

    Args:
        path: of the file to be; it is written beside it, as ``<path>.part``.
        form: no sequence of pictures.
        width, height: of the frames in pixels.
        rate: frames a second.
        crf: quality; None for the format's usual one. Whole numbers alone where the encoder takes no others.

    Raises:
        ValueError: a sequence, or what the encoder does not take. :func:`.formats.check` says it beforehand.
        OSError: it cannot be written.
    """

    def __init__(
        self, path: str | Path, form: FileFormat, width: int, height: int, rate: Fraction, crf: float | None = None
    ) -> None:
        if form.is_sequence:
            raise ValueError(f"format {form.name} is a sequence of pictures: write_pictures writes them")
        check_size(form, width, height)  # before it is opened: some encoders end the process over it
        self.path, self.form, self.width, self.height, self.rate = Path(path), form, width, height, rate
        self.crf = form.crf if crf is None else crf
        self.frames = 0
        self._reformatter = VideoReformatter()

    def __enter__(self) -> SegmentWriter:
        with ExitStack() as stack:
            part = stack.enter_context(whole_file(self.path))
            options = {**REPRODUCIBLE}
            if self.form.container == "mp4":
                # Else its clock need not divide a frame's time, nor its metadata keep their names.
                options["movflags"] = "use_metadata_tags"
            with naming(self.path):
                output = av.open(str(part), "w", format=self.form.container, options=options)
            self._output = stack.enter_context(output)
            self._stream = self._output.add_stream(self.form.encoder, rate=self.rate)
            assert isinstance(self._stream, av.VideoStream)
            self._stream.width, self._stream.height = self.width, self.height
            self._stream.pix_fmt = self.form.pixels
            self._stream.codec_context.time_base = 1 / self.rate
            self._stream.codec_context.options = encoder_options(self.form, self.crf)
            try:
                self._stream.codec_context.open()
            except av.error.FFmpegError as error:
                raise ValueError(
                    f"format: {self.form.name} does not take {self.width}x{self.height} at crf {self.crf} ({error}): "
                    "choose another"
                ) from error
            self._stack = stack.pop_all()
        return self

    def add(self, frames: Tensor) -> None:
        """Appends frames; beside them RAM holds one more, and what the encoder looks ahead.

        Args:
            frames: (n, H, W, 3) of a float dtype in [0, 1], on the CPU. Values beyond are clamped, NaN is 0, a fourth
                channel is dropped.

        Raises:
            ValueError: of another size or dtype.
            OSError: it cannot be written, as on a full disk.
        """
        check_frames(frames, self.width, self.height)
        with naming(self.path):
            for picture in pictures(frames, self.form, self._reformatter):
                picture.pts, picture.time_base = self.frames, 1 / self.rate
                self.frames += 1
                self._output.mux(self._stream.encode(picture))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            with suppress(av.error.FFmpegError, OSError):  # a full disk fails once more when the file is closed
                self._stack.__exit__(kind, error, trace)
            return
        with naming(self.path), self._stack:
            if not self.frames:
                raise ValueError(f"{self.path.name} has no frames: add some before it is closed")
            self._output.mux(self._stream.encode(None))
