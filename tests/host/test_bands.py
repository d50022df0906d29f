"""The exact engine over several workers, around every autoencoder that the host can load: threads of this process."""

from __future__ import annotations

import copy
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from headroom.host.bands.work import follow_attention
from headroom.host.chunks.families import strips_of
from headroom.vae import Direction
from headroom.vae.exact import ChunkedRun, ExactRun
from headroom.vae.exact.bands.chunked import ChunkedBand
from headroom.vae.exact.bands.run import BandRun
from headroom.vae.exact.bands.threads import ThreadPeers, together
from headroom.vae.exact.cutting.share import Share

from ..nightly import grid, some_of
from .autoencoders import AUTOENCODERS
from .families import psnr
from .test_exact_vae import goes_its_own_way
from .test_video import CASES

pytestmark = pytest.mark.usefixtures("one_thread")
NEAR_ENOUGH = 130.0  # dB
FOUR_CHANNELS = ("wan21_rgba",)
KINDS = list(AUTOENCODERS)
IN_CHUNKS = [(name, way) for name, way in CASES if name in AUTOENCODERS]
IN_WINDOWS = [name for name in ("ltx", "ltx_noise", "ltx_conditioned", "ltx_striding") if name in AUTOENCODERS]


@cache
def followed(name: str) -> Any:
    """The module of a worker, whose attention takes the keys of all bands."""
    model = copy.deepcopy(AUTOENCODERS[name].load().first_stage_model)
    follow_attention(model)
    return model


def module_and_input(name: str, way: str, rows: int = 7, columns: int = 5, cells: int = 2) -> tuple[Any, Tensor]:
    """What a worker runs, and what all of it is run on.

    Args:
        cells: latent frames of a video.
    """
    kind, vae, model = AUTOENCODERS[name], AUTOENCODERS[name].load(), followed(name)
    cells = cells if kind.video and kind.cells > 1 else 1
    if way == "decode":
        return model.decode, kind.latent(rows, columns, cells_in_time=cells).to(vae.vae_dtype)
    frames = 4 * cells - 3 if name == "cogvideox" else kind.frames(cells)
    pixels = kind.pixels(rows * kind.shrink, columns * kind.shrink, frames=frames)
    x = pixels.movedim(-1, 0)[None] if kind.temporal else pixels.movedim(-1, 1)
    return model.encode, vae.process_input(x).to(vae.vae_dtype)


def in_bands(work: Any, x: Tensor, workers: int, **named: Any) -> tuple[Tensor, list[tuple[int, int]]]:
    """The result, and what each worker received: as planned, and measured."""

    def of(rank: int, peers: ThreadPeers) -> tuple[Tensor, tuple[int, int]]:
        share = Share.of(rank, [1.0] * workers, x.shape[-2])
        run = BandRun(share, peers, **named)
        run.height = x.shape[-2]
        first, stop = share.rows(x.shape[-2])
        return run.run(work, x[..., first:stop, :].clone()), (run.report.received, peers.received)

    made = together(of, workers)
    return torch.cat([band for band, _ in made], -2), [received for _, received in made]


def in_windows(work: Any, x: Tensor, workers: int, **named: Any) -> tuple[Tensor, list[tuple[int, int]]]:
    """The same in bands of frames."""

    def of(rank: int, peers: ThreadPeers) -> tuple[Tensor, tuple[int, int]]:
        share = Share.of(rank, [1.0] * workers, x.shape[2])
        run = BandRun(share, peers, along="frames", **named)
        run.height, run.unbroken = x.shape[2], True
        first, stop = share.rows(x.shape[2])
        return run.run(work, x[:, :, first:stop].clone()), (run.report.received, peers.received)

    made = together(of, workers)
    return torch.cat([band for band, _ in made], 2), [received for _, received in made]


def in_chunks(work: Any, x: Tensor, workers: int, **named: Any) -> tuple[Tensor, list[tuple[int, int]]]:
    """The same in bands of rows of chunk after chunk; each worker has a module of its own, which may keep something
    itself."""
    models = [work.__self__, *(copy.deepcopy(work.__self__) for _ in range(workers - 1))]

    def of(rank: int, peers: ThreadPeers) -> tuple[Tensor, tuple[int, int]]:
        share = Share.of(rank, [1.0] * workers, x.shape[-2])
        chunks = strips_of(models[rank], Direction(work.__name__))
        assert chunks is not None
        run = ChunkedBand(share, peers, partial(chunks, models[rank]), **named)
        run.height = x.shape[-2]
        first, stop = share.rows(x.shape[-2])
        return run.run(work, x[..., first:stop, :].clone()), (run.report.received, peers.received)

    made = together(of, workers)
    return torch.cat([band for band, _ in made], -2), [received for _, received in made]


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize(("name", "way"), some_of(grid(KINDS, ["decode", "encode"]), 6))
def test_every_kind(name: str, way: str, workers: int) -> None:
    """130 dB, but where strips of one device are not as near either: the untiled float32 is no nearer to the truth
    there (benchmarks/bands.md)."""
    if goes_its_own_way(AUTOENCODERS[name].load()) or (name in FOUR_CHANNELS and way == "encode"):
        return
    work, x = module_and_input(name, way)
    torch.manual_seed(5)
    expected = work(x)
    torch.manual_seed(5)
    alone = psnr(ExactRun(rows=3).run(work, x), expected)
    torch.manual_seed(5)
    result, received = in_bands(work, x, workers, rows=3)
    assert result.shape == expected.shape
    assert psnr(result, expected) >= min(NEAR_ENOUGH, alone - 3)
    assert all(planned == measured for planned, measured in received)


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize(("name", "way"), some_of(IN_CHUNKS, 6))
def test_chunk_after_chunk(name: str, way: str, workers: int, outside: bool) -> None:
    """As near to untiled as chunks of one device are."""
    work, x = module_and_input(name, way, cells=5)
    chunks = strips_of(work.__self__, Direction(way))
    if chunks is None:
        pytest.skip("this ComfyUI's has other layers, and is not run in chunks")
    expected = work(x)
    alone = psnr(ChunkedRun(partial(chunks, work.__self__), rows=3).run(work, x), expected)
    result, received = in_chunks(work, x, workers, rows=3, outside=outside)
    assert result.shape == expected.shape
    assert psnr(result, expected) >= min(NEAR_ENOUGH, alone - 3)
    assert all(planned == measured for planned, measured in received)


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("name", some_of(IN_WINDOWS, 3))
def test_windows_of_frames(name: str, workers: int) -> None:
    work, x = module_and_input(name, "decode", cells=7)
    torch.manual_seed(5)
    expected = work(x)
    torch.manual_seed(5)
    result, received = in_windows(work, x, workers, rows=3)
    assert result.shape == expected.shape
    assert psnr(result, expected) >= NEAR_ENOUGH
    assert all(planned == measured for planned, measured in received)
