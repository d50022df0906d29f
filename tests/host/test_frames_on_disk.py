"""Decoded frames in a file instead of in memory: the same ones, for any node behind them."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import comfy.utils
import folder_paths
import pytest
import torch
from torch import Tensor

from headroom.host.measure.runs import LOG
from headroom.host.vae import geometry
from headroom.host.vae.fallback import BudgetTooSmall
from headroom.host.vae.settings import VAESettings
from headroom.host.vae.wrapper import decode_latent, low_memory_vae
from headroom.memory.on_disk import SUFFIX, on_disk

from ..nightly import grid
from .autoencoders import AUTOENCODERS

pytestmark = pytest.mark.usefixtures("one_thread")


def mapped() -> int:
    """Bytes of such files that this process has mapped."""
    ranges = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines() if SUFFIX in line]
    return sum(int(end, 16) - int(start, 16) for start, end in ranges)


def decoded(name: str, x: Tensor, **settings: Any) -> Tensor:
    torch.manual_seed(5)
    return decode_latent(low_memory_vae(AUTOENCODERS[name].load(), VAESettings(**settings)), {"samples": x})


KINDS = [name for name in ("wan21", "ltx", "cogvideox", "sd", "taehv") if name in AUTOENCODERS]  # that this host has


@pytest.mark.parametrize(("name", "method"), grid(KINDS, ["auto", "exact"]))
def test_the_same_frames_in_a_file(name: str, method: str) -> None:
    kind = AUTOENCODERS[name]
    x = kind.latent(4, 5, 2, cells_in_time=3)
    expected = decoded(name, x, method=method)
    gc.collect()
    before = mapped()
    found = decoded(name, x, method=method, frames_on_disk=True)
    assert torch.equal(found, expected)
    assert found.is_contiguous()
    assert mapped() - before >= found.nbytes
    used = comfy.utils.common_upscale(found[:2].movedim(-1, 1), 32, 24, "bilinear", "center")
    assert torch.equal(used, comfy.utils.common_upscale(expected[:2].movedim(-1, 1), 32, 24, "bilinear", "center"))
    found[0] = 0  # what writes into it may
    del found, used
    gc.collect()
    assert mapped() == before
    folder = Path(folder_paths.get_temp_directory()) / "headroom"
    assert not list(folder.glob(f"*{SUFFIX}"))


def test_plans_take_no_room_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rows of all frames do not fit, other ways are planned while the first try still has its result."""
    kind = AUTOENCODERS["wan21"]
    x, exact = kind.latent(8, 12, cells_in_time=9), {"method": "exact", "frames_on_disk": True}
    with pytest.raises(BudgetTooSmall) as refused:
        decoded("wan21", x, vram_budget_gb=1e-3, **exact)
    gc.collect()
    before, taken = mapped(), list[int]()

    def counted(*args: Any) -> Tensor:
        room = on_disk(*args)
        taken.append(mapped() - before)
        return room

    monkeypatch.setattr(geometry, "on_disk", counted)
    found = decoded("wan21", x, vram_budget_gb=1.001 * refused.value.least / 2**30, **exact)
    assert any("of frames" in line for line in LOG.rows("", "")[-1].lines)
    assert max(taken) < 1.1 * found.nbytes


def test_a_disk_that_is_too_small_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**28 + 1000))
    x = AUTOENCODERS["wan21"].latent(4, 5, cells_in_time=3)
    with pytest.raises(ValueError, match=r"needs .* of disk in .* are free there"):
        decoded("wan21", x, frames_on_disk=True)


@pytest.mark.parametrize("method", ["auto", "feathered"])
def test_other_ways_are_left_alone(method: str) -> None:
    """Feathered tiles are blended in memory; an encode makes no frames."""
    vae = low_memory_vae(
        AUTOENCODERS["sd"].load(), VAESettings(method=method, tile_size=64, overlap=16, frames_on_disk=True)
    )
    pixels = AUTOENCODERS["sd"].pixels(64, 80)
    assert vae.encode(pixels).shape == (1, 4, 8, 10)
    assert vae.decode(torch.randn(1, 4, 16, 20)).shape == (1, 128, 160, 3)
