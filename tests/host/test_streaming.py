"""Frames handed on piece by piece: those of the untiled decode, each once, from any border on."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import comfy.sd
import comfy.utils
import pytest
import torch
from torch import Tensor

from headroom.host.chunks.cogvideo import CogVideoDecode
from headroom.host.chunks.ltx import LTXDecode
from headroom.host.core.device import GB
from headroom.host.prediction.streamed import bytes_a_frame, predict_handed_on, predict_to_file
from headroom.host.streaming import host_chunks
from headroom.host.streaming.choice import Decoding
from headroom.host.streaming.source import FrameSource, State
from headroom.host.vae.fallback import BudgetTooSmall
from headroom.host.video.along import OUTSIDE
from headroom.memory import Row
from headroom.memory.prediction import LiveBytes, named_card
from headroom.vae import Direction

from ..nightly import NIGHTLY, at_night, grid, some_of
from .autoencoders import AUTOENCODERS, LTX_IS_CUT
from .families import psnr
from .full_size import write_all

OWN_WAY = {"seedvr2", "minimax"}  # with tiles of their own
CHUNKED = ["wan21", "wan21_rgba", "wan22", "hunyuan_video", "hunyuan_video15", "cogvideox"]  # by the host too
CONTINUED = ["ltx", "ltx_striding", "mochi", "cosmos"]  # by the host as a whole
NOISY = "ltx_conditioned"  # as a whole too, after a noise that no other run draws again
TINY = ["taew21", "taehv", "taew22", "taehv15", "taeltx2"]  # run here latent frame by latent frame
VIDEOS = [name for name, kind in AUTOENCODERS.items() if kind.video and name not in OWN_WAY]
PICTURES = ["sd", "svd"]
# The wide ones take most of the time; at night all.
SLICE = ["wan21", "wan22", "ltx", "ltx_noise", NOISY, "cogvideox", "taehv", *PICTURES]
Border = tuple[int, State]

pytestmark = pytest.mark.usefixtures("one_thread")


class Silent:
    """A watch that looks away."""

    def on_tile(self, blended: Tensor) -> None: ...

    def on_strip(self, share: float, out: Tensor | None) -> None: ...

    def slice_done(self, out: Tensor) -> None: ...


class Taken:
    """What a source hands on.

    Args:
        interrupt: called after each piece with the frames so far; may raise.
    """

    def __init__(self, done: int = 0, interrupt: Callable[[int], None] = lambda at: None) -> None:
        self.at, self.pieces, self.borders, self.interrupt = done, list[Tensor](), list[Border](), interrupt

    def take(self, piece: Tensor) -> None:
        self.pieces.append(piece.detach().to("cpu", torch.float32, copy=True))
        self.at += piece.shape[2]
        self.interrupt(self.at)

    def border(self, save: Callable[[], State]) -> None:
        self.borders.append((self.at, save()))


def skip_uncut(name: str) -> None:
    if name.startswith("ltx") and not LTX_IS_CUT:
        pytest.skip("this ComfyUI's LTX-Video has older layers, and is not cut along frames")


def decoding(name: str, x: Tensor, budget: float = 0.0) -> Decoding:
    return Decoding.of(AUTOENCODERS[name].load(), {"samples": x}, budget)


def handed_on(
    way: Decoding, source: FrameSource, done: int = 0, state: State | None = None, taken: Taken | None = None
) -> tuple[Tensor, list[Border]]:
    """Frames as the stock decode gives them, (T, H, W, C), and the borders."""
    taken = taken or Taken(done)
    torch.manual_seed(5)
    source.run(taken.take, taken.border, done, state)
    frames = way.coder.geometry.vae.process_output(torch.cat(taken.pieces, 2))
    return frames[0].movedim(0, -1), taken.borders


def stock(name: str, x: Tensor) -> Tensor:
    torch.manual_seed(5)
    frames = AUTOENCODERS[name].load().decode(x)
    return frames.reshape(-1, *frames.shape[-3:])


def latent(name: str, cells: int, batch: int = 1) -> Tensor:
    kind = AUTOENCODERS[name]
    return kind.latent(4, 5, batch, cells_in_time=cells) if kind.temporal else kind.latent(4, 5, batch)


@pytest.mark.parametrize("name", [*VIDEOS, *PICTURES] if NIGHTLY else SLICE)
def test_the_frames_of_the_untiled_decode(name: str) -> None:
    """Bit for bit where the host's own path is chunked the same, or one frame after the other."""
    x, row = latent(name, 4, batch=1 if AUTOENCODERS[name].temporal else 3), Row("decode")
    way = decoding(name, x)
    source = way.source(row, Silent())
    assert source.count == stock(name, x).shape[0]
    frames, _ = handed_on(way, source)
    same = name not in [*PICTURES, *CONTINUED, NOISY]
    assert torch.equal(frames, stock(name, x)) if same else psnr(frames, stock(name, x)) >= 120
    assert not row.notices
    assert row.lines


BORDERS = some_of([*grid([1, 2, 3, 5, 8], [*CHUNKED, *TINY]), *grid([2, 8], CONTINUED), (33, "ltx")], 4)


@pytest.mark.parametrize(("cells", "name"), BORDERS)
def test_chunks_go_on_from_every_border(name: str, cells: int) -> None:
    x = latent(name, cells)
    way = decoding(name, x)
    whole, borders = handed_on(way, way.source(Row("decode"), Silent()))
    assert torch.equal(whole, stock(name, x)) if name not in CONTINUED else psnr(whole, stock(name, x)) >= 120
    for done, state in borders[:: 1 if cells < 9 else 4]:
        rest = whole[done:]
        if len(rest):
            again, _ = handed_on(way, way.source(Row("decode"), Silent()), done, state)
            assert torch.equal(again, rest), done


@pytest.mark.parametrize(
    ("name", "along"), some_of(grid([*CHUNKED, "taew21", "taehv", "mochi", "cosmos"], ["chunks", OUTSIDE]), 2)
)
def test_chunks_in_strips_go_on_from_every_border(name: str, along: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what the module keeps on the device, or outside of it."""
    monkeypatch.setattr(host_chunks, "FIRST", along)
    x = latent(name, 6)
    way = decoding(name, x)

    def source() -> Any:
        found: Any = way.source(Row("decode"), Silent())
        assert found.lower()
        return found

    whole, borders = handed_on(way, source())
    assert psnr(whole, stock(name, x)) >= 120
    for done, state in borders[: -1 : 1 if NIGHTLY else 3]:
        again, _ = handed_on(way, source(), done, state)
        assert psnr(again, whole[done:]) >= 120
    assert not source().source.lower()


@pytest.mark.parametrize("name", ["wan21", "ltx", "sd"])
def test_without_a_state_only_what_is_missing_comes(name: str) -> None:
    x = latent(name, 4, batch=2)
    way = decoding(name, x)
    whole, _ = handed_on(way, way.source(Row("decode"), Silent()))
    assert psnr(whole, stock(name, x)) >= 120
    for done in {1, len(whole) - 1}:
        rest, _ = handed_on(way, way.source(Row("decode"), Silent()), done, None)
        assert psnr(rest, whole[done:]) >= 120
        assert len(rest) == len(whole) - done


@pytest.mark.parametrize("name", ["ltx", NOISY, "ltx_noise", "ltx_striding"])
def test_windows_of_frames_where_the_module_has_no_room(name: str) -> None:
    x, row = latent(name, 9), Row("decode")
    way = decoding(name, x)
    source = way.source(row, Silent())
    assert source.lower()
    frames, _ = handed_on(way, source)
    assert psnr(frames, stock(name, x)) >= 120
    assert any("windows of frames" in line for line in row.lines)


@pytest.mark.skipif("cogvideox" not in AUTOENCODERS, reason="this ComfyUI has no CogVideoX")
def test_the_least_that_cogvideox_needs_of_all_frames_does_not_grow_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a card, where the latent comes from host memory; what its chunks take depends on no other frames."""
    monkeypatch.setattr(CogVideoDecode, "cut", lambda self, frames: [])
    kind, card, least = AUTOENCODERS["cogvideox"], named_card("sm86", 24.0), []
    vae = kind.load()
    for cells in (24, 96):
        x = kind.latent(4, 5, cells_in_time=cells)
        with pytest.raises(BudgetTooSmall) as failure:
            predict_to_file(vae, x, card, (vae.patcher.model_size() + 1000) / GB)
        least.append(failure.value.least - vae.patcher.model_size())
    assert least[1] <= 1.01 * least[0]  # pieces of a longer latent are longer


@pytest.mark.parametrize("name", ["ltx", "ltx_striding"])
def test_windows_go_on_from_anywhere_and_compute_little_twice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any state: from the first latent frame on that the next frames depend on."""
    skip_uncut(name)
    x, decoded = latent(name, 40), list[int]()
    way, own = decoding(name, x), host_chunks.in_windows
    reach = LTXDecode(AUTOENCODERS[name].load().first_stage_model, 40).reach

    def counted(coder: Any, part: Tensor, *others: Any) -> None:
        decoded.append(part.shape[2])
        own(coder, part, *others)

    monkeypatch.setattr(host_chunks, "in_windows", counted)
    expected = stock(name, x)
    for done in (1, 200, 312):
        rest, _ = handed_on(way, lowered(way, Row("decode")), done)
        assert psnr(rest, expected[done:]) >= 120
        assert decoded[-1] <= 40 - done // 8 + reach + 3
    rest, _ = handed_on(way, way.source(Row("decode"), Silent()), 257)  # which its module could not
    assert psnr(rest, expected[257:]) >= 120
    assert len(decoded) == 4


@pytest.mark.parametrize("name", some_of(["hunyuan_video", "cosmos", "hunyuan_video15"], 3))
def test_what_sees_all_frames_grows_by_what_is_said(name: str) -> None:
    """On a card, by the module: nothing more at first, then the same with every latent frame."""
    kind, card = AUTOENCODERS[name], named_card("sm86", 24.0)
    latents = [latent(name, cells) for cells in (1000, 2000, 3000, 4000)]
    found = [predict_handed_on(kind.load(), x, Direction.DECODE, card) for x in latents]
    first, second, third, fourth = (one.activations for one in found if one is not None)
    assert third - second == pytest.approx(second - first, rel=0.02)
    assert fourth - third == pytest.approx(second - first, rel=0.02)
    said = bytes_a_frame(kind.load(), latent(name, 1000), Direction.DECODE, card)
    assert first + 3000 * said == pytest.approx(fourth, rel=0.02)
    assert bytes_a_frame(AUTOENCODERS["wan21"].load(), latent("wan21", 9), Direction.DECODE, card) == 0


def test_windows_of_fewer_frames_where_the_usual_ones_do_not_fit() -> None:
    """And a refusal names what the smallest need."""
    x, row = latent("ltx", 9), Row("decode")
    way = decoding("ltx", x)
    handed_on(way, lowered(way, row))
    usual = row.predicted
    assert usual is not None
    way = decoding("ltx", x, usual.weights / GB + 1e-4)
    with pytest.raises(BudgetTooSmall) as failure:
        handed_on(way, lowered(way, Row("decode")))
    assert failure.value.least < usual.peak
    way, row = decoding("ltx", x, failure.value.least / GB), Row("decode")
    frames, _ = handed_on(way, lowered(way, row))
    assert psnr(frames, stock("ltx", x)) >= 120
    assert row.predicted is not None
    assert row.predicted.peak <= failure.value.least


def lowered(way: Decoding, row: Row) -> FrameSource:
    source = way.source(row, Silent())
    assert source.lower()
    return source


def test_a_budget_that_the_module_does_not_fit_is_kept_by_strips() -> None:
    x = AUTOENCODERS["wan21"].latent(16, 14, cells_in_time=5)
    whole, row = decoding("wan21", x), Row("decode")
    handed_on(whole, whole.source(row, Silent()))
    assert row.predicted is not None
    asked = (row.predicted.weights + 0.85 * row.predicted.activations) / GB
    way, row = decoding("wan21", x, asked), Row("decode")
    frames, _ = handed_on(way, way.source(row, Silent()))
    assert psnr(frames, stock("wan21", x)) >= 120
    assert row.predicted is not None
    assert row.predicted.peak <= asked * GB
    assert any("strips of chunks" in line for line in row.lines)
    way = decoding("wan21", x, (row.predicted.weights + 1000) / GB)
    with pytest.raises(BudgetTooSmall, match="needs at least") as failure:
        handed_on(way, way.source(Row("decode"), Silent()))
    assert "store" not in str(failure.value)


GROWING = ["ltx", "wan21", NOISY, "taew21", "hunyuan_video15", "wan22", "mochi", "hunyuan_video"]


@pytest.mark.parametrize(
    ("name", "way"),
    some_of(grid(GROWING, ["module", "strips"]), 3),
)
def test_what_lives_does_not_grow_with_the_frames(name: str, way: str) -> None:
    """Of a video twice as long, followed tensor by tensor."""
    skip_uncut(name)
    most, planned = [], []
    for cells in (20, 36):  # below that a window's neighbours on one side or the other are not there
        x, row = latent(name, cells), Row("decode")
        made = decoding(name, x)
        source = made.source(row, Silent()) if way == "module" else lowered(made, row)
        module = made.coder.geometry.vae.first_stage_model
        with LiveBytes("cpu") as tracker:
            tracker.leave_out([*module.parameters(), *module.buffers(), x])
            source.run(lambda piece: None, lambda save: None, 0, {})
        assert row.predicted is not None
        if way == "module":  # what kernels hold inside is no tensor
            assert tracker.live_peak == pytest.approx(row.predicted.live, rel=0.02)
        else:
            assert tracker.live_peak <= 1.02 * row.predicted.activations
        most.append(tracker.live_peak)
        planned.append(row.predicted.activations)
    assert most[1] == most[0]
    assert planned[1] == pytest.approx(planned[0], rel=0.01)


BUDGETED = [*CHUNKED[:1], *CHUNKED[2:], *CONTINUED[:1], *CONTINUED[2:], *TINY[:2], "sd"]


@pytest.mark.parametrize(("name", "share", "cells"), some_of(grid(BUDGETED, [1.0, 1.3, 2.0], [3, 9]), 4))
def test_no_budget_is_exceeded(name: str, share: float, cells: int) -> None:
    """From the least that is named on, followed tensor by tensor."""
    weights, x, row = AUTOENCODERS[name].load().patcher.model_size(), latent(name, cells), Row("decode")
    if name in PICTURES:
        x = latent(name, 1, batch=cells)
    way = decoding(name, x, (weights + 1000) / GB)
    with pytest.raises(BudgetTooSmall) as failure:
        handed_on(way, way.source(row, Silent()))
    room = int(share * (failure.value.least - weights))
    way = decoding(name, x, (weights + room) / GB)
    way.coder.geometry.holds_on_disk = True
    source, module = way.source(row, Silent()), way.coder.geometry.vae.first_stage_model
    with LiveBytes("cpu") as tracker, torch.inference_mode():
        tracker.leave_out([*module.parameters(), *module.buffers(), x])
        source.run(lambda piece: None, lambda save: None, 0, {})
    assert tracker.live_peak <= room


@pytest.mark.skipif("cogvideox" not in AUTOENCODERS, reason="this ComfyUI has no CogVideoX")
@at_night
def test_cogvideox_keeps_within_a_budget_that_does_not_grow_with_its_frames() -> None:
    """On a CPU, where nothing waits for the garbage collector; of many frames it keeps maps in a file."""
    weights, peaks = AUTOENCODERS["cogvideox"].load().patcher.model_size(), []
    gc.collect()
    gc.disable()
    try:
        for cells in (12, 96 if NIGHTLY else 48):
            x, row = latent("cogvideox", cells), Row("decode")
            way = decoding("cogvideox", x, (weights + 22e6) / GB)
            way.coder.geometry.holds_on_disk = True
            source, module = way.source(row, Silent()), way.coder.geometry.vae.first_stage_model
            with LiveBytes("cpu") as tracker, torch.inference_mode():
                tracker.leave_out([*module.parameters(), *module.buffers(), x])
                source.run(lambda piece: None, lambda save: None, 0, {})
            assert tracker.live == 0
            assert tracker.live_peak <= 22e6
            assert ("stored maps in a file" in "".join(row.lines)) == (cells == 96)
            peaks.append(tracker.live_peak)
    finally:
        gc.enable()
    assert peaks[1] == peaks[0]
    if NIGHTLY:
        frames, _ = handed_on(way, way.source(Row("decode"), Silent()))
        assert psnr(frames, stock("cogvideox", x)) >= 120


def test_memory_that_runs_out_is_told_of_and_the_rest_comes_in_strips() -> None:
    """As the receiver does it: it asks for less, and goes on from the last border."""
    x = latent("wan21", 8)
    way = decoding("wan21", x)
    source = way.source(Row("decode"), Silent())

    def full(at: int) -> None:
        if at > 12:
            raise torch.OutOfMemoryError("CUDA out of memory")

    taken = Taken(interrupt=full)
    with pytest.raises(torch.OutOfMemoryError):
        handed_on(way, source, taken=taken)
    done, state = taken.borders[-1]
    assert source.lower()
    rest, _ = handed_on(way, source, done, state)
    assert psnr(rest, stock("wan21", x)[done:]) >= 120


@pytest.mark.parametrize("name", sorted(OWN_WAY & AUTOENCODERS.keys()))
def test_a_vae_with_tiles_of_its_own_says_what_to_use(name: str) -> None:
    with pytest.raises(ValueError, match="use VAE Decode and Save Video"):
        decoding(name, latent(name, 3))


@at_night
def test_wan_in_its_real_size_does_with_a_third_of_what_a_chunk_needs(tmp_path: Path) -> None:
    """832 x 480 in bfloat16 on a card, by the plan: the module takes 2.96 GB beside its weights."""
    write_all(tmp_path, ["full_wan_vae.safetensors"])
    vae = comfy.sd.VAE(sd=comfy.utils.load_torch_file(str(next(tmp_path.rglob("full_wan_vae*")))))
    vae.vae_dtype = torch.bfloat16
    vae.first_stage_model.to(torch.bfloat16)
    x, card = torch.zeros(1, 16, 21, 60, 104), named_card("sm86", 8.0)
    whole = predict_handed_on(vae, x, Direction.DECODE, card)
    assert whole is not None
    assert whole.activations / GB == pytest.approx(2.96, abs=0.01)
    found = predict_to_file(vae, x, card, 1.0)
    assert found.prediction.peak <= GB
    assert found.prediction.activations < whole.activations / 3
