"""How the numbers of a checkpoint are drawn.

Plain random weights would be useless: pictures of noise, attention that averages everything away. So every
network gets a *skeleton*, near-identity weights that carry a few signals from its first layer to its last
(the colours of a picture, the channels of a latent), and *branches*, random weights that disturb them by a
known amount. A photograph survives encoding and decoding, a sampler ends at latents of about unit size, and
a change in any layer shows in the result.

Each tensor is drawn from a seed made of its own key, so the same file comes out on every run and one tensor never
depends on another.
"""

from __future__ import annotations

import functools
import math
import re
import zlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Shape = tuple[int, ...]
Draw = Callable[[Shape, torch.Generator], Tensor]
Rules = Sequence[tuple[str, Draw]]
Weights = dict[str, Tensor]

# What a kernel of three does along one axis.
FIRST, CENTRE, LAST = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
BINOMIAL = (0.25, 0.5, 0.25)
FIRST_TWO, LAST_TWO = (0.5, 0.5, 0.0), (0.0, 0.5, 0.5)
CARRIERS = 4  # signals of a picture's skeleton: three colours and a constant


def generator(name: str) -> torch.Generator:
    """A random source that depends on the name alone."""
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def noise(gain: float = 1.0) -> Draw:
    """Random weights that keep unit variance (times ``gain``), whatever the fan-in."""

    def draw(shape: Shape, rng: torch.Generator) -> Tensor:
        return torch.randn(shape, generator=rng) * (gain / math.sqrt(max(1, math.prod(shape[1:]))))

    return draw


def around(mean: float | Tensor, spread: float) -> Draw:
    """Values scattered about a mean: biases, norm gains, modulation tables, embeddings."""
    return lambda shape, rng: mean + spread * torch.randn(shape, generator=rng)


def fixed(weight: Tensor, jitter: float = 0.0) -> Draw:
    """A given weight plus random weights of relative size ``jitter``."""

    def draw(shape: Shape, rng: torch.Generator) -> Tensor:
        return weight.reshape(shape) + noise(jitter)(shape, rng)

    return draw


def draw_default(shape: Shape, rng: torch.Generator, key: str) -> Tensor:
    if key.endswith("bias"):
        return around(0.0, 0.05)(shape, rng)
    if len(shape) == 1 or key.endswith("gamma"):
        return around(1.0, 0.05)(shape, rng)
    return noise()(shape, rng)


def fill(module: torch.nn.Module, rules: Rules, prefix: str = "") -> Weights:
    """One half-precision tensor per entry of the module's state, drawn by the first rule to fit its key."""
    weights = {}
    for key, value in module.state_dict().items():
        shape = tuple(value.shape)
        if not value.is_floating_point():
            weights[prefix + key] = torch.zeros(shape, dtype=value.dtype)
            continue
        draw = next((draw for pattern, draw in rules if re.search(pattern, key)), None)
        tensor = draw(shape, generator(key)) if draw else draw_default(shape, generator(key), key)
        weights[prefix + key] = tensor.expand(shape).to(torch.float16).contiguous()
    return weights


# --------------------------------------------------------------------------------------------- the skeleton


@functools.cache
def code(channels: int, carriers: int) -> Tensor:
    """How ``carriers`` signals are spread over ``channels``: orthogonally, at unit size, each row twice.

    The second time it is negated, which makes SiLU harmless: silu(x) - silu(-x) = x.
    """
    half = torch.randn(channels // 2, carriers, generator=generator(f"code {channels} {carriers}"))
    basis: Tensor = torch.linalg.qr(half).Q * math.sqrt(channels / (2 * carriers))
    return torch.cat([basis, -basis])


def read(channels: int, carriers: int) -> Tensor:
    """The inverse of :func:`code`."""
    return code(channels, carriers).T * (carriers / channels)


def bridge(out: int, into: int, carriers: int = CARRIERS) -> Tensor:
    """Pass everything on where the width stays, the carriers where it changes."""
    return torch.eye(out) if out == into else code(out, carriers) @ read(into, carriers)


def stencil(*axes: Sequence[float]) -> Tensor:
    """The outer product of one row of taps per axis."""
    kernel = torch.ones(())
    for taps in axes:
        kernel = kernel[..., None] * torch.tensor(taps)
    return kernel


def convolution(matrix: Tensor, *axes: Sequence[float]) -> Tensor:
    """A convolution that applies ``matrix`` to the channels and the taps to each axis."""
    weight: Tensor = torch.tensordot(matrix, stencil(*axes), dims=0)
    return weight


def relay(*axes: Sequence[float], jitter: float = 0.1) -> Draw:
    """A skeleton layer: :func:`bridge` between the layer's own widths."""

    def draw(shape: Shape, rng: torch.Generator) -> Tensor:
        return fixed(convolution(bridge(shape[0], shape[1]), *axes), jitter)(shape, rng)

    return draw
