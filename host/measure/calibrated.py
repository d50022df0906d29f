"""What kernels hold inside on this machine's own card: as measured by ``cli/calibrate.py``, or as documented."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path

import folder_paths
import torch

from ...memory.accelerator import is_here
from ...memory.prediction import DOCUMENTED, Card, Collecting, ConvolutionCall, Workspaces
from ...memory.prediction.calibration import Key, load
from ...memory.prediction.convolution import CONTIGUOUS
from ...vae.exact.operations.convolution import SlabConvolution
from ...vae.exact.planning.workspace import ConvolutionWorkspace, most_of

_SEEN: ContextVar[set[str] | None] = ContextVar("convolutions seen", default=None)


def calibration_path() -> Path:
    """The file of measurements, in the host's user folder."""
    return Path(folder_paths.get_user_directory()) / "headroom" / "calibration.json"


def own_key(card: Card) -> Key | None:
    """What a measurement of a card has to be of; None for any card but this machine's own."""
    if not card.is_cuda or not is_here(card.device):  # only of CUDA's kernels there is anything to measure
        return None
    key = Key.of(card.device)
    return key if key.card == card.name else None


def workspaces_for(card: Card) -> Workspaces:
    """What a prediction on a card reckons with: measured on this machine's own card with these libraries, if it was.

    The file is read each time; predictions that were made and kept before it was written stay as they are.
    """
    seen = _SEEN.get()
    if seen is not None:
        return Collecting(seen=seen)
    return measured_for(own_key(card))


def measured_for(key: Key | None) -> Workspaces:
    """The workspaces that were measured under a key; the documented ones without any."""
    found = None if key is None else load(calibration_path(), key)
    return DOCUMENTED if found is None else found.workspaces()


def workspaces_on(device: torch.device) -> Workspaces:
    """The same for work on a device of this machine, whatever it is called."""
    return measured_for(Key.of(device) if device.type == "cuda" and is_here(device) else None)


def in_strips(workspaces: Workspaces) -> ConvolutionWorkspace:
    """The same for plans of strips, which are to hold: the rule with what one GPU's convolutions took beyond it."""
    measured = {call: size for line, size in workspaces.measured.items() if (call := _of_slab(line)) is not None}
    return ConvolutionWorkspace(workspaces.convolution, workspaces.pointwise_convolution, measured)


def as_planned(workspaces: Workspaces, dtype: torch.dtype) -> Workspaces:
    """The same where strips are followed, whose prediction is to agree with their plan."""
    most = most_of(dtype)
    return replace(
        workspaces,
        convolution=most * workspaces.convolution,
        pointwise_convolution=most * workspaces.pointwise_convolution,
    )


def _of_slab(line: str) -> SlabConvolution | None:
    """A measured convolution as strips call it: theirs lie in the order of their dims, and none is transposed."""
    try:
        call = ConvolutionCall.parse(line)
    except ValueError:  # of another version
        return None
    if call.transposed is not None or not call.x_layout == call.weight_layout == CONTIGUOUS:
        return None
    return SlabConvolution(call.dtype, call.x, call.weight, call.stride, call.padding, call.dilation, call.groups)


@contextmanager
def collecting() -> Iterator[set[str]]:
    """Within it, predictions note the signatures of the convolutions that they meet. Those made before do not."""
    seen: set[str] = set()
    token = _SEEN.set(seen)
    try:
        yield seen
    finally:
        _SEEN.reset(token)
