"""Nodes that are run as they are, on tensors without data."""

from __future__ import annotations

import torch
from torch import Tensor

from ...memory.prediction import state_zeros
from ..core.given import is_conditioning
from ..prediction.encoders import resizing
from ..prediction.header_loading import loading_headers
from .calling import Outputs
from .findings import Findings
from .inputs import Inputs, NotFollowed
from .stages.coding import encodes_counted

# Inputs that make a node work on data, value by value, and what they are where it gives the same shapes without.
TRACKED = "tracks"
WITHOUT_DATA = {"upscale_method": "bilinear", "feathering": 0}


def run_plainly(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """What the node itself gives."""
    inputs.update({name: value for name, value in WITHOUT_DATA.items() if name in inputs})
    if isinstance(inputs.get(TRACKED), dict):  # what tracks change of a latent is not its shape
        inputs[TRACKED] = None
    with encodes_counted(found, inputs) as counted, loading_headers(found.mode, found.card), resizing():
        return found.nodes.call(kind, counted)


def set_to_zeros(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """The host's ConditioningZeroOut, whose texts are known to be zeros: some models ask."""
    results = run_plainly(found, kind, inputs)
    for text, _ in results[0] if is_conditioning(results[0]) else ():
        state_zeros(text)
    return results


def size_of(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """What the host's GetImageSize gives: width, height, how many. The host's own writes to its face as well."""
    image = inputs["image"]
    if not isinstance(image, Tensor) or image.ndim != 4:
        raise NotFollowed(f"{kind}: image gets no picture")
    return image.shape[2], image.shape[1], image.shape[0]


def painted(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """What the host's Painter gives: a picture (1, H, W, 3), of another's size or one of its own, and the mask of what
    was painted, (1, H, W). The host's own reads and writes files."""
    image = inputs.get("image")
    if image is not None and (not isinstance(image, Tensor) or image.ndim != 4):
        raise NotFollowed(f"{kind}: image gets no picture")
    height, width = (int(inputs.number(name)) for name in ("height", "width")) if image is None else image.shape[1:3]
    with found.mode:
        return torch.empty(1, height, width, 3), torch.empty(1, height, width)


def tracks(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """What the host's GenerateTracks gives, whose points are numbers of its own: paths (T, N, 2), where each is seen
    (T, N), and how many frames they have."""
    frames, number = int(inputs.number("num_frames")), int(inputs.number("num_tracks"))
    if frames < 1 or number < 1:
        raise NotFollowed(f"{kind}: {number} tracks of {frames} frames are none")
    with found.mode:
        paths, seen = torch.empty(frames, number, 2), torch.ones(frames, number, dtype=torch.bool)
    return {"track_path": paths, "track_visibility": seen}, frames
