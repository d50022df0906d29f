"""Pictures and videos of an input folder: their sizes count, and nobody decodes a frame."""

from __future__ import annotations

import os
from dataclasses import dataclass

import folder_paths
import torch
from torch import Tensor

from ...graph.formats import shortened
from ...memory.prediction import fake_tree
from .calling import Outputs
from .findings import Findings, Follow
from .inputs import Inputs, NotFollowed

SIDE = 1024  # of a picture that is not on this machine
MISSING_SIZE = f"{SIDE} x {SIDE} px"


@dataclass(frozen=True)
class Footage:
    """A VIDEO of which only the size is known.

    Attributes:
        frames: how many.
        width, height: of each, in pixels.
        rate: frames a second.
    """

    frames: int
    width: int
    height: int
    rate: float

    def __str__(self) -> str:
        return f"{self.frames} frames of {self.width} x {self.height} px, {self.rate:g} a second"


MISSING_VIDEO = Footage(frames=121, width=1280, height=720, rate=24.0)


def read_picture(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """A picture; one that is not there is taken to have a size, which is told."""
    if not is_there(inputs, "image"):
        found.notes.append(f"{shortened(inputs['image'])} is not there: taken to have {MISSING_SIZE}")
        with found.mode:
            return missing_picture()
    image = found.nodes.call(kind, inputs)
    with found.mode:
        return tuple(fake_tree(list(image)))


def missing_picture() -> tuple[Tensor, Tensor]:
    """What the host's LoadImage gives, IMAGE (1, H, W, 3) and MASK, for a picture that is not on this machine."""
    return torch.empty(1, SIDE, SIDE, 3), torch.empty(1, 64, 64)


def is_there(inputs: Inputs, name: str) -> bool:
    """Whether a file of ComfyUI's own folders is there.

    Raises:
        NotFollowed: its name leads out of them.
    """
    given = str(inputs[name])
    out = NotFollowed(f"{inputs.kind}: {name} is {shortened(given)}, which leads out of ComfyUI's folders")
    try:
        path = os.path.abspath(folder_paths.get_annotated_filepath(given))
    except ValueError as error:  # newer hosts look themselves
        raise out from error
    folders = folder_paths.get_input_directory(), folder_paths.get_output_directory(), folder_paths.get_temp_directory()
    if not any(path.startswith(os.path.join(os.path.abspath(folder), "")) for folder in folders):
        raise out
    return os.path.isfile(path)


def load_video(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """A video by the header of its file; one that is not there is taken to have a size, which is told."""
    if not is_there(inputs, "file"):
        found.notes.append(f"{shortened(inputs['file'])} is not there: taken to have {MISSING_VIDEO}")
        return (MISSING_VIDEO,)
    (video,) = found.nodes.call(kind, inputs)
    try:
        width, height = video.get_dimensions()
        footage = Footage(int(video.get_frame_count()), int(width), int(height), float(video.get_frame_rate()))
    except Exception as error:  # the host's reader, on a file that nobody has checked: it may raise anything
        raise NotFollowed(f"{kind}: {shortened(inputs['file'])} is no video that can be read ({error})") from error
    return (_with_a_rate(kind, footage),)


def create_video(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """A video of frames that are there."""
    images = inputs["images"]
    if not isinstance(images, Tensor) or images.ndim != 4:
        raise NotFollowed(f"{kind}: images gets no pictures")
    footage = Footage(images.shape[0], images.shape[2], images.shape[1], inputs.number("fps"))
    return (_with_a_rate(kind, footage),)


def _with_a_rate(kind: str, footage: Footage) -> Footage:
    if not footage.rate > 0:
        raise NotFollowed(f"{kind}: a video of {footage.rate:g} frames a second lasts for no time")
    return footage


def trim_video(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """A part of a video; a start before zero counts from its end."""
    video, start, duration = footage_of(inputs), inputs.number("start_time"), inputs.number("duration")
    length = video.frames / video.rate
    start = max(0.0, length + start) if start < 0 else start
    left = max(0.0, length - start)
    frames = round((min(left, duration) if duration else left) * video.rate)
    return (Footage(max(1, frames), video.width, video.height, video.rate),)


def video_components(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """Its frames (T, H, W, 3), its sound, which is not followed, the frames a second and the bits of a colour."""
    video = footage_of(inputs)
    with found.mode:
        return torch.empty(video.frames, video.height, video.width, 3), None, video.rate, 8


def footage_of(inputs: Inputs) -> Footage:
    """The VIDEO at ``video``."""
    video = inputs["video"]
    if not isinstance(video, Footage):
        raise NotFollowed(f"{inputs.kind}: video gets no video")
    return video


OF_VIDEO: dict[str, Follow] = {
    "LoadVideo": load_video, "CreateVideo": create_video, "Video Slice": trim_video,
    "GetVideoComponents": video_components,
}  # fmt: skip
