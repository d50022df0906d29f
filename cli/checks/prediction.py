"""What was predicted beside what was measured, from the rows that a Memory Report shows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ...host.attention.backend import apply_attention
from ...host.planning.rows import ask
from ...host.vae.settings import VAESettings
from ...host.vae.wrapper import low_memory_vae
from ...memory.prediction.forecast import SPREAD_CPU, SPREAD_GPU
from .bench import Bench, said_bytes
from .rows import Check, CheckOutcome, Found, held
from .vae import GeneratedCoding

LITTLE = 2**18  # bytes that a model keeps from one call to the next


def checks(bench: Bench) -> Iterator[Check]:
    """Bytes beyond the weights of a step, of a decode, of strips."""
    yield Check("a sampling step", partial(_step, bench))
    yield Check("a decode in one piece", partial(_decode, bench, "auto"))
    yield Check("a decode in strips", partial(_decode, bench, "exact"))


def _step(bench: Bench) -> Found:
    bench.say("prediction of a step")
    model = apply_attention(bench.model, backend="auto")
    bench.sample(model)  # libraries load
    bench.sample(model)
    return _beside(bench)


def _decode(bench: Bench, method: str) -> Found:
    bench.say("prediction of a decode")
    coding = GeneratedCoding.decode(bench)
    budget = 1024.0 if method == "auto" else 0.0
    strips = 0 if method == "auto" else coding.side // 4
    vae = low_memory_vae(bench.vae, VAESettings(method=method, vram_budget_gb=budget, tile_size=strips))
    coding.run(vae)
    coding.run(vae)
    return _beside(bench)


def _beside(bench: Bench) -> Found:
    row = bench.logged()
    ask(row)
    if row.live is None or row.predicted is None:
        missing = "measured" if row.live is None else "predicted"
        return CheckOutcome.NOT_HERE, f"it is not {missing} on {bench.device.type}", {}
    measured, predicted = row.live, row.predicted
    # An allocator counts what kernels hold inside as well; on a CPU tensors are followed one by one.
    low, high = predicted.live, predicted.activations if bench.counts_bytes else predicted.live
    numbers = {"measured": measured, "predicted": high, "predicted_tensors": low, "bound": predicted.bound}
    share = SPREAD_GPU if bench.counts_bytes else SPREAD_CPU
    if predicted.bound:
        text = f"{said_bytes(measured)} beyond the weights, planned {said_bytes(high)} at most"
        return held(measured <= high + LITTLE), text, numbers
    between = said_bytes(high) if low == high else f"{said_bytes(low)} in tensors, {said_bytes(high)} with kernels"
    text = f"{said_bytes(measured)} beyond the weights, predicted {between}"
    return held((1 - share) * low - LITTLE <= measured <= (1 + share) * high + LITTLE), text, numbers
