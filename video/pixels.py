"""Frames as tensors, made into pictures of FFmpeg's and back, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import av
import numpy as np
import torch
from av.filter import Graph
from av.video.reformatter import VideoReformatter
from torch import Tensor

from .formats import BITS_8, BITS_16, FLOAT, FileFormat

# From YUV, FFmpeg 8's converter to rgb48le spoils whole pictures at some widths, that to planes none (seen with 8.0 and
# 8.1; the array is (H, W, 3) in the order of RGB all the same).
PLANES_16 = "gbrp16le"
BLOCK = 32  # pixels
# YUV of full range, which ComfyUI's own reader makes into 8 bits in any version.
FULL_RANGE = ("yuvj420p", "yuvj422p", "yuvj444p")
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
            array = np.ascontiguousarray(values.mul_(most).numpy().astype(dtype))
        if form.pixels.startswith("yuv"):
            yield _in_yuv(array, form, reformatter)
            continue
        picture = av.VideoFrame.from_ndarray(array, format=form.frames)
        yield picture if form.pixels == form.frames else reformatter.reformat(picture, format=form.pixels)


def _in_yuv(array: np.ndarray, form: FileFormat, reformatter: VideoReformatter) -> av.VideoFrame:
    """Converted at a width of whole blocks, and cut.

    At others FFmpeg 8.1 converts rgb48le by what happens to lie behind the rows: twice the same frame gives two.
    """
    height, width = array.shape[:2]
    wider = np.pad(array, ((0, 0), (0, -width % BLOCK), (0, 0)), mode="edge") if width % BLOCK else array
    whole = reformatter.reformat(av.VideoFrame.from_ndarray(wider, format=form.frames), format=form.pixels)
    if wider is array:
        return whole
    cut = av.VideoFrame(width, height, form.pixels)
    for target, source in zip(cut.planes, whole.planes):
        row = min(target.line_size, source.line_size)
        _rows(target)[: target.height, :row] = _rows(source)[: target.height, :row]
    return cut


def _rows(plane: av.video.plane.VideoPlane) -> np.ndarray:
    """A plane's own bytes, (rows, bytes of a row with what lies behind it)."""
    return np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)


def check_frames(frames: Tensor, width: int, height: int) -> None:
    """Raises ValueError for tensors that are no frames of this size."""
    shape = tuple(frames.shape)
    if len(shape) != 4 or shape[1:3] != (height, width) or shape[3] < 3 or not frames.is_floating_point():
        raise ValueError(
            f"frames are {shape} of {frames.dtype}: a float tensor (frames, {height}, {width}, 3) is written here"
        )


class Values:
    """The pictures of one stream as float32 (H, W, 3): 8-bit ones over 255, deeper ones over 65535, floats as they are.

    Args:
        yuv: what YUV is made into, ``rgb24`` or ``gbrpf32le``; None for as many bits as it has. With floats colours lie
            between those of 8 bits, and FFmpeg blends those that pixels share.
    """

    def __init__(self, yuv: str | None = None) -> None:
        self._yuv, self._wider = yuv, Wider()

    def of(self, picture: av.VideoFrame) -> np.ndarray:
        """One of them."""
        form = picture.format
        if "f16" in form.name or "f32" in form.name:
            return np.asarray(picture.to_ndarray(format=FLOAT), np.float32)
        deep = max(component.bits for component in form.components) > 8
        if self._yuv is not None and not (form.is_rgb or form.has_palette):
            if self._yuv == FLOAT and form.name not in FULL_RANGE:
                # At other widths the last columns would hang on what lies behind the rows, as in _in_yuv.
                whole = self._wider.of(picture) if picture.width % BLOCK else picture
                return whole.to_ndarray(format=FLOAT)[: picture.height, : picture.width]
            deep = False
        if deep:
            return picture.to_ndarray(format=PLANES_16).astype(np.float32) / np.float32(65535)
        return picture.to_ndarray(format=BITS_8).astype(np.float32) / np.float32(255)


class Wider:
    """Pictures brought to whole blocks by their last column and row, in any pixels that FFmpeg's filters know."""

    def __init__(self) -> None:
        self._made_for: tuple[int, int, str] | None = None
        self._graph: Graph | None = None

    def of(self, picture: av.VideoFrame) -> av.VideoFrame:
        """A picture of another size; its left upper part is what was given."""
        kind = picture.width, picture.height, picture.format.name
        if self._graph is None or self._made_for != kind:
            self._made_for, self._graph = kind, _graph_to_blocks(picture)
        self._graph.push(picture)
        wider = self._graph.pull()
        assert isinstance(wider, av.VideoFrame)
        return wider


def _graph_to_blocks(picture: av.VideoFrame) -> Graph:
    right, bottom = -picture.width % BLOCK, -picture.height % BLOCK
    graph = Graph()
    clock = picture.time_base or Fraction(1)
    graph.link_nodes(
        graph.add_buffer(width=picture.width, height=picture.height, format=picture.format, time_base=clock),
        graph.add("pad", width=str(picture.width + right), height=str(picture.height + bottom)),
        graph.add("fillborders", right=str(right), bottom=str(bottom), mode="smear"),
        graph.add("buffersink"),
    ).configure()
    return graph
