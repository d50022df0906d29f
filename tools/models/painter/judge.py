"""Whether a picture shows what its sentence says: objects are found, and their colours, shapes and places named."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from skimage.color import rgb2lab
from skimage.measure import label, regionprops
from skimage.morphology import disk, opening
from skimage.transform import resize

from .scenes import COLOURS, SHAPES, Scene, Thing

STANDS_OUT = 22.0  # from the ground, as a difference in CIELAB
LEAST_AREA, MOST_AREA = 0.012, 0.2  # of the picture; a scene's smallest star covers 0.021, its largest square 0.1
COMMON = 48  # pixels along a side, for masks that are compared


class Seen(NamedTuple):
    """An object in a picture; its middle in pixels."""

    thing: Thing
    x: float
    y: float


def _known_masks() -> dict[str, NDArray[np.bool_]]:
    """Each shape cut out along its bounds, all at one size."""
    line = torch.linspace(-1.3, 1.3, 521)
    masks = {}
    for name, distance in SHAPES.items():
        inside = (distance(*torch.meshgrid(line, line, indexing="xy")) < 0).numpy()
        rows, columns = np.where(inside.any(1))[0], np.where(inside.any(0))[0]
        masks[name] = _at_common_size(inside[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1])
    return masks


def _at_common_size(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    scaled: NDArray[np.bool_] = resize(mask.astype(float), (COMMON, COMMON), order=1, anti_aliasing=True) > 0.5
    return scaled


KNOWN = _known_masks()
PALETTE = rgb2lab(np.array(list(COLOURS.values()))[None])[0]


def see(picture: NDArray[np.float32]) -> list[Seen]:
    """The objects of a picture (rows, columns, 3) from 0 to 1, the largest first; none where one is too large."""
    lab = rgb2lab(picture)
    rim = np.concatenate([lab[0], lab[-1], lab[:, 0], lab[:, -1]])
    stands_out = np.linalg.norm(lab - np.median(rim, axis=0), axis=-1) > STANDS_OUT
    objects = regionprops(label(opening(stands_out, disk(max(1, picture.shape[0] // 128)))))
    large = sorted((one for one in objects if one.area >= LEAST_AREA * stands_out.size), key=lambda one: -one.area)
    return [] if large and large[0].area > MOST_AREA * stands_out.size else [_seen(lab, one) for one in large]


def _seen(lab: NDArray[np.float64], one: Any) -> Seen:
    rows, columns = one.coords.T
    y, x = one.centroid
    return Seen(Thing(_colour(lab[rows, columns]), _shape(one.image)), x, y)


def _colour(pixels: NDArray[np.float64]) -> str:
    """What most of the pixels are nearest to; of those at an edge few are left to vote."""
    nearest = np.linalg.norm(pixels[:, None] - PALETTE, axis=-1).argmin(-1)
    return list(COLOURS)[np.bincount(nearest, minlength=len(PALETTE)).argmax()]


def _shape(mask: NDArray[np.bool_]) -> str:
    """The shape with the largest intersection over union, both stretched to the same bounds."""
    seen = _at_common_size(mask)
    return max(KNOWN, key=lambda name: (KNOWN[name] & seen).sum() / (KNOWN[name] | seen).sum())


def obeys(picture: NDArray[np.float32], scene: Scene) -> bool:
    """Whether the picture (rows, columns, 3) from 0 to 1 shows these objects and no others, the first in its place."""
    seen = see(picture)
    if scene.second is None:
        return [one.thing for one in seen] == [scene.first]
    first = [one for one in seen if one.thing == scene.first]
    second = [one for one in seen if one.thing == scene.second]
    if len(seen) != 2 or len(first) != 1 or len(second) != 1:
        return False
    right, down = first[0].x - second[0].x, first[0].y - second[0].y
    there = ("right of" if right > 0 else "left of") if abs(right) > abs(down) else ("under" if down > 0 else "over")
    return there == scene.relation
