"""Keeps a dry run in one thread of a server from reaching the prompt that another thread runs.

A dry run goes through the host's own code. What that code does to the whole process, such as moving the running
node's progress bar, taking the user's cancel for its own or switching attention kernels, is kept to the thread here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import comfy.model_management
import comfy.utils
import torch
import torch.nn.attention
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

from ...memory.prediction import require_wanted, while_wanted
from ..prediction.host_answers import replaced

SWITCHES = {
    "cudnn_sdp_enabled": SDPBackend.CUDNN_ATTENTION,
    "flash_sdp_enabled": SDPBackend.FLASH_ATTENTION,
    "mem_efficient_sdp_enabled": SDPBackend.EFFICIENT_ATTENTION,
    "math_sdp_enabled": SDPBackend.MATH,
}
ONLY_MATH = [SDPBackend.MATH]


@contextmanager
def beside_the_prompt() -> Iterator[None]:
    """Within it, this thread leaves the running prompt alone. For one thread at a time."""
    kernels = OwnKernels()
    with ExitStack() as stack:
        for owner, name, function in (*_quiet(), *kernels.answers()):
            if getattr(owner, name, None) is not None:
                stack.enter_context(replaced(owner, name, function))
        stack.enter_context(kernels)
        stack.enter_context(while_wanted(_always))  # not until the prompt is cancelled, which is not this thread's
        yield


def _always() -> bool:
    return True


Substitute = tuple[Any, str, Callable[..., Any]]


def _quiet() -> Iterator[Substitute]:
    """The user's cancel is for the prompt, and so is the bar on the node's face; a dry run has its own to ask."""
    yield comfy.model_management, "throw_exception_if_processing_interrupted", require_wanted
    yield comfy.utils, "PROGRESS_BAR_HOOK", lambda *_, **__: None


class OwnKernels:
    """Switches of ``scaled_dot_product_attention`` for this thread: torch's own are the whole process's. A context.

    Attributes:
        chosen: kernels that are on.
    """

    def __init__(self) -> None:
        self.chosen: list[SDPBackend] = [
            kernel for name, kernel in SWITCHES.items() if getattr(torch.backends.cuda, name, lambda: True)()
        ]
        self._formula = _MathKernel()

    def answers(self) -> Iterator[Substitute]:
        """What ``sdpa_kernel`` reads and sets, and how others ask for it."""
        yield torch.nn.attention, "_cur_sdpa_kernel_backends", self._current
        yield torch.nn.attention, "_sdpa_kernel", self._set
        for name, kernel in SWITCHES.items():
            yield torch.backends.cuda, name, lambda kernel=kernel: kernel in self.chosen

    def __enter__(self) -> None:
        if self.chosen == ONLY_MATH:
            self._formula.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self.chosen == ONLY_MATH:
            self._formula.__exit__(*error)

    def _current(self, with_priority: bool = False) -> list[SDPBackend]:
        return list(self.chosen)

    def _set(self, backends: Sequence[SDPBackend], set_priority: bool = False) -> None:
        # Only while it has something to do: torch asks a mode about all that is done with tensors, their shapes too.
        self.__exit__(None, None, None)
        self.chosen = list(backends)
        self.__enter__()


class _MathKernel(TorchFunctionMode):
    """Within it ``scaled_dot_product_attention`` is torch's math kernel."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.scaled_dot_product_attention:
            return by_formula(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def by_formula(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch's math kernel, with the arguments of ``scaled_dot_product_attention``, whatever is switched on."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill_(attn_mask.logical_not(), float("-inf"))
    result: Tensor = torch.ops.aten._scaled_dot_product_attention_math(
        q, k, v, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]
    return result
