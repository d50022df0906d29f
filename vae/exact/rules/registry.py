"""The table of rules, and which one records a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: (recorder, function, its name, args, kwargs) -> what the function would return, recorded; or NotImplemented.
Rule = Callable[..., Any]

RULES: dict[str, Rule] = {}
#: Asked before the table, in this order.
FIRST: list[Rule] = []


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enters a rule for functions of these names."""

    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return enter


def before_others(function: Rule) -> Rule:
    """Enters a rule that is asked about every call."""
    FIRST.append(function)
    return function


def apply(recorder: Any, function: Callable[..., Any], name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """Records a call; NotImplemented if no rule is sure of it."""
    if kwargs.get("out") is not None:
        return NotImplemented
    for asked in FIRST:
        result = asked(recorder, function, name, args, kwargs)
        if result is not NotImplemented:
            return result
    known = RULES.get(name)
    return NotImplemented if known is None else known(recorder, function, name, args, kwargs)
