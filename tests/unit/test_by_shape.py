"""Results known from shapes, beside the kernels of a CPU and beside torch's own way on a card that is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

from headroom.memory.prediction import fake_mode
from headroom.memory.prediction.by_shape import RULES, VIEWS, by_shape, gives_a_view

aten = torch.ops.aten
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
Make = Callable[..., Tensor]
Given = tuple[Any, tuple[Any, ...], dict[str, Any]]


def cases(make: Make) -> Iterator[Given]:
    """An operator of each kind with what models give it: in order, in another order, of one picture, of none."""
    x, wide = make(2, 6, 8), make(2, 4, 6, 8)
    odd = make(1, 1, 5, 7)
    turned, last = x.transpose(1, 2), wide.to(memory_format=torch.channels_last)
    yield aten.view.default, (x, [12, 8]), {}
    yield aten.view.default, (x, [2, 6, 2, -1]), {}
    yield aten.view.default, (turned, [2, 2, 4, 6]), {}
    yield aten.view.default, (odd, [1, 5, 7, 1]), {}
    yield aten.view.default, (make(1, 6, 8).transpose(1, 2), [1, 1, 8, 6]), {}
    yield aten.view.default, (make(0, 6, 8), [0, 48]), {}
    yield aten.empty.memory_format, ([2, 3, 4],), {"device": torch.device("cpu"), "pin_memory": False}
    yield aten.empty.memory_format, ([0, 3],), {"dtype": x.dtype, "device": torch.device("cpu")}
    yield aten._unsafe_view.default, (make(12, 8), [2, 6, 8]), {}
    yield aten.t.default, (make(6, 8),), {}
    yield aten.t.default, (make(6),), {}
    for one in (x, turned, last):
        yield aten.transpose.int, (one, 1, -1), {}
        yield aten.unsqueeze.default, (one, -1), {}
        yield aten.slice.Tensor, (one, 1, 1, 4), {}
        yield aten.slice.Tensor, (one, 1, 0, 9223372036854775807, 2), {}
        yield aten.select.int, (one, 1, -1), {}
        yield aten.split.Tensor, (one, 4, 1), {}
        yield aten.split_with_sizes.default, (one, [1, one.shape[1] - 1], 1), {}
    yield aten.permute.default, (wide, [0, 2, 3, 1]), {}
    yield aten.expand.default, (make(1, 6, 1), [2, 6, 8]), {}
    yield aten.squeeze.dim, (odd, 1), {}
    yield aten.squeeze.dim, (x, 1), {}
    for rows in (1, 5):
        yield aten.mm.default, (make(rows, 6), make(6, 8)), {}
        yield aten.mm.default, (make(rows, 6), make(8, 6).t()), {}
        yield aten.mm.default, (make(6, rows).t(), make(8, 6).t()), {}
        yield aten.addmm.default, (make(8), make(rows, 6), make(8, 6).t()), {}
        yield aten.addmm.default, (make(rows, 8), make(6, rows).t(), make(6, 8)), {"beta": 2}
        yield aten.bmm.default, (make(2, rows, 6), make(2, 8, 6).transpose(1, 2)), {}
    yield aten.addmm.default, (make(1), make(5, 6), make(6, 8)), {}
    for one in (x, turned, make(6, 1, 8).transpose(0, 1)):
        yield aten.native_layer_norm.default, (one, [one.shape[-1]], make(one.shape[-1]), make(one.shape[-1]), 1e-5), {}
        yield aten.native_layer_norm.default, (one, list(one.shape[1:]), None, None, 1e-5), {}
    for one in (wide, last, odd, make(2, 4, 9)):
        n, c = one.shape[:2]
        size, groups = one[0, 0].numel(), max(1, c // 2)
        yield aten.native_group_norm.default, (one, make(c), make(c), n, c, size, groups, 1e-5), {}
        yield aten.native_group_norm.default, (one, None, None, n, c, size, groups, 1e-5), {}
    lone = make(6, 1, 8).transpose(0, 1)  # in order, with a stride that tells nothing
    for one in (x, turned, last, odd, lone, make(0, 3), make(())):
        yield aten.detach.default, (one,), {}
        yield aten.alias.default, (one,), {}
        yield aten.copy_.default, (make(one.shape), one), {}
        yield aten._to_copy.default, (one,), {}
        for dtype in DTYPES:
            yield aten.to.dtype, (one, dtype), {}
            yield aten.to.dtype, (one, dtype, False, True), {}
            yield aten._to_copy.default, (one,), {"dtype": dtype}
        yield aten.silu.default, (one,), {}
        yield aten.gelu.default, (one,), {"approximate": "tanh"}
        for func in (aten.add.Tensor, aten.mul.Tensor, aten.sub.Tensor):
            yield func, (one, one), {}
            yield func, (one, 2.0), {}
    yield aten.copy_.default, (x, make(8)), {}
    yield aten.add.Tensor, (x, make(8)), {"alpha": 2}
    yield aten.add.Tensor, (x, make(2, 6, 8)), {"alpha": 2}


def told(result: Any) -> list[Any]:
    several = result if isinstance(result, (list, tuple)) else (result,)
    return [
        (tuple(one.shape), one.stride(), one.storage_offset(), one.dtype, one.untyped_storage().nbytes())
        for one in several
    ]


def without_lone_strides(one: list[Any]) -> list[Any]:
    """Strides of dimensions of one, which mean nothing, are torch's kernels' to say."""
    return [(shape, [by for size, by in zip(shape, stride) if size != 1], *rest) for shape, stride, *rest in one]


def faked(value: Any, device: str) -> Any:
    """The same tensor without data, or the device itself. Call it in a fake mode."""
    if isinstance(value, torch.device):
        return torch.device(device)
    if not isinstance(value, Tensor):
        return value
    base = torch.empty(value.untyped_storage().nbytes() // value.element_size(), dtype=value.dtype, device=device)
    return base.as_strided(value.shape, value.stride(), value.storage_offset())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_as_the_kernels_of_a_cpu(dtype: torch.dtype) -> None:
    by_rule = 0
    for func, args, kwargs in cases(partial(torch.randn, dtype=dtype)):
        with torch.no_grad(), fake_mode():
            found = by_shape(func, *tree_map(lambda one: faked(one, "cpu"), (args, kwargs)))
        if found is NotImplemented:
            continue
        by_rule += 1
        assert told(found) == told(func(*args, **kwargs)), (func, args, kwargs)
    assert by_rule > 60


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_as_torch_tells_it_of_a_card(dtype: torch.dtype, device: str) -> None:
    rules = set()
    for func, args, kwargs in cases(partial(torch.randn, dtype=dtype)):
        with torch.no_grad(), fake_mode():
            there, named = tree_map(lambda one: faked(one, device), (args, kwargs))
            found = by_shape(func, there, named)
            if found is NotImplemented:
                continue
            theirs = func(*there, **named)
        rules.add(id(func))
        assert without_lone_strides(told(found)) == without_lone_strides(told(theirs)), (func, args, kwargs)
        for one, other in zip(
            *(result if isinstance(result, (list, tuple)) else (result,) for result in (found, theirs))
        ):
            assert type(one) is FakeTensor
            assert one.device == other.device
            views = {tensor.untyped_storage()._cdata for tensor in there if isinstance(tensor, Tensor)}
            assert (one.untyped_storage()._cdata in views) == (other.untyped_storage()._cdata in views)
            assert one.untyped_storage()._cdata in views or not gives_a_view(func)
    assert rules == set(RULES)


def test_what_goes_the_general_way() -> None:
    with torch.no_grad(), fake_mode() as mode:
        on_card, on_cpu = torch.empty(4, 4, device="cuda"), torch.empty(4, 4)
        half = torch.empty(4, 4, device="cuda", dtype=torch.float16)
        batch = torch.empty(4, 4, 4)
    real, constant = (
        torch.ones(4, 4),
        FakeTensor(mode, torch.empty(4, 4, device="meta"), "cpu", constant=torch.ones(4, 4)),
    )
    for one, other in ((on_card, on_cpu), (on_card, half), (on_card, real), (real, real), (constant, on_cpu)):
        with fake_mode():
            assert by_shape(aten.mm.default, (one, other), {}) is NotImplemented
            assert by_shape(aten.add.Tensor, (one, other), {}) is NotImplemented
    for func, args in (
        (aten.view.default, (on_cpu.t(), [16])),
        (aten.mm.default, (on_cpu, torch.empty(3, 4, device="meta"))),
        (aten.unsqueeze.default, (on_cpu, 9)),
        (aten.mm.default, (batch, batch)),
        (aten.bmm.default, (on_cpu, on_cpu)),
        (aten.native_layer_norm.default, (on_cpu, [4], on_cpu, None, 1e-5)),
        (aten.native_group_norm.default, (batch, on_cpu, None, 4, 4, 4, 2, 1e-5)),
        (aten.view.default, (constant, [16])),
        (aten.convolution.default, (on_cpu,)),
    ):
        assert by_shape(func, args, {}) is NotImplemented


def test_views_are_told_from_others() -> None:
    assert all(map(gives_a_view, VIEWS))
    assert not any(gives_a_view(func) for func in (aten.mm.default, aten.silu.default, aten.clone.default))
