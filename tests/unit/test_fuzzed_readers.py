"""Readers of files that strangers wrote, under Hypothesis: one sentence or an answer, never a crash and never long.

A slice of the cases runs each time; HEADROOM_FUZZ sets how many.
"""

from __future__ import annotations

import copy
import json
import os
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headroom.attention import parse_blocks
from headroom.graph.formats import BadWorkflow
from headroom.offload.ggml_types import GGML_TYPES
from headroom.offload.gguf_header import read_gguf_header
from headroom.offload.safetensors_header import BITS, NotAHeader, read_header

from . import gguf
from .readers import (
    SLOWEST,
    WAYS,
    WORKFLOWS,
    InMemory,
    holds_gguf,
    holds_safetensors,
    one_sentence,
    read_as_everybody_does,
    safetensors_file,
    safetensors_header,
    within_calls,
)

ASKED = os.environ.get("HEADROOM_FUZZ")
CASES = int(ASKED or "300")

fuzzed = settings(
    max_examples=CASES,
    deadline=1000 * SLOWEST if ASKED else None,
    database=None,
    derandomize=not ASKED,  # the slice is the same each time
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


# -------------------------------------------------------------------------------------------------------- safetensors


whole_bytes = st.sampled_from(sorted(name for name, bits in BITS.items() if bits % 8 == 0))
tensors = st.lists(st.tuples(whole_bytes, st.lists(st.integers(0, 5), max_size=4)), max_size=4)


@fuzzed
@given(tensors)
def test_headers_that_keep_the_rules_are_read(shapes: list[tuple[str, list[int]]]) -> None:
    header, data = safetensors_header(shapes)
    found = read_header(safetensors_file(header, data)).entries
    assert [(entry.dtype, list(entry.shape)) for entry in found.values()] == shapes


@fuzzed
@given(st.data(), tensors)
def test_mutated_headers(data: st.DataObject, shapes: list[tuple[str, list[int]]]) -> None:
    """What is read after all describes exactly the bytes that are there."""
    header, size = safetensors_header(shapes)
    mutate(header, data)
    size += data.draw(st.sampled_from([0, 0, 0, 1, -1]))
    size = max(0, size)
    file = safetensors_file(header, size, data.draw(st.sampled_from([None, None, None, 0, 2**63, 5])))
    try:
        with within_calls():
            found = read_header(file)
    except NotAHeader as error:
        one_sentence(error)
    else:
        holds_safetensors(found, size)


@fuzzed
@given(st.binary(max_size=300), st.booleans())
def test_bytes_as_headers(content: bytes, framed: bool) -> None:
    try:
        with within_calls():
            read_header(safetensors_file(content, 7) if framed else InMemory(content))
    except NotAHeader as error:
        one_sentence(error)


# --------------------------------------------------------------------------------------------------------------- GGUF

sizes = st.lists(st.integers(0, 3), max_size=3)
packed = st.lists(st.tuples(st.sampled_from(sorted(GGML_TYPES)), sizes, st.integers(0, 2)), max_size=4)
scalars = {0: st.integers(0, 255), 5: st.integers(-9, 9), 7: st.booleans(), 8: st.text(max_size=9), 12: st.floats()}
typed = st.sampled_from(sorted(scalars)).flatmap(lambda kind: st.tuples(st.just(kind), scalars[kind]))
lists = st.sampled_from(sorted(scalars)).flatmap(
    lambda kind: st.tuples(st.just(9), st.tuples(st.just(kind), st.lists(scalars[kind], max_size=5)))
)
nested = st.lists(lists.map(lambda one: one[1]), max_size=3).map(lambda some: (9, (9, some)))
keys = st.dictionaries(st.text(min_size=1, max_size=9), st.one_of(typed, lists, nested), max_size=4)
numbers_of_64 = st.sampled_from([0, 1, 2**16, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1])


def of_blocks(some: list[tuple[int, list[int], int]]) -> list[tuple[str, list[int], int]]:
    """Tensors whose rows are whole blocks."""
    return [
        (f"t{number}", [rows * GGML_TYPES[kind].block, *others], kind)
        for number, (kind, others, rows) in enumerate(some)
    ]


@fuzzed
@given(packed, keys, st.sampled_from([8, 32, 64]), st.sampled_from([2, 3]))
def test_gguf_headers_that_keep_the_rules_are_read(
    some: list[tuple[int, list[int], int]], metadata: dict[str, gguf.Typed], alignment: int, version: int
) -> None:
    tensors = of_blocks(some)
    content = gguf.written(tensors, metadata, alignment=alignment, version=version)
    found = read_gguf_header(InMemory(content, ".gguf"))
    holds_gguf(found, len(content))
    assert [(name, list(entry.shape)) for name, entry in found.entries.items()] == [
        (name, sizes[::-1]) for name, sizes, _ in tensors
    ]
    assert set(metadata) <= set(found.metadata)


@fuzzed
@given(st.data(), packed, keys)
def test_mutated_gguf_headers(
    data: st.DataObject, some: list[tuple[int, list[int], int]], metadata: dict[str, gguf.Typed]
) -> None:
    content = bytearray(gguf.written(of_blocks(some), metadata))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, len(content)))
        what = data.draw(st.sampled_from(["byte", "number", "insert", "delete", "cut"]))
        if what == "byte":
            content[at : at + 1] = data.draw(st.binary(min_size=1, max_size=1))
        elif what == "number":
            content[at : at + 8] = struct.pack("<Q", data.draw(numbers_of_64))
        elif what == "insert":
            content[at:at] = data.draw(st.binary(max_size=20))
        else:
            del content[at : None if what == "cut" else at + data.draw(st.integers(1, 20))]
    try:
        with within_calls():
            found = read_gguf_header(InMemory(bytes(content), ".gguf"))
    except NotAHeader as error:
        one_sentence(error)
    else:
        holds_gguf(found, len(content))


@fuzzed
@given(st.binary(max_size=300), st.booleans())
def test_bytes_as_gguf_headers(content: bytes, framed: bool) -> None:
    try:
        with within_calls():
            read_gguf_header(InMemory(b"GGUF\3\0\0\0" + content if framed else content, ".gguf"))
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


@fuzzed
@given(st.data(), st.sampled_from(range(len(WORKFLOWS))))
def test_mutated_workflows(data: st.DataObject, which: int) -> None:
    content = copy.deepcopy(WORKFLOWS[which])
    mutate(content, data)
    for reads in WAYS:
        before = json.dumps(content)
        try:
            with within_calls():
                reads(content)
        except ValueError as error:
            one_sentence(error)
        assert json.dumps(content) == before, "what is sent is not changed"


@fuzzed
@given(values)
def test_anything_as_a_workflow(content: Any) -> None:
    for reads in WAYS:
        try:
            with within_calls():
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
        with within_calls():
            parse_blocks(text)
    except ValueError as error:
        one_sentence(error)
