"""How long work takes on a device, by a roofline: each kernel takes as long as its operations or its bytes do.

Source: S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for multicore
architectures" (2009). An accelerator moves bytes while it computes, and the host queues kernels ahead; a CPU core does
one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from .history import History
from .kernels import COPY, FUNCTION, PRODUCT, KernelCost, KernelCosts

MIB = 2**20
MAPPED, TRIMMED = 32 * MIB, 8 * MIB


@dataclass(frozen=True)
class Speed:
    """Figures of a device.

    Attributes:
        rates: operations a second by (kind of kernel, dtype); a pair that is missing is as float32, and a kind as
            products.
        bandwidth: bytes a second that are read or written.
        dispatch: seconds of the host for every kernel, however small.
        functions: numbers a second of which a function is computed; 0: as fast as they are moved.
        page: seconds for a byte of memory that was not there before, which a C library asks the system for anew where
            a tensor is larger than :data:`MAPPED`, and about half of the time where it is larger than :data:`TRIMMED`
            (glibc, mallopt(3): M_MMAP_THRESHOLD, M_TRIM_THRESHOLD); 0: its allocator keeps all.
        link: bytes a second between it and the machine's memory; 0: it has none of its own.
        ahead: the host goes on while the device computes.
        kernel: seconds of the smallest kernel of a device that computes by itself.
        source: where the figures are from, for people.
        history: what models took there beside what these figures say.
    """

    rates: Mapping[tuple[str, torch.dtype], float]
    bandwidth: float
    dispatch: float = 5e-6
    functions: float = 0.0
    page: float = 0.0
    link: float = 0.0
    ahead: bool = False
    kernel: float = 0.0
    source: str = field(default="", compare=False)
    history: History = field(default_factory=History, compare=False)

    def seconds(self, work: KernelCosts, model: str = "") -> float:
        """Of a stretch of work with all weights in their place, as this model, or others here, have run so far."""
        seconds = self.by_figures(work)
        return seconds * self.history.factor(model, seconds)

    def by_figures(self, work: KernelCosts) -> float:
        """The same by the figures alone."""
        kernels = sum(self._of(kernel) * count for kernel, count in work.items())
        launches = self.dispatch * work.total()
        return max(kernels, launches) if self.ahead else kernels + launches

    def copied(self, size: int) -> float:
        """Seconds in which so many bytes come over the link."""
        return size / self.link if self.link else 0.0

    def _of(self, kernel: KernelCost) -> float:
        operations = kernel.flops / self.rate(kernel.kind, kernel.dtype)
        moved = (kernel.read + kernel.written) / self.bandwidth
        if self.ahead:
            return max(self.kernel, operations, moved)
        if kernel.kind == FUNCTION and self.functions:
            operations = kernel.results / self.functions
        anew = 1.0 if kernel.largest >= MAPPED else 0.5 if kernel.largest >= TRIMMED else 0.0
        return operations + moved + anew * kernel.largest * self.page

    def rate(self, kind: str, dtype: torch.dtype) -> float:
        """Operations a second; infinite for kernels that do none."""
        if kind in (COPY, FUNCTION):
            return float("inf")
        for asked in ((kind, dtype), (PRODUCT, dtype), (kind, torch.float32), (PRODUCT, torch.float32)):
            if asked in self.rates:
                return self.rates[asked]
        return float("inf")
