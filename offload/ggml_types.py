"""How GGML stores weights: of each type its number in files, how many values are a block, and the bytes of one.

Types and numbers: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; 40 to 42, which it does not have yet, and
what a block holds: the structures of ``ggml.h`` and ``ggml-common.h`` beside it. Two bytes of a block are a scale, or
a least value, in float16.
"""

from __future__ import annotations

from typing import NamedTuple


class GGMLType(NamedTuple):
    """Attributes:
    name: as people write it.
    block: values along a row that are stored together.
    bytes: of a block.
    """

    name: str
    block: int
    bytes: int

    @property
    def bits(self) -> float:
        """Of one weight, its share of scales included."""
        return 8 * self.bytes / self.block


K = 256  # values of a superblock
GGML_TYPES = {
    0: GGMLType("F32", 1, 4),
    1: GGMLType("F16", 1, 2),
    2: GGMLType("Q4_0", 32, 2 + 16),
    3: GGMLType("Q4_1", 32, 4 + 16),
    6: GGMLType("Q5_0", 32, 2 + 4 + 16),
    7: GGMLType("Q5_1", 32, 4 + 4 + 16),
    8: GGMLType("Q8_0", 32, 2 + 32),
    9: GGMLType("Q8_1", 32, 4 + 32),
    10: GGMLType("Q2_K", K, 4 + K // 16 + K // 4),
    11: GGMLType("Q3_K", K, 2 + 12 + K // 8 + K // 4),
    12: GGMLType("Q4_K", K, 4 + 12 + K // 2),
    13: GGMLType("Q5_K", K, 4 + 12 + K // 8 + K // 2),
    14: GGMLType("Q6_K", K, 2 + K // 16 + K // 4 + K // 2),
    15: GGMLType("Q8_K", K, 4 + 2 * (K // 16) + K),  # its scale is float32, its sums are of 16 bits
    16: GGMLType("IQ2_XXS", K, 2 + K // 4),
    17: GGMLType("IQ2_XS", K, 2 + K // 32 + K // 4),
    18: GGMLType("IQ3_XXS", K, 2 + K // 8 + K // 4),
    19: GGMLType("IQ1_S", K, 2 + K // 16 + K // 8),
    20: GGMLType("IQ4_NL", 32, 2 + 16),
    21: GGMLType("IQ3_S", K, 2 + K // 64 + K // 8 + K // 32 + K // 4),
    22: GGMLType("IQ2_S", K, 2 + K // 32 + K // 32 + K // 4),
    23: GGMLType("IQ4_XS", K, 2 + 2 + K // 64 + K // 2),
    24: GGMLType("I8", 1, 1),
    25: GGMLType("I16", 1, 2),
    26: GGMLType("I32", 1, 4),
    27: GGMLType("I64", 1, 8),
    28: GGMLType("F64", 1, 8),
    29: GGMLType("IQ1_M", K, K // 32 + K // 16 + K // 8),
    30: GGMLType("BF16", 1, 2),
    34: GGMLType("TQ1_0", K, 2 + 4 + 48),  # five values of three states in a byte, four in the last ones
    35: GGMLType("TQ2_0", K, 2 + K // 4),
    39: GGMLType("MXFP4", 32, 1 + 16),
    40: GGMLType("NVFP4", 64, 4 + 32),  # a scale of 8 bits for every 16 values
    41: GGMLType("Q1_0", 128, 2 + 16),
    42: GGMLType("Q2_0", 64, 2 + 16),
}
