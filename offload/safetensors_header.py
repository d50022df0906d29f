"""Reads the header of a safetensors file and holds it to the format's rules, before anything is allocated by it.

Format: 8 bytes of header length (little endian), a JSON header, then the tensors without gaps or overlaps
(https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

SUFFIXES = (".safetensors", ".sft")
MOST_BYTES = 100_000_000  # of a header, as the format's own reader has it
MOST_LONG = 2**63 - 1
BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32,
    "U16": 16, "U8": 8, "BOOL": 8, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6,
    "F6_E3M2": 6,
}  # fmt: skip


class NotAHeader(ValueError):
    """A file whose tensors cannot be told without reading it; the message says why, and what to do."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file.

    Attributes:
        dtype: as the format names it; it need not be one that is known here.
        shape: of the tensor.
        first, last: bytes from the beginning of the data.
    """

    dtype: str
    shape: tuple[int, ...]
    first: int
    last: int


@dataclass(frozen=True)
class Header:
    """What a file holds.

    Attributes:
        entries: tensors by their names.
        metadata: words by theirs.
        begin: bytes before the data.
        is_alone: whether there is no data behind it, which is enough to tell what the tensors would take.
    """

    entries: dict[str, StoredTensor]
    metadata: dict[str, str]
    begin: int
    is_alone: bool = False


def read_header(path: Path) -> Header:
    """The header of a file.

    Raises:
        NotAHeader: another kind of file, or a damaged one.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(8)
        size = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= size <= MOST_BYTES or path.suffix.lower() not in SUFFIXES:
            raise NotAHeader(f"{path.name} is no safetensors file: convert it to be able to answer without loading it")
        text = file.read(size)
        data = file.seek(0, 2) - 8 - size
    try:
        content = json.loads(text)
        entries, metadata = _checked(content, data)
        return Header(entries, metadata, 8 + size, is_alone=bool(entries) and not data)
    except (ValueError, RecursionError) as error:
        why = f" ({error})" if isinstance(error, _Broken) else ""
        raise NotAHeader(f"{path.name}: its header is damaged{why}; download it again") from error


class _Broken(ValueError):
    """A rule of the format that a header breaks."""


def _checked(content: Any, data: int) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """
    Args:
        content: of the header.
        data: bytes behind it; 0: the header is alone.
    """
    if not isinstance(content, dict):
        raise _Broken("it is no JSON object")
    metadata = content.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _Broken("its metadata are no words")
    entries = {name: _entry(name, value) for name, value in content.items()}
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].first, item[1].last)):
        if entry.first != end:
            raise _Broken(f"{short(name)} does not begin where the tensor before it ends")
        end = entry.last
    if data and end != data:
        raise _Broken(f"its tensors take {short(str(end))} bytes, the file has {data}")
    return entries, metadata


def _entry(name: str, value: Any) -> StoredTensor:
    if not isinstance(value, dict):
        raise _Broken(f"{short(name)} is not described")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not (isinstance(dtype, str) and _are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2):
        raise _Broken(f"{short(name)} has no dtype, shape and data_offsets")
    first, last = offsets
    bits = math.prod(shape) * BITS.get(dtype, 0)
    if last < first or (dtype in BITS and bits != 8 * (last - first)):
        raise _Broken(f"{short(name)} has other bytes than its shape and dtype take")
    return StoredTensor(dtype, tuple(shape), first, last)


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and 0 <= value <= MOST_LONG for value in values)


def short(text: str) -> str:
    """A name from a file, for a sentence: in one line, and no longer than 80 characters."""
    shown = text[:81] if text.isprintable() else repr(text[:81])[1:-1]
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
