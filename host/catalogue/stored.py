"""How a public file stores the tensors of its networks: in which type, and with which scales beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import torch

from .networks import TensorShapes

BRAIN, EIGHT, FULL, BYTES = torch.bfloat16, torch.float8_e4m3fn, torch.float32, torch.uint8
WHOLE = {"bf16": BRAIN, "fp16": torch.float16, "fp32": FULL, "fp8": EIGHT}
# Matrices that are tables: quantised files leave them as they are.
TABLES = ("shared.weight", "embed_tokens.weight", "relative_attention_bias.weight", "embedding.weight")
NVFP4_GROUP = 16  # values that share a scale
ROWS, COLUMNS = 128, 4  # the scales of NVFP4 are kept in tiles of this size


class Tensor(NamedTuple):
    """One of a file.

    Attributes:
        shape, dtype: its own.
        data: its bytes where they say how another one is stored; None for weights.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    data: bytes | None = None

    @property
    def nbytes(self) -> int:
        """That it takes in the file."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def stored(shapes: TensorShapes, way: str, kept: Collection[str] = ()) -> dict[str, Tensor]:
    """The tensors of a file.

    Args:
        shapes: of its networks.
        way: one of :data:`WHOLE`, all in one type; or one of :data:`QUANTISED`, matrices in it and the rest in 16 bits.
        kept: in the names of matrices that stay in 16 bits too.
    """
    if way in WHOLE:
        return {name: Tensor(shape, WHOLE[way]) for name, shape in shapes.items()}
    result: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        if _is_matrix(name, shape) and not any(part in name for part in kept):
            result.update(QUANTISED[way](name.removesuffix("weight"), shape))
        else:
            result[name] = Tensor(shape, BRAIN)
    return result


def _is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and name.endswith(".weight") and not name.endswith(TABLES)


def _described(layer: str, **description: object) -> tuple[str, Tensor]:
    data = json.dumps(description).encode()
    return f"{layer}comfy_quant", Tensor((len(data),), BYTES, data)


def _fp8_scaled(layer: str, shape: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
    yield f"{layer}weight", Tensor(shape, EIGHT)
    yield f"{layer}weight_scale", Tensor((), FULL)
    yield _described(layer, format="float8_e4m3fn")


def _int8_convrot(layer: str, shape: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
    yield f"{layer}weight", Tensor(shape, torch.int8)
    yield f"{layer}weight_scale", Tensor((shape[0], 1), FULL)
    yield _described(layer, format="int8_tensorwise", convrot=True, convrot_groupsize=256)


def _nvfp4(layer: str, shape: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
    rows, columns = shape
    groups = -(-columns // NVFP4_GROUP)
    yield f"{layer}weight", Tensor((rows, columns // 2), BYTES)
    yield f"{layer}weight_scale", Tensor((-(-rows // ROWS) * ROWS, -(-groups // COLUMNS) * COLUMNS), EIGHT)
    yield f"{layer}weight_scale_2", Tensor((), FULL)
    yield _described(layer, format="nvfp4")


QUANTISED: dict[str, Callable[[str, tuple[int, ...]], Iterator[tuple[str, Tensor]]]] = {
    "fp8_scaled": _fp8_scaled, "int8_convrot": _int8_convrot, "nvfp4": _nvfp4,
}  # fmt: skip
