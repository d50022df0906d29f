"""Scenes of coloured shapes, and the sentences that tell them: "a red circle over a blue square"."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

COLOURS = {
    "red": (0.86, 0.13, 0.15),
    "orange": (0.97, 0.52, 0.08),
    "yellow": (0.97, 0.86, 0.12),
    "green": (0.13, 0.62, 0.25),
    "blue": (0.13, 0.32, 0.85),
    "purple": (0.56, 0.18, 0.70),
}
RELATIONS = {"over": (0, -1), "under": (0, 1), "left of": (-1, 0), "right of": (1, 0)}
APART = 0.24  # of the picture's side, from its middle to either of two objects
HELD_OUT = 0.1  # of all pairs, never trained with


def _circle(x: Tensor, y: Tensor) -> Tensor:
    return torch.hypot(x, y) - 1


def _square(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(x.abs(), y.abs()) - 0.9


def _triangle(x: Tensor, y: Tensor) -> Tensor:
    """Upright, with equal sides."""
    return torch.maximum(y - 0.6, (math.sqrt(3) * x.abs() - y) / 2 - 0.6)


def _star(x: Tensor, y: Tensor) -> Tensor:
    """Five points, one of them up: every sector of 36 degrees is bounded by the same line."""
    sector = math.pi / 5
    angle = torch.remainder(torch.atan2(x, -y) + sector, 2 * sector) - sector
    radius, outer, inner = torch.hypot(x, y), 1.2, 0.55
    across, along = radius * angle.abs().sin(), radius * angle.abs().cos()
    edge_x, edge_y = inner * math.cos(sector) - outer, inner * math.sin(sector)
    return (across * -edge_x + (along - outer) * edge_y) / math.hypot(edge_x, edge_y)


# How far a point is from the edge, negative inside; coordinates in units of the object's size, y down.
SHAPES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
}


@dataclass(frozen=True)
class Thing:
    """One object."""

    colour: str
    shape: str

    def __str__(self) -> str:
        return f"{'an' if self.colour[0] == 'o' else 'a'} {self.colour} {self.shape}"


@dataclass(frozen=True)
class Scene:
    """One object, or two and how the first lies to the second."""

    first: Thing
    relation: str = ""
    second: Thing | None = None

    def __str__(self) -> str:
        return f"{self.first} {self.relation} {self.second}" if self.second else str(self.first)

    @property
    def held_out(self) -> bool:
        """Whether it is one of the tenth that training never shows, by a checksum of its sentence."""
        return self.second is not None and zlib.crc32(str(self).encode()) % 1000 < 1000 * HELD_OUT


THINGS = [Thing(colour, shape) for colour, shape in itertools.product(COLOURS, SHAPES)]
SINGLES = [Scene(thing) for thing in THINGS]
PAIRS = [
    Scene(first, relation, second)
    for first, relation, second in itertools.product(THINGS, RELATIONS, THINGS)
    if first != second
]


def uniform(low: float, high: float, rng: torch.Generator, *shape: int) -> Tensor:
    """Random numbers of one range."""
    return low + (high - low) * torch.rand(shape, generator=rng)


def draw(scenes: Sequence[Scene], side: int, rng: torch.Generator) -> Tensor:
    """Pictures of the scenes, their sizes, places and lights drawn by chance: (scenes, 3, side, side) from 0 to 1.

    A small ``side`` gives nearly the mean of a large one's pixels: edges cover a part of theirs.
    """
    count = len(scenes)
    pictures = _backgrounds(count, side, rng)
    sizes = uniform(0.13, 0.175, rng, count, 2)
    wander = uniform(-1, 1, rng, count, 2, 2)
    light = uniform(-0.05, 0.05, rng, count, 2)
    line = (torch.arange(side) + 0.5) / side
    for place in (0, 1):
        things = [scene.second if place else scene.first for scene in scenes]
        size = sizes[:, place, None, None]
        middles = _middles(scenes, place, wander[:, place])[..., None, None]
        x, y = torch.broadcast_tensors((line - middles[:, 0]) / size, (line[:, None] - middles[:, 1]) / size)
        covered = _covered(things, x, y, size * side)
        paint = torch.tensor([COLOURS[thing.colour] if thing else (0.0, 0.0, 0.0) for thing in things])
        shade = light[:, place, None, None] - 0.07 * (x + y).clamp(-1.5, 1.5) / 1.5
        paint = (paint[:, :, None, None] + shade[:, None]).clamp(0, 1)
        pictures = torch.lerp(pictures, paint, covered[:, None])
    return pictures


def _middles(scenes: Sequence[Scene], place: int, wander: Tensor) -> Tensor:
    """Where the first or the second objects are, (scenes, 2): they wander more across their relation than along it."""
    along = torch.tensor([RELATIONS.get(scene.relation, (0, 0)) for scene in scenes]).float()
    return 0.5 + (-APART if place else APART) * along + wander * torch.where(along != 0, 0.02, 0.1)


def _covered(things: Sequence[Thing | None], x: Tensor, y: Tensor, size: Tensor) -> Tensor:
    """How much of each pixel a thing covers, none where there is none; ``size`` in pixels."""
    covered = torch.zeros(x.shape)
    for name, distance in SHAPES.items():
        those = torch.tensor([thing is not None and thing.shape == name for thing in things])
        covered[those] = (0.5 - distance(x[those], y[those]) * size[those]).clamp(0, 1)
    return covered


def _backgrounds(count: int, side: int, rng: torch.Generator) -> Tensor:
    """Pale, and a little darker below."""
    above = uniform(0.86, 0.98, rng, count, 3, 1, 1)
    below = above - uniform(0.0, 0.1, rng, count, 1, 1, 1)
    return torch.lerp(above, below, torch.linspace(0, 1, side)[:, None]).expand(count, 3, side, side).clone()
