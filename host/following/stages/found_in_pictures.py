"""What networks find in pictures and sounds, by its form: maps of depth, boxes, segments. What is found is never known.

Nodes that draw it need its size alone; what meshes are made of goes to those that save.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..calling import Outputs
from ..findings import NOTHING, Findings
from ..inputs import Inputs, NotFollowed

# Maps that have a colour already: all others are drawn in three.
DIRECTIONS = ("normal_opengl", "normal_directx")


def frames_between(inputs: Inputs, ran: Outputs) -> Outputs:
    """Of FrameInterpolate: as many frames between each two as the node is asked for."""
    images, times = _pictures(inputs, "images"), int(inputs.number("multiplier"))
    frames = images.shape[0] if images.shape[0] < 2 else (images.shape[0] - 1) * times + 1
    return (torch.empty(frames, *images.shape[1:3], 3),)


def boxes(inputs: Inputs, ran: Outputs) -> Outputs:
    """Of a detector: one thing in each picture, as large as the picture, which is the most that can be cut out."""
    images = _pictures(inputs, "image")
    height, width = images.shape[1:3]
    whole = {"x": 0.0, "y": 0.0, "width": float(width), "height": float(height), "label": "person", "score": 1.0}
    return ([[dict(whole)] for _ in range(images.shape[0])],)


def heard(inputs: Inputs, ran: Outputs) -> Outputs:
    """Of an audio encoder: what it gave, in RAM, where nodes may pick from it; the sampler brings it to the card."""
    result: Outputs = tree_map(lambda one: one.cpu() if isinstance(one, Tensor) else one, ran)
    return result


def segments(inputs: Inputs, ran: Outputs) -> Outputs:
    """Of SAM 3: as many masks of each picture as of the first, and a box around the whole."""
    images, masks = _pictures(inputs, "image"), ran[0]
    each = -(-masks.shape[0] // len(ran[1]))
    return (torch.empty(images.shape[0] * each, *masks.shape[1:]), *boxes(inputs, ran))


def bytes_of_segments(inputs: Inputs, ran: Outputs) -> int:
    """Of SAM 3's masks of a picture, which stay on the card until the last picture is looked at."""
    return int(ran[0].nbytes) // len(ran[1])


def key_points(inputs: Inputs, ran: Outputs) -> Outputs:
    """Of what looks for poses: nobody, in frames of the pictures' size."""
    images = _pictures(inputs, "image")
    height, width = images.shape[1:3]
    return ([{"canvas_width": width, "canvas_height": height, "people": []} for _ in range(images.shape[0])],)


def panorama(inputs: Inputs, ran: Outputs) -> Outputs:
    """Of MoGe on a panorama: a map of the picture's own size, put together on the CPU."""
    image = _pictures(inputs, "image")
    sizes = image.shape[:3]
    depth, mask = torch.empty(sizes), torch.empty(sizes, dtype=torch.bool)
    return ({"points": torch.empty(*sizes, 3), "depth": depth, "mask": mask, "image": image[..., :3]},)


def depth_of_all(inputs: Inputs, ran: Outputs) -> Outputs:
    """Of what estimates depth of one picture after the other: the maps of all, by those of the first."""
    images, (first,) = _pictures(inputs, "image"), ran
    maps = {
        name: torch.empty(images.shape[0], *one.shape[1:], dtype=one.dtype) if isinstance(one, Tensor) else one
        for name, one in first.items()
    }
    return ({**maps, "image": images[..., :3]},)


def draw_geometry(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """A picture of a map of depth or directions. What that takes is less than what the map was made in."""
    geometry = next((value for name, value in inputs.items() if name.endswith("_geometry")), None)
    depth = geometry.get("depth") if isinstance(geometry, Mapping) else None
    if not isinstance(depth, Tensor):
        raise NotFollowed(f"{kind}: it gets no map of depth")
    with found.mode:
        return (torch.empty(*depth.shape, 3),)


def draw_key_points(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """Pictures of poses, drawn on the CPU."""
    frames: list[dict[str, Any]] = inputs["keypoints"]
    if not isinstance(frames, list) or not all(isinstance(frame, dict) for frame in frames):
        raise NotFollowed(f"{kind}: keypoints gets no key points")
    height, width = (frames[0].get(f"canvas_{side}", 64) if frames else 64 for side in ("height", "width"))
    with found.mode:
        return (torch.empty(max(1, len(frames)), height, width, 3),)


def resize_by_longer_edge(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """Pictures as large as the host's ResizeImagesByLongerEdge makes them, one by one on the CPU."""
    images, edge = _pictures(inputs, "images"), int(inputs.number("longer_edge"))
    height, width = images.shape[1:3]
    sizes = (int(height * (edge / width)), edge) if width > height else (edge, int(width * (edge / height)))
    with found.mode:
        return (torch.empty(images.shape[0], *sizes, 3),)


def make_mesh(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """A mesh, which the CPU makes, and which goes to what saves it."""
    return NOTHING


def _pictures(inputs: Inputs, name: str) -> Tensor:
    images = inputs[name]
    if not isinstance(images, Tensor) or images.ndim != 4:
        raise NotFollowed(f"{inputs.kind}: {name} gets no pictures")
    return images
