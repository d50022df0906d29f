"""Headers of safetensors files: what the library writes is read, what breaks a rule of the format is refused."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from headroom.offload.safetensors_header import NotAHeader, read_header

WHOLE = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}


def written(path: Path, header: Any, data: int = 24) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(data))
    return path


def test_what_the_library_writes(tmp_path: Path) -> None:
    tensors = {
        "half": torch.ones(2, 3, dtype=torch.float16),
        "scalar": torch.tensor(1.0),
        "none": torch.empty(0, 7),
        "bytes": torch.ones(5, dtype=torch.uint8),
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"made": "here"})
    header = read_header(tmp_path / "x.safetensors")
    assert {name: entry.shape for name, entry in header.entries.items()} == {
        name: tuple(tensor.shape) for name, tensor in tensors.items()
    }
    assert header.metadata == {"made": "here"}
    content = (tmp_path / "x.safetensors").read_bytes()
    half = header.entries["half"]
    assert content[header.begin + half.first : header.begin + half.last] == tensors["half"].numpy().tobytes()


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b'{"', r"its header is damaged; download it again"),
        (b"\xff\xfe{}", r"its header is damaged; download it again"),
        (b"[" * 100_000, r"its header is damaged; download it again"),
        (b'{"a": ' + b"1" * 5000 + b"}", r"its header is damaged; download it again"),
        ([], r"\(it is no JSON object\)"),
        ({"__metadata__": {"x": 1}, **WHOLE}, r"\(its metadata are no words\)"),
        ({"__metadata__": [1], **WHOLE}, r"\(its metadata are no words\)"),
        ({"a": None}, r"\(a is not described\)"),
        ({"a\nb\ud800": None}, r"\(a\\nb\\ud800 is not described\)"),
        ({"a": {}}, r"\(a has no dtype, shape and data_offsets\)"),
        ({"a": {**WHOLE["a"], "shape": [-2, -3]}}, r"\(a has no dtype, shape and data_offsets\)"),
        ({"a": {**WHOLE["a"], "shape": [2.0, 3]}}, r"\(a has no dtype, shape and data_offsets\)"),
        ({"a": {**WHOLE["a"], "shape": [True, 6]}}, r"\(a has no dtype, shape and data_offsets\)"),
        ({"a": {**WHOLE["a"], "shape": [2**70]}}, r"\(a has no dtype, shape and data_offsets\)"),
        ({"a": {**WHOLE["a"], "data_offsets": [0, 24, 0]}}, r"\(a has no dtype, shape and data_offsets\)"),
        ({"a": {**WHOLE["a"], "data_offsets": [24, 0]}}, r"\(a has other bytes than its shape and dtype take\)"),
        ({"a": {**WHOLE["a"], "shape": [2, 4]}}, r"\(a has other bytes than its shape and dtype take\)"),
        ({"a": {**WHOLE["a"], "data_offsets": [0, 2**70]}}, r"\(a has no dtype, shape and data_offsets\)"),
        ({"a": {**WHOLE["a"], "data_offsets": [4, 28]}}, r"\(a does not begin where the tensor before it ends\)"),
        ({**WHOLE, "b": WHOLE["a"]}, r"\(b does not begin where the tensor before it ends\)"),
        ({"a": {**WHOLE["a"], "dtype": "F64", "data_offsets": [0, 48]}}, r"\(its tensors take 48 bytes, the file has"),
        ({}, r"\(its tensors take 0 bytes, the file has 24\)"),
    ],
)
def test_what_breaks_a_rule(tmp_path: Path, header: Any, reason: str) -> None:
    with pytest.raises(NotAHeader, match=reason) as failure:
        read_header(written(tmp_path / "x.safetensors", header))
    assert "\n" not in str(failure.value)
    assert len(str(failure.value)) < 300


@pytest.mark.parametrize("content", [b"", b"short", struct.pack("<Q", 2**60), struct.pack("<Q", 0), b"PK\x03\x04" * 9])
def test_what_is_no_safetensors_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(NotAHeader, match=r"x\.safetensors is no safetensors file: convert it"):
        read_header(tmp_path / "x.safetensors")


def test_a_name_that_promises_another_format(tmp_path: Path) -> None:
    with pytest.raises(NotAHeader, match="is no safetensors file"):
        read_header(written(tmp_path / "x.ckpt", WHOLE))


def test_a_dtype_of_tomorrow_is_read(tmp_path: Path) -> None:
    """Its bytes cannot be told from its shape; whoever needs the tensor says that it is not known."""
    header = {"a": {"dtype": "F2", "shape": [96], "data_offsets": [0, 24]}}
    assert read_header(written(tmp_path / "x.safetensors", header)).entries["a"].dtype == "F2"


def test_a_truncated_download(tmp_path: Path) -> None:
    with pytest.raises(NotAHeader, match="its tensors take 24 bytes, the file has 20"):
        read_header(written(tmp_path / "x.safetensors", WHOLE, data=20))


def test_a_header_alone_is_enough(tmp_path: Path) -> None:
    """To tell what a model would take, nothing else needs to be downloaded."""
    header = read_header(written(tmp_path / "x.safetensors", WHOLE, data=0))
    assert header.is_alone
    assert header.entries["a"].shape == (2, 3)
    assert not read_header(written(tmp_path / "x.safetensors", WHOLE)).is_alone
