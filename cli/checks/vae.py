"""Low-Memory VAE: strips are the untiled result, and keep to a budget in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from ...host.core.device import GB
from ...host.vae.fallback import BudgetTooSmall
from ...host.vae.settings import VAESettings
from ...host.vae.wrapper import low_memory_vae
from ...memory.prediction import LiveBytes
from . import generated
from .attention import dtype_name
from .bench import Bench, decibels, noise_of, said_bytes, said_db
from .rows import Check, CheckOutcome, Found, held

EXACT_DB = 100.0  # in float32, or from float64 where the untiled result is further from that
AS_NEAR = 1.5  # times the untiled result's own error, where that is rounded
STRIPS = 4
TOO_NEAR = 0.95  # to the untiled peak, weights left out, for a budget to mean anything
ROOM = 0.75  # of the way from the least budget to untiled


@dataclass
class GeneratedCoding:
    """One direction: decode or encode.

    Attributes:
        name: the VAE's method.
        x: latents, or a picture.
    """

    bench: Bench
    name: str
    x: Tensor

    @classmethod
    def decode(cls, bench: Bench) -> GeneratedCoding:
        return cls(bench, "decode", generated.latent(bench.sizes.vae))

    @classmethod
    def encode(cls, bench: Bench) -> GeneratedCoding:
        return cls(bench, "encode", generated.picture(bench.sizes.vae.encoded_side))

    @property
    def side(self) -> int:
        sizes = self.bench.sizes.vae
        return sizes.side if self.name == "decode" else sizes.encoded_side

    def run(self, vae: Any) -> Tensor:
        result: Tensor = getattr(vae, self.name)(self.x)
        return result

    @cached_property
    def single(self) -> Tensor:
        """Untiled in float32."""
        with plain_float32():
            return self.run(self.bench.vae32)

    @cached_property
    def double(self) -> Tensor:
        """Untiled in float64."""
        return self.run(generated.vae(self.bench.vae_state, torch.float64))

    def in_strips(self, vae: Any) -> Tensor:
        return self.run(low_memory_vae(vae, VAESettings(method="exact", tile_size=self.side // STRIPS)))

    def least(self) -> int:
        """Bytes of the least budget, weights included."""
        try:
            self.run(low_memory_vae(self.bench.vae, VAESettings(method="exact", vram_budget_gb=1e-3)))
        except BudgetTooSmall as error:
            return int(error.least)
        raise RuntimeError("strips took a budget of one MB")

    def taken(self, vae: Any) -> tuple[int, Tensor]:
        """Bytes of a run at most, weights included, and its result."""
        found: list[Tensor] = []
        peak = taken(self.bench, vae, lambda: found.append(self.run(vae)))
        return peak, found[0]


def decode_checks(bench: Bench) -> Iterator[Check]:
    """Exactness and budget of the decode."""
    yield from _checks(GeneratedCoding.decode(bench))


def encode_checks(bench: Bench) -> Iterator[Check]:
    """The same of the encode."""
    yield from _checks(GeneratedCoding.encode(bench))


def _checks(coding: GeneratedCoding) -> Iterator[Check]:
    yield Check(f"float32, {coding.side} px", partial(_exact, coding))
    dtype = coding.bench.vae.vae_dtype
    if dtype != torch.float32:
        yield Check(f"{dtype_name(dtype)}, {coding.side} px", partial(_as_near, coding))
    yield Check(f"a budget, {coding.side} px", partial(_budget, coding))


def _exact(coding: GeneratedCoding) -> Found:
    coding.bench.say(f"{coding.name} in strips, float32")
    with plain_float32():
        result = coding.in_strips(coding.bench.vae32)
    said, warned = how(coding.bench), bool(notices(coding.bench))
    db = decibels(noise_of(result, coding.single))
    if db >= EXACT_DB:
        return held(not warned), f"{said_db(db)} from untiled; {said}", {"db": db}
    # Where channels lie last, as pixels come, a CPU's GroupNorm sums plainly; the strips' sums are more exact.
    try:
        untiled = noise_of(coding.single, coding.double)
    except (RuntimeError, TypeError):  # many GPUs have no float64
        return held(False), f"{said_db(db)} from untiled, and no float64 here to say whose error; {said}", {"db": db}
    ours = noise_of(result, coding.double)
    numbers = {"db": db, "db_strips": decibels(ours), "db_untiled": decibels(untiled)}
    exact = numbers["db_strips"] >= EXACT_DB or ours <= AS_NEAR * untiled
    text = f"{said_db(db)} from untiled; from float64 {said_db(numbers['db_strips'])}, untiled"
    text += f" {said_db(numbers['db_untiled'])}; {said}"
    return held(exact and not warned), text, numbers


def _as_near(coding: GeneratedCoding) -> Found:
    """Against float32: the untiled result is rounded as well."""
    bench = coding.bench
    bench.say(f"{coding.name} in strips, {dtype_name(bench.vae.vae_dtype)}")
    untiled = noise_of(coding.run(bench.vae), coding.single)
    ours = noise_of(coding.in_strips(bench.vae), coding.single)
    text = f"strips {decibels(ours):.1f} dB from float32, untiled {decibels(untiled):.1f} dB; {how(bench)}"
    numbers = {"db_strips": decibels(ours), "db_untiled": decibels(untiled)}
    return held(ours <= AS_NEAR * untiled and not notices(bench)), text, numbers


def _budget(coding: GeneratedCoding) -> Found:
    """Between the least and untiled."""
    bench = coding.bench
    bench.say(f"{coding.name} within a budget")
    whole, untiled = coding.taken(low_memory_vae(bench.vae, VAESettings(vram_budget_gb=1024.0)))
    least = coding.least()
    weights = int(bench.vae.patcher.model_size())
    if least - weights >= TOO_NEAR * (whole - weights):
        text = f"a picture so small takes {said_bytes(whole)} untiled, and {said_bytes(least)} in strips"
        return CheckOutcome.NOT_HERE, text, {"untiled": whole, "least": least}
    budget = int(least + ROOM * (whole - least))
    vae = low_memory_vae(bench.vae, VAESettings(method="exact", vram_budget_gb=budget / GB))
    taken, result = coding.taken(vae)
    text = (
        f"took {said_bytes(taken)} of the {said_bytes(budget)} allowed, untiled {said_bytes(whole)}, least"
        f" {said_bytes(least)}; {how(bench)}"
    )
    db = decibels(noise_of(result, untiled))
    numbers = {"budget": budget, "taken": taken, "untiled": whole, "least": least, "db": db}
    return held(taken <= budget and not notices(bench)), text, numbers


def taken(bench: Bench, vae: Any, work: Callable[[], object]) -> int:
    """Bytes that a VAE's work takes at most, weights included: as the device's allocator counts them, or, on a CPU,
    of all tensors that are alive at once."""
    if not bench.counts_bytes:
        return int(vae.patcher.model_size()) + followed(vae, work)
    bench.empty()
    before = bench.allocated()
    return bench.peak(work) - before


def followed(vae: Any, work: Callable[[], object]) -> int:
    """Bytes of the tensors that work makes, at the most alive at once."""
    tracker = LiveBytes("cpu")
    tracker.leave_out([*vae.first_stage_model.parameters(), *vae.first_stage_model.buffers()])
    with tracker:
        work()
    return int(tracker.live_peak)


def how(bench: Bench) -> str:
    """What ran, in the run log's words."""
    row = bench.logged()
    said = [*notices(bench), *(line for line in row.lines if "strips" in line or "in one piece" in line)]
    return said[0].partition(", planned")[0].removeprefix("exact: ") if said else row.outcome


def notices(bench: Bench) -> list[str]:
    return bench.logged().notices


@contextmanager
def plain_float32() -> Iterator[None]:
    """Within it, float32 is not rounded to the ten bits of TF32, as convolutions of NVIDIA's cards otherwise are."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
