"""What each kernel of a stretch of work does: operations, and bytes that it reads and writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

aten = torch.ops.aten
PRODUCT, CONVOLUTION, ATTENTION, FUNCTION, COPY = "product", "convolution", "attention", "function", "copy"


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    whole = query.shape[:2]  # heads may share keys and values
    return int(sdpa_flop_count(query.shape, (*whole, *key.shape[2:]), (*whole, *value.shape[2:])))


# torch's own formulas, which have none for its kernel on CPUs, and none for heads that share keys and values.
FUSED = [
    getattr(aten, f"_scaled_dot_product_{name}")
    for name in ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
]
FLOPS = {**flop_registry, **dict.fromkeys(FUSED, _attention)}
CONVOLUTIONS = (aten.convolution, aten._convolution)
# Functions of single numbers that a CPU computes by series: many operations for each byte.
FUNCTIONS = (
    aten.gelu, aten.silu, aten.sigmoid, aten.tanh, aten.exp, aten.erf, aten.sin, aten.cos, aten.pow, aten.log,
    aten.softplus, aten._softmax, aten._safe_softmax, aten.mish, aten.elu,
)  # fmt: skip


class KernelCost(NamedTuple):
    """One kernel's work.

    Attributes:
        kind: :data:`PRODUCT`, :data:`CONVOLUTION`, :data:`ATTENTION`, :data:`FUNCTION` of each number, or :data:`COPY`
            for all that only moves or adds numbers.
        dtype: of its result.
        flops: floating point operations of products, convolutions and attention; else 0.
        read, written: bytes.
        results: numbers.
        largest: bytes of the largest result in memory of its own; 0: it writes into what was there.
    """

    kind: str
    dtype: torch.dtype
    flops: int
    read: int
    written: int
    results: int
    largest: int


KernelCosts = Counter[KernelCost]


def flops_of(work: KernelCosts) -> int:
    """Floating point operations of products, convolutions and attention."""
    return sum(kernel.flops * count for kernel, count in work.items())


def scaled(work: KernelCosts, times: float) -> KernelCosts:
    """The same work so many times."""
    return KernelCosts({kernel: times * count for kernel, count in work.items()})


def tensors_of(*values: Any) -> Iterator[Tensor]:
    """The tensors among an operator's arguments or results; torch's own walk through trees takes ten times as long."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_of(*value)
        elif isinstance(value, dict):
            yield from tensors_of(*value.values())


def inner_tensors(tensor: Tensor) -> Iterable[Tensor]:
    """The tensors that hold a tensor's bytes: those a quantised one is made of, else itself."""
    if not is_traceable_wrapper_subclass(tensor):
        return (tensor,)
    return [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]


def count(work: KernelCosts, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Adds an operator that has run; one that only gives another view of a tensor does nothing."""
    results = list(tensors_of(result))
    if not results:
        return
    packet = func.overloadpacket
    formula = FLOPS.get(packet)
    given = list(tensors_of(args, kwargs))
    storages = set(_storages(given))
    fresh = [one for one in results if storages.isdisjoint(_storages((one,)))]
    if not fresh and not _writes(func):
        return
    if not given and packet in (aten.empty, aten.empty_strided):
        return
    written = sum(map(_size, results))
    work[
        KernelCost(
            _kind(packet, formula),
            results[0].dtype,
            0 if formula is None else int(formula(*args, **kwargs, out_val=result)),
            _read(packet, sum(map(_size, given)), written),
            written,
            results[0].numel(),
            max(map(_size, fresh), default=0),
        )
    ] += 1


def _storages(tensors: Iterable[Tensor]) -> Iterator[int]:
    return (inner.untyped_storage()._cdata for one in tensors for inner in inner_tensors(one))


def _kind(packet: Any, formula: Any) -> str:
    if packet in FUSED:
        return ATTENTION
    if packet in CONVOLUTIONS:
        return CONVOLUTION
    if formula is not None:
        return PRODUCT
    return FUNCTION if packet in FUNCTIONS else COPY


def _read(packet: Any, given: int, written: int) -> int:
    """Of a table no more is read than what is taken out of it."""
    return min(given, written) if packet in (aten.embedding, aten.index, aten.index_select, aten.gather) else given


def _writes(func: Any) -> bool:
    return any(one.alias_info is not None and one.alias_info.is_write for one in func._schema.arguments)


def _size(tensor: Tensor) -> int:
    """Bytes that differ: a value that is expanded along a dimension is there once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride()):
        count *= size if stride or size == 0 else 1
    return count * tensor.element_size()
