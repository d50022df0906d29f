"""The segments of one decode: written one after the other, found again, put together to what was asked for."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ...video import Audio, FileFormat, Journal, SegmentWriter, join, picture_names, write_list, write_pictures
from ..streaming.source import State
from .output import Place

ANEW = "anew"  # in a state: there is none, and whoever goes on computes what is there once more
OPEN = "open"  # the name of a segment until it is known where it ends
PICTURE = "frame"
MOVING = "moving"  # a file that names the folder that pictures are on their way to


@dataclass(frozen=True)
class Encoding:
    """How frames become a file.

    Attributes:
        form: the format.
        width, height: of a frame.
        rate: frames a second.
        crf: of a lossy codec; None = the usual one.
    """

    form: FileFormat
    width: int
    height: int
    rate: Fraction
    crf: float | None


class Segments:
    """Those of a journal.

    Args:
        journal: what is finished, and where the rest goes.

    Attributes:
        kept: frames in segments that are closed.
    """

    def __init__(self, journal: Journal, encoding: Encoding) -> None:
        self.journal, self.encoding = journal, encoding
        finished = journal.finished()
        self.kept = finished[-1].stop if finished else 0
        self._open: OpenSegment | None = None

    def last_state(self) -> State | None:
        """Of the border behind the last one; None where the decode begins anew."""
        if not self.kept:
            return {}
        state = self.journal.state(self.kept)
        return None if state is None or ANEW in state else state

    def add(self, frames: Tensor) -> None:
        """The next frames, (n, H, W, C) in [0, 1]."""
        if self._open is None:
            self._open = OpenSegment(self.journal, self.encoding, self.kept)
        self._open.add(frames)

    def close(self, state: State | None) -> None:
        """Ends the segment that is open, if there is one, with the state at its end; None: it cannot be had."""
        if self._open is None:
            return
        segment, self._open = self._open, None
        stop = self.kept + segment.frames
        self.journal.save_state(stop, {ANEW: torch.zeros(1)} if state is None else state)
        segment.close(stop)
        self.kept = stop

    def forget(self) -> None:
        """Begins anew."""
        for segment in self.journal.finished():
            segment.path.unlink()
        self.kept = 0

    def drop(self, error: BaseException) -> None:
        """Lets go of the segment that is open, after an error."""
        if self._open is not None:
            segment, self._open = self._open, None
            segment.drop(error)

    def put_together(self, place: Place, audio: Audio | None, metadata: Mapping[str, Any]) -> Path:
        """The file; of a sequence a folder of its pictures, with the list that opens as one video."""
        paths = [segment.path for segment in self.journal.finished()]
        form, rate = self.encoding.form, self.encoding.rate
        if not form.is_sequence:
            path = place.folder / f"{place.stem}.{form.extension}"
            join(paths, path, rate, audio, {name: json.dumps(value) for name, value in metadata.items()})
            return path
        folder = self._begun_folder() or place.folder / place.stem
        folder.mkdir(exist_ok=True)
        (self.journal.folder / MOVING).write_text(str(folder), encoding="utf-8")
        names = picture_names(PICTURE, 0, self.kept, form)
        for name in names:
            if (self.journal.folder / name).exists():  # else an earlier run has moved it, and was ended
                shutil.move(self.journal.folder / name, folder / name)
        write_list(folder / f"{PICTURE}s.ffconcat", names, rate)
        return folder / f"{PICTURE}s.ffconcat"

    def _begun_folder(self) -> Path | None:
        """Where an earlier run began to move pictures to; None: nowhere, or it is gone."""
        note = self.journal.folder / MOVING
        folder = Path(note.read_text(encoding="utf-8")) if note.is_file() else None
        return folder if folder is not None and folder.is_dir() else None


class OpenSegment:
    """A segment that is being written.

    Attributes:
        frames: in it so far.
    """

    def __init__(self, journal: Journal, encoding: Encoding, first: int) -> None:
        self.journal, self.first, self.frames = journal, first, 0
        self.encoding, form = encoding, encoding.form
        self._path = journal.folder / f"{OPEN}.{form.segment_extension}"
        self._writer: SegmentWriter | None = None
        if not form.is_sequence:
            size = encoding.width, encoding.height
            self._writer = SegmentWriter(self._path, form, *size, encoding.rate, encoding.crf).__enter__()

    def add(self, frames: Tensor) -> None:
        """The next frames."""
        if self._writer is not None:
            self._writer.add(frames)
        else:
            write_pictures(self.journal.folder, PICTURE, self.first + self.frames, frames, self.encoding.form)
        self.frames += frames.shape[0]

    def close(self, stop: int) -> None:
        """It is whole, and ends before frame ``stop``."""
        if self._writer is not None:
            self._writer.__exit__(None, None, None)
        else:
            names = picture_names(PICTURE, self.first, self.frames, self.encoding.form)
            write_list(self._path, names, self.encoding.rate)
        os.replace(self._path, self.journal.path_for(self.first, stop))

    def drop(self, error: BaseException) -> None:
        """Leaves nothing of it, but pictures that the next try writes over."""
        if self._writer is not None:
            trace: TracebackType | None = error.__traceback__
            try:
                self._writer.__exit__(type(error), error, trace)
            except BaseException as raised:  # the writer raises what it was given
                if raised is not error:
                    raise
