"""Small files that the pack keeps: whole or not there."""

import json
import logging
import math
import os
from pathlib import Path
from typing import Any

import pytest

from headroom.memory.json_file import read_json, write_json


def test_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.json"
    for content in ({"a": 0.5, "é": [1, None]}, {}):
        write_json(path, content)
        assert read_json(path) == content
    assert os.listdir(path.parent) == ["x.json"]


def test_nothing_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_json(tmp_path / "x.json") is None
    assert not caplog.records


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"\xff\xff", b"[" * 100_000, b"1" * 5000])
def test_what_is_damaged_counts_as_not_there_and_is_said(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert read_json(tmp_path / "x.json") is None
    assert "x.json cannot be read and is ignored" in caplog.text


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "x.json").mkdir()
    assert read_json(tmp_path / "x.json") is None
    with pytest.raises(OSError, match=r"x\.json"):
        write_json(tmp_path / "x.json", {})
    assert os.listdir(tmp_path) == ["x.json"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_no_reader_knows_is_not_written(tmp_path: Path, value: float) -> None:
    write_json(tmp_path / "x.json", {"a": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "x.json", {"a": value})
    assert read_json(tmp_path / "x.json") == {"a": 1}


def test_a_full_disk_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "x.json", {"a": 1})

    def full(self: Path, *_: Any, **__: Any) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        write_json(tmp_path / "x.json", {"a": 2})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["x.json"]
