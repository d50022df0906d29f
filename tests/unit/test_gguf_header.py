"""Headers of GGUF files: every kind of value and tensor is read, what breaks a rule of the format is refused."""

import struct
import tracemalloc
from pathlib import Path

import pytest

from headroom.offload import gguf_header
from headroom.offload.ggml_types import GGML_TYPES
from headroom.offload.gguf_header import LongList, read_gguf_header
from headroom.offload.safetensors_header import NotAHeader

from . import gguf

# Of a row of 256 weights, by hand from the structures in ggml-common.h.
BYTES_OF_256 = {
    "F32": 1024, "F16": 512, "BF16": 512, "F64": 2048, "I8": 256, "I16": 512, "I32": 1024, "I64": 2048,
    "Q4_0": 144, "Q4_1": 160, "Q5_0": 176, "Q5_1": 192, "Q8_0": 272, "Q8_1": 288, "Q2_K": 84, "Q3_K": 110,
    "Q4_K": 144, "Q5_K": 176, "Q6_K": 210, "Q8_K": 292, "IQ2_XXS": 66, "IQ2_XS": 74, "IQ3_XXS": 98, "IQ1_S": 50,
    "IQ4_NL": 144, "IQ3_S": 110, "IQ2_S": 82, "IQ4_XS": 136, "IQ1_M": 56, "TQ1_0": 54, "TQ2_0": 66, "MXFP4": 136,
    "NVFP4": 144, "Q1_0": 36, "Q2_0": 72,
}  # fmt: skip
ONE = [("a", (8, 4), 0)]  # 128 bytes in float32


def file(folder: Path, content: bytes) -> Path:
    path = folder / "x.gguf"
    path.write_bytes(content)
    return path


def test_every_type_is_read(tmp_path: Path) -> None:
    assert {one.name for one in GGML_TYPES.values()} == set(BYTES_OF_256)
    tensors = [(one.name, (256, 3, 2), number) for number, one in GGML_TYPES.items()]
    header = read_gguf_header(file(tmp_path, gguf.written(tensors)))
    assert list(header.entries) == [name for name, _, _ in tensors]
    for name, entry in header.entries.items():
        assert entry.type.name == name
        assert entry.shape == (2, 3, 256)
        assert entry.nbytes == 6 * BYTES_OF_256[name]
        assert entry.type.bits * 256 == 8 * BYTES_OF_256[name]
        assert entry.first % 32 == 0
    assert not header.is_alone


def test_where_the_data_are(tmp_path: Path) -> None:
    content = gguf.written([("first", (5,), 0), ("second", (), 0), ("none", (0, 7), 0)], alignment=64)
    content = content[:-128] + b"\1" * 20 + bytes(44) + b"\2" * 4 + bytes(60)
    header = read_gguf_header(file(tmp_path, content))
    assert header.begin % 64 == 0
    first, second = header.entries["first"], header.entries["second"]
    assert content[header.begin + first.first : header.begin + first.last] == b"\1" * 20
    assert content[header.begin + second.first : header.begin + second.last] == b"\2" * 4
    assert second.shape == ()
    assert header.entries["none"].shape == (7, 0)
    assert header.entries["none"].nbytes == 0


def test_every_kind_of_value_is_read(tmp_path: Path) -> None:
    numbers = {0: 255, 1: -128, 2: 2**16 - 1, 3: -(2**15), 4: 2**32 - 1, 5: -(2**31), 6: 0.5, 7: True, 10: 2**64 - 1,
               11: -(2**63), 12: 0.1}  # fmt: skip
    keys: dict[str, gguf.Typed] = {f"n.{kind}": (kind, number) for kind, number in numbers.items()}
    keys |= {f"l.{kind}": (9, (kind, [number] * 3)) for kind, number in numbers.items()}
    keys |= {f"long.{kind}": (9, (kind, [number] * 100)) for kind, number in numbers.items()}
    keys |= {
        "word": (8, "wörd"),
        "words": (9, (8, ["a", "", "c"])),
        "vocabulary": (9, (8, [f"w{number}" for number in range(5000)])),
        "nested": (9, (9, [(9, [(8, ["x", "y"]), (0, [1, 2])]), (9, []), (12, [0.0] * 70)])),
        "empty": (9, (4, [])),
        "last": (8, "read"),
    }
    found = read_gguf_header(file(tmp_path, gguf.written(ONE, keys))).metadata
    assert list(found) == list(keys)
    for kind, number in numbers.items():
        assert found[f"n.{kind}"] == number
        assert type(found[f"n.{kind}"]) is type(number)
        assert found[f"l.{kind}"] == (number,) * 3
        assert found[f"long.{kind}"] == LongList(kind, 100)
    assert found["word"] == "wörd"
    assert found["words"] == ("a", "", "c")
    assert found["vocabulary"] == LongList(8, 5000)
    assert found["nested"] == LongList(9, 3)
    assert found["empty"] == ()
    assert found["last"] == "read"


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions_are_read(tmp_path: Path, version: int) -> None:
    assert read_gguf_header(file(tmp_path, gguf.written(ONE, version=version))).entries["a"].shape == (4, 8)


def test_a_header_alone_is_enough(tmp_path: Path) -> None:
    """To tell what a model would take, nothing else needs to be downloaded; nor the padding before the data."""
    whole = gguf.written(ONE, data=0)
    for content in (whole, whole.rstrip(b"\0") + bytes(7 + 4 + 8)):  # of the last size, the type and the offset
        header = read_gguf_header(file(tmp_path, content))
        assert header.is_alone
        assert header.entries["a"].nbytes == 128


def with_keys(*keys: bytes, count: int | None = None, tensors: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, len(keys) if count is None else count) + b"".join(keys)


def with_tensors(*tensors: bytes, data: int = 512) -> bytes:
    head = with_keys(tensors=len(tensors)) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + bytes(data)


def nested(depth: int) -> bytes:
    return gguf.text("x") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * depth + struct.pack("<IQ", 0, 0)


DAMAGED = [
    (b"", r"is no GGUF file: download it again, or choose another"),
    (b"GGU", r"is no GGUF file"),
    (b"GGML" + bytes(60), r"is no GGUF file"),
    (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), r"is big endian, which is not read here: take the file for little-"),
    (b"GGUF" + struct.pack("<III", 1, 0, 0), r"is of version 1 of its format, and 2 and 3 are read: convert the model"),
    (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), r"is of version 4 of its format"),
    (b"GGUF" + struct.pack("<IQ", 3, 0), r"\(it is cut off\)"),
    (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), r"\(it counts 1,152,921,504,606,846,976 tensors and 0 keys\)"),
    (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**13), r"\(it counts 0 tensors and 8,192 keys\)"),
    (with_keys(count=1), r"\(it is cut off\)"),
    (with_keys(struct.pack("<Q", 2**63)), r"\(a name in it has 9,223,372,036,854,775,808 bytes\)"),
    (with_keys(struct.pack("<Q", 2**16) + bytes(2**17)), r"\(a name in it has 65,536 bytes\)"),
    (with_keys(gguf.key("x", 8, b"\xff")), r"\(a name in it is no UTF-8\)"),
    (with_keys(gguf.text("x") + struct.pack("<IQ", 8, 9) + b"short"), r"\(it is cut off\)"),
    (with_keys(gguf.text("x") + struct.pack("<I", 13)), r"\(a value in it is of kind 13, which there is not\)"),
    (with_keys(gguf.text("x") + struct.pack("<IIQ", 9, 77, 1)), r"\(a value in it is of kind 77, which there is not\)"),
    (with_keys(gguf.text("x") + struct.pack("<IB", 7, 2)), r"\(a truth in it is neither 0 nor 1\)"),
    (with_keys(gguf.key("x", 0, 1), gguf.key("x", 0, 1)), r"\(it has x twice\)"),
    (with_keys(gguf.text("x") + struct.pack("<IIQ", 9, 12, 2**61)), r"\(it is cut off\)"),
    (with_keys(gguf.text("x") + struct.pack("<IIQ", 9, 8, 2**61)), r"\(it has more than 1,048,576 words in lists, or "),
    (with_keys(gguf.text("x") + struct.pack("<IIQ", 9, 9, 2**17)), r"\(it has more than .* or 65,536 lists\)"),
    (with_keys(nested(8)), r"\(it has lists in lists 9 deep\)"),
    (with_keys(nested(5000)), r"\(it has lists in lists 9 deep\)"),
    (with_keys(gguf.key("general.alignment", 4, 0)), r"\(its alignment is 0, and not a multiple of 8\)"),
    (with_keys(gguf.key("general.alignment", 4, 12)), r"\(its alignment is 12, and not a multiple of 8\)"),
    (with_keys(gguf.key("general.alignment", 8, "32")), r"\(its alignment is 32, and not a multiple of 8\)"),
    (with_tensors(gguf.tensor("a\nb", (8,), 0, 4)), r"\(a\\nb does not begin at a multiple of 32 bytes\)"),
    (with_tensors(gguf.tensor("a", (8,), 4, 0)), r"stores a as type 4, which this version does not know: take another"),
    (with_tensors(gguf.tensor("a", (8,), 2**31, 0)), r"stores a as type 2147483648, which this version does not know"),
    (with_tensors(gguf.tensor("a", (48,), 2, 0)), r"\(a has rows of 48 values, and Q4_0 stores 32 together\)"),
    (with_tensors(gguf.tensor("a", (), 2, 0)), r"\(a has rows of 1 values, and Q4_0 stores 32 together\)"),
    (with_tensors(gguf.tensor("a", (1,) * 9, 0, 0)), r"\(a has 9 dimensions\)"),
    (with_tensors(gguf.tensor("a", (2**40, 2**40), 0, 0)), r"\(a is larger than any file\)"),
    (with_tensors(gguf.tensor("a", (0, 2**64 - 1), 0, 0)), r"\(a is larger than any file\)"),
    (with_tensors(gguf.tensor("a", (8,), 0, 2**64 - 32)), r"\(a is larger than any file\)"),
    (with_tensors(gguf.tensor("a", (16,), 0, 0), gguf.tensor("a", (16,), 0, 64)), r"\(it has a twice\)"),
    (with_tensors(gguf.tensor("a", (16,), 0, 0), gguf.tensor("b", (16,), 0, 32)),
     r"\(b begins within the tensor before it\)"),
    (with_tensors(gguf.tensor("a", (16,), 0, 480)), r"\(its tensors take 544 bytes, the file has 512\)"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "reason"), DAMAGED)
def test_what_breaks_a_rule(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(NotAHeader, match=rf"^x\.gguf.*{reason}") as failure:
        read_gguf_header(file(tmp_path, content))
    assert "\n" not in str(failure.value)
    assert len(str(failure.value)) < 300


def test_what_the_rules_allow(tmp_path: Path) -> None:
    """Tensors in any order and with room between them, a list eight deep."""
    behind = with_tensors(gguf.tensor("b", (16,), 0, 256), gguf.tensor("a", (16,), 0, 0))
    assert list(read_gguf_header(file(tmp_path, behind)).entries) == ["b", "a"]
    assert read_gguf_header(file(tmp_path, with_keys(nested(7)))).metadata == {"x": LongList(9, 1)}


def test_it_is_not_read_further_than_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_header, "MOST_BYTES", 4096)
    long = gguf.written(ONE, {"x": (8, "y" * 4096)})
    with pytest.raises(NotAHeader, match=r"it is longer than 4,096 bytes"):
        read_gguf_header(file(tmp_path, long))
    assert read_gguf_header(file(tmp_path, gguf.written(ONE, {"x": (8, "y" * 3900)}))).entries


def test_a_vocabulary_is_walked_through_and_not_kept(tmp_path: Path) -> None:
    content = with_keys(gguf.text("x") + struct.pack("<IIQ", 9, 8, 2**15) + gguf.text("12345678") * 2**15)
    path = file(tmp_path, content)
    tracemalloc.start()
    try:
        assert read_gguf_header(path).metadata == {"x": LongList(8, 2**15)}
        assert tracemalloc.get_traced_memory()[1] < 2**18
    finally:
        tracemalloc.stop()
