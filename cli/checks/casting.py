"""Layerwise Casting: the bytes that are left, and how near the weights and the latents stay."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial

from torch import Tensor

from ...host.casting.cast import CastSettings, cast_model
from ...host.casting.quantised import why_not
from ...host.planning.strategies import CASTS
from ...offload import STORAGES
from .bench import Bench, decibels, noise_of, said_bytes
from .rows import Check, CheckOutcome, Found, held

TOLERANCE_DB = 1.0  # that a weight may be below what its storage promises of normally distributed ones
SCALES = 1.05  # times the bits of a weight, what is kept of it at most


def checks(bench: Bench) -> Iterator[Check]:
    """A row per storage."""
    stock = bench.sample(bench.model)
    for name in CASTS:
        yield Check(name, partial(_storage, bench, name, stock))


def _storage(bench: Bench, name: str, stock: Tensor) -> Found:
    lacking = why_not(STORAGES[name])
    if lacking is not None:
        return CheckOutcome.NOT_HERE, lacking, {}
    bench.say(f"casting to {name}")
    model, report = cast_model(bench.model, CastSettings(name))
    before, after = int(bench.model.model_size()), int(model.model_size())
    weight_db = statistics.median(layer.sqnr for layer in report.cast if layer.sqnr is not None)
    db = decibels(noise_of(bench.sample(model), stock))
    bits = 8 * bench.dtype.itemsize
    text = (
        f"{said_bytes(after)} of {said_bytes(before)} ({after / before:.2f}x); a weight {weight_db:.1f} dB,"
        f" the latents {db:.0f} dB"
    )
    numbers = {"bytes_before": before, "bytes_after": after, "weight_db": weight_db, "db": db}
    cast = sum(layer.bytes_after for layer in report.cast) / sum(layer.bytes_before for layer in report.cast)
    promised = STORAGES[name].weight_db or 0.0
    small = cast <= SCALES * STORAGES[name].bits / bits and after < before
    return held(small and weight_db >= promised - TOLERANCE_DB and db > 0), text, numbers
