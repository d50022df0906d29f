"""Which layers a user wants left as they are: one regular expression per line, or `auto`."""

from __future__ import annotations

import re
from dataclasses import dataclass

AUTO = "auto"


@dataclass(frozen=True)
class SkipRules:
    """What to leave as it is.

    Attributes:
        auto: the rules by structure hold (:func:`headroom.offload.plan_layers`).
        patterns: regular expressions, searched for in a layer's name.
    """

    auto: bool
    patterns: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> SkipRules:
        """Reads one rule per line; empty lines are ignored, and an empty text skips nothing.

        Raises:
            ValueError: a line that is no regular expression.
        """
        lines = [line.strip() for line in text.splitlines()]
        patterns = []
        for number, line in enumerate(lines, 1):
            if not line or line == AUTO:
                continue
            try:
                re.compile(line)
            except (re.error, OverflowError, RecursionError) as error:
                raise ValueError(
                    f"skip: line {number}, {line!r}, is no regular expression ({error}); write part of a layer's name"
                    f" such as double_blocks.0, or auto"
                ) from None
            patterns.append(line)
        return cls(AUTO in lines, tuple(patterns))

    def pattern_for(self, name: str) -> str | None:
        """The first pattern that a layer's name holds."""
        return next((pattern for pattern in self.patterns if re.search(pattern, name)), None)
