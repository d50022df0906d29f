"""Has the host answer its own questions about memory and devices for a card that a prediction is made for."""

from __future__ import annotations

import inspect
import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache, wraps
from types import ModuleType
from typing import Any

import comfy.model_management as model_management
import comfy.utils
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from ...memory.accelerator import is_here
from ...memory.prediction import Card, LiveBytes, repeated, turn
from ..core.internals import find

KITCHEN = "comfy_kitchen."  # its modules keep the matrix by which int8_convrot turns weights
LIGHTRICKS = "comfy.ldm.lightricks.model", "comfy.ldm.lightricks.embeddings_connector"
# Gates that choose experts for each token, and at which of their results the choice is.
GATES = {
    "comfy.ldm.hidream.model:MoEGate": 0, "comfy.ldm.hunyuan3dv2_1.hunyuandit:MoEGate": 0,
    "comfy.text_encoders.gpt_oss:GptOssTopKRouter": 1,
}  # fmt: skip
SAME_EXPERTS = "which experts a token chooses is not known: all are taken to choose the same, which takes most"
ATTENTION = "comfy.ldm.modules.attention"
CHOSEN = ("optimized_attention", "optimized_attention_masked")  # the host's names for its choice
LEAST_FREE = 2**20


@contextmanager
def answering(answers: dict[str, Callable[..., Any]]) -> Iterator[None]:
    """Within it, functions of the host's memory management give these answers, in this thread alone.

    Other threads of a running server get the true ones. What an older host does not have is left out. What the host
    and its libraries keep for all models is made anew: it must not become a tensor without data.
    """
    with turn(), ExitStack() as stack:
        for owner, name, function in uncached():
            stack.enter_context(replaced(owner, name, function))
        for name, answer in answers.items():
            if hasattr(model_management, name):
                stack.enter_context(replaced(model_management, name, answer))
        yield


def uncached() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Functions that cache tensors between calls, as (owner, name, the same function without a cache)."""
    for path in LIGHTRICKS:
        cached = find(f"{path}:generate_freq_grid_np")
        if hasattr(cached, "__wrapped__"):  # within another such answer it is wrapped twice
            yield sys.modules[path], "generate_freq_grid_np", inspect.unwrap(cached)
    for module in _with_rotations(len(sys.modules)):
        yield module, "_build_hadamard", _rotation


@lru_cache(1)
def _with_rotations(_: int) -> list[ModuleType]:
    """Those of comfy-kitchen that make one, of so many modules: an estimate asks some eighty times."""
    found = (one for path, one in list(sys.modules.items()) if path.startswith(KITCHEN))
    return [one for one in found if hasattr(one, "_build_hadamard")]


def _rotation(size: int, device: Any = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
    """In the place of comfy-kitchen's, where only its shape counts."""
    return torch.empty(size, size, dtype=dtype, device=device)


@contextmanager
def few_experts() -> Iterator[None]:
    """Within it, all tokens without data go to the same experts: which they would choose is not known, and none of
    these can get more, nor take more memory."""
    with ExitStack() as stack:
        for path, place in GATES.items():
            gate = find(path)
            if gate is not None:
                stack.enter_context(replaced(gate, "forward", _to_the_first(gate.forward, place)))
        yield


def _to_the_first(forward: Callable[..., Any], place: int) -> Callable[..., Any]:
    def choose(*args: Any, **kwargs: Any) -> Any:
        results = list(forward(*args, **kwargs))
        chosen: Tensor = results[place]
        if isinstance(chosen, FakeTensor):
            tokens, experts = chosen.shape
            results[place] = torch.arange(experts, device=chosen.device).repeat(tokens, 1)
        return tuple(results)

    return choose


def has_experts(network: nn.Module) -> bool:
    """Whether tokens of a network choose experts."""
    gates = tuple(gate for gate in map(find, GATES) if gate is not None)
    return any(isinstance(part, gates) for part in network.modules())


@contextmanager
def replaced(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """An attribute of the host's replaced for this thread; others get what was there."""
    # Not the thread's number, which a later thread may be given.
    here, true = threading.local(), getattr(owner, name)
    here.inside = True

    @wraps(true)
    def ask(*args: Any, **kwargs: Any) -> Any:
        return (function if getattr(here, "inside", False) else true)(*args, **kwargs)

    setattr(owner, name, ask)
    try:
        yield
    finally:
        here.inside = False  # also where another thread, which began later, puts it back behind this one
        setattr(owner, name, true)


@contextmanager
def seen_here(module: ModuleType, name: str, value: Any) -> Iterator[None]:
    """A variable of one of the host's modules has another value for this thread; others see, and set, its own."""
    if not hasattr(module, name):  # an older host
        yield
        return
    here, kind = threading.local(), type(module)
    here.inside = True

    def read(_: ModuleType) -> Any:
        return value if getattr(here, "inside", False) else vars(module)[name]

    def write(_: ModuleType, other: Any) -> None:
        vars(module)[name] = other

    # torch's and Python's own way to have a property of a module: its class may be exchanged.
    module.__class__ = type(kind.__name__, (kind,), {name: property(read, write)})
    try:
        yield
    finally:
        module.__class__ = kind


def free_memory_answer(card: Card, tracker: LiveBytes | None = None, elsewhere: int = 0) -> Callable[..., Any]:
    """What is free on the card by the time it is asked: the total without what is reserved and what lives.

    Args:
        elsewhere: bytes that the tracker counts, and that the host would leave off the card.
    """

    def get_free_memory(dev: Any = None, torch_free_too: bool = False) -> Any:
        live = tracker.live - elsewhere if tracker is not None else 0
        free = max(card.seen - card.reserved - live, LEAST_FREE)
        return (free, free) if torch_free_too else free

    return get_free_memory


def card_answers(card: Card) -> dict[str, Callable[..., Any]]:
    """What a host on this card says of its device, its dtypes and its attention; of this machine's own it says so
    itself. Nothing is loaded for a prediction, or let go: what is on the device belongs to the prompt that runs."""
    nothing_is_loaded: dict[str, Any] = {"load_models_gpu": lambda *_, **__: None, "free_memory": lambda *_, **__: []}
    if is_here(card.device):
        return nothing_is_loaded
    capability = card.capability or (0, 0)
    yes, no = (lambda *_, **__: True), (lambda *_, **__: False)
    cpu = torch.device("cpu")
    return {
        **nothing_is_loaded,
        "get_torch_device": lambda: card.device,
        "get_total_memory": lambda dev=None, torch_total_too=False: (card.seen,) * 2 if torch_total_too else card.seen,
        "is_nvidia": yes,
        "cpu_mode": no,
        "is_device_cpu": lambda device: getattr(device, "type", None) == "cpu",
        "xformers_enabled": no,
        "xformers_enabled_vae": no,
        "pytorch_attention_enabled": yes,
        "pytorch_attention_enabled_vae": yes,
        "pytorch_attention_flash_attention": yes,
        "should_use_fp16": lambda device=None, **_: not _is_cpu(device),
        "should_use_bf16": lambda device=None, **_: not _is_cpu(device) and capability >= (8, 0),
        "supports_fp8_compute": lambda device=None: capability >= (8, 9),
        "supports_nvfp4_compute": lambda device=None: capability >= (10, 0),
        "supports_mxfp8_compute": lambda device=None: capability >= (10, 0),
        "supports_fp64": yes,
        "unet_offload_device": lambda: cpu,
        "unet_inital_load_device": lambda *_: cpu,
        "vae_device": lambda: card.device,
        "vae_offload_device": lambda: cpu,
        "text_encoder_device": lambda: card.device,
        "text_encoder_offload_device": lambda: cpu,
        "text_encoder_initial_device": lambda *_: cpu,
    }


@contextmanager
def attending(card: Card) -> Iterator[None]:
    """Within it, the host's networks attend as on this card: what this machine's do was chosen when it started."""
    torchs = find(f"{ATTENTION}:attention_pytorch")
    with ExitStack() as stack:
        for name in CHOSEN if torchs is not None and not is_here(card.device) else ():
            for module in modules_with(name, find(f"{ATTENTION}:{name}")):
                stack.enter_context(replaced(module, name, torchs))
        yield


def modules_with(name: str, function: Any) -> list[ModuleType]:
    """The host's modules that have a function under this name: some keep what they import from others."""
    found = [one for path, one in list(sys.modules.items()) if path.startswith(("comfy.", "comfy_extras."))]
    return [one for one in found if function is not None and vars(one).get(name) is function]


def _is_cpu(device: Any) -> bool:
    return getattr(device, "type", None) == "cpu"


def apply_by_exchange(module: nn.Module, function: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """``Module.to`` and its like: torch's own writes into the parameters, which those without data do not allow."""
    for part in module.modules() if recurse else (module,):
        for name, parameter in part._parameters.items():
            if parameter is not None and (moved := function(data := parameter.data)) is not data:
                part._parameters[name] = nn.Parameter(moved, requires_grad=False)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = function(buffer)
    return module


# ------------------------------------------------------------------------------------------------ in tiles


@contextmanager
def one_of_each_tile() -> Iterator[None]:
    """Within it, the host's tiling computes one tile of each shape, beside what it gathers them in."""
    with replaced(comfy.utils, "tiled_scale_multidim", _tiled):
        yield


def _tiled(
    samples: Tensor,
    function: Callable[[Tensor], Tensor],
    tile: Sequence[int] = (64, 64),
    overlap: Any = 8,
    upscale_amount: Any = 4,
    out_channels: int = 3,
    output_device: Any = "cpu",
    downscale: bool = False,
    index_formulas: Any = None,
    pbar: Any = None,
) -> Tensor:
    """In the place of the host's ``tiled_scale_multidim``, with its arguments."""
    sizes = [min(length, side) for length, side in zip(samples.shape[2:], tile)]
    scales = upscale_amount if isinstance(upscale_amount, (tuple, list)) else [upscale_amount] * len(sizes)
    lengths = [_scaled(length, scale, downscale) for length, scale in zip(samples.shape[2:], scales)]
    result = torch.empty((samples.shape[0], out_channels, *lengths), device=output_device)
    part = corner(samples[:1], sizes)
    if part.shape[2:] == samples.shape[2:]:
        with repeated(samples.shape[0]):
            function(part).to(output_device)
        return result
    shares = torch.empty((1, 1, *lengths), device=output_device)
    with repeated(samples.shape[0] * _tiles(samples.shape[2:], sizes, overlap)):
        done = function(part).to(output_device)
        mask = torch.empty((1, 1, *done.shape[2:]), device=output_device)
        _ = done * mask
    del shares
    return result


def _tiles(lengths: Sequence[int], sizes: Sequence[int], overlap: Any) -> float:
    """How many whole tiles the host goes through: each begins ``size - overlap`` after the one before, and those at the
    end of a side are cut off there."""
    overlaps = overlap if isinstance(overlap, (tuple, list)) else [overlap] * len(sizes)
    counts = []
    for length, size, shared in zip(lengths, sizes, overlaps):
        starts = range(0, length - shared, size - shared) if length > size else [0]
        counts.append(sum(min(size, length - start) for start in starts) / size)
    return math.prod(counts)


def _scaled(length: int, scale: Any, downscale: bool) -> int:
    if callable(scale):
        return int(scale(length))
    return round(length / scale) if downscale and scale > 1 else round(length * scale)


def corner(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """The first of each dim behind the channels: (B, C, *sizes)."""
    for dim, size in enumerate(sizes):
        x = x.narrow(dim + 2, 0, size)
    return x
