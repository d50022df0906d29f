"""What the decoder is trained with: photographs that Python packages bring along, and pieces of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

SKIMAGE = ("astronaut.png", "coffee.png", "rocket.jpg", "hubble_deep_field.jpg", "retina.jpg", "camera.png")
TEXTURES = ("brick.png", "grass.png", "gravel.png")
SKLEARN = ("china.jpg", "flower.jpg")
HELD_OUT = "chelsea.png"
SIZES = ((64, 4), (96, 2), (128, 1), (128, 1), (160, 1), (224, 1))  # of a crop, and how many of them make a step


def load_photograph(package: str, folder: str, name: str) -> Tensor:
    """A picture out of a package's folder, found without importing it: (1, 3, height, width) from -1 to 1."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"{package} is not installed: {name} is one of its pictures")
    with Image.open(Path(spec.submodule_search_locations[0]) / folder / name) as picture:
        pixels = torch.from_numpy(np.array(picture.convert("RGB")))
    height, width = (size // 8 * 8 for size in pixels.shape[:2])
    return pixels[:height, :width].movedim(-1, 0)[None].float() / 127.5 - 1


def load_photographs() -> dict[str, Tensor]:
    """Those to train with and the one held out."""
    found = {name: load_photograph("skimage", "data", name) for name in (*SKIMAGE, *TEXTURES, HELD_OUT)}
    return found | {name: load_photograph("sklearn", "datasets/images", name) for name in SKLEARN}


class Crops:
    """Draws what to train with: pieces of photographs at several scales, turned over and in other light."""

    def __init__(self, photographs: dict[str, Tensor], rng: torch.Generator) -> None:
        self.photographs, self.rng = list(photographs.values()), rng
        odds = {name: 0.5 if name in TEXTURES else 1.0 for name in photographs}
        self.odds = torch.tensor(list(odds.values()))

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=self.rng)

    def number(self, low: float, high: float) -> float:
        return float(self.uniform(low, high))

    def batch(self) -> Tensor:
        size, count = SIZES[int(self.number(0, len(SIZES)))]
        pieces = [self.field(size) if self.number(0, 1) < 0.1 else self.piece(size) for _ in range(count)]
        return torch.cat(pieces).clamp(-1, 1)

    def piece(self, size: int) -> Tensor:
        photograph = self.photographs[int(torch.multinomial(self.odds, 1, generator=self.rng))]
        shortest = min(photograph.shape[-2:])
        source = min(shortest, round(size * 2 ** self.number(-0.6, 1.2)))
        top, left = (int(self.number(0, length - source + 1)) for length in photograph.shape[-2:])
        piece = photograph[..., top : top + source, left : left + source]
        piece = F.interpolate(piece, (size, size), mode="bicubic", antialias=True)
        piece = piece.flip(-1) if self.number(0, 1) < 0.5 else piece
        piece = piece.transpose(-1, -2) if self.number(0, 1) < 0.25 else piece
        grey = piece.mean(1, keepdim=True)
        piece = grey + (piece - grey) * self.number(0.6, 1.4)
        gain = self.uniform(0.75, 1.15, 1, 3, 1, 1) * self.number(0.8, 1.1)
        return piece * gain + self.uniform(-0.15, 0.15, 1, 3, 1, 1)

    def field(self, size: int) -> Tensor:
        """Smooth random colours, down to a flat one: what latents that no encoder made should look like."""
        field = self.uniform(-0.7, 0.7, 1, 3, 1, 1)
        for coarse in (32, 16, 8, 4):
            grid = torch.randn(1, 3, size // coarse, size // coarse, generator=self.rng)
            grid = grid * 0.4 + grid.mean(1, keepdim=True)
            field = field + self.number(-0.2, 0.3) * F.interpolate(grid, (size, size), mode="bicubic")
        return field
