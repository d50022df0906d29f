"""CUDA's mixed precision on a CPU that stands for a card."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from headroom.memory.prediction.autocast import NAMES, RESULTS, CudaAutocast

# Composed of others, or named otherwise among torch's operators.
AS_OPERATOR = {"__pow__": "pow", "__rpow__": "pow", "interpolate": "upsample_nearest2d"}


def registered(key: str) -> set[str]:
    found = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return {name.removeprefix("aten::").partition(".")[0] for name in found}


@pytest.mark.parametrize("name", [*NAMES, *RESULTS])
def test_it_casts_what_cuda_casts_and_a_cpu_does_not(name: str) -> None:
    name = AS_OPERATOR.get(name, name)
    assert name in registered("AutocastCUDA")
    assert name not in registered("AutocastCPU")


def test_norms_and_powers_come_in_float32_and_products_in_16_bits() -> None:
    x = torch.ones(1, 4, 4, 4, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16), CudaAutocast():
        wide = [
            functional.group_norm(x, 2), functional.layer_norm(x, (4,)), x**2, x.pow(2), x.exp(), x.softmax(-1),
            x.sum(), torch.sum(x), torch.rsqrt(x), functional.softmax(x, -1),
            functional.interpolate(x, scale_factor=2.0),
        ]  # fmt: skip
        narrow = [x @ x, functional.linear(x, x[0, 0]), functional.silu(x), x.sum(dtype=torch.bfloat16)]
    assert {one.dtype for one in wide} == {torch.float32}
    assert {one.dtype for one in narrow} == {torch.bfloat16}


def test_without_autocast_it_changes_nothing() -> None:
    x = torch.ones(1, 4, 4, 4, dtype=torch.bfloat16)
    with CudaAutocast():
        found = (functional.group_norm(x, 2), x.softmax(-1))
    assert {one.dtype for one in found} == {torch.bfloat16}
