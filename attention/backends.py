"""The exact backends, what each can do, and which one runs a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from .call import AttentionCall
from .online import online_attention
from .sdpa import fused_kernel_refusal, sdpa_attention
from .sliced import sliced_attention

# Devices for which torch ships a fused SDPA kernel with O(N) memory.
FUSED_DEVICES = ("cpu", "cuda", "xpu")


@dataclass(frozen=True)
class Constraint:
    """One thing a backend needs of a call: ``meets`` decides, ``reason`` says what is missing."""

    meets: Callable[[AttentionCall], bool]
    reason: str


@dataclass(frozen=True)
class Backend:
    """An exact way to compute attention.

    Attributes:
        name: its name in the node's combo.
        summary: one line for people.
        compute: (q, k, v, scale, mask) -> (B, Nq, H, Dv).
        constraints: what it needs of a call.
    """

    name: str
    summary: str
    compute: Callable[..., Tensor]
    constraints: tuple[Constraint, ...] = ()

    def refusal(self, call: AttentionCall) -> str | None:
        """The reason this backend cannot take the call, or None."""
        return next((c.reason for c in self.constraints if not c.meets(call)), None)

    def run(self, call: AttentionCall, **options: int) -> Tensor:
        """Computes the call; (B, Nq, H, Dv)."""
        return self.compute(call.q, call.k, call.v, call.scale, call.mask, **options)


@dataclass(frozen=True)
class Decision:
    """The backend that runs a call, and why it is that one."""

    backend: Backend
    reason: str


ONE_DTYPE = Constraint(lambda c: c.q.dtype == c.k.dtype == c.v.dtype, "query, key and value dtypes differ")
NO_GRADIENT = Constraint(lambda c: not c.needs_grad, "it has no backward yet")
HAS_KEYS = Constraint(lambda c: c.k.shape[2] > 0, "there are no keys")

BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("sdpa", "torch's fused kernel", sdpa_attention, (ONE_DTYPE, HAS_KEYS)),
        Backend("sliced", "query rows against all keys", sliced_attention, (NO_GRADIENT,)),
        Backend("online", "query and key tiles, running softmax", online_attention, (NO_GRADIENT,)),
    )
}

# Where a named backend refuses, the first of these that takes the call computes it.
FALLBACKS = ("sdpa", "online")


def choose(name: str, call: AttentionCall) -> Decision:
    """Decides which backend computes ``call``.

    Args:
        name: "auto" or a key of :data:`BACKENDS`.

    Raises:
        ValueError: an unknown name.
        RuntimeError: no backend takes the call.
    """
    if name == "auto":
        return _automatic(call)
    if name not in BACKENDS:
        raise ValueError(f"backend '{name}' is unknown; choose one of auto, {', '.join(BACKENDS)}")
    refusal = BACKENDS[name].refusal(call)
    if refusal is None:
        return Decision(BACKENDS[name], "chosen")
    return _first_exact(call, f"{name} refused: {refusal}")


def compute(name: str, call: AttentionCall, *, slice_rows: int = 0) -> tuple[Tensor, Decision]:
    """Computes ``call`` by the backend :func:`choose` decides on; the packed output and the decision."""
    decision = choose(name, call)
    run = decision.backend.run
    if slice_rows and decision.backend.name == "sliced":
        run = partial(run, rows=slice_rows)
    return call.pack(run(call)), decision


def _automatic(call: AttentionCall) -> Decision:
    """Torch's fused kernel where it keeps O(N) memory, else online. Never a quantised kernel."""
    if call.q.device.type not in FUSED_DEVICES:
        return _prefer_online(call, f"{call.q.device.type} has no fused kernel with O(N) memory")
    refusal = BACKENDS["sdpa"].refusal(call) or fused_kernel_refusal(call.q, call.k, call.v)
    if refusal is not None:
        return _prefer_online(call, refusal)
    return Decision(BACKENDS["sdpa"], "fused kernel, O(N) memory")


def _prefer_online(call: AttentionCall, reason: str) -> Decision:
    if BACKENDS["online"].refusal(call) is None:
        return Decision(BACKENDS["online"], reason)
    return _first_exact(call, reason)


def _first_exact(call: AttentionCall, reason: str) -> Decision:
    for name in FALLBACKS:
        if BACKENDS[name].refusal(call) is None:
            return Decision(BACKENDS[name], reason)
    raise RuntimeError(f"no exact attention takes q {tuple(call.q.shape)} {call.q.dtype}: {reason}")
