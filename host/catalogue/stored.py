"""How a public file stores the tensors of its networks: in which type, and with which scales beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

import torch

from .networks import TensorShapes

BRAIN, EIGHT, FULL, BYTES = torch.bfloat16, torch.float8_e4m3fn, torch.float32, torch.uint8
WHOLE = {"bf16": BRAIN, "fp16": torch.float16, "fp32": FULL, "fp8": EIGHT}
# Matrices that are tables: most quantised files leave them as they are.
TABLES = ("shared.weight", "embed_tokens.weight", "relative_attention_bias.weight", "embedding.weight")
EXPERTS = ".experts."  # in the names of matrices of which there is one for each expert
NVFP4_GROUP = 16  # values that share a scale
SCALED_INPUTS = ("o_proj.", "down_proj.")  # of the layers that have no norm before them
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


def stored(
    shapes: TensorShapes, way: str, kept: Collection[str] = (), tables: str = "", lifted: Collection[str] = ()
) -> dict[str, Tensor]:
    """The tensors of a file.

    Args:
        shapes: of its networks.
        way: one of :data:`WHOLE`, all in one type; or one of :data:`QUANTISED`, matrices in it and the rest in 16 bits.
        kept: in the names of matrices that stay in 16 bits too.
        tables: how the matrices that are tables are stored, one of :data:`QUANTISED`; empty: in 16 bits.
        lifted: tensors that are in 16 bits, whatever the rest is in.
    """
    if way in WHOLE:
        return {name: Tensor(shape, BRAIN if name in lifted else WHOLE[way]) for name, shape in shapes.items()}
    result: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        its_way = tables if name.endswith(TABLES) else way
        if its_way and _is_matrix(name, shape) and name not in lifted and not any(part in name for part in kept):
            result.update(QUANTISED[its_way](name.removesuffix("weight"), shape))
        else:
            result[name] = Tensor(shape, BRAIN)
    return result


def to_lift(shapes: TensorShapes, quantised: Mapping[str, Tensor], lacking: int) -> Iterator[str]:
    """The first matrices that make up for bytes that a quantised file has more than if it had all of them quantised.

    Args:
        shapes: of its networks.
        quantised: its tensors, all of them quantised.
        lacking: bytes.
    """
    for name, shape in shapes.items():
        gain = 2 * torch.Size(shape).numel() - quantised[name].nbytes
        if _is_matrix(name, shape) and 0 < gain <= lacking:
            lacking -= gain
            yield name


def _is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Whether it is one, or a row of them that are one for each expert."""
    return name.endswith(".weight") and (len(shape) == 2 or (len(shape) == 3 and EXPERTS in name))


def _described(layer: str, **description: object) -> tuple[str, Tensor]:
    data = json.dumps(description).encode()
    return f"{layer}comfy_quant", Tensor((len(data),), BYTES, data)


def _fp8_scaled(layer: str, shape: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
    yield f"{layer}weight", Tensor(shape, EIGHT)
    yield f"{layer}weight_scale", Tensor((), FULL)
    yield _described(layer, format="float8_e4m3fn")


def _fp8_input(layer: str, shape: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
    """Whose inputs have a scale in the file, too."""
    yield from _fp8_scaled(layer, shape)
    yield f"{layer}input_scale", Tensor((), FULL)


def _int8_convrot(layer: str, shape: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
    yield f"{layer}weight", Tensor(shape, torch.int8)
    yield f"{layer}weight_scale", Tensor((shape[0], 1), FULL)
    yield _described(layer, format="int8_tensorwise", convrot=True, convrot_groupsize=256)


def _int8(layer: str, shape: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
    yield f"{layer}weight", Tensor(shape, torch.int8)
    yield f"{layer}weight_scale", Tensor((shape[0], 1), FULL)
    yield _described(layer, format="int8_tensorwise")


def _nvfp4(layer: str, shape: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
    *experts, rows, columns = shape
    groups = -(-columns // NVFP4_GROUP)
    yield f"{layer}weight", Tensor((*experts, rows, columns // 2), BYTES)
    yield f"{layer}weight_scale", Tensor((*experts, -(-rows // ROWS) * ROWS, -(-groups // COLUMNS) * COLUMNS), EIGHT)
    yield f"{layer}weight_scale_2", Tensor(tuple(experts), FULL)
    yield _described(layer, format="nvfp4", **({"num_experts": experts[0]} if experts else {}))


def _nvfp4_awq(layer: str, shape: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
    """What of the input's scales is not folded into the norm before a layer lies beside it."""
    yield from _nvfp4(layer, shape)
    if layer.endswith(SCALED_INPUTS):
        yield f"{layer}pre_quant_scale", Tensor(shape[1:], BRAIN)


QUANTISED: dict[str, Callable[[str, tuple[int, ...]], Iterator[tuple[str, Tensor]]]] = {
    "fp8_scaled": _fp8_scaled, "fp8_input": _fp8_input, "int8_convrot": _int8_convrot, "nvfp4": _nvfp4,
    "int8": _int8, "nvfp4_awq": _nvfp4_awq,
}  # fmt: skip
