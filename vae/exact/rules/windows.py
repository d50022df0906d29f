"""Functions that look across rows: convolution, resampling, pooling, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from ..operations.convolve import Convolve
from ..operations.convolve_upsampled import ConvolveUpsampled
from ..operations.graph import Node, Rows
from ..operations.pad import Pad
from ..operations.row_by_row import Coarser, Finer, Placeholder
from ..recording.probe import stand_in
from ..recording.record import Recorded, Recorder
from .alignment import picture, place_of
from .registry import Rule, rule
from .rows import row_by_row_rule
from .slices import Slice


def per_dim(value: Any, count: int) -> tuple[int, ...] | None:
    """A stride, padding or dilation for each of ``count`` dims, or one for all; None if it is neither."""
    if isinstance(value, int):
        return (value,) * count
    return tuple(value) if isinstance(value, (tuple, list)) and len(value) in (1, count) else None


# Further arguments of the functions, after kernel, stride and padding.
POOL_OPTIONS = {
    "avg": ("ceil_mode", "count_include_pad", "divisor_override"),
    "max": ("dilation", "ceil_mode", "return_indices"),
}

# Types of weights that are what they seem, and not quantised ones; a prediction's have no data, and are treated alike.
PLAIN = (Tensor, torch.nn.Parameter, FakeTensor)


@rule("conv2d", "conv3d", "cudnn_convolution")
def _convolution(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    bound = _bind_convolution(name, args, kwargs)
    x, weight, bias, stride, padding, dilation, groups = bound
    if not isinstance(x, Recorded) or any(isinstance(item, Recorded) for item in (weight, bias)):
        return NotImplemented
    node = picture(x.node)
    spatial = weight.ndim - 2
    steps, pads, gaps = (per_dim(value, spatial) for value in (stride, padding, dilation))
    if node is None or len(node.shape) != weight.ndim or steps is None or pads is None or gaps is None:
        return NotImplemented
    if len(steps) == 1:
        steps, pads, gaps = steps * spatial, pads * spatial, gaps * spatial
    sizes = [
        (size + 2 * pad - gap * (kernel - 1) - 1) // step + 1
        for size, kernel, step, pad, gap in zip(node.shape[2:], weight.shape[2:], steps, pads, gaps)
    ]
    if min(sizes) < 1:
        return NotImplemented
    weight, bias = recorder.keep(weight), None if bias is None else recorder.keep(bias)
    shape, axis = (node.shape[0], weight.shape[0], *sizes), node.rows.dim - 2
    rows = Rows(node.rows.dim, sizes[axis])
    doubled = node.op if isinstance(node.op, Finer) and node.op.nearest else None
    plain = (tuple(weight.shape[2:]), steps, pads, gaps, groups) == ((3, 3), (1, 1), (1, 1), (1, 1), 1)
    # Adding taps rounds the sum: below float32 that would be a rounding that the host does not make.
    if doubled is not None and plain and node.dtype is torch.float32 and type(weight) in PLAIN:
        op: Any = ConvolveUpsampled(weight, bias)
        return Recorded(Node(op, node.sources, shape, node.dtype, node.device, rows), recorder)
    call: Any = {"cudnn_convolution": _cudnn, "conv2d": functional.conv2d, "conv3d": _conv3d}[name]
    if pads[axis]:
        # Rows of zeros become part of the map, so that they lie in the line that the convolution reads.
        node = _zero_rows(node, pads[axis])
        pads = (*pads[:axis], 0, *pads[axis + 1 :])
    op = Convolve(call, weight, bias, steps, pads, gaps, groups, axis)
    return Recorded(Node(op, (node,), shape, node.dtype, node.device, rows), recorder)


def _zero_rows(node: Node, rows: int) -> Node:
    shape = list(node.shape)
    shape[node.rows.dim] += 2 * rows
    pads, place = [0] * (2 * len(shape) - 4), place_of(node)
    pads[2 * place : 2 * place + 2] = rows, rows
    op = Pad(tuple(pads), "constant", 0.0, place)
    return Node(op, (node,), shape, node.dtype, node.device, Rows(node.rows.dim, shape[node.rows.dim]))


def _bind_convolution(name: str, args: Any, kwargs: dict[str, Any]) -> tuple[Any, ...]:
    if name == "cudnn_convolution":
        names = ("input", "weight", "padding", "stride", "dilation", "groups")
        given = dict(zip(names, args)) | kwargs
        return tuple(given.get(key) for key in ("input", "weight", "bias", "stride", "padding", "dilation", "groups"))
    named = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1} | dict(zip(named, args)) | kwargs
    return tuple(given[key] for key in named)


def _conv3d(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    """PyTorch's, but on a CPU always by oneDNN.

    For an input as small as a strip PyTorch would choose its own kernel, which unfolds the input to 27 times its size
    and takes three times as long.
    """
    by_onednn = x.device.type == "cpu" and x.dtype is torch.float32 and type(weight) in PLAIN
    if by_onednn and torch.backends.mkldnn.is_available() and max(weight.shape[2:]) > 1:
        return torch.mkldnn_convolution(x, weight, bias, padding, stride, dilation, groups)
    return functional.conv3d(x, weight, bias, stride, padding, dilation, groups)


def _cudnn(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    """The host's way around a memory fault of PyTorch's 3-D convolution on NVIDIA cards."""
    return torch.cudnn_convolution(
        x, weight, padding, stride, dilation, groups, benchmark=False, deterministic=False, allow_tf32=True
    )


@rule("interpolate")
def _interpolate(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    if args[0].node.rows.dim < 2:
        return row_by_row_rule(recorder, function, args, kwargs)
    names = ("input", "size", "scale_factor", "mode")
    given = {"size": None, "scale_factor": None, "mode": "nearest"} | dict(zip(names, args)) | kwargs
    node = picture(args[0].node)
    if node is None or given["mode"] not in ("nearest", "nearest-exact"):
        return NotImplemented
    spatial = len(node.shape) - 2
    if given["size"] is not None:
        size = per_dim(given["size"], spatial)
        if size is None or len(size) != spatial or size[node.rows.dim - 2] % node.rows.count:
            return NotImplemented
        return _resized(recorder, node, size, given["mode"])
    scale = given["scale_factor"]
    factors = tuple(scale) if isinstance(scale, (tuple, list)) else (scale,) * spatial
    if any(factor != int(factor) or factor < 1 for factor in factors):
        return NotImplemented
    return _finer(recorder, node, functional.interpolate, (), {"scale_factor": scale, "mode": given["mode"]}, factors)


def _resized(recorder: Recorder, node: Node, size: tuple[int, ...], mode: str) -> Any:
    """Resampling to a named size: a strip is resampled to its share of the rows."""
    axis = node.rows.dim - 2
    factor = size[axis] // node.rows.count

    def resize(x: Tensor) -> Tensor:
        return functional.interpolate(x, size=(*size[:axis], x.shape[2 + axis] * factor, *size[axis + 1 :]), mode=mode)

    return _finer(recorder, node, resize, (), {}, (1,) * axis + (factor,) + (1,) * (len(size) - axis - 1))


def _finer(recorder: Recorder, node: Node, function: Rule, args: Any, kwargs: Any, factors: Sequence[Any]) -> Any:
    likeness = function(stand_in(node), *args, **kwargs)
    factor = int(factors[node.rows.dim - 2])
    doubles = len(node.shape) == 4 and tuple(factors) == (2, 2)
    nearest = doubles and function is functional.interpolate
    op = Finer(function, (Placeholder(0), *args), kwargs, factor=factor, nearest=nearest)
    rows = Rows(node.rows.dim, node.rows.count * factor)
    return Recorded(Node(op, (node,), likeness.shape, node.dtype, node.device, rows), recorder)


@rule("pixel_shuffle")
def _pixel_shuffle(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    factor = kwargs.get("upscale_factor", args[1] if len(args) > 1 else None)
    node = picture(args[0].node)
    if args[0].node.rows.dim < len(args[0].shape) - 3:
        return row_by_row_rule(recorder, function, args, kwargs)
    if node is None or place_of(node) != 1:
        return NotImplemented
    return _finer(recorder, node, functional.pixel_shuffle, (factor,), {}, (factor, factor))


@rule("pixel_unshuffle")
def _pixel_unshuffle(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    factor = kwargs.get("downscale_factor", args[1] if len(args) > 1 else None)
    if args[0].node.rows.dim < len(args[0].shape) - 3:
        return row_by_row_rule(recorder, function, args, kwargs)
    return _coarser(recorder, functional.pixel_unshuffle, args[0].node, (factor,), factor)


@rule("avg_pool2d", "avg_pool3d", "max_pool2d", "max_pool3d")
def _pool(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """Pooling whose windows do not overlap."""
    names = ("input", "kernel_size", "stride", "padding", *POOL_OPTIONS[name[:3]])
    given = {"stride": None} | dict(zip(names, args)) | kwargs
    kernel, stride = given.pop("kernel_size"), given.pop("stride")
    given.pop("input")
    usual = {"padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False, "divisor_override": None}
    unusual = any(_scalar(value) != usual.get(key, value) for key, value in given.items())
    if unusual or (stride and _scalar(stride) != _scalar(kernel)):
        return NotImplemented
    factor = kernel if isinstance(kernel, int) else kernel[args[0].node.rows.dim - 2]
    return _coarser(recorder, getattr(functional, name), args[0].node, (kernel,), factor)


def _scalar(value: Any) -> Any:
    """One number for (n, n)."""
    return value[0] if isinstance(value, (tuple, list)) and len(set(value)) == 1 else value


def _coarser(recorder: Recorder, function: Rule, node: Node, args: Any, factor: Any) -> Any:
    source = picture(node)
    if source is None or source.rows.count < factor:
        return NotImplemented
    if rest := source.rows.count % factor:  # rows that fill no window are left out
        source = Slice(source.rows.dim, 0, source.rows.count - rest)(source)
    likeness = function(stand_in(source), *args)
    op = Coarser(function, (Placeholder(0), *args), {}, factor=factor)
    rows = Rows(source.rows.dim, source.rows.count // factor)
    return Recorded(Node(op, (source,), likeness.shape, source.dtype, source.device, rows), recorder)


@rule("pad")
def _pad(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    names = ("input", "pad", "mode", "value")
    given = {"mode": "constant", "value": None} | dict(zip(names, args)) | kwargs
    pads = tuple(given["pad"])
    if args[0].node.rows.dim < len(args[0].shape) - len(pads) // 2:
        return row_by_row_rule(recorder, function, args, kwargs)
    node = picture(args[0].node)
    if node is None or given["mode"] not in ("constant", "replicate", "reflect") or min(pads) < 0:
        return NotImplemented
    place = place_of(node)
    if given["mode"] == "reflect" and max(pads[2 * place : 2 * place + 2], default=0) >= node.rows.count:
        return NotImplemented
    if not any(pads):
        return args[0]
    pads += (0,) * (2 * (len(node.shape) - 2) - len(pads))
    shape = list(node.shape)
    for index in range(len(pads) // 2):
        shape[-1 - index] += pads[2 * index] + pads[2 * index + 1]
    rows = Rows(node.rows.dim, shape[node.rows.dim])
    op = Pad(pads, given["mode"], given["value"], place)
    return Recorded(Node(op, (node,), shape, node.dtype, node.device, rows), recorder)
