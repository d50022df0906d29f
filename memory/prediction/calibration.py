"""Bytes that a card's convolution kernels allocate while they run, measured once and kept in place of the rule.

cuDNN chooses a kernel by shape, dtype and layout, and how much memory that kernel takes is documented nowhere. Each
convolution that a prediction met is run once alone, and its peak is read from the allocator. Only CUDA's libraries are
measured: other devices have no rule to replace. Not measured on a GPU yet: what was tested without one is the refusal,
the file, and that predictions use what is in it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..json_file import read_json, write_json
from .card import Card
from .convolution import DTYPES, ConvolutionCall
from .workspace import DOCUMENTED, Workspaces

log = logging.getLogger(__name__)

SECONDS = 60.0
PRODUCT_SIDE = 1024
SEVERAL = 8  # measured convolutions are enough to judge the others by
# (a convolution, a device) -> bytes that its kernel holds while it runs.
ConvolutionMeter = Callable[[ConvolutionCall, torch.device], int]


@dataclass(frozen=True)
class Key:
    """The card and the libraries that a measurement is valid for: other versions may choose other kernels."""

    card: str
    torch_version: str
    cuda_version: str
    cudnn_version: str

    @classmethod
    def of(cls, device: torch.device) -> Key:
        """Of a CUDA device of this machine."""
        cuda = torch.version.cuda or f"HIP {torch.version.hip}"
        return cls(torch.cuda.get_device_name(device), torch.__version__, cuda, str(torch.backends.cudnn.version()))

    def __str__(self) -> str:
        return f"{self.card}, torch {self.torch_version}, CUDA {self.cuda_version}, cuDNN {self.cudnn_version}"


@dataclass(frozen=True)
class Calibration:
    """What was measured on a card.

    Attributes:
        convolutions: bytes by signature, a :class:`ConvolutionCall` as text.
        product: bytes that cuBLAS keeps; None: not measured.
        left: signatures that were not measured for lack of time.
        failed: signatures that the card could not run, with the reason.
    """

    convolutions: dict[str, int] = field(default_factory=dict)
    product: int | None = None
    left: tuple[str, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def holds_nothing(self) -> bool:
        """Whether none of several convolutions took anything: then this card's library has no such kernels."""
        return len(self.convolutions) >= SEVERAL and not any(self.convolutions.values())

    def workspaces(self, otherwise: Workspaces = DOCUMENTED) -> Workspaces:
        """For predictions. What was not measured is as in ``otherwise``, or 0 where :attr:`holds_nothing`."""
        if self.holds_nothing:
            otherwise = replace(otherwise, convolution=0.0, pointwise_convolution=0.0)
        product = otherwise.product if self.product is None else self.product
        return replace(otherwise, measured={**otherwise.measured, **self.convolutions}, product=product)


@dataclass(frozen=True)
class Collecting(Workspaces):
    """Notes the signatures of the convolutions that predictions meet."""

    seen: set[str] = field(default_factory=set)

    def _cudnn_convolution(self, args: tuple[Any, ...], out: Tensor) -> int:
        convolution = ConvolutionCall.of(args)
        if convolution.dtype in DTYPES.values():
            self.seen.add(str(convolution))
        return super()._cudnn_convolution(args, out)


def by_rule(convolution: ConvolutionCall, card: Card, workspaces: Workspaces = DOCUMENTED) -> int:
    """Bytes that a prediction assumes a convolution's kernel to take."""
    arguments = convolution.arguments(torch.device("meta"))
    out = torch.convolution(*arguments)
    return workspaces.hidden(card)(torch.ops.aten.convolution.default, arguments, {}, out)


# --------------------------------------------------------------------------------------------------------- measuring


def calibrate(
    signatures: Iterable[str], device: torch.device, seconds: float = SECONDS, meter: ConvolutionMeter | None = None
) -> Calibration:
    """Runs each convolution once alone, the largest first, since peaks are theirs.

    Args:
        signatures: of convolutions, as :class:`Collecting` notes them.
        device: a CUDA device. A convolution takes no more of it than the predicted work does at that point.
        seconds: after which no further convolution is begun.
        meter: measures one; None: by torch's CUDA allocator.

    Raises:
        ValueError: the device is not CUDA's and there is no meter, or a signature of another form.
    """
    if meter is None and device.type != "cuda":
        raise ValueError(f"device: calibration measures a CUDA card, and this is {device.type}")
    pending = sorted(map(ConvolutionCall.parse, set(signatures)), key=_elements, reverse=True)
    product = product_bytes(device) if device.type == "cuda" else None
    end = time.monotonic() + seconds
    found: dict[str, int] = {}
    failed: dict[str, str] = {}
    while pending and time.monotonic() < end:
        convolution = pending.pop(0)
        try:
            found[str(convolution)] = (meter or convolution_bytes)(convolution, device)
        except RuntimeError as error:  # no memory for it, or no kernel
            failed[str(convolution)] = str(error).strip().partition("\n")[0]
    return Calibration(found, product, tuple(map(str, pending)), failed)


def _elements(convolution: ConvolutionCall) -> int:
    return sum(x.numel() for x in convolution.arguments(torch.device("meta"))[:2])


@torch.no_grad()
def convolution_bytes(convolution: ConvolutionCall, device: torch.device) -> int:
    """The allocator's peak during one call, in bytes without input, weight and result."""
    arguments = convolution.arguments(device)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    result = torch.convolution(*arguments)
    torch.cuda.synchronize(device)
    # Input, weight and result are all that is left now.
    held = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    del result
    return int(held)


@torch.no_grad()
def product_bytes(device: torch.device) -> int:
    """Bytes that cuBLAS and cublasLt keep allocated after a product without and one with a bias."""
    forget = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if forget is not None:  # workspaces of earlier products
        forget()
    x = torch.ones(PRODUCT_SIDE, PRODUCT_SIDE, dtype=torch.float16, device=device)
    before = torch.cuda.memory_allocated(device)
    functional.linear(x, x)
    functional.linear(x, x, x[0])
    torch.cuda.synchronize(device)
    return int(torch.cuda.memory_allocated(device) - before)


# ----------------------------------------------------------------------------------------------------------- the file


def save(path: Path, key: Key, found: Calibration) -> None:
    """Adds measurements to a file; entries of other cards and of other convolutions stay.

    Raises:
        OSError: it cannot be written.
    """
    content = _content(path)
    before = _calibration(content.get(str(key))) or Calibration()
    product = before.product if found.product is None else found.product
    content[str(key)] = {"product": product, "convolutions": {**before.convolutions, **found.convolutions}}
    write_json(path, content)


def load(path: Path, key: Key) -> Calibration | None:
    """The measurements that a file has for a card with these libraries; None if it has none, or unusable ones, which
    are logged."""
    entry = _content(path).get(str(key))
    if entry is None:
        return None
    found = _calibration(entry)
    if found is None:
        log.warning("Headroom: %s is damaged and ignored: measure anew by cli/calibrate.py", path)
    return found


def _content(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if content is None:
        return {}
    if isinstance(content, dict):
        return content
    log.warning("Headroom: %s holds no calibration and is ignored", path)
    return {}


def _calibration(entry: Any) -> Calibration | None:
    if not isinstance(entry, dict):
        return None
    convolutions, product = entry.get("convolutions"), entry.get("product")
    if not isinstance(convolutions, dict) or not all(map(_is_size, convolutions.values())):
        return None
    return Calibration(convolutions, product) if product is None or _is_size(product) else None


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
