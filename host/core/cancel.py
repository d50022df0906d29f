"""The user's cancel, for work of ours that goes through no code of the host that asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import comfy.model_management
from torch.overrides import TorchFunctionMode

from ...memory.prediction import is_asked, while_wanted


@contextmanager
def until_cancelled() -> Iterator[None]:
    """Within it, predictions and plans in the prompt's thread end as soon as the user cancels the prompt.

    Beside the prompt, where work is given up otherwise, it changes nothing.

    Raises:
        InterruptProcessingException: the host's own.
    """
    if is_asked():
        yield
        return
    with while_wanted(_not_cancelled):
        yield


def _not_cancelled() -> bool:
    comfy.model_management.throw_exception_if_processing_interrupted()
    return True


class AskedAtEachFunction(TorchFunctionMode):
    """Within it, a module that computes for long ends at its next function once the prompt is cancelled."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        comfy.model_management.throw_exception_if_processing_interrupted()
        return function(*args, **(kwargs or {}))
