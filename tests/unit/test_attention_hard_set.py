"""Calls that go wrong in common attention code, through every backend as a user chooses it, against float64.

A backend that cannot take a call hands it to one that can: whatever is chosen, the result must be right.
"""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from headroom.attention import BACKENDS, AttentionCall, compute

from .reference import reference_attention, relative_error

CHOICES = ("auto", *BACKENDS)


@pytest.fixture(params=[False, True], autouse=True, ids=["", "as ComfyUI sets torch"])
def _half_precision_sums(request: pytest.FixtureRequest) -> Iterator[None]:
    """ComfyUI lets torch's math kernel sum in half precision, for the whole process."""
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(request.param)
    yield
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)


EXACT_BOUND = {torch.float64: 1e-13, torch.float32: 1e-6, torch.float16: 1.5e-3, torch.bfloat16: 6e-3}


def draw(*shape: int, size: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + shape[-2])) * size).to(dtype)


def operands(nq: int, nk: int, channels: int, heads: int = 2, **options: object) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(draw(2, heads, n, channels, **options) + 0.01 * i for i, n in enumerate((nq, nk, nk)))


def some_rows_empty(nq: int, nk: int) -> Tensor:
    keep = torch.rand(2, 1, nq, nk, generator=torch.Generator().manual_seed(5)) > 0.5
    keep[:, :, ::3] = False
    return keep


def additive(keep: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(keep.shape, dtype=dtype).masked_fill(~keep, -torch.inf)


Case = Callable[[], tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]]
CASES: dict[str, Case] = {
    "fp16 logits beyond 65504": lambda: (operands(50, 60, 64, size=200, dtype=torch.float16), None),
    "bf16 logits of ten thousand": lambda: (operands(50, 60, 64, size=40, dtype=torch.bfloat16), None),
    "boolean mask, rows without keys": lambda: (operands(31, 45, 40), some_rows_empty(31, 45)),
    "float mask of -inf, rows without keys": lambda: (
        operands(31, 45, 40), additive(some_rows_empty(31, 45), torch.float32),
    ),
    "half mask of -inf on half operands": lambda: (
        operands(31, 45, 40, dtype=torch.float16), additive(some_rows_empty(31, 45), torch.float16),
    ),
    "half mask of -inf on float operands": lambda: (
        operands(31, 45, 40), additive(some_rows_empty(31, 45), torch.float16),
    ),
    "bf16 mask on float operands": lambda: (operands(31, 45, 40), draw(1, 1, 31, 45).bfloat16()),
    "float mask of finfo.min": lambda: (
        operands(31, 45, 40),
        torch.zeros(2, 1, 1, 45).masked_fill(~some_rows_empty(3, 45)[:, :, 1:2], torch.finfo(torch.float32).min),
    ),
    "tokens that nothing divides": lambda: (operands(1031, 1097, 40, heads=1), None),
    "one key": lambda: (operands(40, 1, 40), None),
    "one query": lambda: (operands(1, 77, 40), None),
    "three channels": lambda: (operands(20, 30, 3), None),
    "thirty-seven channels": lambda: (operands(20, 30, 37), None),
    "300 channels": lambda: (operands(20, 30, 300), None),
    "no keys": lambda: (operands(20, 0, 8), None),
    "no queries": lambda: (operands(0, 20, 8), None),
    "channels that are not contiguous": lambda: (tuple(x[..., ::2] for x in operands(20, 30, 16)), None),
    "operands broadcast over heads": lambda: (
        tuple(x[:, :1].expand(-1, 4, -1, -1) for x in operands(20, 30, 16)), None,
    ),
    "grouped heads": lambda: (
        (draw(2, 4, 20, 16), draw(2, 2, 30, 16), draw(2, 2, 30, 16) + 1), some_rows_empty(20, 30),
    ),
    "values wider than keys": lambda: ((draw(2, 2, 20, 16), draw(2, 2, 30, 16), draw(2, 2, 30, 24)), None),
    "float64": lambda: (operands(20, 30, 16, dtype=torch.float64), some_rows_empty(20, 30)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", CHOICES)
def test_hard_call(name: str, case: str) -> None:
    (q, k, v), mask = CASES[case]()
    call = AttentionCall.bind(q, k, v, q.shape[1], mask, skip_reshape=True, skip_output_reshape=True)
    out, decision = compute(name, call)
    assert out.dtype == q.dtype
    assert out.shape == (*q.shape[:3], v.shape[3])
    expected = reference_attention(q, k, v, None, mask)
    if out.numel():
        assert relative_error(out, expected) <= EXACT_BOUND[q.dtype], decision


@pytest.mark.parametrize("name", CHOICES)
def test_bf16_is_as_near_as_the_fused_kernel(name: str) -> None:
    q, k, v = operands(1100, 1100, 40, heads=1, dtype=torch.bfloat16)
    call = AttentionCall.bind(q, k, v, 1, skip_reshape=True, skip_output_reshape=True)
    expected = reference_attention(q, k, v)
    fused = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert relative_error(compute(name, call)[0], expected) <= relative_error(fused, expected) * 1.001


@pytest.mark.parametrize("sign", [1, -1], ids=["overflow", "underflow"])
@pytest.mark.parametrize("name", CHOICES)
def test_scores_that_exp_cannot_take(name: str, sign: int) -> None:
    """All near 130 or all near -130; a score of that size is itself off by some 1e-5 in float32."""
    direction = draw(2, 2, 1, 64)
    q, k, v = (
        direction * 4 + 0.1 * draw(2, 2, 50, 64),
        direction * 4 * sign + 0.1 * draw(2, 2, 60, 64),
        draw(2, 2, 60, 64),
    )
    call = AttentionCall.bind(q, k, v, 2, skip_reshape=True, skip_output_reshape=True)
    assert relative_error(compute(name, call)[0], reference_attention(q, k, v)) <= 1e-4
