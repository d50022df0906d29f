"""Bytes the tiled attentions hold, counted by torch's allocator."""

from functools import partial

import pytest
import torch

from headroom.attention import online_attention, sliced_attention
from headroom.benchmarks._harness import peak_bytes

FLOAT = 4


def operands(tokens: int, heads: int = 8, dim: int = 40) -> list[torch.Tensor]:
    return [torch.randn(1, heads, tokens, dim) for _ in range(3)]


def test_sliced_512_rows_of_4096_hold_a_seventh_of_the_full_matrix() -> None:
    q, k, v = operands(4096)
    full = 8 * 4096 * 4096 * FLOAT
    assert peak_bytes(lambda: sliced_attention(q, k, v, 0.15, rows=512)) <= 0.145 * full


@pytest.mark.parametrize("rows", [64, 256, 1000])
def test_sliced_memory_is_the_slice_and_the_output(rows: int) -> None:
    q, k, v = operands(2048)
    slice_bytes, output = rows * 2048 * FLOAT, q.numel() * FLOAT
    row_vectors = 16 * rows * 40 * FLOAT
    assert peak_bytes(lambda: sliced_attention(q, k, v, 0.15, rows=rows)) <= slice_bytes + output + row_vectors


def test_online_memory_does_not_grow_with_the_square() -> None:
    peaks = {}
    for tokens in (1024, 2048, 4096):
        qkv = operands(tokens, heads=2)
        peaks[tokens] = peak_bytes(partial(online_attention, *qkv, 0.15)) - qkv[0].numel() * FLOAT
    assert max(peaks.values()) <= 1.05 * min(peaks.values()), f"beyond the output: {peaks}"


def test_automatic_slices_stay_within_their_budget() -> None:
    q, k, v = operands(8192, heads=1)
    output = q.numel() * FLOAT
    assert peak_bytes(lambda: sliced_attention(q, k, v, 0.15)) <= output + (3 << 20)
