"""What a device takes for a piece of work: a roofline model of a few documented figures, which compares plans."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..running.allocator import CUT_FROM, EVEN_BYTES, GRAIN, MIB
from .workspace import ConvolutionWorkspace

TILE = 64
# Devices whose kernels take operands of several dtypes as they are, and reduce 16 bits to float32, without a copy in a
# common dtype (ATen/native: TensorIterator.cpp, compute_types; ReduceOpsUtils.h, gpu_lowp_to_f32). Of other devices it
# is not known.
CASTS_INSIDE = frozenset(["cuda", "xpu"])


@dataclass(frozen=True)
class Figures:
    """The figures of a device. Plans depend on their ratios, and not strongly.

    Attributes:
        dispatch: seconds of the host for every kernel, however small.
        flops: operations a second in float32.
        bandwidth: bytes a second of the device's memory.
        link: bytes a second between it and page-locked host memory, each way; 0 = there is no other memory.
        ahead: the host goes on while the device computes; else it computes itself.
        kernel: seconds of the smallest kernel of a device that computes by itself.
        half, bfloat: how many times as many operations a second it does in float16 and in bfloat16.
        parts: how many parts of the device work side by side, on a tile of a product each; 0 = as if there were one.
        strip_bytes: bytes of a strip of the widest map above which strips are no faster: what a CPU's caches hold;
            0 = the taller the faster.
        page_bytes: stored maps lie in equal pages of so many bytes, since the C library's heap would not give slabs of
            many sizes back; 0 = they stay in the strips that they are computed in.
        scratch: the share that is counted of what a CPU's kernels may take beside tensors (:meth:`Op.scratch`).
        workspace: of a card's convolutions; None = they hold nothing, or nobody knows.
        margin: factor on the bytes of a strip, for what only the C library knows.
        least_margin: bytes added to that.
        rest: bytes by which the allocator's blocks exceed large slabs of uneven sizes, at most.
    """

    dispatch: float
    flops: float
    bandwidth: float
    link: float = 0.0
    ahead: bool = False
    kernel: float = 0.0
    half: float = 2.0
    bfloat: float = 2.0
    parts: int = 0
    strip_bytes: int = 0
    page_bytes: int = 0
    scratch: float = 0.0
    workspace: ConvolutionWorkspace | None = None
    margin: float = 1.0
    least_margin: int = 0
    rest: int = 0

    def block(self, size: int) -> int:
        """Bytes that the allocator gives for a tensor of so many."""
        rest = self.rest if size > CUT_FROM and size % EVEN_BYTES else 0
        return -(-size // GRAIN) * GRAIN + rest

    def seconds(self, flops: float, moved: float, dtype: torch.dtype = torch.float32, tiles: float = 0.0) -> float:
        """What one kernel takes on the device.

        Args:
            flops: operations, on numbers of ``dtype``.
            moved: bytes read and written.
            tiles: how many a product's result has, each computed by one part of the device; 0 = as many as fill it.
        """
        rate = self.flops * {torch.float16: self.half, torch.bfloat16: self.bfloat}.get(dtype, 1.0)
        return max(self.kernel, flops / (rate * self.filled(tiles)), moved / self.bandwidth)

    def filled(self, tiles: float) -> float:
        """The share of the device that a product keeps at work: in its last wave of tiles some parts have none (NVIDIA,
        "Matrix Multiplication Background User's Guide", wave quantisation)."""
        if not self.parts or not tiles:
            return 1.0
        return tiles / (math.ceil(tiles / self.parts) * self.parts)

    def together(self, kernels: float, launches: int) -> float:
        """Seconds of kernels with what the host takes to launch them.

        Args:
            kernels: seconds of the device.
        """
        dispatched = launches * self.dispatch
        return max(kernels, dispatched) if self.ahead else kernels + dispatched


def tiles_of(results: int, channels: int) -> float:
    """How many tiles of 64 x 64 a product has: the smallest at which products still run near a card's rate (the same
    guide).

    Args:
        results: elements of the result, so many ``channels`` each.
    """
    return math.ceil(results / channels / TILE) * math.ceil(channels / TILE)


# One core of a server (AVX2: 16 multiply-adds a cycle, two units, 3 GHz, of which convolutions reach a half), and what
# a core draws from memory. Strips of 8 MiB were measured: larger ones leave the caches.
CPU = Figures(1e-5, 5e10, 1e10, strip_bytes=8 * MIB, page_bytes=1 * MIB, scratch=1.0, margin=1.35, least_margin=2 * MIB)

# An accelerator of the middle class, for what another one does not tell of itself: PyTorch's dispatch of an operator
# takes about 5 us, the smallest kernel about 2 (CUDA programming guide, launch latency); 12.7 TFLOP/s, 360 GB/s
# (NVIDIA's Ampere GA102 paper, RTX 3060); 25 GB/s: four fifths of PCI Express 4.0 x 16. What cuDNN's kernels hold is
# CUDA's alone, and added where the device is one (card.py).
ACCELERATOR = Figures(5e-6, 12.7e12, 3.6e11, 2.5e10, ahead=True, kernel=2e-6, margin=1.003, rest=MIB)
