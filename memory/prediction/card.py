"""The card that a prediction is made for: this machine's, or another one."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ..accelerator import has_own_memory
from ..speed import Speed, documented
from ..units import format_gb

GB = 2**30
# Of the shorter one of computing and copying, what ComfyUI's own streaming hides behind the other on an NVIDIA or AMD
# card, where two streams copy: half, by an emulated card (benchmarks/offload_grid.md; not measured on a GPU).
HOST_HIDES = 0.5
THIS_MACHINE = "this machine"
# Compute capabilities by the names their owners know: GTX 16 / RTX 20, A100, RTX 30, RTX 40, H100, RTX 50.
CAPABILITIES = {"sm75": (7, 5), "sm80": (8, 0), "sm86": (8, 6), "sm89": (8, 9), "sm90": (9, 0), "sm120": (12, 0)}
GPU_CHOICES = (THIS_MACHINE, *CAPABILITIES)


@dataclass(frozen=True)
class Card:
    """Where the predicted work runs.

    Attributes:
        name: for people, without its memory.
        device: the type of device that its tensors say they are on; no such device need be there.
        total: bytes of memory.
        capability: compute capability of an NVIDIA card, None for anything else.
        reserved: bytes that the driver and the host keep for themselves.
        threads: of a CPU, whose attention kernel has a buffer for each.
        found: bytes that the host sees, where the user asked for a smaller ``total``; 0: the total.
        plain: whether custom operators that a library wrote in Python have no kernels of their own on it, and run as
            the operators that they call.
        stands_for: a card that is not in this machine, whose work this one's operators are followed for: what kernels
            hold inside is by its rule.
        measured: how fast it is, where that was measured; None: by its maker's figures.
    """

    name: str
    device: torch.device
    total: int
    capability: tuple[int, int] | None = None
    reserved: int = 0
    threads: int = 1
    found: int = 0
    plain: bool = False
    stands_for: Card | None = None
    measured: Speed | None = field(default=None, compare=False, repr=False)

    @property
    def seen(self) -> int:
        """Bytes of memory by which the host makes its own decisions."""
        return self.found or self.total

    @property
    def title(self) -> str:
        """Name and memory, for people."""
        return describe_device(self.name, self.device, self.total)

    @property
    def place(self) -> str:
        """Where its work's tensors are, for people."""
        return "on the card" if self.has_own_memory else "in memory"

    @property
    def has_own_memory(self) -> bool:
        """Whether it has memory beside the machine's, to which weights can be streamed."""
        return has_own_memory(self.device)

    @property
    def is_cuda(self) -> bool:
        """Whether CUDA's kernels and libraries run on it, or ROCm's, which go by the same name: for no others is it
        documented how much memory kernels take."""
        return self.device.type == "cuda"

    @property
    def speed(self) -> Speed:
        """How fast it is: as measured, or as documented."""
        if self.measured is not None:
            return self.measured
        # ROCm counts generations otherwise than NVIDIA, and torch tells them by the same name.
        is_nvidia = torch.version.hip is None or self.name in CAPABILITIES
        threads = self.threads if self.device.type == "cpu" else 0
        return documented(self.name, self.total, self.capability if is_nvidia else None, threads)

    def with_copies(self, computing: float, copying: float, prefetched: bool) -> float:
        """Seconds of work whose weights come over the link.

        Args:
            computing: seconds of the work alone.
            copying: seconds of the copies alone.
            prefetched: Block Offload copies ahead of the layers that need them, which hides the shorter one; else the
                host does, one layer ahead where it can.
        """
        hidden = 1.0 if prefetched else HOST_HIDES if self.is_cuda else 0.0
        return max(computing, copying) + (1.0 - hidden) * min(computing, copying)

    @property
    def opens(self) -> bool:
        """Whether predictions follow custom operators into the operators that they call."""
        return self.plain or self.device.type == "cpu"

    @property
    def granularity(self) -> int:
        """Bytes that the allocator rounds up to: torch's caching ones for accelerators to 512, a CPU's does not."""
        return 512 if self.has_own_memory else 1


def describe_device(name: str, device: torch.device, total: int) -> str:
    """A device and its memory, its own or the machine's, as "RTX 3060, 12 GB" or "CPU, 31 GB RAM"."""
    return f"{name}, {format_gb(total)}{'' if has_own_memory(device) else ' RAM'}"


def named_card(name: str, vram_gb: float, reserved: int = 0) -> Card:
    """An NVIDIA card by its compute capability.

    Args:
        name: a key of :data:`CAPABILITIES`.
        vram_gb: its memory, in GB of 2^30 bytes.
        reserved: bytes the driver and the host keep.

    Raises:
        ValueError: an unknown name, or no memory.
    """
    if name not in CAPABILITIES:
        raise ValueError(f"gpu: '{name}' is not known; choose one of {', '.join(GPU_CHOICES)}")
    if vram_gb <= 0:
        raise ValueError(f"vram_gb: say how many GB the {name} card has; 0 means this machine's own card")
    return Card(name, torch.device("cuda"), int(vram_gb * GB), CAPABILITIES[name], reserved)
