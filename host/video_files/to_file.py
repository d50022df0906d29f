"""A latent decoded straight to a video file: each window is encoded as it is decoded, and kept if the rest is not."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import comfy.model_management as model_management
import comfy.utils
import torch
from PIL import Image
from torch import Tensor

from ...memory.units import MB, format_bytes, format_frames
from ...offload import fingerprint
from ...vae.exact.running.heap import give_back_free_pages
from ...video import FORMATS, Audio, FileFormat, Journal, JournalIsLocked, JournalPlan, check, check_audio, clean, rate
from ..core.compat import device_context, is_out_of_memory, show_on_node
from ..measure.runs import Following, measured, notice
from ..streaming.choice import Decoding
from ..streaming.source import FrameSource, State
from ..vae.preview import Cancelling
from ..vae.room import free_others, give_back
from .output import Place, place_for, require_disk, said_when_full, unfinished
from .segments import Encoding, Segments, bytes_of

SEGMENT = 64  # frames, at least: each begins with a whole picture, and is what a killed decode loses at most
PREVIEW_SIDE, PREVIEW_EVERY = 384, 2.0  # px, seconds
KEPT_DAYS, KEPT_BYTES = 14.0, 64 * 2**30  # of videos that are not finished


@dataclass(frozen=True)
class FileRequest:
    """What is asked for.

    Attributes:
        format: one of :data:`FORMATS`.
        fps: frames per second.
        crf: of a lossy codec; negative = the usual one.
        filename_prefix: by the host's rules.
        audio: the host's AUDIO, or none.
        metadata: what the host's Save Video writes into a file, by name: prompt, workflow.
    """

    format: str
    fps: float
    crf: float
    filename_prefix: str
    audio: Mapping[str, Any] | None
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class Written:
    """A video that is done.

    Attributes:
        path: of the file; of a sequence of pictures, of the list of them that opens as one video.
        place: where it lies.
        report: for people.
    """

    path: Path
    place: Place
    report: str


def decode_to_file(vae: Any, samples: dict[str, Any], request: FileRequest, vram_budget_gb: float) -> Written:
    """Decodes a latent to a file. Memory holds a window of frames at a time.

    A decode of the same latent by the same VAE to the same kind of file goes on where an earlier one ended, however it
    did.

    Raises:
        ValueError: an input that does not fit the others, a disk that is too small: before any work.
        BudgetTooSmall, OOM_EXCEPTION: as the VAE nodes do.
    """
    form = FORMATS[request.format]
    crf = None if request.crf < 0 or form.crf is None else request.crf
    audio = _audio(request.audio, form)
    decoding = Decoding.of(vae, samples, vram_budget_gb)
    encoding = Encoding(form, *decoding.size, rate(request.fps), crf)
    check(form.name, encoding.width, encoding.height, request.fps, crf)
    place = place_for(request.filename_prefix, encoding.width, encoding.height)
    device = decoding.coder.geometry.vae.device
    with measured("decode", device) as row, Following(row, device) as following, device_context(device):
        decoding.coder.room.aside = following.loading
        following.begin(decoding.coder.geometry.vae.first_stage_model, given=[decoding.latent])
        source = decoding.source(row, Cancelling())
        with _journal(decoding, encoding, source.count) as journal:
            segments = Segments(journal, encoding)
            segments.tidy()
            if not decoding.may_go_on and segments.kept < source.count:  # the rest would not be of the same decode
                segments.forget()
            went_on = segments.kept
            clean(unfinished(), KEPT_DAYS, KEPT_BYTES)  # with this one locked, which is not to go
            require_disk(place, form, decoding.size, source.count, went_on)
            writing = _Writing(segments, source, decoding.coder.geometry.vae, partial(notice, row))
            _decode(writing, source, decoding)
            # Asked for again: in the meantime somebody may have written a file of that name.
            place = place_for(request.filename_prefix, encoding.width, encoding.height)
            with said_when_full(place.folder, lambda: ("while the video is put together", "all frames are kept")):
                path = segments.put_together(place, audio, request.metadata)
            journal.remove()
        row.lines += _described(path, form, source.count, went_on)
        for text in row.notices:
            show_on_node(text)
    return Written(path, place, "\n".join([*row.lines, *(f"! {text}" for text in row.notices)]))


def _journal(decoding: Decoding, encoding: Encoding, frames: int) -> Journal:
    """What is done of the same work."""
    key = _key(decoding, encoding)
    form, size = encoding.form, (encoding.width, encoding.height)
    plan = JournalPlan(key, form.name, form.segment_extension, *size, frames)
    try:
        return Journal.open(unfinished(), plan)
    except JournalIsLocked as error:
        raise ValueError(f"samples: {error}") from error


def _decode(writing: _Writing, source: FrameSource, decoding: Decoding) -> None:
    """All frames, in ways that need less and less while memory runs out."""
    while writing.at < source.count:
        done, state = writing.last()
        try:
            with said_when_full(unfinished(), partial(writing.how_far, decoding.may_go_on)), writing:
                source.run(writing.take, writing.border, done, state)
            return
        except Exception as error:  # anything but a failure to allocate goes on
            if not is_out_of_memory(error) or not source.lower():
                raise
        if not decoding.may_go_on:  # the rest would have another noise than what is kept
            writing.segments.forget()
        # Outside the handlers: the exception held every tensor of the failed run.
        give_back()
        free_others(decoding.coder.geometry.vae.patcher)


class _Writing:
    """Frames on their way into segments, with the progress of the node. A context manager around each try.

    Attributes:
        at: frames that were taken.
    """

    def __init__(self, segments: Segments, source: FrameSource, vae: Any, warn: Callable[[str], None]) -> None:
        self.segments, self.source, self.vae, self.warn = segments, source, vae, warn
        self.warned = False
        self.at = self.begun = segments.kept
        self.bar = comfy.utils.ProgressBar(source.count)
        self.started = self.shown = time.monotonic()
        self.bar.update_absolute(self.at)

    @property
    def kept(self) -> int:
        """Frames in segments that are closed."""
        return self.segments.kept

    def how_far(self, may_go_on: bool) -> tuple[str, str]:
        """For the sentence about a full disk."""
        then = f"it goes on from frame {self.segments.goes_on_from}" if may_go_on else "it begins anew"
        return f"after {self.at} of {self.source.count} frames", then

    def last(self) -> tuple[int, State | None]:
        """Where to go on from: frames, and the state there."""
        self.at = self.kept
        return self.kept, self.segments.last_state()

    def __enter__(self) -> _Writing:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.segments.close({})
            show_on_node(f"{format_frames(self.at - self.begun)} in {_duration(time.monotonic() - self.started)}")
        else:
            self.segments.drop(error)

    def take(self, piece: Tensor) -> None:
        """Frames (1, C, t, H, W) as the module makes them."""
        model_management.throw_exception_if_processing_interrupted()
        frames = piece.to(device="cpu", dtype=torch.float32, copy=True).to(self.vae.vae_output_dtype())
        frames = self.vae.process_output(frames)[0].movedim(0, -1)
        self.segments.add(frames)
        self.at += frames.shape[0]
        self._tell(frames[-1])
        if self.at - self.kept >= 2 * SEGMENT and not self.source.has_borders:
            self._close(None)

    def border(self, save: Callable[[], State]) -> None:
        """The decode may be gone on from here; at its end nobody needs to."""
        if self.at - self.kept >= SEGMENT and self.at < self.source.count:
            self._close(save())

    def _close(self, state: State | None) -> None:
        self.segments.close(state)
        give_back_free_pages()  # else those between pages that stay add up, over thousands of frames
        if self.segments.has_state or self.warned:
            return
        self.warned, size = True, format_bytes(bytes_of(state or {}))
        self.warn(
            f"the disk has room for the video, but not for what the VAE keeps to go on ({size}): a decode that is ended"
            f" goes on from frame {self.segments.goes_on_from}, unless there is room for it later"
        )

    def _tell(self, frame: Tensor) -> None:
        now, picture = time.monotonic(), None
        if now - self.shown >= PREVIEW_EVERY:
            self.shown, picture = now, ("JPEG", _picture(frame), PREVIEW_SIDE)
            left = (now - self.started) / (self.at - self.begun) * (self.source.count - self.at)
            show_on_node(f"frame {self.at} of {self.source.count}, {_duration(left)} left")
        self.bar.update_absolute(self.at, self.source.count, picture)


def _picture(frame: Tensor) -> Image.Image:
    """A frame (H, W, C), thinned out to preview size."""
    step = max(1, max(frame.shape[:2]) // PREVIEW_SIDE)
    thin = frame[::step, ::step, :3].float().clamp(0, 1).mul(255).to(torch.uint8)
    return Image.fromarray(thin.contiguous().numpy())


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{max(1, round(seconds))} s"


def _key(decoding: Decoding, encoding: Encoding) -> str:
    """Of all that decides the frames and how they are encoded, but not of the budget: what was begun with one may be
    finished with a smaller one."""
    vae = decoding.coder.geometry.vae
    weights = vae.first_stage_model.state_dict().items()
    notes = (encoding.form.name, str(encoding.crf), str(encoding.rate), str(vae.vae_dtype), vae.device.type)
    return fingerprint([("latent", decoding.latent), *weights], *notes)


def _audio(audio: Mapping[str, Any] | None, form: FileFormat) -> Audio | None:
    if audio is None:
        return None
    made = Audio(audio["waveform"][0], int(audio["sample_rate"]))
    check_audio(made, form.extension)
    return made


def _described(path: Path, form: FileFormat, frames: int, went_on: int) -> list[str]:
    name = path.parent.name if form.is_sequence else path.name
    size = _bytes_of(path)
    told = format_bytes(size) if size >= MB else f"{max(1, size // 1024)} kB"
    lines = [f"{format_frames(frames)} to {name} ({form.name}, {told})"]
    if went_on:
        lines.append(f"went on from frame {went_on} of an earlier run")
    return lines


def _bytes_of(path: Path) -> int:
    """Of a file; of a list its pictures."""
    files = path.parent.iterdir() if path.suffix == ".ffconcat" else [path]
    return sum(file.stat().st_size for file in files)
