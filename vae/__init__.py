"""Feathered tiling of any autoencoder: planning tiles from a byte budget, and blending them in one pass.

The exact way, in strips of rows, is the sub-package :mod:`.exact`.

Knows nothing of ComfyUI: an autoencoder is a callable on tiles and a few :class:`Axis` that say how latent cells
map to pixels.
"""

from .axis import Axis, causal_frames, cover, pixels_per_cell
from .feather import FEATHERS, feather_windows
from .feathered import Direction, feathered
from .plan import TilePlan, TileRequest, plan_tiles

__all__ = [
    "FEATHERS",
    "Axis",
    "Direction",
    "TilePlan",
    "TileRequest",
    "causal_frames",
    "cover",
    "feather_windows",
    "feathered",
    "pixels_per_cell",
    "plan_tiles",
]
