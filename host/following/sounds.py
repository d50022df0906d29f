"""Sounds: how long they are counts, and nobody decodes one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import av
import folder_paths
import torch
from torch import Tensor

from ...graph.formats import shortened
from .calling import Outputs
from .files import is_there
from .findings import Findings, Follow
from .inputs import Inputs, NotFollowed

PAIR = ("audio1", "audio2")  # inputs of nodes that put two together
MOST_SECONDS = 10**5  # of a sound: a day and a bit


@dataclass(frozen=True)
class Recording:
    """How long a sound is.

    Attributes:
        seconds: of it.
        channels: how many.
        rate: samples a second of each.
    """

    seconds: float
    channels: int
    rate: int

    def __str__(self) -> str:
        return f"{self.seconds:g} s of {self.channels} channels, {self.rate} samples a second"

    def audio(self) -> dict[str, Any]:
        """The host's AUDIO of it, without data. Call it in a fake mode."""
        samples = round(self.seconds * self.rate)
        return {"waveform": torch.empty(1, self.channels, samples), "sample_rate": self.rate}


MISSING_SOUND = Recording(seconds=120.0, channels=2, rate=44100)


def load_sound(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """A sound by the header of its file; one that is not there is taken to have a length, which is told."""
    name = shortened(inputs["audio"])
    if is_there(inputs, "audio"):
        recording = _read(kind, name, folder_paths.get_annotated_filepath(str(inputs["audio"])))
    else:
        recording = MISSING_SOUND
        found.notes.append(f"{name} is not there: taken to have {recording}")
    with found.mode:
        return (recording.audio(),)


def _read(kind: str, name: str, path: str) -> Recording:
    try:
        with av.open(path) as container:
            if not container.streams.audio:
                raise NotFollowed(f"{kind}: {name} has no sound in it")
            stream = container.streams.audio[0]
            length = stream.duration and stream.duration * stream.time_base
            seconds = float(length or (container.duration or 0) / av.time_base)
            recording = Recording(seconds, int(stream.codec_context.channels), int(stream.codec_context.sample_rate))
    except (av.error.FFmpegError, OSError, ValueError, TypeError, ArithmeticError) as error:
        raise NotFollowed(f"{kind}: {name} is no sound that can be read ({error})") from error
    if not (0 < recording.seconds < MOST_SECONDS and recording.channels > 0 and recording.rate > 0):
        raise NotFollowed(f"{kind}: {name} does not say how long it is")
    return recording


def sound_of(inputs: Inputs, name: str) -> tuple[Tensor, int]:
    """The AUDIO of an input, the host's dictionary: its samples (B, C, L) and how many a second.

    Raises:
        NotFollowed: it gets none.
    """
    given = inputs[name]
    waveform, rate = (given.get("waveform"), given.get("sample_rate")) if isinstance(given, dict) else (None, None)
    if not isinstance(waveform, Tensor) or waveform.ndim != 3 or not isinstance(rate, int) or rate < 1:
        raise NotFollowed(f"{inputs.kind}: {name} gets no sound")
    return waveform, rate


def resampled(samples: int, rate: int, other: int) -> int:
    """How many samples a sound has at another rate."""
    return samples if rate == other else math.ceil(samples * other / rate)


def mix(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """Two sounds over each other: as long as the first, at the higher of their rates."""
    pair = _pair(inputs)
    if len(pair) < 2:
        return (_alone(inputs),)
    (first, rate), (second, other) = pair
    highest = max(rate, other)
    sizes = map(max, first.shape[:2], second.shape[:2])
    with found.mode:
        waveform = torch.empty(*sizes, resampled(first.shape[2], rate, highest))
    return ({"waveform": waveform, "sample_rate": highest},)


def concatenate(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """Two sounds after each other, at the higher of their rates; one of a single channel gets a second."""
    pair = _pair(inputs)
    if len(pair) < 2:
        return (_alone(inputs),)
    highest = max(rate for _, rate in pair)
    samples = sum(resampled(waveform.shape[2], rate, highest) for waveform, rate in pair)
    with found.mode:
        waveform = torch.empty(pair[0][0].shape[0], max(2, pair[0][0].shape[1]), samples)
    return ({"waveform": waveform, "sample_rate": highest},)


def _pair(inputs: Inputs) -> list[tuple[Tensor, int]]:
    """The sounds that there are: a video may have none."""
    return [sound_of(inputs, name) for name in PAIR if inputs[name] is not None]


def _alone(inputs: Inputs) -> Any:
    return next((inputs[name] for name in PAIR if inputs[name] is not None), None)


def same_sound(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """A sound that is changed, and stays as long as it was."""
    if inputs["audio"] is not None:
        sound_of(inputs, "audio")
    return (inputs["audio"],)


OF_SOUND: dict[str, Follow] = {
    "LoadAudio": load_sound, "AudioMerge": mix, "AudioConcat": concatenate, "AudioEqualizer3Band": same_sound,
    "AudioAdjustVolume": same_sound,
}  # fmt: skip
