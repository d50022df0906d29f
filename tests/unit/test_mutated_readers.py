"""The promises of `test_fuzzed_readers.py` by a plain loop of damaged files, thousands a second: one sentence or an
answer, soon, and no more memory than a small file is worth.

HEADROOM_FUZZ sets how many of each kind, HEADROOM_FUZZ_SEED which ones; `-s` shows what was counted.
"""

from __future__ import annotations

import copy
import json
import os
import random
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import psutil
import pytest

from headroom.offload.ggml_types import GGML_TYPES
from headroom.offload.gguf_header import read_gguf_header
from headroom.offload.safetensors_header import NotAHeader, read_header

from . import gguf
from .readers import (
    SLOWEST,
    WAYS,
    WORKFLOWS,
    InMemory,
    holds_gguf,
    holds_safetensors,
    one_sentence,
    safetensors_file,
    safetensors_header,
    within_calls,
)

ASKED = os.environ.get("HEADROOM_FUZZ")
SEED = int(os.environ.get("HEADROOM_FUZZ_SEED", "1"))
MB = 2**20
MOST_GROWTH = 64 * MB  # of the process, however many the cases
MOST_BYTES = 8 * MB  # that reading a file of some kilobytes, or a workflow, takes at once
NUMBERS = (0, 1, 7, 8, 63, 64, 255, 2**16, 2**20, 2**31, 2**32 - 1, 2**40, 2**61, 2**63 - 1, 2**63, 2**64 - 1)
VALUES = (
    None, True, False, 0, -1, 3, 2**31, 2**63, 2**70, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "x",
    "4", "\n", "é" * 300, "\ud800", "../x", "__metadata__", "9" * 5000, [], {}, [0], ["4", 0], [0, -9], [[[]]],
    {"a": {}}, {"inputs": {}}, [1, 2, 3, 4, 5, 6], ["4", 2**70],
)  # fmt: skip


class Count:
    """What a loop of cases took.

    Args:
        every: of so many cases the memory of one is looked at closely, which takes five times as long.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.cases = self.answers = self.peak = 0
        self.longest, self.began = 0.0, time.perf_counter()
        self.rss = int(psutil.Process().memory_info().rss)

    def case(self, what: Any, read: Callable[[], None], kind: type[Exception]) -> None:
        """One of them: it is read, or refused in a sentence of this kind."""
        is_traced = self.cases % self.every == 0
        if is_traced:
            tracemalloc.start()
        began = time.process_time()  # others compute on this machine too
        try:
            with nullcontext() if ASKED else within_calls():
                read()
            self.answers += 1
        except kind as error:
            one_sentence(error)
        took = time.process_time() - began
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert took < SLOWEST or not ASKED, what
        assert peak < MOST_BYTES, what
        self.cases, self.peak, self.longest = self.cases + 1, max(self.peak, peak), max(self.longest, took)

    def __str__(self) -> str:
        seconds = time.perf_counter() - self.began
        return (
            f"{self.cases:,} cases, {self.answers:,} answers, {seconds:.0f} s, the longest {1000 * self.longest:.0f} ms"
            f" of the processor, at most {self.peak / 1024:,.0f} KB at once, the process {self.grown() / MB:+.1f} MB,"
            f" seed {SEED}"
        )

    def grown(self) -> int:
        """Bytes by which the process has grown since."""
        return int(psutil.Process().memory_info().rss) - self.rss


@pytest.fixture
def count(request: pytest.FixtureRequest) -> Iterator[Count]:
    # Of workflows an odd number, so that both ways with one have their turn.
    counted = Count(every=7 if "workflows" in request.node.name else 1)
    yield counted
    print(f"\n{counted}")
    assert counted.grown() < MOST_GROWTH


def cases(usual: int) -> int:
    return int(ASKED) if ASKED else usual


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Bytes changed in one to four places: set, exchanged for numbers, put in, taken out, doubled, cut off."""
    found = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(found) + 1)
        what = chance.randrange(7)
        if what == 0:
            found[at : at + 1] = bytes([chance.randrange(256)])
        elif what == 1:
            found[at : at + 8] = struct.pack("<Q", chance.choice(NUMBERS))
        elif what == 2:
            found[at : at + 4] = struct.pack("<I", chance.choice(NUMBERS) % 2**32)
        elif what == 3:
            found[at:at] = chance.randbytes(chance.randint(1, 16))
        elif what == 4:
            del found[at : at + chance.randint(1, 16)]
        elif what == 5:
            found[at:at] = found[at : at + chance.randint(1, 64)]
        else:
            del found[at + chance.randrange(200) :]
    return bytes(found)


def mutate(content: Any, chance: random.Random) -> None:
    """A JSON value changed in one to four places: entries replaced, taken out, doubled, renamed, exchanged."""
    for _ in range(chance.randint(1, 4)):
        holder, key = content, None
        while holder:
            keys = list(holder) if isinstance(holder, dict) else range(len(holder))
            key = chance.choice(keys)
            if not isinstance(holder[key], (dict, list)) or not holder[key] or chance.randrange(4) == 0:
                break
            holder = holder[key]
        if key is None:
            return
        what = chance.randrange(6)
        if what < 2:
            holder[key] = copy.deepcopy(chance.choice(VALUES))
        elif what == 2:
            del holder[key]
        elif what == 3:
            other = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
            holder[key], holder[other] = holder[other], holder[key]
        elif isinstance(holder, list):
            holder.insert(chance.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
        else:
            holder[chance.choice(["1", "x", "\n", "nodes", "links", "é" * 300, "4"])] = copy.deepcopy(holder[key])


SAFETENSORS = [
    safetensors_header([]),
    safetensors_header([("F32", [2, 3])]),
    safetensors_header([("F16", [4]), ("F8_E4M3", []), ("I64", [0, 7]), ("BF16", [3, 1, 2, 2]), ("U8", [300])]),
]
SAFETENSORS[1][0]["__metadata__"] = {"made": "here", "x": ""}
EVERY_TYPE = [(f"block.{number}.weight", (one.block, 2), number) for number, one in GGML_TYPES.items()]
KEYS: dict[str, gguf.Typed] = {
    "general.architecture": (8, "flux"),
    "words": (9, (8, ["a", "bc", ""])),
    "scores": (9, (6, [0.5] * 70)),
    "nested": (9, (9, [(0, [1, 2]), (8, ["x"])])),
    "truth": (7, True),
    "general.file_type": (4, 7),
}
GGUF = [
    gguf.written([]),
    gguf.written([("a", (5, 3), 0)], KEYS),
    gguf.written([("a", (32, 2), 8), ("b", (), 0), ("c", (0, 7), 1)], alignment=64, version=2),
    gguf.written(EVERY_TYPE, data=0),
]


def test_safetensors_headers(count: Count) -> None:
    chance = random.Random(f"safetensors {SEED}")
    for _ in range(cases(1500)):
        header, data = copy.deepcopy(chance.choice(SAFETENSORS))
        if chance.randrange(2):
            mutate(header, chance)
            file = safetensors_file(header, data + chance.choice([0, 0, 0, 1]))
        else:
            whole = safetensors_file(header, data).content
            head = len(whole) - data
            file = InMemory(damaged(whole[: head + 8], chance) + whole[head + 8 :])

        def read(file: InMemory = file) -> None:
            found = read_header(file)
            holds_safetensors(found, len(file.content) - found.begin)

        count.case(file.content, read, NotAHeader)
    assert 0 < count.answers < count.cases


def test_gguf_headers(count: Count) -> None:
    chance = random.Random(f"gguf {SEED}")
    for _ in range(cases(1500)):
        content = damaged(chance.choice(GGUF), chance)

        def read(content: bytes = content) -> None:
            holds_gguf(read_gguf_header(InMemory(content, ".gguf")), len(content))

        count.case(content, read, NotAHeader)
    assert 0 < count.answers < count.cases


def test_workflows(count: Count) -> None:
    chance = random.Random(f"workflows {SEED}")
    texts = [json.dumps(one) for one in WORKFLOWS]
    for _ in range(cases(100)):
        content = json.loads(chance.choice(texts))
        mutate(content, chance)
        before = json.dumps(content)
        for reads in WAYS:
            count.case(before, partial(reads, content), ValueError)
        assert json.dumps(content) == before, "what is sent is not changed"
    assert 0 < count.answers < count.cases
