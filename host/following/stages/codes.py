"""Sound that a text encoder sketches as codes, one after the other: the first is followed, and the last.

ComfyUI's ACE-Step 1.5 has a language model for it, with room for as many codes as the song takes. All its passes but
the first are of one code each, of which the last attends to most.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import comfy.utils
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException

from ...prediction.host_answers import answering, replaced

MODULE, WRITES = "comfy.text_encoders.ace15", "sample_manual_loop_no_classes"
BAR = "model_trange"  # the host's count of passes, with a bar


@contextmanager
def codes_counted() -> Iterator[None]:
    """Within it, a text encoder without data writes its first code and its last, and gives as many as it should."""
    module = sys.modules.get(MODULE)
    write = getattr(module, WRITES, None)
    if write is None or not hasattr(comfy.utils, BAR):  # an older host
        yield
        return
    given = {**write.__globals__, "torch": _WithoutChance()}
    ends = types.FunctionType(write.__code__, given, write.__name__, write.__defaults__, write.__closure__)

    def first_and_last(model: Any, *args: Any, max_new_tokens: int, **settings: Any) -> list[int]:
        passes: list[bool] = []
        hooks = (
            model.transformer.register_forward_pre_hook(_to_the_last, with_kwargs=True),
            model.transformer.register_forward_hook(lambda *_: passes.append(True)),
        )
        try:
            ends(model, *args, max_new_tokens=max_new_tokens, **settings)
        except DataDependentOutputException:  # newer hosts read the codes at the end, from the card
            if len(passes) < len(_ends(max_new_tokens)):
                raise
        finally:
            for hook in hooks:
                hook.remove()
        return [0] * max_new_tokens

    with answering({}), replaced(module, WRITES, first_and_last), replaced(comfy.utils, BAR, _ends):
        yield


def _ends(passes: int, **_: Any) -> tuple[int, ...]:
    return tuple(sorted({0, passes - 1})) if passes > 0 else ()


def _to_the_last(part: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[Any, Any] | None:
    """The pass after the first has the keys and values of all before the last. In newer hosts it has room for all."""
    kept = given.get("past_key_values") or ()
    if not kept or not isinstance(kept[0], tuple) or kept[0][2] == 0:
        return None
    whole = kept[0][0].shape[2]
    given["past_key_values"] = [(keys, values, whole - 1) for keys, values, _ in kept]

    def lengthened(mask: Any) -> Any:
        return mask.new_ones(mask.shape[0], whole) if isinstance(mask, Tensor) and mask.ndim == 2 else mask

    return tuple(map(lengthened, args)), given


class _WithoutChance:
    """Stands for torch in the host's own function: a draw gives the first code, and needs no generator of a card."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def Generator(*_: Any, **__: Any) -> torch.Generator:
        return torch.Generator()

    @staticmethod
    def multinomial(shares: Tensor, num_samples: int = 1, **_: Any) -> Tensor:
        return torch.full((shares.shape[0], num_samples), 0, dtype=torch.long, device=shares.device)

    @staticmethod
    def argmax(values: Tensor, **_: Any) -> Tensor:
        return torch.full(values.shape[:-1], 0, dtype=torch.long, device=values.device)
