"""Casting layer by layer: which layers of the host's module, and one layer at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from ...offload import CastLayer, Layer, LayerKind, NoiseMeter, SkipRules, Storage, cast_plain, plan_layers, row_parts
from ...offload.whole import is_whole
from ..core.families import TOLD_BY
from .quantised import (
    can_quantise,
    exchange,
    host_kind,
    is_quantised,
    quantise,
    quantised_linear,
    set_plain,
    stored_bytes,
)

NOTHING_TO_GAIN = ("already ", "no smaller", "in another ")


def plan_cast(network: nn.Module, storage: Storage, skip: str, keep: frozenset[str] = frozenset()) -> list[Layer]:
    """Which layers of the host's module are cast, and why the others stay.

    Args:
        skip: rules, one per line.
        keep: groups that stay besides.

    Raises:
        ValueError: a rule that cannot be read, or rules that leave nothing to cast.
    """
    planned = plan_layers(network, SkipRules.parse(skip), host_kind, spare_convolutions=storage.bits < 16)
    layers = [_refined(layer, network, storage, keep) for layer in planned]
    castable = [layer for layer in layers if layer.kind in (LayerKind.LINEAR, LayerKind.CONVOLUTION)]
    if castable and not any(layer.reason is None or layer.reason.startswith(NOTHING_TO_GAIN) for layer in castable):
        raise ValueError("skip: these rules leave no layer to cast; remove one, or write auto")
    return layers


def _refined(layer: Layer, network: nn.Module, storage: Storage, keep: frozenset[str]) -> Layer:
    """Completes a layer's plan by what its weight and module tell."""
    if layer.reason is not None:
        return layer
    module: Any = network.get_submodule(layer.name)
    reason = _nothing_to_gain(module.weight, layer, storage)
    if reason is None and layer.kind is LayerKind.LINEAR and not isinstance(module, nn.Linear):
        reason = "already left in full by the file's own quantisation"
    if reason is None and storage.packed and TOLD_BY.search(layer.name):
        reason = "its shape tells ComfyUI the model: packed, a saved file would not be known"
    if reason is None and layer.group in keep:
        reason = "kept by sensitivity"
    return replace(layer, reason=reason)


def _nothing_to_gain(weight: Tensor, layer: Layer, storage: Storage) -> str | None:
    if not is_whole(weight):
        return "in another node pack's own format"
    if is_quantised(weight):
        return "already quantised"
    if weight.dtype.itemsize == 1:
        return f"already {_name(weight.dtype)}"
    if storage.plain is not None and weight.dtype.itemsize <= storage.plain_dtype.itemsize:
        return f"already {_name(weight.dtype)}" if weight.dtype == storage.plain_dtype else "no smaller"
    return None


@dataclass(frozen=True)
class Caster:
    """Casts one layer.

    Attributes:
        storage: to cast to.
        compute: dtype that a stored weight reads as.
        product: dtype of a linear layer's product; None: its input's.
        device: that does the work.
    """

    storage: Storage
    compute: torch.dtype
    product: torch.dtype | None
    device: torch.device

    def __call__(self, network: nn.Module, layer: Layer) -> CastLayer:
        """Exchanges a layer of ``network``, or the weight of one that has no quantised stand-in."""
        module: Any = network.get_submodule(layer.name)
        original: Tensor = module.weight.data
        source = original.to(self.device)
        if (problem := _unfit(source)) is not None:
            return CastLayer(layer, None, original.nbytes, original.nbytes, None, problem)
        if self.storage.scaled and can_quantise(module, self.storage):
            stored, quality = quantise(source, self.storage, self.compute)
            weight = stored.to(device=original.device)
            exchange(network, layer.name, self.linear(module, weight))
            return CastLayer(layer, self.storage.name, original.nbytes, stored_bytes(weight), quality)
        quality, plain = max(self._plain(source), key=lambda cast: cast[0])
        set_plain(module, plain.to(original.device))
        name = self.storage.name if self.storage.plain else f"{_name(plain.dtype)} without a scale"
        return CastLayer(layer, name, original.nbytes, plain.nbytes, quality)

    def linear(self, layer: nn.Module, weight: Tensor) -> nn.Module:
        """The quantised stand-in of a linear layer."""
        return quantised_linear(layer, weight, self.storage, self.product)

    def _plain(self, weight: Tensor) -> Iterator[tuple[float, Tensor]]:
        for dtype in self.storage.plain_dtypes:
            cast, meter = torch.empty_like(weight, dtype=dtype), NoiseMeter()
            for rows in row_parts(weight):
                cast[rows] = cast_plain(weight[rows], dtype)
                meter.add(weight[rows], cast[rows])
            yield meter.db, cast


def _unfit(weight: Tensor) -> str | None:
    """Why a weight cannot be cast; None if it can. One of zeros has no scale: it would be divided by zero."""
    if isinstance(weight, FakeTensor):
        return None
    low, high = (float(end) for end in torch.aminmax(weight))
    if not math.isfinite(high - low):
        return "holds infinite or undefined weights"
    return "all zeros" if low == high == 0 else None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
