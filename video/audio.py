"""Sound beside a video: encoded piece by piece as the video goes on, and cut where it ends."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import av
import torch
from av.audio.resampler import AudioResampler
from torch import Tensor

MOST_CHANNELS = 8
PIECE = 1 << 14  # samples that are made into a frame at a time
# The layouts that all three encoders know; the channels stand in FFmpeg's order.
LAYOUTS = ("mono", "stereo", "3.0", "quad", "5.0", "5.1", "6.1", "7.1")
# FFmpeg 8 gives libopus five and seven channels in a wrong order, six and eight in the right one.
IN_OPUS = {"5.0": "5.1", "6.1": "7.1"}


@dataclass(frozen=True)
class AudioCodec:
    """An encoder of sound.

    Attributes:
        encoder: FFmpeg's name.
        samples: what it is given.
        rates: those that it takes; all if there are none.
    """

    encoder: str
    samples: str
    rates: tuple[int, ...] = ()


CODECS = {
    "mp4": AudioCodec(
        "aac",
        "fltp",
        (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000),
    ),
    "webm": AudioCodec("libopus", "flt", (48000,)),
    "mkv": AudioCodec("flac", "s32"),
}


@dataclass(frozen=True)
class Audio:
    """Sound.

    Attributes:
        waveform: (channels, samples) of a float dtype in [-1, 1].
        sample_rate: samples a second.
    """

    waveform: Tensor
    sample_rate: int


def check_audio(audio: Audio, extension: str | None = None) -> None:
    """Whether sound can be written, into files of an extension if one is given.

    Raises:
        ValueError: it cannot; the sentence names the node's input.
    """
    shape = tuple(audio.waveform.shape)
    if len(shape) != 2 or not audio.waveform.is_floating_point():
        raise ValueError(f"audio is {shape} of {audio.waveform.dtype}: give one waveform (channels, samples) of floats")
    if not shape[0] or not shape[1]:
        raise ValueError("audio has no samples: leave the input empty for a video without sound")
    if audio.sample_rate <= 0:
        raise ValueError(f"audio has a sample rate of {audio.sample_rate}: it must be above 0, as 44100")
    if shape[0] > MOST_CHANNELS:
        raise ValueError(f"audio has {shape[0]} channels: give at most {MOST_CHANNELS}, as by mixing it to stereo")
    if extension is not None and extension not in CODECS:
        raise ValueError(
            f"audio cannot be put into {extension} files: choose a format of mp4, webm or mkv, or give none"
        )


class AudioTrack:
    """The sound's stream in a container that is being written.

    Args:
        output: which has no packets as yet.
        extension: of the container.
        audio: as :func:`check_audio` lets it pass.
    """

    def __init__(self, output: av.container.OutputContainer, extension: str, audio: Audio) -> None:
        codec = CODECS[extension]
        layout = LAYOUTS[len(audio.waveform) - 1]
        kept = IN_OPUS.get(layout, layout) if codec.encoder == "libopus" else layout
        # The next rate above that the encoder knows, else its greatest.
        above = [known for known in codec.rates if known >= audio.sample_rate]
        written = min(above) if above else max(codec.rates, default=audio.sample_rate)
        stream = output.add_stream(codec.encoder, rate=written, layout=kept)
        assert isinstance(stream, av.AudioStream)
        stream.codec_context.format = codec.samples
        self._stream, self._audio, self._layout = stream, audio, layout
        self._resampler = AudioResampler(format=codec.samples, layout=kept, rate=written)
        self._given = 0

    def packets(self, seconds: Fraction) -> Iterator[av.Packet]:
        """What of the sound up to a time was not encoded before."""
        stop = min(self._audio.waveform.shape[1], math.ceil(seconds * self._audio.sample_rate))
        while self._given < stop:
            piece = self._audio.waveform[:, self._given : min(stop, self._given + PIECE)]
            yield from self._encoded(piece)
            self._given += piece.shape[1]

    def rest(self) -> Iterator[av.Packet]:
        """What the encoder still holds at the end."""
        for frame in self._resampler.resample(None):
            yield from self._stream.encode(frame)
        yield from self._stream.encode(None)

    def _encoded(self, piece: Tensor) -> Iterator[av.Packet]:
        # Channels side by side: PyAV 18 makes no planar frames of eight channels.
        samples = torch.nan_to_num(piece.detach().cpu().float()).clamp(-1, 1).T.reshape(1, -1).contiguous()
        frame = av.AudioFrame.from_ndarray(samples.numpy(), format="flt", layout=self._layout)
        frame.sample_rate = self._audio.sample_rate
        frame.pts, frame.time_base = self._given, Fraction(1, self._audio.sample_rate)
        for resampled in self._resampler.resample(frame):
            yield from self._stream.encode(resampled)
