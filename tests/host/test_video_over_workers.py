"""Videos over several workers: in chunks of frames, in windows of frames, and straight to a file."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from headroom.host.bands import work as work_module
from headroom.host.bands.crew import CrewReport, Task
from headroom.host.bands.devices import DeviceCrew
from headroom.host.bands.named import DEVICES
from headroom.host.streaming.choice import Decoding
from headroom.host.vae import coding
from headroom.host.vae.fallback import BudgetTooSmall
from headroom.host.video.along import OUTSIDE
from headroom.host.video.resizing import Resizing
from headroom.host.video_files.from_file import encode_from_file
from headroom.host.video_files.host_video import Frames
from headroom.memory import Row

from ..nightly import NIGHTLY
from .autoencoders import AUTOENCODERS
from .families import psnr
from .test_exact_vae import exact, input_of, last_row, run
from .test_exact_vae import stock as untiled
from .test_streaming import CHUNKED, TINY, VIDEOS, Silent, handed_on, latent, stock
from .test_video_files import eight_bits, output, video_of, write  # noqa: F401

CPU = torch.device("cpu")
IN_CHUNKS = [*CHUNKED, "mochi", "cosmos", *TINY]
NEAR_ENOUGH = 120.0  # dB
#: Kinds that have a way for less, each with latent frames that are enough for it, and that way.
ON_LESS = [
    ("wan21", "decode", 6, "chunks"),
    ("ltx_noise", "decode", 12, "windows"),
    ("wan22", "encode", 6, "chunks"),
    ("taehv", "decode", 6, "chunks"),
    ("mochi", "decode", 12, "chunks"),
    ("ltx", "encode", 8, "chunks"),
    ("ltx", "decode", 12, "windows"),
]
pytestmark = pytest.mark.usefixtures("one_thread")


class Counting(DeviceCrew):
    """What its workers received from each other is what they had planned."""

    def compute(self, task: Task) -> tuple[list[Tensor], CrewReport]:
        bands, report = super().compute(task)
        assert report.received == report.measured
        return bands, report


def over(monkeypatch: pytest.MonkeyPatch, budgets: Sequence[float] = (1e9, 2e9, 1e9)) -> None:
    """Devices are that many threads."""
    monkeypatch.setattr(coding, "crew_for", lambda *given: Counting([CPU] * len(budgets), budgets))


def decoding(name: str, x: Tensor) -> Decoding:
    return Decoding.of(exact(name, workers=DEVICES), {"samples": x}, 0.0)


@pytest.mark.parametrize("name", VIDEOS if NIGHTLY else ["wan21", "hunyuan_video15", "taehv", "ltx"])
def test_the_frames_of_the_untiled_decode(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    over(monkeypatch)
    x, row = latent(name, 4, batch=1 if AUTOENCODERS[name].temporal else 3), Row("decode")
    way = decoding(name, x)
    source = way.source(row, Silent())
    assert source.count == stock(name, x).shape[0]
    frames, _ = handed_on(way, source)
    assert psnr(frames, stock(name, x)) >= NEAR_ENOUGH
    assert row.lines[0].startswith("exact: bands of 3 workers")


@pytest.mark.parametrize("name", ["wan21", "hunyuan_video", "taehv"])
def test_a_single_frame(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    over(monkeypatch)
    x, row = latent(name, 1), Row("decode")
    way = decoding(name, x)
    frames, _ = handed_on(way, way.source(row, Silent()))
    assert psnr(frames, stock(name, x)) >= NEAR_ENOUGH
    assert row.lines[0].startswith("exact: bands of 3 workers")


@pytest.mark.parametrize("name", IN_CHUNKS if NIGHTLY else ["wan22", "taew21", "cogvideox"])
def test_from_any_border_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what was gathered of three workers, another number of them goes on."""
    over(monkeypatch)
    x = latent(name, 5)
    way = decoding(name, x)
    frames, borders = handed_on(way, way.source(Row("decode"), Silent()))
    assert len(borders) >= 2
    for workers in (1, 2):
        over(monkeypatch, [1e9] * workers)
        done, state = borders[len(borders) // 2 - 1]
        rest, _ = handed_on(way, way.source(Row("decode"), Silent()), done, state)
        assert rest.shape[0] == frames.shape[0] - done
        assert psnr(rest, frames[done:]) >= NEAR_ENOUGH


def test_a_state_of_one_device_is_gone_on_with_by_several(monkeypatch: pytest.MonkeyPatch) -> None:
    over(monkeypatch)
    x = latent("wan21", 6)
    alone = Decoding.of(AUTOENCODERS["wan21"].load(), {"samples": x}, 0.0)
    frames, borders = handed_on(alone, alone.source(Row("decode"), Silent()))
    way = decoding("wan21", x)
    done, state = borders[1]
    rest, found = handed_on(way, way.source(Row("decode"), Silent()), done, state)
    assert psnr(rest, frames[done:]) >= NEAR_ENOUGH
    assert {name: kept.shape for name, kept in found[0][1].items()} == {
        name: kept.shape for name, kept in borders[2][1].items()
    }


@pytest.mark.parametrize("name", IN_CHUNKS if NIGHTLY else ["wan21"])
def test_what_is_kept_in_host_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a card that has no room for it."""
    over(monkeypatch)
    monkeypatch.setattr(work_module, "_ways", lambda *given: [OUTSIDE])
    x = latent(name, 5)
    way = decoding(name, x)
    frames, borders = handed_on(way, way.source(Row("decode"), Silent()))
    assert psnr(frames, stock(name, x)) >= NEAR_ENOUGH
    done, state = borders[0]
    rest, _ = handed_on(way, way.source(Row("decode"), Silent()), done, state)
    assert psnr(rest, frames[done:]) >= NEAR_ENOUGH


@pytest.mark.parametrize(("name", "way", "cells", "turns_to"), ON_LESS if NIGHTLY else ON_LESS[:2])
def test_less_and_less_memory(name: str, way: str, cells: int, turns_to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of all frames, then chunks or windows of them, then a refusal before any work."""
    x, expected, found = input_of(name, way, cells), untiled(name, way, cells), list[str]()

    def go_down() -> None:
        budget = 180e6
        while True:
            over(monkeypatch, [budget] * 2)
            assert psnr(run(exact(name, workers=DEVICES), way, x), expected) >= NEAR_ENOUGH
            found.append(next(word for word in ("chunks", "windows", "strips") if word in last_row().lines[1]))
            budget *= 0.75

    with pytest.raises(BudgetTooSmall, match="of each of devices at least"):
        go_down()
    assert list(dict.fromkeys(found)) == ["strips", turns_to]


@pytest.mark.parametrize("name", [*CHUNKED, "ltx", "cosmos", "mochi", "sd"] if NIGHTLY else ["wan21", "hunyuan_video"])
@pytest.mark.usefixtures("output")
def test_a_file_is_encoded_as_its_frames_would_be(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    over(monkeypatch)
    kind = AUTOENCODERS[name]
    pixels = eight_bits(kind.pixels(7 * kind.shrink + 3, 5 * kind.shrink, 9))
    video = Frames(video_of(write(pixels)))
    found, report = encode_from_file(exact(name, workers=DEVICES), video, Resizing(), 0.0)
    torch.manual_seed(5)
    expected = kind.load().encode(pixels)
    assert found.shape == expected.shape
    assert psnr(found, expected) >= NEAR_ENOUGH
    assert "bands of 3 workers" in report
