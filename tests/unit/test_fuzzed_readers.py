"""Readers of files that strangers wrote, under Hypothesis: one sentence or an answer, never a crash and never long.

A slice of the cases runs each time; HEADROOM_FUZZ sets how many.
"""

from __future__ import annotations

import copy
import io
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headroom.attention import parse_blocks
from headroom.graph.formats import PROMPT, WORKFLOW, BadWorkflow, check_api, check_sent, is_ui
from headroom.graph.insert_fit import insert_fit
from headroom.graph.prompt import in_order, parents_in
from headroom.graph.to_api import to_api
from headroom.offload.safetensors_header import BITS, NotAHeader, read_header

from ..host.ui_workflows import in_a_subgraph
from ..host.ui_workflows import text_to_image as ui_text_to_image

ROOT = Path(__file__).parents[2]
CASES = int(os.environ.get("HEADROOM_FUZZ", "300"))
SLOWEST = 1000.0  # milliseconds
LONGEST = 600  # characters of a sentence
WORKFLOWS = [
    *(json.loads(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob("workflows/api/*.json"))),
    *(json.loads(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob("workflows/*.json"))),
    in_a_subgraph(ui_text_to_image()),
]

fuzzed = settings(
    max_examples=CASES,
    deadline=SLOWEST,
    database=None,
    derandomize=os.environ.get("HEADROOM_FUZZ") is None,  # the slice is the same each time
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)

numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0, -1, 2**31, 2**63, 10**400, 1e308]),
)
words = st.one_of(st.text(max_size=20), st.sampled_from(["", "__proto__", "../x", "\x00", "é" * 300, "-1", "9" * 5000]))
plain = st.one_of(st.none(), st.booleans(), numbers, words)
values = st.recursive(
    plain,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(words, inner, max_size=4)),
    max_leaves=8,
)


def one_sentence(error: Exception) -> None:
    said = str(error)
    assert said
    assert "\n" not in said
    assert len(said) <= LONGEST


# -------------------------------------------------------------------------------------------------------- safetensors


class InMemory:
    """A file that is never on a disk, as far as the reader needs a path."""

    suffix, name = ".safetensors", "x.safetensors"

    def __init__(self, content: bytes) -> None:
        self._content = content

    def open(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._content)


def file_of(header: Any, data: int, length: int | None = None) -> InMemory:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return InMemory(struct.pack("<Q", len(text) if length is None else length) + text + bytes(data))


def whole(shapes: list[tuple[str, list[int]]]) -> tuple[dict[str, Any], int]:
    """A header that keeps the rules, and how many bytes of data belong to it."""
    header, at = {}, 0
    for number, (dtype, shape) in enumerate(shapes):
        bits = BITS[dtype]
        for size in shape:
            bits *= size
        header[f"t{number}"] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + bits // 8]}
        at += bits // 8
    return header, at


whole_bytes = st.sampled_from(sorted(name for name, bits in BITS.items() if bits % 8 == 0))
tensors = st.lists(st.tuples(whole_bytes, st.lists(st.integers(0, 5), max_size=4)), max_size=4)


@fuzzed
@given(tensors)
def test_headers_that_keep_the_rules_are_read(shapes: list[tuple[str, list[int]]]) -> None:
    header, data = whole(shapes)
    found = read_header(file_of(header, data)).entries
    assert [(entry.dtype, list(entry.shape)) for entry in found.values()] == shapes


@fuzzed
@given(st.data(), tensors)
def test_mutated_headers(data: st.DataObject, shapes: list[tuple[str, list[int]]]) -> None:
    """What is read after all describes exactly the bytes that are there."""
    header, size = whole(shapes)
    mutate(header, data)
    size += data.draw(st.sampled_from([0, 0, 0, 1, -1]))
    size = max(0, size)
    try:
        found = read_header(file_of(header, size, data.draw(st.sampled_from([None, None, None, 0, 2**63, 5]))))
    except NotAHeader as error:
        one_sentence(error)
    else:
        ends = sorted((entry.first, entry.last) for entry in found.entries.values())
        assert sum(last - first for first, last in ends) == size or found.is_alone or not size


@fuzzed
@given(st.binary(max_size=300), st.booleans())
def test_bytes_as_headers(content: bytes, framed: bool) -> None:
    try:
        read_header(file_of(content, 7) if framed else InMemory(content))
    except NotAHeader as error:
        one_sentence(error)


# ---------------------------------------------------------------------------------------------------------- workflows


def mutate(content: Any, data: st.DataObject, most: int = 4) -> None:
    """Changes a JSON value in some places: entries replaced, taken out, doubled, moved."""
    for _ in range(data.draw(st.integers(1, most))):
        holder, key = content, None
        while True:
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            inner = holder[key]
            if not isinstance(inner, (dict, list)) or not inner or data.draw(st.integers(0, 3)) == 0:
                break
            holder = inner
        if key is None:
            return
        what = data.draw(st.sampled_from(["replace", "replace", "delete", "double", "swap"]))
        if what == "replace":
            holder[key] = data.draw(values)
        elif what == "delete":
            del holder[key]
        elif what == "double" and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        elif what == "swap":
            other = data.draw(st.sampled_from(list(holder) if isinstance(holder, dict) else list(range(len(holder)))))
            holder[key], holder[other] = holder[other], holder[key]


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


@fuzzed
@given(st.data(), st.sampled_from(range(len(WORKFLOWS))))
def test_mutated_workflows(data: st.DataObject, which: int) -> None:
    content = copy.deepcopy(WORKFLOWS[which])
    mutate(content, data)
    for reads in (read_as_everybody_does, fit_as_the_route_does):
        before = json.dumps(content)
        try:
            reads(content)
        except ValueError as error:
            one_sentence(error)
        assert json.dumps(content) == before, "what is sent is not changed"


@fuzzed
@given(values)
def test_anything_as_a_workflow(content: Any) -> None:
    for reads in (read_as_everybody_does, fit_as_the_route_does):
        try:
            reads(content)
        except ValueError as error:
            one_sentence(error)


@pytest.mark.parametrize("depth", [900, 100_000])
def test_deep_json(depth: int) -> None:
    """As a string it is refused where it is read; as a value of a node it is nobody's to walk."""
    content: Any = None
    for _ in range(min(depth, 900)):
        content = [content]
    workflow = {"1": {"class_type": "KSampler", "inputs": {"x": content}}}
    read_as_everybody_does(workflow)
    with pytest.raises(BadWorkflow):
        read_as_everybody_does(content)


# ------------------------------------------------------------------------------------------------------- the grammar


@fuzzed
@given(st.one_of(words, st.from_regex(r"\A(\w+:)?[\d*,\- :]{0,60}\Z"), st.text(max_size=200)))
def test_blocks(text: str) -> None:
    try:
        parse_blocks(text)
    except ValueError as error:
        one_sentence(error)
