"""Bytes that kernels hold only while they run: documented constants, which a calibration on the card replaces."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .card import Card
from .convolution import ConvolutionCall, is_channels_last

aten = torch.ops.aten
MiB = 2**20
HALF = (torch.float16, torch.bfloat16)
# With fewer values than this a convolution is not run by oneDNN but by a kernel that unfolds its input.
ONEDNN_FROM = 20480


@dataclass(frozen=True)
class Workspaces:
    """Bytes that kernels take beyond inputs and result.

    Attributes:
        convolution: of a convolution on a CUDA device, as a multiple of the bytes of input, weight and result together:
            cuDNN's kernels for half precision and TF32 work on copies in another layout.
        pointwise_convolution: the same for kernels of one pixel.
        channels_last: whether convolutions whose tensors are in that layout already are counted too.
        product: bytes that cuBLAS keeps from its first product on; None: by the card's generation.
        measured: bytes by :class:`ConvolutionCall` as text, from a calibration; they take precedence over the rule.
    """

    convolution: float = 1.0
    pointwise_convolution: float = 1.0
    channels_last: bool = True
    product: int | None = None
    measured: dict[str, int] = field(default_factory=dict)

    def constant(self, card: Card) -> int:
        """Bytes that cuBLAS keeps from its first kernel on; for other libraries nothing is documented."""
        if not card.is_cuda:
            return 0
        if self.product is not None:
            return self.product
        # As torch's cublasLt and cuBLAS ask for: 4096 KiB twice and 16 KiB eight times, 32 MiB from Hopper on.
        return 32 * MiB if (card.capability or (0, 0)) >= (9, 0) else int(8.125 * MiB)

    def hidden(self, card: Card) -> Callable[[Any, tuple[Any, ...], dict[str, Any], Any], int]:
        """The rule for a card, or the one that it stands for: (operator, args, kwargs, result) -> bytes."""
        rules = self._rules(card.stands_for or card)

        def inside(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
            rule = rules.get(func)
            return rule(args, result) if rule is not None else 0

        return inside

    def _rules(self, card: Card) -> dict[Any, Callable[[tuple[Any, ...], Any], int]]:
        """Of cuDNN's and torch's own kernels on CUDA, and of a CPU's; for others nothing is documented."""
        if card.device.type == "cpu":
            return _on_cpu(card.threads)
        return self._on_cuda() if card.is_cuda else dict(ON_EVERY_DEVICE)

    def _on_cuda(self) -> dict[Any, Callable[[tuple[Any, ...], Any], int]]:
        return {
            aten.convolution.default: self._cudnn_convolution,
            aten._scaled_dot_product_efficient_attention.default: _accumulator,
            **ON_EVERY_DEVICE,
        }

    def _cudnn_convolution(self, args: tuple[Any, ...], out: Tensor) -> int:
        x, weight = args[0], args[1]
        known = self.measured.get(str(ConvolutionCall.of(args))) if self.measured else None
        if known is not None:
            return known
        pointwise = math.prod(weight.shape[2:]) == 1
        copies = (_in_eights(t) for t in (x, weight, out) if self.channels_last or not is_channels_last(t))
        return int((self.pointwise_convolution if pointwise else self.convolution) * sum(copies))


DOCUMENTED = Workspaces()


def _in_eights(x: Tensor) -> int:
    """Bytes with the channels rounded up to eight, as tensor cores want them."""
    channels = x.shape[1]
    return x.numel() // max(1, channels) * (-(-channels // 8) * 8) * x.element_size()


def _accumulator(args: tuple[Any, ...], result: Any) -> int:
    """The memory-efficient kernel adds up wide values of half precision in float32."""
    values = args[2]
    return 4 * result[0].numel() if values.dtype in HALF and values.shape[-1] > 128 else 0


def _safe_softmax(args: tuple[Any, ...], out: Tensor) -> int:
    """It holds a mask of the values that are -inf beside its result, which no mode sees."""
    return out.numel()


def _wide_indices(args: tuple[Any, ...], out: Tensor) -> int:
    """Indices of 32 bits are copied to 64 (aten/src/ATen/native/TensorAdvancedIndexingUtils.h, make_info)."""
    return sum(8 * index.numel() for index in args[1] if index is not None and index.dtype == torch.int32)


ON_EVERY_DEVICE = {aten._safe_softmax.default: _safe_softmax, aten.index.Tensor: _wide_indices}


# ------------------------------------------------------------------------------------------------------------ on a CPU


def _on_cpu(threads: int) -> dict[Any, Callable[[tuple[Any, ...], Any], int]]:
    """Read off single operators by torch's own profiler (torch 2.11, x86)."""

    def attention(args: tuple[Any, ...], result: Any) -> int:
        return threads * _flash_buffer(args[0], args[2])

    def convolution(args: tuple[Any, ...], out: Tensor) -> int:
        return _cpu_convolution(args, out, threads)

    return {
        aten.convolution.default: convolution,
        aten._scaled_dot_product_flash_attention_for_cpu.default: attention,
        **ON_EVERY_DEVICE,
    }


def _cpu_convolution(args: tuple[Any, ...], out: Tensor, threads: int) -> int:
    x, weight, stride, transposed = args[0], args[1], args[3], args[6]
    kernel = math.prod(weight.shape[2:])
    if transposed:
        return 2 * _bytes(out)
    if x.ndim == 3 and not x.is_contiguous():  # along one dimension torch makes it contiguous first
        return _bytes(x) + _cpu_convolution(
            (torch.empty(x.shape, dtype=x.dtype, device="meta"), *args[1:]), out, threads
        )
    if not _by_onednn(x, weight, stride, args[8], threads):
        # It unfolds: a column of input values per pixel of the result.
        return 0 if kernel == 1 else x.shape[1] * kernel * (out.numel() // out.shape[1]) * x.element_size()
    if is_channels_last(x):
        return 2 * _bytes(weight)
    # Copies in blocks of channels: of input and weight first, then of the result. Fewer than 8 channels are not copied.
    of_input = _bytes(x) if x.shape[1] >= 8 else 0
    return max(of_input + _bytes(weight), _bytes(out))


def _by_onednn(x: Tensor, weight: Tensor, stride: Any, groups: int, threads: int) -> bool:
    """torch's own choice (aten/src/ATen/native/Convolution.cpp, use_mkldnn)."""
    if x.dtype not in (torch.float32, *HALF) or (x.dtype in HALF and not _onednn_has(x.dtype)):
        return False
    last, before = weight.shape[-1], weight.shape[-2] if weight.ndim > 3 else 1  # a line is a picture one pixel high
    pointwise = last == 1 and before == 1
    if pointwise and threads == 1 and x.shape[0] < 16 and all(step == 1 for step in stride):
        return False
    large_kernel = last > 3 and before > 3
    return groups > 1 or large_kernel or x.shape[0] > 1 or math.prod(x.shape[:4]) > ONEDNN_FROM


def _onednn_has(dtype: torch.dtype) -> bool:
    name = "_is_mkldnn_bf16_supported" if dtype == torch.bfloat16 else "_is_mkldnn_fp16_supported"
    asks = getattr(torch.ops.mkldnn, name, None)
    return bool(asks is not None and asks())


def _flash_buffer(q: Tensor, v: Tensor) -> int:
    """A thread's tile of scores, maxima, sums and products (aten/src/ATen/native/cpu/FlashAttentionKernel.cpp)."""
    queries, keys = q.shape[2], v.shape[2]
    rows = 256 if queries >= 768 else 64 if queries >= 192 else 32
    rows, columns = min(rows, queries), min(512, keys)
    floats = rows * columns + 2 * rows + rows * v.shape[3]
    return 4 * floats + (2 * rows * columns if q.dtype in HALF else 0)


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()
