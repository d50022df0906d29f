"""Segments put into one file without encoding them again, with sound and words beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import av

from .audio import Audio, AudioTrack, check_audio
from .whole_file import naming, whole_file
from .writer import REPRODUCIBLE

CONTAINERS = {".mp4": "mp4", ".webm": "webm", ".mkv": "matroska"}
# Microseconds of one stream that the muxer holds while it waits for the other, as behind the end of a short sound.
MOST_HELD = "500000"


class Piece(NamedTuple):
    """A segment as it is found: microscopic beside its packets."""

    path: Path
    extradata: bytes
    size: tuple[int, int]
    delay: int  # frames by which its first packet is decoded before it is shown


def join(
    segments: Sequence[str | Path],
    path: str | Path,
    rate: Fraction,
    audio: Audio | None = None,
    metadata: Mapping[str, str] | None = None,
) -> int:
    """Writes the packets of all segments, one behind the other, into one file; the same segments give the same bytes.

    Frame i of all is shown at i / rate seconds. RAM holds a few packets, however long the video is.

    Args:
        segments: files of :class:`.writer.SegmentWriter`, all of one format, size, rate and crf, in order.
        path: of the file to be, of the same extension; it is written beside it and renamed.
        rate: frames a second.
        audio: cut at the video's end; a shorter one ends before. AAC in mp4, Opus in webm, FLAC in mkv.
        metadata: words of the container. ComfyUI's own nodes put the graph there, as JSON under ``prompt`` and
            ``workflow``, and its frontend reads it back.

    Returns:
        How many frames there are.

    Raises:
        ValueError: no segments, unequal ones, a wrong extension, or audio that :func:`.audio.check_audio` refuses.
        OSError: something cannot be read or written.
    """
    path = Path(path)
    container = CONTAINERS.get(path.suffix.lower())
    if container is None or not segments:
        raise ValueError(f"{path.name}: give segments, and a name that ends in {', '.join(CONTAINERS)}")
    extension = path.suffix.lower().lstrip(".")
    if audio is not None:
        check_audio(audio, extension)
    pieces = [_looked_at(Path(segment)) for segment in segments]
    for piece in pieces:
        if (piece.extradata, piece.size) != (pieces[0].extradata, pieces[0].size):
            raise ValueError(f"{piece.path.name} was written with other settings than {pieces[0].path.name}")
    options = {**REPRODUCIBLE, "max_interleave_delta": MOST_HELD}
    if container == "mp4":
        # Players on the web begin before all of it is there; words keep their own names.
        options["movflags"] = "use_metadata_tags+faststart"
    with ExitStack() as stack:
        part = stack.enter_context(whole_file(path))
        stack.enter_context(naming(path))
        output = stack.enter_context(av.open(str(part), "w", format=container, options=options))
        output.metadata.update(metadata or {})
        return _written(output, pieces, rate, None if audio is None else (audio, extension))


def _written(
    output: av.container.OutputContainer, pieces: Sequence[Piece], rate: Fraction, sound: tuple[Audio, str] | None
) -> int:
    with av.open(str(pieces[0].path)) as first:
        stream = output.add_stream_from_template(first.streams.video[0], opaque=True)
    track = AudioTrack(output, sound[1], sound[0]) if sound else None
    delay = max(piece.delay for piece in pieces)
    position = 0
    for piece in pieces:
        before = position
        for packet in packets(piece.path):
            assert packet.pts is not None
            assert packet.time_base is not None
            # By its number and not by its time, which Matroska rounds. Decoding times are its place in the file.
            packet.pts = before + round(packet.pts * packet.time_base * rate)
            packet.dts = min(position - delay, packet.pts)
            packet.time_base, packet.duration, packet.stream = 1 / rate, 1, stream
            output.mux_one(packet)
            position += 1
            if track:
                output.mux(list(track.packets(position / rate)))
    if track:
        output.mux(list(track.rest()))
    return position


def _looked_at(path: Path) -> Piece:
    with naming(path), av.open(str(path)) as container:
        stream = container.streams.video[0]
        first = next(container.demux(stream))
        frame_rate = stream.average_rate or Fraction(1)
        dts = 0 if first.dts is None else round(first.dts * first.time_base * frame_rate)
        codec = stream.codec_context
        return Piece(path, codec.extradata or b"", (codec.width, codec.height), max(0, -dts))


def packets(path: Path) -> Iterator[av.Packet]:
    """A segment's packets in the order in which they are decoded, without the empty one at the end."""
    with naming(path), av.open(str(path)) as container:
        for packet in container.demux(container.streams.video[0]):
            if packet.size:
                yield packet
