"""How large the generated models are: as large as the memory and the speed of this machine let them be in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

# What a run does with a model, counted in the work of one step or of one decode; it is little but these two.
STEPS, DECODES, ENCODES = 170, 100, 8
SHARE = 0.4  # of the seconds, for each of the two models
SHARE_OF_MEMORY = 0.5  # of what is free, for either of them alone
# Of the Stable Diffusion autoencoder at 512 x 512: operations of its decoder and encoder, and bytes of an untiled
# decode in float32 (benchmarks/vae.md).
DECODE_FLOPS, ENCODE_FLOPS, DECODE_BYTES = 2.5e12, 1.1e12, 950e6
FULL_WIDTH, FULL_SIDE = 128, 512
TEXT_TOKENS = 128
WORK_BYTES = 40  # a step's, for each token and channel of the model, about


@dataclass(frozen=True)
class ModelSize:
    """A diffusion model of Flux's kind.

    Attributes:
        width: channels, a multiple of 128.
        double, single: blocks of each kind.
        side: of the picture that it samples, in pixels.
    """

    width: int
    double: int
    single: int
    side: int

    @property
    def weights(self) -> int:
        """Their number in the blocks."""
        return self.width**2 * (36 * self.double + 15 * self.single)

    @property
    def tokens(self) -> int:
        return (self.side // 16) ** 2 + TEXT_TOKENS

    @property
    def flops(self) -> float:
        """Of a step."""
        attention = 4 * self.tokens**2 * self.width * (self.double + self.single)
        return 1.4 * self.weights * self.tokens + attention

    def memory(self, itemsize: int) -> int:
        """Bytes of the weights and of a step, about."""
        return itemsize * self.weights + WORK_BYTES * self.tokens * self.width


@dataclass(frozen=True)
class VAESize:
    """An autoencoder of Stable Diffusion's kind.

    Attributes:
        width: channels of its decoder at full resolution; the encoder has always 128.
        side: of the picture that it decodes, in pixels. Half of it is encoded where the decoder is narrow.
    """

    width: int
    side: int

    @property
    def encoded_side(self) -> int:
        return self.side if self.width == FULL_WIDTH else self.side // 2

    @property
    def flops(self) -> float:
        """Of all decodes and encodes of a run."""
        decode = DECODE_FLOPS * (self.width / FULL_WIDTH) ** 2 * (self.side / FULL_SIDE) ** 2
        return DECODES * decode + ENCODES * ENCODE_FLOPS * (self.encoded_side / FULL_SIDE) ** 2

    @property
    def memory(self) -> float:
        """Bytes of an untiled decode in float32, with the weights in two dtypes."""
        return DECODE_BYTES * (self.width / FULL_WIDTH) * (self.side / FULL_SIDE) ** 2 + 500e6


MODELS = (
    ModelSize(3072, 3, 6, 1024),
    ModelSize(1536, 3, 6, 512),
    ModelSize(1024, 3, 6, 512),
    ModelSize(768, 3, 6, 384),
    ModelSize(512, 3, 6, 256),
    ModelSize(384, 2, 4, 256),
    ModelSize(256, 2, 4, 128),
)
VAES = (
    VAESize(128, 1024),
    VAESize(128, 768),
    VAESize(128, 512),
    VAESize(64, 512),
    VAESize(64, 384),
    VAESize(32, 256),
    VAESize(32, 128),
)


@dataclass(frozen=True)
class Sizes:
    """Of both models."""

    model: ModelSize
    vae: VAESize

    def numbers(self) -> dict[str, Any]:
        return asdict(self)


def choose(
    seconds: float, products: float, convolutions: float, free: int, itemsize: int, narrow: bool = True
) -> Sizes:
    """The largest that can be had in time and in memory.

    Args:
        seconds: for everything.
        products, convolutions: operations per second of this device, as one waits for them.
        free: bytes of its memory.
        itemsize: bytes of a weight of the diffusion model.
        narrow: whether the host builds a decoder narrower than its encoder; else all are as wide.
    """
    room = SHARE_OF_MEMORY * free
    model = _largest(
        MODELS,
        [STEPS * size.flops <= SHARE * seconds * products and size.memory(itemsize) <= room for size in MODELS],
    )
    vaes = VAES if narrow else tuple(dict.fromkeys(replace(size, width=FULL_WIDTH) for size in VAES))
    vae = _largest(vaes, [size.flops <= SHARE * seconds * convolutions and size.memory <= room for size in vaes])
    return Sizes(model, vae)


def _largest(sizes: Sequence[Any], fits: Sequence[bool]) -> Any:
    return next((size for size, does in zip(sizes, fits) if does), sizes[-1])
