"""Tensors in files: the bytes of memory they do not take, and what is left of them."""

from __future__ import annotations

import gc
from pathlib import Path

import psutil
import pytest
import torch

from headroom.memory.on_disk import KEEP_FREE, SUFFIX, DiskTooSmall, on_disk, require_room


def anonymous() -> int:
    """Bytes of this process that lie in no file."""
    return sum(entry.anonymous for entry in psutil.Process().memory_maps(grouped=False))


def test_a_tensor_of_zeros_in_no_memory_of_its_own(tmp_path: Path) -> None:
    before = anonymous()
    made = on_disk(tmp_path, (64, 1024, 1024))
    assert made.dtype == torch.float32
    assert made.is_contiguous()
    assert made[3, 5, 7] == made[63, 1023, 1023] == 0
    made.fill_(0.5)
    assert anonymous() - before < made.nbytes // 4
    assert made[:16].sum() == 8 * 2**20


def mapped() -> bool:
    """Whether this process has such a file."""
    return SUFFIX in Path("/proc/self/maps").read_text()


@pytest.mark.skipif(not Path("/proc").exists(), reason="elsewhere nothing tells what is mapped")
def test_its_file_has_no_name_and_its_blocks_come_back(tmp_path: Path) -> None:
    made = on_disk(tmp_path, (4, 2**20))
    assert list(tmp_path.iterdir()) == []
    view = made[1:2]
    del made
    gc.collect()
    assert view.sum() == 0  # the view holds the file
    assert mapped()
    del view
    gc.collect()
    assert not mapped()


def test_more_than_the_disk_has_is_refused_with_both_numbers(tmp_path: Path) -> None:
    free = psutil.disk_usage(str(tmp_path)).free
    with pytest.raises(DiskTooSmall, match=r"needs .* of disk in .* are free there"):
        on_disk(tmp_path, (free // 4,))
    with pytest.raises(DiskTooSmall, match="the video needs"):
        require_room(tmp_path / "not" / "yet", free - KEEP_FREE + 2**30, "the video")
    require_room(tmp_path / "not" / "yet", 2**20, "the video")
    assert list(tmp_path.iterdir()) == []
