"""Writes headers of GGUF files, for the tests of what reads them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from headroom.offload.ggml_types import GGML_TYPES

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
Typed = tuple[int, Any]  # a kind, and a value; a list's is (kind of its elements, values)


def text(value: str | bytes) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(content)) + content


def value(kind: int, content: Any) -> bytes:
    """A value without its kind."""
    if kind == STRING:
        return text(content)
    if kind == ARRAY:
        inner, values = content
        return struct.pack("<IQ", inner, len(values)) + b"".join(value(inner, one) for one in values)
    return struct.pack("<" + NUMBERS[kind], content)


def key(name: str, kind: int, content: Any) -> bytes:
    return text(name) + struct.pack("<I", kind) + value(kind, content)


def tensor(name: str, sizes: Sequence[int], kind: int, first: int) -> bytes:
    """A description; sizes in GGML's order."""
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, first)


def nbytes(sizes: Sequence[int], kind: int) -> int:
    """That a tensor takes, counted block by block along its rows."""
    rows = 1
    for size in sizes[1:]:
        rows *= size
    row = sizes[0] if sizes else 1
    return rows * (row // GGML_TYPES[kind].block) * GGML_TYPES[kind].bytes


def written(
    tensors: Sequence[tuple[str, Sequence[int], int]],
    keys: Mapping[str, Typed] | None = None,
    *,
    version: int = 3,
    alignment: int = 32,
    data: int | None = None,
) -> bytes:
    """A file: its tensors one behind the other, zeros in them.

    Args:
        tensors: name, sizes in GGML's order, number of the type.
        keys: metadata, with their kinds.
        version: of the format.
        alignment: said among the keys if it is not the usual one.
        data: bytes behind the header; None: as many as the tensors take.
    """
    keys = dict(keys or {}) | ({} if alignment == 32 else {"general.alignment": (4, alignment)})
    described, at, end = b"", 0, 0
    for name, sizes, kind in tensors:
        described += tensor(name, sizes, kind, at)
        end = at + nbytes(sizes, kind)
        at = -(-end // alignment) * alignment
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    header += b"".join(key(name, *typed) for name, typed in keys.items()) + described
    return header + bytes(-len(header) % alignment) + bytes(end if data is None else data)
