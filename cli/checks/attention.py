"""Every attention backend in a whole model, against what ComfyUI itself computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ...attention import BACKENDS
from ...host.attention.backend import BACKEND_CHOICES, apply_attention
from ...memory.runlog import AttentionKey
from .bench import Bench, decibels, noise_of, said_db
from .rows import Check, CheckOutcome, Found, held

EXACT_DB = 80.0  # of a model in float32
ROUNDINGS = 4.0  # the stock result is one rounding from the truth, and so is ours: apart by two, and as much again


def checks(bench: Bench) -> Iterator[Check]:
    """A row per backend."""
    stock = bench.sample(bench.model)
    needed = EXACT_DB
    if bench.dtype != torch.float32:
        noise = _rounding(bench, stock)
        needed = decibels(noise * ROUNDINGS)
        yield Check(f"rounding to {dtype_name(bench.dtype)}", partial(_say_rounding, noise, needed))
    for name in BACKEND_CHOICES:
        yield Check(name, partial(_backend, bench, name, stock, needed))


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _rounding(bench: Bench, stock: Tensor) -> float:
    """How far the stock result is from the one that is computed in float32."""
    model = bench.model.clone()
    model.set_model_compute_dtype(torch.float32)
    return noise_of(stock, bench.sample(model))


def _say_rounding(noise: float, needed: float) -> Found:
    db = decibels(noise)
    text = f"ComfyUI's own is {said_db(db)} from float32, so exact means {needed:.0f} dB and more from it"
    return CheckOutcome.SEEN, text, {"db": db}


def _backend(bench: Bench, name: str, stock: Tensor, needed: float) -> Found:
    bench.say(f"attention {name}")
    result = bench.sample(apply_attention(bench.model, backend=name))
    counts = bench.logged().attention
    calls = counts.snapshot() if counts is not None else {}
    ran = Counter({key.backend: 0 for key in calls})
    for key, count in calls.items():
        ran[key.backend] += count
    if name in BACKENDS and not ran[name]:
        return CheckOutcome.NOT_HERE, _why_not(calls), {}
    noise = noise_of(result, stock)
    db = decibels(noise)
    text = said_db(db) + ("" if name in BACKENDS else f", by {', '.join(ran)}")
    numbers = {"db": db, "calls": dict(ran)}
    if any(backend in BACKENDS and not BACKENDS[backend].exact for backend in ran):
        return CheckOutcome.SEEN, f"{text}; it quantises, and is never chosen unasked", numbers
    return held(db >= needed), text, numbers


def _why_not(calls: dict[AttentionKey, int]) -> str:
    reason = next((key.reason for key in calls), "this model's attention did not reach it")
    return reason.partition(" refused: ")[2] or reason
