"""Frames as tensors, made into pictures of FFmpeg's and back, one at a time."""

from __future__ import annotations

from collections.abc import Iterator

import av
import numpy as np
import torch
from av.video.reformatter import VideoReformatter
from torch import Tensor

from .formats import BITS_8, BITS_16, FLOAT, FileFormat

_SCALE = {BITS_8: (255, np.uint8), BITS_16: (65535, np.uint16)}


def pictures(frames: Tensor, form: FileFormat, reformatter: VideoReformatter) -> Iterator[av.VideoFrame]:
    """Frames in the pixels that the format's encoder takes.

    Values beyond [0, 1] are clamped, NaN is 0. Integers are truncated, as ComfyUI's own nodes do it.

    Args:
        frames: (n, H, W, 3 or more) of a float dtype, on the CPU; further channels are dropped.
    """
    for frame in frames:
        values = frame[..., :3]
        values = values.double() if values.dtype == torch.float64 else values.float()
        values = torch.nan_to_num(values, nan=0.0, posinf=1.0, neginf=0.0).clamp_(0, 1)
        if form.frames == FLOAT:
            array = np.ascontiguousarray(values.float().numpy())
        else:
            most, dtype = _SCALE[form.frames]
            array = np.ascontiguousarray(values.mul_(most).clamp_(0, most).numpy().astype(dtype))
        picture = av.VideoFrame.from_ndarray(array, format=form.frames)
        yield picture if form.pixels == form.frames else reformatter.reformat(picture, format=form.pixels)


def check_frames(frames: Tensor, width: int, height: int) -> None:
    """Raises ValueError for tensors that are no frames of this size."""
    shape = tuple(frames.shape)
    if len(shape) != 4 or shape[1:3] != (height, width) or shape[3] < 3 or not frames.is_floating_point():
        raise ValueError(
            f"frames are {shape} of {frames.dtype}: a float tensor (frames, {height}, {width}, 3) is written here"
        )


def values(picture: av.VideoFrame) -> np.ndarray:
    """A picture as float32 (H, W, 3): 8-bit ones over 255, deeper ones over 65535, floats as they are."""
    components = picture.format.components
    if "f16" in picture.format.name or "f32" in picture.format.name:
        return np.asarray(picture.to_ndarray(format=FLOAT), np.float32)
    if max(component.bits for component in components) > 8:
        return picture.to_ndarray(format=BITS_16).astype(np.float32) / np.float32(65535)
    return picture.to_ndarray(format=BITS_8).astype(np.float32) / np.float32(255)
