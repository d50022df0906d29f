"""Has a node check what it is given, by its own schema, before it runs, and end when it is cancelled."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from comfy_api.latest import io

from ..host.core.cancel import until_cancelled
from ..host.core.given import check_given, check_there

Execute = Callable[..., io.NodeOutput]


def checked(execute: Execute) -> Execute:
    """Decorates a node's ``execute``, below ``@classmethod``. What a node takes as lists is checked one by one."""

    taken = inspect.signature(execute).parameters.values()
    needed = [one.name for one in taken if one.default is one.empty and one.kind is not one.VAR_KEYWORD][1:]

    @wraps(execute)
    def run(cls: type[io.ComfyNode], *arguments: Any, **values: Any) -> io.NodeOutput:
        given = [values]
        if getattr(cls, "INPUT_IS_LIST", False):
            values = {name: listed for name, listed in values.items() if listed}  # a list of nothing is not there
            given = [{name: one} for name, listed in values.items() for one in listed]
        check_there(cls.INPUT_TYPES(), needed[len(arguments) :], values)
        for one in given:
            check_given(cls.INPUT_TYPES(), one)
        with until_cancelled():
            return execute(cls, *arguments, **values)

    return run
