"""A prompt that ran out of memory ends with a sentence on what to do, in the browser and in the history."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from ...graph.fit.advice import advice
from ...graph.formats import check_api
from ..core.compat import is_out_of_memory
from ..core.internals import find

HANDLER, OURS = "handle_execution_error", "headroom_advises"
MARK = "Headroom: "  # by which the browser's part knows the sentence
OF_A_CARD = "out of memory"  # of those that have no kind of error of their own, such as MPS
# Torch's allocator on Linux and macOS; a file that finds no room to be mapped there; the former on Windows; the latter,
# whose words are in Windows' language, and whose number torch, safetensors and Python each write in a way of its own.
OF_THE_MACHINE = re.compile(
    r"can't allocate memory|cannot allocate memory|not enough memory|(?:os error |winerror |error code: <)1455", re.I
)

log = logging.getLogger(__name__)


def install() -> None:
    """Around the host's own handling of a node's error, once; nothing where this host has none such."""
    executor = find("execution:PromptExecutor")
    handled = find(f"execution:PromptExecutor.{HANDLER}")
    # A wrapper of somebody else around ours has its attributes too.
    if handled is not None and not hasattr(handled, OURS):
        setattr(executor, HANDLER, _with_advice(handled))


def _with_advice(handled: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(handled)

    @wraps(handled)
    def handle(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
            _advise(given["prompt"], given["error"], given["ex"])
        except Exception:  # whatever is wrong with the advice, the error itself has to reach its reader
            log.exception("Headroom has no advice on an error")
        return handled(*args, **kwargs)

    setattr(handle, OURS, True)
    return handle


def _advise(prompt: Mapping[str, Any], error: dict[str, Any], raised: Exception) -> None:
    """Appends the advice to the message of the host's error."""
    of_card = is_out_of_memory(raised) or OF_A_CARD in str(raised)
    if not of_card and not _of_the_machine(raised):
        return
    nodes = dict(prompt)
    check_api(nodes)
    sentence = advice(nodes, error["node_id"], of_card)
    if sentence:
        error["exception_message"] = f"{error['exception_message'].rstrip()}\n\n{MARK}{sentence}."
        log.warning("%s%s.", MARK, sentence)


def _of_the_machine(raised: Exception) -> bool:
    """Whether RAM ran out: Python says so by a kind of its own, others by their words."""
    return isinstance(raised, MemoryError) or OF_THE_MACHINE.search(str(raised)) is not None
