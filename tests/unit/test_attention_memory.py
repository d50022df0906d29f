"""Bytes the tiled attentions hold, counted by torch's allocator."""

from functools import partial

import pytest
import torch
from torch.nn import functional

from headroom.attention import online_attention, online_attention_with_gradients, sliced_attention
from headroom.benchmarks._harness import peak_bytes

FLOAT = 4


def operands(tokens: int, heads: int = 8, dim: int = 40) -> list[torch.Tensor]:
    return [torch.randn(1, heads, tokens, dim) for _ in range(3)]


def test_sliced_512_rows_of_4096_hold_a_seventh_of_the_full_matrix() -> None:
    q, k, v = operands(4096)
    full = 8 * 4096 * 4096 * FLOAT
    assert peak_bytes(lambda: sliced_attention(q, k, v, 0.15, rows=512)) <= 0.145 * full


@pytest.mark.parametrize("rows", [64, 256, 1000])
def test_sliced_memory_is_the_slice_one_heads_operands_and_the_output(rows: int) -> None:
    q, k, v = operands(2048)
    slice_bytes, output = rows * 2048 * FLOAT, q.numel() * FLOAT
    row_vectors, keys_and_values = 16 * rows * 40 * FLOAT, 2 * 2048 * 40 * FLOAT
    allowed = slice_bytes + output + row_vectors + keys_and_values
    assert peak_bytes(lambda: sliced_attention(q, k, v, 0.15, rows=rows)) <= allowed


def test_online_memory_does_not_grow_with_the_square() -> None:
    peaks = {}
    for tokens in (1024, 2048, 4096):
        qkv = operands(tokens, heads=2)
        peaks[tokens] = peak_bytes(partial(online_attention, *qkv, 0.15)) - qkv[0].numel() * FLOAT
    assert max(peaks.values()) <= 1.05 * min(peaks.values()), f"beyond the output: {peaks}"


def test_automatic_slices_stay_within_their_budget() -> None:
    q, k, v = operands(8192, heads=1)
    output, keys_and_values = q.numel() * FLOAT, 2 * k.numel() * FLOAT
    assert peak_bytes(lambda: sliced_attention(q, k, v, 0.15)) <= output + keys_and_values + (3 << 20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_online_beyond_the_fused_kernel(dtype: torch.dtype) -> None:
    """At most 10 MB more than SDPA, whatever the length: half dtypes are converted a tile at a time."""
    for tokens in (1024, 8192):
        q, k, v = (x.to(dtype) for x in operands(tokens, heads=2, dim=128))
        fused = peak_bytes(partial(functional.scaled_dot_product_attention, q, k, v))
        assert peak_bytes(partial(online_attention, q, k, v, 128**-0.5)) <= fused + 10e6


def test_the_backward_does_not_hold_the_score_matrix() -> None:
    """At most a twentieth of autograd through the plain formula at 4096 tokens."""
    q, k, v = (x.requires_grad_() for x in operands(4096, heads=2))

    def plain() -> None:
        weights = (q @ k.transpose(-1, -2) * 0.15).softmax(-1)
        torch.autograd.grad((weights @ v).sum(), (q, k, v))

    def online() -> None:
        torch.autograd.grad(online_attention_with_gradients(q, k, v, 0.15).sum(), (q, k, v))

    assert peak_bytes(online) <= 0.05 * peak_bytes(plain)
