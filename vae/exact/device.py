"""What a device takes for a piece of work: a roofline of a few documented figures, by which strips are chosen."""

from __future__ import annotations

from dataclasses import dataclass

import torch

MIB = 1 << 20
# Devices whose kernels take operands of several dtypes as they are, and reduce 16 bits to float32, without a copy in a
# common dtype (ATen/native: TensorIterator.cpp, compute_types; ReduceOpsUtils.h, gpu_lowp_to_f32). Of others it is not
# known.
CASTS_INSIDE = frozenset(["cuda", "xpu"])
# PyTorch's caching allocator cuts a block only where more than 1 MiB remains (c10/cuda/CUDACachingAllocator.cpp:
# should_split), and what remains counts as allocated. Slabs and buffers that differ by 2 MiB or nothing leave no rest.
EVEN_BYTES, CUT_FROM = 2 * MIB, 1 * MIB
GRAIN = 512  # and rounds every size up to so much


def even(size: int, device: torch.device) -> int:
    """Bytes to ask for, so that another slab can have exactly what is left."""
    return -(-size // EVEN_BYTES) * EVEN_BYTES if size > CUT_FROM and device.type != "cpu" else size


@dataclass(frozen=True)
class Figures:
    """Of a kind of device. Plans depend on the ratios between them, and little on those.

    Attributes:
        launch: seconds that every kernel costs, however small.
        flops: operations a second in float32; in 16 bits twice as many.
        bandwidth: bytes a second of the device's memory.
        link: bytes a second between it and page-locked host memory, each way; 0 = there is no other memory.
        strip_bytes: of the widest map in a strip, from which on strips are no faster: what a CPU's caches hold; 0 = the
            taller the faster.
        page_bytes: stored maps lie in equal pages, since the C library's heap would not give slabs of many sizes back;
            0 = they stay as the strips that they are computed in.
        scratch: how much of what kernels may take beside tensors (:meth:`Op.scratch`) is counted.
        margin: what is counted of a strip, for what only the C library knows.
        least_margin: bytes beside that.
        rest: bytes by which the allocator's blocks exceed large slabs that are not even, at most.
    """

    launch: float
    flops: float
    bandwidth: float
    link: float = 0.0
    strip_bytes: int = 0
    page_bytes: int = 0
    scratch: float = 0.0
    margin: float = 1.0
    least_margin: int = 0
    rest: int = 0

    def block(self, size: int) -> int:
        """Bytes that a tensor of so many takes of the allocator."""
        rest = self.rest if size > CUT_FROM and size % EVEN_BYTES else 0
        return -(-size // GRAIN) * GRAIN + rest

    def seconds(self, flops: float, moved: float, itemsize: int = 4) -> float:
        """Of one kernel with so many operations on numbers of so many bytes, and bytes read and written."""
        return self.launch + max(flops / (self.flops * (2 if itemsize < 4 else 1)), moved / self.bandwidth)


# One core of a server (AVX2: 16 multiply-adds a cycle, two units, 3 GHz, of which convolutions reach a half), and what
# a core draws from memory. Strips of 8 MiB were measured: larger ones leave the caches.
CPU = Figures(1e-5, 5e10, 1e10, 0.0, 8 * MIB, 1 * MIB, scratch=1.0, margin=1.35, least_margin=2 * MIB)

# An accelerator of the middle class: PyTorch's dispatch of an operator takes about 5 us (the CUDA programming guide has
# 2 to 3 for the launch alone); 12.7 TFLOP/s, 360 GB/s (NVIDIA's Ampere GA102 paper, RTX 3060); 25 GB/s: four fifths of
# PCI Express 4.0 x 16. cuDNN takes less where there is less (its algorithms with a smaller workspace), so that its
# workspace is not counted here.
ACCELERATOR = Figures(5e-6, 12.7e12, 3.6e11, 2.5e10, margin=1.003, rest=MIB)


def figures_of(device: torch.device) -> Figures:
    """The documented ones of the device's kind."""
    return CPU if device.type == "cpu" else ACCELERATOR
