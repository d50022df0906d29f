"""Reads the header of a GGUF file and holds it to the format's rules, before anything is allocated by it.

Format: a magic, a version, two counts, keys with values, a description of each tensor, and the tensors at offsets that
are multiples of an alignment; numbers are little endian (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from .ggml_types import GGML_TYPES, GGMLType
from .safetensors_header import MOST_LONG, NotAHeader, short

GGUF_SUFFIX = ".gguf"
MAGIC, VERSIONS, HIGHEST = b"GGUF", (2, 3), 0xFFFF
MOST_BYTES = 100_000_000  # of a header
MOST_KEYS, MOST_TENSORS = 2**12, 2**15  # public models have some tens to hundreds, and a few thousand
MOST_NAME = 2**16 - 1  # bytes of a key, and here of a tensor's name; what writes files of pictures' models passes 64
MOST_WORDS = 2**20  # in lists; of large vocabularies with their merges some 650,000
MOST_LISTS = 2**16  # in lists
MOST_KEPT = 64  # values of a list that are given; vocabularies are walked through and forgotten
DEEPEST, MOST_DIMENSIONS = 8, 8  # lists in lists; the format has 4 dimensions so far
ALIGNMENT, ALIGNMENT_KEY, ALIGNMENT_UNIT = 32, "general.alignment", 8
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
PACKED = {code: struct.Struct("<" + code) for code in NUMBERS.values()}
BOOL, STRING, ARRAY = 7, 8, 9


@dataclass(frozen=True)
class LongList:
    """A value of which only this much is kept.

    Attributes:
        kind: of its elements, as the format numbers them.
        length: how many there are.
    """

    kind: int
    length: int


@dataclass(frozen=True)
class PackedTensor:
    """A tensor of a file.

    Attributes:
        type: how its values are stored.
        shape: as torch has it, the longest stride first; GGML writes it the other way round.
        first, last: bytes from the beginning of the data.
    """

    type: GGMLType
    shape: tuple[int, ...]
    first: int
    last: int

    @property
    def nbytes(self) -> int:
        """That it takes in the file."""
        return self.last - self.first


@dataclass(frozen=True)
class PackedHeader:
    """What a file holds.

    Attributes:
        entries: tensors by their names.
        metadata: numbers, words, truths, and short flat lists as tuples, by their keys; :class:`LongList` for others.
        begin: bytes before the data.
        is_alone: whether there is no data behind it, which is enough to tell what the tensors would take.
    """

    entries: dict[str, PackedTensor]
    metadata: dict[str, Any]
    begin: int
    is_alone: bool = False


def read_gguf_header(path: Path) -> PackedHeader:
    """The header of a file; of which :data:`MOST_BYTES` are read at most.

    Raises:
        NotAHeader: another kind of file, or a damaged one.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        if file.read(4) != MAGIC:
            raise NotAHeader(f"{path.name} is no GGUF file: download it again, or choose another")
        try:
            return _header(_Reader(file, size))
        except _Refused as error:
            raise NotAHeader(f"{path.name} {error}") from error
        except (_Broken, UnicodeDecodeError) as error:
            why = str(error) if isinstance(error, _Broken) else "a name in it is no UTF-8"
            raise NotAHeader(f"{path.name}: its header is damaged ({why}); download it again") from error


class _Broken(ValueError):
    """A rule of the format that a header breaks."""


class _Refused(ValueError):
    """A file that is whole, as far as one can see, and is not read here."""


class _Reader:
    """Goes through a header, and no further than its limit."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self.size, self.at = file, size, len(MAGIC)
        self._words = self._lists = 0

    def take(self, count: int) -> bytes:
        self.require(count)
        self.at += count
        return self._file.read(count)

    def skip(self, count: int) -> None:
        self.require(count)
        self.at += count
        self._file.seek(count, 1)

    def require(self, count: int) -> None:
        if self.at + count > self.size:
            raise _Broken("it is cut off")
        if self.at + count > MOST_BYTES:
            raise _Broken(f"it is longer than {MOST_BYTES:,} bytes")

    def number(self, code: str) -> Any:
        packed = PACKED[code]
        return packed.unpack(self.take(packed.size))[0]

    def text(self, most: int = MOST_BYTES) -> str:
        length = self.number("Q")
        if length > most:
            raise _Broken(f"a name in it has {length:,} bytes")
        return self.take(length).decode()

    def truth(self) -> bool:
        value = self.take(1)
        if value not in (b"\0", b"\1"):
            raise _Broken("a truth in it is neither 0 nor 1")
        return value == b"\1"

    def value(self, kind: int, depth: int = 0) -> Any:
        """A value of a kind, a long list's without its elements."""
        if kind in NUMBERS:
            return self.number(NUMBERS[kind])
        if kind == BOOL:
            return self.truth()
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            raise _Broken(f"a value in it is of kind {kind}, which there is not")
        if depth == DEEPEST:
            raise _Broken(f"it has lists in lists {depth + 1} deep")
        kind, length = self.number("I"), self.number("Q")
        if depth or length > MOST_KEPT or kind == ARRAY:
            self._walk(kind, length, depth)
            return LongList(kind, length)
        return tuple(self.value(kind) for _ in range(length))

    def _walk(self, kind: int, length: int, depth: int) -> None:
        """Over a list's elements, of which none is kept."""
        if kind in NUMBERS or kind == BOOL:
            self.skip(length * (PACKED[NUMBERS[kind]].size if kind in NUMBERS else 1))
            return
        self._words += length * (kind == STRING)
        self._lists += length * (kind != STRING)
        if self._words > MOST_WORDS or self._lists > MOST_LISTS:
            raise _Broken(f"it has more than {MOST_WORDS:,} words in lists, or {MOST_LISTS:,} lists")
        for _ in range(length):
            if kind == STRING:
                self.take(self.number("Q"))
            else:
                self.value(kind, depth + 1)


def _header(reader: _Reader) -> PackedHeader:
    version = reader.number("I")
    if version not in VERSIONS:
        if version & HIGHEST == 0:
            raise _Refused("is big endian, which is not read here: take the file for little-endian machines")
        raise _Refused(f"is of version {version} of its format, and 2 and 3 are read: convert the model again")
    tensors, keys = reader.number("Q"), reader.number("Q")
    if tensors > MOST_TENSORS or keys > MOST_KEYS:
        raise _Broken(f"it counts {tensors:,} tensors and {keys:,} keys")
    metadata: dict[str, Any] = {}
    alignment = ALIGNMENT
    for _ in range(keys):
        key, kind = reader.text(MOST_NAME), reader.number("I")
        if key in metadata:
            raise _Broken(f"it has {short(key)} twice")
        metadata[key] = reader.value(kind)
        if key == ALIGNMENT_KEY:
            alignment = metadata[key]
            if NUMBERS.get(kind) != "I" or not alignment or alignment % ALIGNMENT_UNIT:
                raise _Broken(f"its alignment is {short(str(alignment))}, and not a multiple of {ALIGNMENT_UNIT}")
    entries: dict[str, PackedTensor] = {}
    for _ in range(tensors):
        name = reader.text(MOST_NAME)
        if name in entries:
            raise _Broken(f"it has {short(name)} twice")
        entries[name] = _tensor(reader, name, alignment)
    begin = -(-reader.at // alignment) * alignment
    data = max(0, reader.size - begin)
    _check_places(entries, data)
    return PackedHeader(entries, metadata, begin, is_alone=bool(entries) and not data)


def _tensor(reader: _Reader, name: str, alignment: int) -> PackedTensor:
    """The description of one, its name read already."""
    dimensions = reader.number("I")
    if dimensions > MOST_DIMENSIONS:
        raise _Broken(f"{short(name)} has {dimensions:,} dimensions")
    sizes = [reader.number("Q") for _ in range(dimensions)]
    number, first = reader.number("I"), reader.number("Q")
    kind = GGML_TYPES.get(number)
    if kind is None:
        raise _Refused(f"stores {short(name)} as type {number}, which this version does not know: take another file")
    count = math.prod(sizes)
    if max(count, first, *sizes) > MOST_LONG:
        raise _Broken(f"{short(name)} is larger than any file")
    row = sizes[0] if sizes else 1
    if row % kind.block:
        raise _Broken(f"{short(name)} has rows of {row:,} values, and {kind.name} stores {kind.block} together")
    if first % alignment:
        raise _Broken(f"{short(name)} does not begin at a multiple of {alignment} bytes")
    return PackedTensor(kind, tuple(reversed(sizes)), first, first + count // kind.block * kind.bytes)


def _check_places(entries: dict[str, PackedTensor], data: int) -> None:
    """
    Args:
        entries: all tensors.
        data: bytes behind the header; 0: it is alone.
    """
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].first, item[1].last)):
        if entry.first < end:
            raise _Broken(f"{short(name)} begins within the tensor before it")
        end = entry.last
    if data and end > data:
        raise _Broken(f"its tensors take {end:,} bytes, the file has {data:,}")
