"""Which blocks of a model: the grammar of the nodes' ``blocks`` input.

::

    selection = "all" | "inner" | item {"," item}
    item      = kind | [kind ":"] ("*" | span)        (without a kind: that of the item before)
    kind      = "input" | "middle" | "output" | "double" | "single"
    span      = number | number "-" number

    double:0-18, single:*, input:1,2, middle, output:3-8
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# What the host calls its blocks: a UNet's three lists, a transformer's two kinds.
KINDS = ("input", "middle", "output", "double", "single")
SPAN = r"(?:\*|(?P<first>\d{1,6})(?:\s*-\s*(?P<last>\d{1,6}))?)"
ITEM = re.compile(rf"(?P<name>[a-z]+)|(?:(?P<kind>[a-z]+)\s*:\s*)?{SPAN}")
EXAMPLE = "double:0-18, single:*, input:1,2, middle"


@dataclass(frozen=True, order=True)
class BlockPlace:
    """A block of a model as the host names it: its kind (double, single, input, middle, output) and index."""

    kind: str
    index: int

    def __str__(self) -> str:
        return self.kind if self.kind == "middle" else f"{self.kind}:{self.index}"


@dataclass(frozen=True)
class Span:
    """Blocks ``first`` to ``last`` of one kind; ``last`` None means to the end."""

    kind: str
    first: int = 0
    last: int | None = None

    def holds(self, place: BlockPlace) -> bool:
        """Whether a block is among them."""
        return self.kind == place.kind and self.first <= place.index and (self.last is None or place.index <= self.last)


@dataclass(frozen=True)
class BlockSelection:
    """A parsed selection.

    Attributes:
        text: what the user wrote.
        spans: the blocks named; empty for "all" and "inner".
    """

    text: str
    spans: tuple[Span, ...] = ()

    def holds(self, place: BlockPlace | None, ends: tuple[BlockPlace, BlockPlace] | None = None) -> bool:
        """Whether ``place`` is selected.

        A call that does not say where it is (``place`` None) is selected by "all" only. "inner" leaves out
        ``ends``, the model's first and last block, and everything while these are unknown.
        """
        if self.text == "all":
            return True
        if place is None:
            return False
        if self.text == "inner":
            return ends is not None and place not in ends
        return any(span.holds(place) for span in self.spans)


def parse_blocks(text: str) -> BlockSelection:
    """Parses a selection.

    Raises:
        ValueError: one sentence naming the part that does not parse, and an example.
    """
    text = text.strip().lower()
    if text in ("all", "inner"):
        return BlockSelection(text)
    spans: list[Span] = []
    for part in text.split(","):
        spans.append(_parse_item(part.strip(), spans[-1].kind if spans else None))
    return BlockSelection(text, tuple(spans))


def _parse_item(part: str, previous: str | None) -> Span:
    match = ITEM.fullmatch(part)
    kind = (match["name"] or match["kind"] or previous) if match else None
    if match is None or kind not in KINDS:
        shown = " ".join(part.split())[:40]
        raise ValueError(
            f"blocks: cannot read '{shown}'; write all, inner, or blocks of {', '.join(KINDS)}, such as '{EXAMPLE}'"
        )
    if match["first"] is None:
        return Span(kind)
    first = int(match["first"])
    last = first if match["last"] is None else int(match["last"])
    if last < first:
        raise ValueError(f"blocks: '{part}' ends before it begins; write the lower number first")
    return Span(kind, first, last)
