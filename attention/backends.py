"""The backends, what each can do, and which one runs a call."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from . import libraries
from .call import AttentionCall
from .online_backward import online_attention_with_gradients
from .products import onednn_linear
from .sdpa import HALF, fused_kernel_refusal, kernel_refusal, memory_refusal, sdpa_attention, sdpa_by_kernel
from .sliced import sliced_attention

log = logging.getLogger(__name__)
MOST_SAID = 256  # refusals that are remembered: a kernel's own errors may name sizes, of which there is no end
_said: set[tuple[str, str]] = set()


@dataclass(frozen=True)
class Abilities:
    """What a backend can do. Whatever is not named here, it can.

    Attributes:
        devices: types of device; empty = any.
        dtypes: of query, key and value; empty = any.
        one_dtype: query, key and value must have the same.
        channels: the most per head; 0 = any number.
        multiple: of which the channels must be.
        mask: takes masks.
        grouped: takes fewer key than query heads.
        gradient: has a backward.
        mask_gradient: has one for the mask too.
        other_values: values may have another number of channels than keys.
        contiguous: the channels must be.
        no_keys: takes a call without keys.
        full_precision: does not quantise.
        further: any other reason to refuse a call.
    """

    devices: tuple[str, ...] = ()
    dtypes: tuple[torch.dtype, ...] = ()
    one_dtype: bool = False
    channels: int = 0
    multiple: int = 1
    mask: bool = True
    grouped: bool = True
    gradient: bool = True
    mask_gradient: bool = True
    other_values: bool = True
    contiguous: bool = False
    no_keys: bool = True
    full_precision: bool = True
    further: Callable[[AttentionCall], str | None] = lambda call: None

    def refusal(self, call: AttentionCall) -> str | None:
        """The first reason why a call cannot be taken; None if it can."""
        return next((reason for refused, reason in self._checks(call) if refused), None) or self.further(call)

    def _checks(self, call: AttentionCall) -> list[tuple[bool, str]]:
        q, k, v, mask = call.q, call.k, call.v, call.mask
        channels = q.shape[-1]
        needs_mask_gradient = mask is not None and mask.requires_grad and torch.is_grad_enabled()
        return [
            (bool(self.devices) and q.device.type not in self.devices, f"it does not run on {q.device.type}"),
            (self.one_dtype and not q.dtype == k.dtype == v.dtype, "query, key and value dtypes differ"),
            (bool(self.dtypes) and q.dtype not in self.dtypes, f"it does not take {_name(q.dtype)}"),
            (bool(self.channels) and channels > self.channels, f"{channels} channels per head are too many"),
            (channels % self.multiple != 0, f"{channels} channels per head are no multiple of {self.multiple}"),
            (not self.mask and mask is not None, "it takes no mask"),
            (not self.grouped and q.shape[1] != k.shape[1], "it takes no grouped heads"),
            (not self.gradient and call.needs_grad, "it has no gradient"),
            (not self.mask_gradient and needs_mask_gradient, "it has no gradient for the mask"),
            (not self.other_values and v.shape[-1] != channels, "values have another number of channels than keys"),
            (self.contiguous and any(x.stride(-1) != 1 for x in (q, k, v)), "channels are not contiguous"),
            (not self.no_keys and k.shape[2] == 0, "there are no keys"),
            (call.low_precision_refused and not self.full_precision, "the model asks for full precision here"),
        ]


@dataclass(frozen=True)
class Backend:
    """A way to compute attention.

    Attributes:
        name: its name in the node's combo.
        tooltip: one line for people; backends with the same one are named together.
        compute: (q, k, v, scale, mask) -> (B, Nq, H, Dv).
        can: what it can do.
        foreign: another package's kernel, which may refuse what it was said to take.
    """

    name: str
    tooltip: str
    compute: Callable[..., Tensor]
    can: Abilities = Abilities()
    foreign: bool = False

    @property
    def exact(self) -> bool:
        """Whether it computes the formula up to float rounding."""
        return self.can.full_precision

    def refusal(self, call: AttentionCall) -> str | None:
        """The reason this backend cannot take the call, or None."""
        return self.can.refusal(call)

    def run(self, call: AttentionCall, **options: int) -> Tensor:
        """Computes the call; (B, Nq, H, Dv)."""
        return self.compute(call.q, call.k, call.v, call.scale, call.mask, **options)


# Tooltips that several backends share.
TORCHS_OWN = "torch's own"
A_PACKAGE = "those packages, if installed"
QUANTISED = "8-bit scores, faster but not exact"


@dataclass(frozen=True)
class Decision:
    """The backend that runs a call, and why it is that one."""

    backend: Backend
    reason: str


def _kernel(name: str) -> Backend:
    """torch's own attention by one kernel."""
    can = Abilities(one_dtype=True, no_keys=False, further=partial(kernel_refusal, name))
    return Backend(f"sdpa_{name}", TORCHS_OWN, partial(sdpa_by_kernel, kernel=name), can)


def _library(name: str, tooltip: str, compute: Callable[..., Tensor], **abilities: object) -> Backend:
    """Another package's kernel."""

    def missing(call: AttentionCall) -> str | None:
        return libraries.library_refusal(name, call.q.device)

    can = Abilities(  # these packages' kernels are written for CUDA, and partly for ROCm, which torch calls cuda
        devices=("cuda",), one_dtype=True, contiguous=True, no_keys=False, other_values=False, mask_gradient=False,
        further=missing, **abilities,  # type: ignore[arg-type]
    )  # fmt: skip
    return Backend(name, tooltip, compute, can, foreign=True)


# In the order of the node's combo, which takes its choices and its tooltip from here.
BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("sdpa", TORCHS_OWN, sdpa_attention, Abilities(one_dtype=True, no_keys=False)),
        _kernel("flash"),
        _kernel("efficient"),
        _kernel("cudnn"),
        _kernel("math"),  # the plain formula: holds the whole score matrix
        _library(
            "xformers", A_PACKAGE, libraries.xformers_attention,
            dtypes=(*HALF, torch.float32), grouped=False,
        ),
        _library(
            "flash_attn", A_PACKAGE, libraries.flash_attn_attention, dtypes=HALF, channels=256,
            multiple=8, mask=False,
        ),
        _library(
            "sage", QUANTISED, libraries.sage_attention, dtypes=HALF, channels=128,
            mask=False, gradient=False, full_precision=False,
        ),
        _library(
            "comfy_kitchen", QUANTISED, libraries.comfy_kitchen_attention,
            dtypes=(*HALF, torch.float32), channels=256, gradient=False, full_precision=False,
        ),
        Backend(
            "sliced", "a few query rows at a time; 512 of 4096 hold 13 % of the full matrix", sliced_attention,
            Abilities(gradient=False),
        ),
        Backend("online", "memory does not grow with the square of the tokens", online_attention_with_gradients),
    )
}  # fmt: skip

# Where a named backend refuses, the first of these that takes the call computes it; the other way round where torch
# would hold the whole matrix.
FALLBACKS = ("sdpa", "online")
# Online attention is faster than torch's fused kernel on a CPU where oneDNN multiplies faster than MKL, from this many
# queries and keys on. With two threads it is so only on a machine that does nothing else: they wait for each other at
# the end of every tile, and took twice the fused kernel's time beside other work.
ONLINE_QUERIES, ONLINE_KEYS, ONLINE_THREADS = 256, 1024, 1


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
    return _instead(name, refusal, call)


def compute(name: str, call: AttentionCall, *, slice_rows: int = 0) -> tuple[Tensor, Decision]:
    """Computes ``call`` by the backend :func:`choose` decides on; the packed output and the decision."""
    decision = choose(name, call)
    run = decision.backend.run
    if slice_rows and decision.backend.name == "sliced":
        run = partial(run, rows=slice_rows)
    if not decision.backend.foreign:
        return call.pack(run(call)), decision
    try:
        return call.pack(run(call)), decision
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, NotImplementedError, ValueError, TypeError, AssertionError) as error:
        failure = f"it failed: {str(error).strip().partition(chr(10))[0]}"
    decision = _instead(decision.backend.name, failure, call)
    return call.pack(decision.backend.run(call)), decision


def _automatic(call: AttentionCall) -> Decision:
    """Torch's fused kernel where it keeps O(N) memory, else online. Never a quantised kernel."""
    refusal = BACKENDS["sdpa"].refusal(call) or _whole_matrix(call)
    if refusal is not None:
        return _prefer_online(call, refusal)
    if _online_is_faster(call):
        return Decision(BACKENDS["online"], "faster than the fused kernel on this CPU")
    return Decision(BACKENDS["sdpa"], "fused kernel, O(N) memory")


def _whole_matrix(call: AttentionCall) -> str | None:
    """Why torch would hold all scores of a call; None where it does not."""
    refusal = fused_kernel_refusal(call.q, call.k, call.v)
    return refusal or memory_refusal(call.q.device, call.q.dtype, call.q.shape[-1], call.v.shape[-1])


def _online_is_faster(call: AttentionCall) -> bool:
    return (
        call.q.device.type == "cpu"
        and call.q.dtype != torch.float64
        and not call.needs_grad
        and call.q.shape[2] >= ONLINE_QUERIES
        and call.k.shape[2] >= ONLINE_KEYS
        and torch.get_num_threads() <= ONLINE_THREADS
        and onednn_linear() is not None
    )


def _prefer_online(call: AttentionCall, reason: str) -> Decision:
    if BACKENDS["online"].refusal(call) is None:
        return Decision(BACKENDS["online"], reason)
    return _first_exact(call, reason)


def _instead(name: str, refusal: str, call: AttentionCall) -> Decision:
    """What computes a call that a named backend does not; logged once for each reason that is remembered."""
    decision = _first_exact(call, f"{name} refused: {refusal}")
    if (name, refusal) not in _said:
        if len(_said) >= MOST_SAID:
            _said.clear()
        _said.add((name, refusal))
        log.info("Headroom: attention by %s instead of %s: %s", decision.backend.name, name, refusal)
    return decision


def _first_exact(call: AttentionCall, reason: str) -> Decision:
    for name in FALLBACKS if _whole_matrix(call) is None else reversed(FALLBACKS):
        if BACKENDS[name].refusal(call) is None:
            return Decision(BACKENDS[name], reason)
    raise RuntimeError(f"no exact attention takes q {tuple(call.q.shape)} {call.q.dtype}: {reason}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
