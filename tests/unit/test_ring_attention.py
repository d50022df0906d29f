"""Attention of a sequence in parts on several processes, over gloo: against float64, gradients, bytes and memory."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headroom.attention.ring import ring_bytes

from ..nightly import NIGHTLY
from .ring_rank import CASES, CHANNELS, VALUES, lengths, operands

SIZES = (1, 2, 3, 4) if NIGHTLY else (1, 4)
RANK = Path(__file__).with_name("ring_rank.py")
Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def rings(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Ranks]:
    """What each process of each ring found."""
    found = {}
    for size in SIZES:
        folder = tmp_path_factory.mktemp(f"ring{size}")
        command = (sys.executable, str(RANK))
        running = [
            subprocess.Popen([*command, str(rank), str(size), str(folder)], stderr=subprocess.PIPE, text=True)
            for rank in range(size)
        ]
        errors = [one.communicate(timeout=300)[1] for one in running]
        assert [one.returncode for one in running] == [0] * size, errors
        found[size] = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]
    return found


def reference(name: str, size: int) -> tuple[Tensor, list[Tensor]]:
    """The whole sequence in float64, on operands rounded to the case's dtype, and its gradients."""
    heads, key_heads, dtype, _ = CASES[name]
    q, k, v, mask, d_out = operands(name, size)
    given = [x.to(dtype).double().requires_grad_() for x in (q, k, v)]
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(dtype).double().requires_grad_()
    key, value = (x.repeat_interleave(heads // key_heads, 1) for x in given[1:])
    scores = given[0] @ key.transpose(-1, -2) * CHANNELS**-0.5
    if mask is not None:
        scores = scores + mask if mask.dtype != torch.bool else scores.masked_fill(~mask, -torch.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)
    out = (weights @ value).transpose(1, 2)
    out.backward(d_out.to(dtype).double())
    return out.detach(), [x.grad for x in (*given, mask) if x is not None and x.requires_grad]  # type: ignore[misc]


def joined(ranks: Ranks, name: str, what: int | None) -> Tensor:
    """The output, or a gradient: rows of all processes."""
    if what is None:
        return torch.cat([one[name]["out"] for one in ranks], 1)
    return torch.cat([one[name]["gradients"][what] for one in ranks], 2)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CASES)
def test_it_is_the_attention_of_the_whole(rings: dict[int, Ranks], name: str, size: int) -> None:
    """1e-6 in float32, by the greatest value, forward and backward."""
    out, gradients = reference(name, size)
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 2**-8}[CASES[name][2]]
    if name == "large scores":
        tolerance = 2 * rounding(name, size, out)
    assert (joined(rings[size], name, None) - out).abs().max() <= tolerance * out.abs().max()
    for number, gradient in enumerate(gradients):
        got = joined(rings[size], name, number)
        assert got.shape == gradient.shape
        greatest = max(float(gradient.abs().max()), 1.0)  # by a mask that shifts whole rows it is zero
        assert (got - gradient).abs().max() <= 2 * tolerance * greatest, number


def rounding(name: str, size: int, out: Tensor) -> float:
    """What float32 loses of the whole in one piece, by torch: scores of hundreds, whose own rounding weighs."""
    q, k, v, _, _ = (x if x is None else x.float() for x in operands(name, size))
    assert q is not None
    whole = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=CHANNELS**-0.5).transpose(1, 2)
    return float((whole - out).abs().max() / out.abs().max())


@pytest.mark.parametrize("size", SIZES)
def test_what_is_sent_is_what_was_said(rings: dict[int, Ranks], size: int) -> None:
    for name, (_, key_heads, dtype, _) in CASES.items():
        per_token = 2 * key_heads * (CHANNELS + VALUES)
        for rank, found in enumerate(rings[size]):
            expected = ring_bytes(lengths(size), rank, per_token * dtype.itemsize, per_token * max(4, dtype.itemsize))
            # Gradients come home through everybody: each process hands on each part's once.
            assert found[name]["sent"] == expected, (name, rank)


def test_memory_falls_with_the_processes(rings: dict[int, Ranks]) -> None:
    """In operands of a process's own part: 8 as alone, and keys, values and gradients of others: those that are there,
    from three processes on those that are under way too."""
    for size in SIZES:
        worst = max(found["peak"]["bytes"] for found in rings[size])
        part = 4096 * 2 * 32 * 4 / size  # bytes of one operand
        assert worst <= {1: 8.1, 2: 14.1}.get(size, 16.1) * part, (size, worst / part)


@pytest.mark.parametrize("size", SIZES)
def test_a_mask_of_other_columns_is_refused(rings: dict[int, Ranks], size: int) -> None:
    for found in rings[size]:
        assert found["refused"]["said"] == (
            f"mask: {4 * size + 1} columns; give one for each of the {4 * size} keys of all processes"
        )
