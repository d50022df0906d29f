"""The segments of one decode: written one after the other, found again, put together to what was asked for."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ...memory.on_disk import KEEP_FREE, free_in
from ...video import Audio, FileFormat, Journal, SegmentWriter, join, picture_names, write_list, write_pictures
from ...video.whole_file import PART, whole_file
from ..streaming.source import State
from .output import FULL, Place

ANEW = "anew"  # in a state: there is none, and whoever goes on computes what is there once more
OPEN = "open"  # the name of a segment until it is known where it ends
PICTURE = "frame"
MOVING = "moving"  # a file that names the folder that pictures are on their way to
LARGE = KEEP_FREE  # bytes of a state
JOINING = "joining"  # one with the number and the name of the file that segments are being joined to


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
        has_state: whether the disk had room for the state behind them; without it another run goes on from before.
    """

    def __init__(self, journal: Journal, encoding: Encoding) -> None:
        self.journal, self.encoding, self.has_state = journal, encoding, True
        self.kept = self.goes_on_from
        self._open: OpenSegment | None = None

    @property
    def goes_on_from(self) -> int:
        """Frames that another run would find."""
        finished = self.journal.finished()
        return finished[-1].stop if finished else 0

    def tidy(self) -> None:
        """What an earlier run began to put together: a half of a file is removed, and where pictures have gone since
        that were on their way, all begins anew."""
        self._remove_half()
        if self.encoding.form.is_sequence and not self._has_all_pictures():
            self.forget()

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
        stop = self.kept + self._open.frames
        try:
            self.has_state = self._saved(stop, {ANEW: torch.zeros(1)} if state is None else state)
            self._open.close(stop)
        except BaseException as error:
            self.drop(error)
            raise
        self._open, self.kept = None, stop

    def _saved(self, stop: int, state: State) -> bool:
        """The video comes first: a large state, which may be gigabytes, has what room the rest of it will leave."""
        if stop == self.journal.plan.frames:  # from where nobody goes on
            return True
        form, size = self.encoding.form, (self.encoding.width, self.encoding.height)
        spare = free_in(self.journal.folder) - form.disk(*size, self.journal.plan.frames, stop)
        if bytes_of(state) > max(spare, LARGE):
            return False
        try:
            self.journal.save_state(stop, state)
        except OSError as error:
            if error.errno not in FULL:
                raise
            return False
        return True

    def forget(self) -> None:
        """Begins anew."""
        self.journal.forget()
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
            with self._known_by_a_note(path):
                join(paths, path, rate, audio, {name: json.dumps(value) for name, value in metadata.items()})
            return path
        folder = self._begun_folder() or place.folder / place.stem
        folder.mkdir(exist_ok=True)
        with whole_file(self.journal.folder / MOVING) as note:
            note.write_text(str(folder.absolute()), encoding="utf-8")
        names = picture_names(PICTURE, 0, self.kept, form)
        for name in names:
            if (self.journal.folder / name).exists():  # else an earlier run has moved it, and was ended
                shutil.move(self.journal.folder / name, folder / name)
        write_list(folder / f"{PICTURE}s.ffconcat", names, rate)
        return folder / f"{PICTURE}s.ffconcat"

    def _begun_folder(self) -> Path | None:
        """Where an earlier run began to move pictures to; None: nowhere, or it is gone, or the note is damaged."""
        note = self.journal.folder / MOVING
        folder = Path(note.read_text(encoding="utf-8", errors="replace")) if note.is_file() else None
        return folder if folder is not None and folder.is_absolute() and folder.is_dir() else None

    def _has_all_pictures(self) -> bool:
        """Of the frames that are kept, wherever they are by now."""
        folders = [self.journal.folder, *filter(None, [self._begun_folder()])]
        there = {name for folder in folders for name in os.listdir(folder)}
        return there.issuperset(picture_names(PICTURE, 0, self.kept, self.encoding.form))

    @contextmanager
    def _known_by_a_note(self, path: Path) -> Iterator[None]:
        """While a file is written a note says which: by its number too, since another server may take the name."""
        note, part = self.journal.folder / JOINING, path.with_name(path.name + PART)
        part.touch()
        try:
            with whole_file(note) as draft:
                draft.write_text(f"{part.stat().st_ino}\n{part.absolute()}", encoding="utf-8")
            yield
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        finally:
            note.unlink(missing_ok=True)

    def _remove_half(self) -> None:
        """What a join that was killed left in the output folder, by its note."""
        note = self.journal.folder / JOINING
        with suppress(OSError, ValueError):
            number, _, name = note.read_text(encoding="utf-8").partition("\n")
            part = Path(name)
            if part.is_absolute() and part.name.endswith(PART) and part.lstat().st_ino == int(number) != 0:
                part.unlink()
        note.unlink(missing_ok=True)


def bytes_of(state: State) -> int:
    """That a state takes, in a file as in memory."""
    return sum(tensor.nbytes for tensor in state.values())


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
