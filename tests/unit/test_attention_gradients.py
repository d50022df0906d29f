"""The backward of online attention: against finite differences, and against autograd through the formula."""

import pytest
import torch
from torch import Tensor

from headroom.attention import AttentionCall, choose, online_attention_with_gradients

from ..nightly import grid, some_of
from .reference import reference_attention, relative_error

TILES = {"query_tile": 5, "key_tile": 4}
SHAPES = {  # batch, heads, key heads, queries, keys, channels, channels of the values
    "even": (1, 2, 2, 10, 8, 4, 4),
    "tiles do not divide": (2, 2, 2, 11, 9, 3, 5),
    "heads in groups": (1, 4, 2, 7, 9, 4, 4),
    "one key": (1, 1, 1, 6, 1, 3, 3),
}


def operands(shape: str, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    b, heads, key_heads, nq, nk, d, dv = SHAPES[shape]
    sizes = ((b, heads, nq, d), (b, key_heads, nk, d), (b, key_heads, nk, dv))
    return [torch.randn(size, dtype=dtype, requires_grad=True) for size in sizes]


def masks(shape: str) -> dict[str, Tensor | None]:
    b, heads, _, nq, nk, _, _ = SHAPES[shape]
    keep = torch.rand(b, 1, nq, nk) > 0.3
    keep[..., 0] = True
    empty = keep.clone()
    empty[:, :, ::3] = False
    return {
        "none": None,
        "bool": keep,
        "float": torch.randn(1, heads, nq, nk, dtype=torch.float64),
        "keys": torch.randn(b, 1, 1, nk, dtype=torch.float64),
        "empty rows": empty,
    }


def formula(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """As the reference, whose rows without keys have no gradient but NaN: here they see all keys and count for zero."""
    if mask is None or mask.dtype != torch.bool:
        return reference_attention(q, k, v, scale, mask)
    some = mask.any(-1, keepdim=True)
    return reference_attention(q, k, v, scale, mask | ~some) * some


@pytest.mark.parametrize(
    ("mask", "shape"), some_of(grid(["none", "bool", "float", "keys", "empty rows"], list(SHAPES)), 2)
)
def test_finite_differences(shape: str, mask: str) -> None:
    bias = masks(shape)[mask]
    assert torch.autograd.gradcheck(
        lambda q, k, v: online_attention_with_gradients(q, k, v, 0.6, bias, **TILES), operands(shape)
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mask", ["none", "bool", "float", "keys", "empty rows"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 1.5e-2)])
def test_against_autograd_through_the_formula(shape: str, mask: str, dtype: torch.dtype, bound: float) -> None:
    q, k, v = operands(shape, dtype)
    bias = masks(shape)[mask]
    out = online_attention_with_gradients(q, k, v, 0.6, bias, **TILES)
    weights = torch.randn(out.shape, dtype=dtype)
    found = torch.autograd.grad((out * weights).sum(), (q, k, v))
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    truth = torch.autograd.grad((formula(*exact, 0.6, bias).transpose(1, 2) * weights.double()).sum(), exact)
    for gradient, expected, operand in zip(found, truth, (q, k, v)):
        assert gradient.dtype == dtype
        assert gradient.shape == operand.shape
        # Where there is one key, the softmax does not move: its gradient is zero, which has no relative error.
        assert relative_error(gradient, expected) <= bound or (gradient - expected).abs().max() <= bound


def test_tiles_of_full_size_and_strided_operands() -> None:
    """As a model's linear layers leave them, longer than a tile."""
    q, k, v = (torch.randn(1, 1100, 2, 16, requires_grad=True) for _ in range(3))
    views = [x.transpose(1, 2) for x in (q, k, v)]
    out = online_attention_with_gradients(*views, 0.25)
    weights = torch.randn_like(out)
    found = torch.autograd.grad((out * weights).sum(), (q, k, v))
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    truth = reference_attention(*(x.transpose(1, 2) for x in exact), 0.25).transpose(1, 2)
    for gradient, expected in zip(found, torch.autograd.grad((truth * weights.double()).sum(), exact)):
        assert relative_error(gradient, expected) <= 1e-6


def test_short_sequences_that_are_computed_as_one() -> None:
    q, k, v = (
        torch.randn(9, tokens, 2, 4, dtype=torch.float64).transpose(1, 2).requires_grad_() for tokens in (3, 5, 5)
    )
    bias = torch.randn(9, 1, 1, 5, dtype=torch.float64)
    found = torch.autograd.grad(online_attention_with_gradients(q, k, v, 0.6, bias).square().sum(), (q, k, v))
    truth = torch.autograd.grad(formula(q, k, v, 0.6, bias).square().sum(), (q, k, v))
    assert all(relative_error(gradient, expected) <= 1e-12 for gradient, expected in zip(found, truth))


def test_some_operands_may_need_no_gradient() -> None:
    q, k, v = operands("even")
    online_attention_with_gradients(q, k.detach(), v.detach(), 0.5).sum().backward()
    assert q.grad is not None


@pytest.mark.parametrize(("mask", "shape"), some_of(grid(["float", "keys", "rows", "one"], list(SHAPES)), 2))
def test_the_gradient_of_a_mask_in_finite_differences(shape: str, mask: str) -> None:
    """Summed where it is broadcast: over the batch, the heads, the queries or the keys."""
    b, _, _, nq, _, _, _ = SHAPES[shape]
    more = {"rows": torch.randn(b, 1, nq, 1, dtype=torch.float64), "one": torch.randn(1, 1, 1, 1, dtype=torch.float64)}
    bias = {**masks(shape), **more}[mask]
    assert bias is not None
    learned = bias.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda q, k, v, m: online_attention_with_gradients(q, k, v, 0.6, m, **TILES), (*operands(shape), learned)
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 2e-6), (torch.bfloat16, 1.5e-2)])
def test_the_gradient_of_a_mask_against_autograd(shape: str, dtype: torch.dtype, bound: float) -> None:
    """Where only the mask is learned, as a bias of positions is."""
    q, k, v = (x.detach() for x in operands(shape, dtype))
    _, heads, _, nq, nk, _, _ = SHAPES[shape]
    bias = torch.randn(1, heads, nq, nk, dtype=dtype, requires_grad=True)
    out = online_attention_with_gradients(q, k, v, 0.6, bias, **TILES)
    weights = torch.randn(out.shape, dtype=dtype)
    (found,) = torch.autograd.grad((out * weights).sum(), bias)
    exact = bias.detach().double().requires_grad_()
    truth = reference_attention(q.double(), k.double(), v.double(), 0.6, exact).transpose(1, 2)
    (expected,) = torch.autograd.grad((truth * weights.double()).sum(), exact)
    assert (found.dtype, found.shape) == (dtype, bias.shape)
    assert relative_error(found, expected) <= bound or (found - expected).abs().max() <= bound


def test_a_mask_that_wants_a_gradient_stays_with_online() -> None:
    q = torch.randn(1, 2, 8, 4)
    mask = torch.randn(1, 1, 8, 8, requires_grad=True)
    assert choose("online", AttentionCall.bind(q, q, q, 2, mask, skip_reshape=True)).backend.name == "online"
