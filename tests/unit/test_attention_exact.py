"""Every exact backend against float64, over every way the host's models call attention."""

import importlib
import itertools
from functools import partial

import pytest
import torch

from headroom.attention import BACKENDS, AttentionCall, compute

from ..nightly import grid
from .reference import reference_attention, relative_error

# Tiles far smaller than the operands, and sizes they do not divide, so that every seam between tiles is crossed.
SMALL_TILES = {"sliced": {"rows": 16}, "online": {"query_tile": 24, "key_tile": 32}}
PROBE = AttentionCall(*[torch.zeros(1, 4, 64, 20)] * 3, None, 1.0)
# Every exact backend that a CPU has.
KERNELS = {
    name: partial(backend.compute, **SMALL_TILES.get(name, {}))
    for name, backend in BACKENDS.items()
    if backend.exact and backend.refusal(PROBE) is None
}
LAYOUTS = ("flat", "heads first", "values with heads", "heads first, output too")
MASKS = (
    "none",
    "bool (Nq, Nk)",
    "float (Nq, Nk)",
    "bool (B, 1, Nk)",
    "float (B, 1, Nk)",
    "float (B, Nq, Nk)",
    "float (1, 1, 1, Nk)",
    "bool (B, 1, Nq, Nk)",
    "float (B, H, Nq, Nk)",
    "float (1, 1, 1, Nk) of finfo.min",
    "bool (Nq, Nk) with empty rows",
)
SIZES = ((64, 64), (67, 53), (1, 77), (130, 1))
BATCH, HEADS, DIM = 2, 4, 20


def make_mask(kind: str, nq: int, nk: int, generator: torch.Generator) -> torch.Tensor | None:
    if kind == "none":
        return None
    sizes = {"B": BATCH, "H": HEADS, "Nq": nq, "Nk": nk, "1": 1}
    shape = [sizes[name.strip()] for name in kind[kind.index("(") + 1 : kind.index(")")].split(",")]
    if kind.startswith("float"):
        if "finfo" in kind:
            keep = torch.rand(shape, generator=generator) > 0.4
            return torch.zeros(shape).masked_fill(~keep, torch.finfo(torch.float32).min)
        return torch.randn(shape, generator=generator) * 3
    mask = torch.rand(shape, generator=generator) > 0.4
    mask[..., 0] = True
    if "empty rows" in kind:
        mask[::3] = False
    return mask


def four_dimensional(mask: torch.Tensor | None) -> torch.Tensor | None:
    if mask is None or mask.ndim == 4:
        return mask
    return mask[None, None] if mask.ndim == 2 else mask[:, None]


def test_a_cpu_has_these() -> None:
    assert set(KERNELS) >= {"sdpa", "sdpa_flash", "sdpa_math", *SMALL_TILES}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("mask_kind", "layout"), grid(MASKS, LAYOUTS, each=2))
def test_against_float64(kernel: str, layout: str, mask_kind: str) -> None:
    """At night 5 kernels x 4 layouts x 11 masks x 4 sizes x grouped heads or not x scale or not = 3520 calls."""
    generator = torch.Generator().manual_seed(0)
    for (nq, nk), key_heads, scale in itertools.product(SIZES, (HEADS, HEADS // 2), (None, 0.7)):
        q = torch.randn(BATCH, nq, HEADS, DIM, generator=generator)
        k, v = (torch.randn(BATCH, nk, key_heads, DIM, generator=generator) for _ in range(2))
        mask = make_mask(mask_kind, nq, nk, generator)
        call = _bind(layout, q, k, v, mask, {} if scale is None else {"scale": scale})

        out = call.pack(KERNELS[kernel](call.q, call.k, call.v, call.scale, call.mask))

        reference = reference_attention(*(x.transpose(1, 2) for x in (q, k, v)), scale, four_dimensional(mask))
        expected = reference if "output" in layout else reference.transpose(1, 2).reshape(BATCH, nq, -1)
        assert out.shape == expected.shape
        assert out.dtype == q.dtype
        assert relative_error(out, expected) <= 1e-6, (nq, nk, key_heads, scale)


def _bind(layout: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask, options: dict) -> AttentionCall:
    if k.shape[2] != HEADS:
        options["enable_gqa"] = True
    if "heads first" in layout:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        options["skip_output_reshape"] = "output" in layout
        return AttentionCall.bind(q, k, v, HEADS, mask, skip_reshape=True, **options)
    q, k = q.flatten(2), k.flatten(2)
    v = v if layout == "values with heads" else v.flatten(2)
    return AttentionCall.bind(q, k, v, heads=HEADS, mask=mask, attn_precision=torch.float32, **options)


@pytest.mark.parametrize("kernel", ["sliced", "online"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 6e-4), (torch.bfloat16, 5e-3), (torch.float64, 1e-14)])
def test_other_dtypes(kernel: str, dtype: torch.dtype, bound: float) -> None:
    q, k, v = (torch.randn(1, 3, n, 40).to(dtype) for n in (70, 90, 90))
    out = KERNELS[kernel](q, k, v, 40**-0.5, None).transpose(1, 2)
    assert out.dtype == dtype
    assert relative_error(out, reference_attention(q, k, v)) < bound


@pytest.mark.parametrize("kernel", KERNELS)
def test_half_precision_logits_beyond_65504_stay_finite(kernel: str) -> None:
    q, k, v = (torch.randn(1, 2, 50, 64) for _ in range(3))
    q, k, v = (q * 200).half(), (k * 200).half(), v.half()
    out = KERNELS[kernel](q, k, v, 64**-0.5, None).transpose(1, 2)
    assert relative_error(out, reference_attention(q, k, v)) < 2e-3


@pytest.mark.parametrize("kernel", ["sliced", "online"])
@pytest.mark.parametrize("masked", [False, True])
def test_nan_stays_in_its_row(kernel: str, masked: bool) -> None:
    q, k, v = (torch.randn(1, 1, 40, 8) for _ in range(3))
    q[0, 0, 5] = torch.nan
    mask = torch.zeros(1, 1, 1, 40) if masked else None
    out = KERNELS[kernel](q, k, v, 1.0, mask)[0, :, 0]
    assert out[5].isnan().all()
    assert not out[torch.arange(40) != 5].isnan().any()


@pytest.mark.parametrize("kernel", ["sliced", "online"])
def test_values_wider_than_keys(kernel: str) -> None:
    q, k, v = torch.randn(1, 2, 30, 8), torch.randn(1, 2, 40, 8), torch.randn(1, 2, 40, 24)
    out = KERNELS[kernel](q, k, v, 8**-0.5, None).transpose(1, 2)
    assert relative_error(out, reference_attention(q, k, v)) < 1e-6


@pytest.mark.parametrize("kernel", ["sliced", "online"])
@pytest.mark.parametrize(("nq", "nk", "batch"), [(0, 8, 1), (8, 0, 1), (8, 8, 0)])
def test_empty_operands_give_zeros(kernel: str, nq: int, nk: int, batch: int) -> None:
    q, k, v = (torch.randn(batch, 2, n, 4) for n in (nq, nk, nk))
    out = KERNELS[kernel](q, k, v, 1.0, None)
    assert out.shape == (batch, nq, 2, 4)
    assert (out == 0).all()


@pytest.mark.parametrize("name", ["sliced", "online"])
@pytest.mark.parametrize("mask_shape", [None, (1, 1, 6, 9), (90, 1, 1, 9), (1, 3, 6, 9), (90, 3, 6, 9)])
@pytest.mark.parametrize("key_heads", [3, 1])
def test_many_short_sequences_are_computed_as_one(
    name: str, mask_shape: tuple[int, ...] | None, key_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A video's attention over time: one tile for each of them took 25 times as long as torch's kernel."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(90, tokens, heads, 8, generator=generator).transpose(1, 2)
        for tokens, heads in ((6, 3), (9, key_heads), (9, key_heads))
    )
    mask = None if mask_shape is None else torch.randn(mask_shape, generator=generator)
    module = importlib.import_module(f"headroom.attention.{name}")
    tiles, tile = [], module.score_tile
    monkeypatch.setattr(module, "score_tile", lambda *given: tiles.append(1) or tile(*given))
    monkeypatch.setattr(importlib.import_module("headroom.attention.tiles"), "CPU_TOGETHER", 40 * 3 * 9 * 9)
    out = BACKENDS[name].run(AttentionCall(q, k, v, mask, 0.3))
    assert relative_error(out.transpose(1, 2), reference_attention(q, k, v, 0.3, mask)) <= 2e-6
    assert key_heads == 1 or len(tiles) == 3, "90 sequences, 40 at a time"


def test_keys_of_one_batch_serve_all_queries() -> None:
    q, k, v = torch.randn(3, 2, 10, 4), torch.randn(1, 2, 12, 4), torch.randn(1, 2, 12, 4)
    call = AttentionCall.bind(q, k, v, 2, skip_reshape=True, skip_output_reshape=True)
    expected = reference_attention(q, k.expand(3, -1, -1, -1), v.expand(3, -1, -1, -1))
    for name in BACKENDS:
        assert relative_error(compute(name, call)[0], expected) < 1e-6
