"""All by which the kernel of a convolution is chosen, as one line of text and back."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
CONTIGUOUS, CHANNELS_LAST = "contiguous", "channels_last"
# Layouts with the channels last, by the number of dimensions.
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_SIZES, _LAYOUT = r"(\d+(?:x\d+)*)", f"({CONTIGUOUS}|{CHANNELS_LAST})"
_LINE = re.compile(
    rf"(\w+) {_SIZES} {_LAYOUT} {_SIZES} {_LAYOUT} stride {_SIZES} padding {_SIZES} dilation {_SIZES} groups (\d+)"
    rf"(?: transposed {_SIZES})?"
)

Ints = tuple[int, ...]


@dataclass(frozen=True)
class ConvolutionCall:
    """One call of torch's convolution, without its data and its bias.

    Attributes:
        dtype: of input and weight.
        x, weight: shapes, (B, C, ...) and (C', C / groups, ...).
        x_layout, weight_layout: "contiguous" or "channels_last".
        stride, padding, dilation: one number for each spatial dimension.
        transposed: its output padding if it is transposed, else None.
    """

    dtype: torch.dtype
    x: Ints
    x_layout: str
    weight: Ints
    weight_layout: str
    stride: Ints
    padding: Ints
    dilation: Ints
    groups: int = 1
    transposed: Ints | None = None

    @classmethod
    def of(cls, args: tuple[Any, ...]) -> ConvolutionCall:
        """From the arguments of ``aten.convolution``."""
        x, weight, _, stride, padding, dilation, transposed, output_padding, groups = args
        return cls(
            x.dtype, tuple(x.shape), _layout(x), tuple(weight.shape), _layout(weight),
            tuple(stride), tuple(padding), tuple(dilation), groups, tuple(output_padding) if transposed else None,
        )  # fmt: skip

    @classmethod
    def parse(cls, line: str) -> ConvolutionCall:
        """The inverse of :func:`str`.

        Raises:
            ValueError: a line of another form.
        """
        found = _LINE.fullmatch(line)
        if found is None or found[1] not in DTYPES:
            raise ValueError(f"no signature of a convolution: {line!r}")
        x, weight, stride, padding, dilation = (_sizes(found[at]) for at in (2, 4, 6, 7, 8))
        transposed = None if found[10] is None else _sizes(found[10])
        return cls(
            DTYPES[found[1]], x, found[3], weight, found[5], stride, padding, dilation, int(found[9]), transposed
        )

    def __str__(self) -> str:
        line = (
            f"{str(self.dtype).removeprefix('torch.')} {_text(self.x)} {self.x_layout} {_text(self.weight)}"
            f" {self.weight_layout} stride {_text(self.stride)} padding {_text(self.padding)}"
            f" dilation {_text(self.dilation)} groups {self.groups}"
        )
        return line if self.transposed is None else f"{line} transposed {_text(self.transposed)}"

    def arguments(self, device: torch.device) -> tuple[Any, ...]:
        """For ``torch.convolution`` and ``aten.convolution``, with input and weight as they come from the allocator."""
        return (
            _empty(self.x, self.x_layout, self.dtype, device),
            _empty(self.weight, self.weight_layout, self.dtype, device),
            None, self.stride, self.padding, self.dilation, self.transposed is not None,
            self.transposed or (0,) * len(self.stride), self.groups,
        )  # fmt: skip


def is_channels_last(x: Tensor) -> bool:
    """Whether a tensor's channels are last in memory, and not in both places at once."""
    if x.ndim not in LAST or x.shape[1] == 1:
        return False
    return x.is_contiguous(memory_format=LAST[x.ndim]) and not x.is_contiguous()


def _layout(x: Tensor) -> str:
    return CHANNELS_LAST if is_channels_last(x) else CONTIGUOUS


def _empty(shape: Ints, layout: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    form = LAST[len(shape)] if layout == CHANNELS_LAST else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, device=device, memory_format=form)


def _text(sizes: Ints) -> str:
    return "x".join(map(str, sizes))


def _sizes(text: str) -> Ints:
    return tuple(map(int, text.split("x")))
