"""Videos in the host's own chunks: the same frames, in memory that does not grow with them."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from headroom.host.chunks.chunks import Chunks
from headroom.host.chunks.families import chunks_of
from headroom.host.prediction.stages import own_card
from headroom.host.prediction.vae import Coding, predict_coding
from headroom.vae import Direction
from headroom.vae.exact import ChunkedRun, PlannedChunks

from ..nightly import at_night, grid, some_of
from .autoencoders import AUTOENCODERS, LTX_IS_CUT
from .families import psnr
from .test_exact_vae import decoded, exact, last_lines, last_row, least_gb

NAMES = ["wan21", "wan22"]
IN_PART = ["hunyuan_video", "hunyuan_video15", "cogvideox"]  # what the host runs in chunks; the rest sees all frames
LTX = [("ltx", "encode"), ("ltx_striding", "encode"), ("ltx_noise", "encode")]
CONTINUED = [*LTX, ("mochi", "decode"), ("cosmos", "decode"), ("cosmos", "encode")]
TINY = [("taew21", "encode"), ("taeltx2", "encode")]
WAYS = {"decode": Direction.DECODE, "encode": Direction.ENCODE}


def chunks(name: str, way: str) -> type[Chunks]:
    if name.startswith("ltx") and not LTX_IS_CUT:
        pytest.skip("this ComfyUI's LTX-Video has older layers, and is not cut along frames")
    found = chunks_of(AUTOENCODERS[name].load().first_stage_model, WAYS[way])
    assert found is not None
    return found


def given(name: str, way: str, cells: int) -> tuple[Any, Tensor]:
    """The module's own method, and what it takes."""
    kind, vae = AUTOENCODERS[name], AUTOENCODERS[name].load()
    x = kind.latent(4, 5, cells_in_time=cells)
    if way == "encode":
        x = kind.pixels(4 * kind.shrink, 5 * kind.shrink, kind.frames(cells)).movedim(-1, 0)[None] * 2 - 1
    return getattr(vae.first_stage_model, way), x.to(vae.vae_dtype)


CASES = [*((name, way) for name in [*NAMES, *IN_PART] for way in WAYS), *CONTINUED, *TINY]


@pytest.mark.parametrize(("cells", "case"), some_of(grid([1, 2, 3, 4, 5, 6], CASES), 4))
def test_the_frames_of_the_hosts_own_loop(case: tuple[str, str], cells: int) -> None:
    name, way = case
    work, x = given(name, way, cells)
    begun = partial(chunks(name, way), work.__self__)
    result = ChunkedRun(begun, rows=1).run(work, x)
    assert result.shape == work(x).shape
    assert psnr(result, work(x)) >= 120


STREAMED = [*((name, way) for name in NAMES for way in WAYS), *((name, "decode") for name in IN_PART), *CONTINUED[:-1]]


@pytest.mark.parametrize(("name", "way"), some_of(STREAMED, 6))
def test_chunks_are_handed_on_as_they_are_done(name: str, way: str) -> None:
    """The same frames, in pieces that are no larger for a longer video."""
    most = []
    for cells in (5, 8):
        work, x = given(name, way, cells)
        begun = partial(chunks(name, way), work.__self__)
        taken: list[Tensor] = []
        ChunkedRun(begun, rows=2).stream(taken.append, work, x)
        assert torch.equal(torch.cat(taken, 2), ChunkedRun(begun, rows=2).run(work, x))
        most.append(max(piece.shape[2] for piece in taken))
    assert most[0] == most[1]


@pytest.mark.parametrize(("name", "way"), some_of(CASES, 4))
def test_what_is_kept_from_chunk_to_chunk_may_lie_elsewhere(name: str, way: str) -> None:
    """In host memory, piece by piece, whatever the height of strips: the same bits, and nothing of it in the plan."""
    work, x = given(name, way, 5)
    begun = partial(chunks(name, way), work.__self__)
    expected = ChunkedRun(begun, rows=3).run(work, x)
    run = ChunkedRun(begun, rows=3, outside=True)
    assert torch.equal(run.run(work, x), expected)
    planned = PlannedChunks(begun, rows=3, outside=True)
    planned.run(work, x)
    assert planned.report.carried == run.report.carried > 0
    assert planned.report.peak == run.report.peak
    beside = PlannedChunks(begun, rows=3)
    beside.run(work, x)
    assert beside.report.carried == 0
    assert planned.report.peak < beside.report.peak


@pytest.mark.skipif("cogvideox" not in AUTOENCODERS, reason="this ComfyUI has no CogVideoX")
@pytest.mark.parametrize("frames", some_of(range(1, 34), 3))
def test_every_number_of_frames_encoded(frames: int) -> None:
    """CogVideoX's encoder begins with what is left over of eights."""
    kind = AUTOENCODERS["cogvideox"]
    x = kind.pixels(4 * kind.shrink, 5 * kind.shrink, frames).movedim(-1, 0)[None] * 2 - 1
    module = kind.load().first_stage_model
    made = chunks("cogvideox", "encode")(module, frames)
    pieces = [piece for start, stop in made.borders for piece in made.step(x[:, :, start:stop])]
    assert torch.equal(torch.cat(pieces, 2), module.encode(x))
    assert [piece.shape[2] for piece in pieces] == [
        made.frames_of(stop) - made.frames_of(start) for start, stop in made.borders
    ]


def test_what_is_planned_for_frames_that_are_handed_on_does_not_grow() -> None:
    """With the input in host memory, brought chunk by chunk, nothing on the device is of the video's length."""
    peaks = []
    for cells in (6, 24):
        work, x = given("wan21", "decode", cells)
        run = PlannedChunks(partial(chunks("wan21", "decode"), work.__self__))
        brought: list[int] = []

        def bring(part: Tensor) -> Tensor:
            brought.append(part.shape[2])  # noqa: B023
            return part.clone()

        run.bring = bring
        run.stream(lambda frames: None, work, x)
        peaks.append(run.report.peak)
        assert max(brought) == 2
    assert peaks[0] == peaks[1]


def test_progress_runs_once_from_nothing_to_all() -> None:
    """With the frames so far, in the result's full size."""
    work, x = given("wan21", "decode", 4)
    told: list[tuple[float, Any]] = []
    begun = partial(chunks("wan21", "decode"), work.__self__)
    result = ChunkedRun(begun, rows=8, on_strip=lambda share, out: told.append((share, out))).run(work, x)
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert 0.9 < shares[-1] < 1
    assert {out.shape for _, out in told if out is not None} == {result.shape}


@pytest.mark.parametrize(("name", "way"), some_of(grid(NAMES, list(WAYS)), 2))
def test_what_is_planned_grows_by_the_frames_alone(name: str, way: str) -> None:
    """By those that go in or come out."""
    peaks, whole = [], []
    for cells in (6, 24):
        work, x = given(name, way, cells)
        begun = partial(chunks(name, way), work.__self__)
        run = PlannedChunks(begun, 0)
        with pytest.raises(Exception, match="least possible"):
            run.run(work, x)
        run = PlannedChunks(begun)
        whole.append(run.run(work, x).nbytes)
        peaks.append(run.report.peak)
    assert peaks[1] - peaks[0] == whole[1] - whole[0]


@at_night
@pytest.mark.parametrize("name", NAMES)
def test_a_video_whose_rows_do_not_fit(name: str) -> None:
    x = AUTOENCODERS[name].latent(4, 6, cells_in_time=9)
    vae = exact(name, tile_size=0, vram_budget_gb=least_gb(name, x))
    assert psnr(decoded(vae, x), decoded(AUTOENCODERS[name].load(), x)) >= 120
    assert re.search("(chunks|windows) of frames, ", last_lines())
    assert last_row().notices == []
    found = predict_coding(Coding(vae, x), own_card(vae.device))
    assert found.prediction.activations == last_row().predicted.activations


@pytest.mark.parametrize(("frames", "name"), some_of(grid(range(1, 34), ["taew21", "taeltx2", "cosmos", "ltx"]), 2))
def test_every_number_of_frames_that_fill_no_chunk(name: str, frames: int) -> None:
    """The last few are filled up, mirrored or left out, as the module does it."""
    kind = AUTOENCODERS[name]
    x = kind.pixels(2 * kind.shrink, 2 * kind.shrink, frames).movedim(-1, 0)[None] * 2 - 1
    module = kind.load().first_stage_model
    made = chunks(name, "encode")(module, frames)
    result = torch.cat([piece for start, stop in made.borders for piece in made.step(x[:, :, start:stop])], 2)
    result = made.tail(result)
    assert result.shape == module.encode(x).shape
    assert result.shape[2] == made.given
    assert psnr(result, module.encode(x)) >= 120


@pytest.mark.parametrize("name", ["ltx", "ltx_conditioned", "ltx_striding"])
@pytest.mark.parametrize("cells", some_of([*range(1, 11), 24, 33], 3))
def test_a_decoder_that_looks_ahead_gives_every_frame(name: str, cells: int) -> None:
    """Later than its chunk, as many as it says; with the noise that it draws."""
    work, x = given(name, "decode", cells)
    made, pieces = chunks(name, "decode")(work.__self__, cells), []
    torch.manual_seed(5)
    (head,) = made.head(x)
    for number, (start, stop) in enumerate(made.borders):
        pieces += made.handed(head[:, :, start:stop])
        assert sum(piece.shape[2] for piece in pieces) == made.given_by(number + 1)
    torch.manual_seed(5)
    assert psnr(torch.cat(pieces, 2), work(x)) >= 120
    layers = [layer for layer in work.__self__.modules() if hasattr(layer, "temporal_cache_state")]
    assert layers
    assert not any(layer.temporal_cache_state for layer in layers)


def test_a_decode_that_is_ended_midway_leaves_its_layers_as_they_were() -> None:
    work, x = given("ltx", "decode", 33)
    expected, made = work(x), chunks("ltx", "decode")(work.__self__, 33)
    for start, stop in made.borders[:-1]:
        made.step(x[:, :, start:stop])

    def ended() -> None:
        for _ in made.handed(x[:, :, made.borders[-1][0] :]):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ended()
    assert not any(getattr(layer, "temporal_cache_state", None) for layer in work.__self__.modules())
    assert torch.equal(work(x), expected)
