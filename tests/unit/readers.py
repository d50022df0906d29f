"""What the fuzzed tests of readers share: files in memory, workflows to damage, and what an answer must hold."""

from __future__ import annotations

import io
import json
import math
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from types import FrameType
from typing import Any

from headroom.graph.fit.insert import insert_fit, insert_remedy
from headroom.graph.fit.remedies import REMEDIES
from headroom.graph.formats import PROMPT, WORKFLOW, check_api, check_sent, is_ui
from headroom.graph.prompt import in_order, parents_in
from headroom.graph.to_api import to_api
from headroom.offload.gguf_header import PackedHeader
from headroom.offload.safetensors_header import BITS, Header

from ..host.ui_workflows import in_a_subgraph
from ..host.ui_workflows import text_to_image as ui_text_to_image

ROOT = Path(__file__).parents[2]
LONGEST = 600  # characters of a sentence
SLOWEST = 1.0  # seconds of one case, asked only where HEADROOM_FUZZ counts cases; a day's run asks the calls
MOST_CALLS = 1_000_000
WORKFLOWS = [
    *(json.loads(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob("workflows/api/*.json"))),
    *(json.loads(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob("workflows/*.json"))),
    in_a_subgraph(ui_text_to_image()),
]


def one_sentence(error: Exception) -> None:
    said = str(error)
    assert said
    assert "\n" not in said
    assert len(said) <= LONGEST


@contextmanager
def within_calls(most: int = MOST_CALLS) -> Iterator[None]:
    """No more calls of functions, Python's or C's, than `most`: the same on every machine, however busy it is.

    Raises:
        AssertionError: from within, at the call that is one too many, so that what would never end does.
    """
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")
        if calls > most:
            sys.setprofile(before)
            raise AssertionError(f"more than {most:,} calls")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)


class InMemory:
    """A file that is never on a disk, as far as a reader needs a path."""

    def __init__(self, content: bytes, suffix: str = ".safetensors") -> None:
        self.content, self.suffix, self.name = content, suffix, f"x{suffix}"

    def open(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self.content)


def safetensors_file(header: Any, data: int, length: int | None = None) -> InMemory:
    """A file of a header, which may be any bytes, and so many bytes behind it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return InMemory(struct.pack("<Q", len(text) if length is None else length) + text + bytes(data))


def safetensors_header(shapes: Iterable[tuple[str, list[int]]]) -> tuple[dict[str, Any], int]:
    """A header that keeps the rules, and how many bytes of data belong to it."""
    header, at = {}, 0
    for number, (dtype, shape) in enumerate(shapes):
        size = BITS[dtype] * math.prod(shape) // 8
        header[f"t{number}"] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return header, at


def holds_safetensors(found: Header, data: int) -> None:
    """What is read describes exactly the bytes that are there."""
    sizes = [entry.last - entry.first for entry in found.entries.values()]
    assert all(size >= 0 for size in sizes)
    assert sum(sizes) == data or found.is_alone or not data


def holds_gguf(found: PackedHeader, size: int) -> None:
    """Tensors of the bytes that their types and shapes take, one behind the other, within the file."""
    end = 0
    for entry in sorted(found.entries.values(), key=lambda entry: (entry.first, entry.last)):
        assert entry.nbytes * entry.type.block == math.prod(entry.shape) * entry.type.bytes
        assert entry.first >= end
        end = entry.last
    assert found.is_alone or not end or found.begin + end <= size


def read_as_everybody_does(content: Any) -> None:
    """The routes' and the commands' way with a workflow, up to where the host is needed."""
    check_sent(content, PROMPT)
    if is_ui(content):
        content = to_api(content, {}, called=PROMPT)
    check_api(content, PROMPT)
    in_order(content, parents_in(content))


def fit_as_the_route_does(content: Any) -> None:
    """The way of cli/fit.py and of the server's route."""
    check_sent(content, WORKFLOW)
    insert_fit(content)


def help_one_as_the_route_does(content: Any) -> None:
    """Of a node that the undamaged workflows have: 2 encodes a text, in one of them within subgraph 20."""
    check_sent(content, WORKFLOW)
    for asked, number in product(REMEDIES, ("2", "20:2")):
        try:
            insert_remedy(content, asked, number)
        except ValueError as error:
            if not str(error).startswith(f"{asked}: "):
                raise


WAYS = (read_as_everybody_does, fit_as_the_route_does, help_one_as_the_route_does)
