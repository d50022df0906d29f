"""Bands of several workers on an emulated card: the result, the bytes of each worker, and that nothing races.

There is one card: the workers are threads that share it, and each is measured by itself afterwards, given what the
others had given it.
"""

from __future__ import annotations

import gc
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from headroom.host.attention.in_vae import attend
from headroom.host.chunks.families import strips_of
from headroom.vae import Direction
from headroom.vae.exact.bands.chunked import ChunkedBand
from headroom.vae.exact.bands.peers import Peers
from headroom.vae.exact.bands.run import BandRun
from headroom.vae.exact.bands.threads import ThreadPeers, together
from headroom.vae.exact.cutting.share import Share

from ..host.autoencoders import AUTOENCODERS
from ..host.families import psnr
from ..host.test_bands import followed
from ..nightly import at_night, grid
from ..unit.test_bands import Everything
from ..unit.test_exact_vae import error_of
from .conftest import Card
from .test_strips import FIGURES, Case, slow

HALO = 0.06  # of what one device plans: rows of other workers
MORE = {"wan21": 1.1}  # than planned: upsampling by "nearest-exact" takes a copy of its result on this card


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(params=["decode", "encode"])
def case(card: Card, request: pytest.FixtureRequest) -> Case:
    slow(card)
    return Case(card, request.param)


class Keeping(ThreadPeers):
    """Keeps what is given, for a worker that runs by itself later."""

    def __init__(self, peers: ThreadPeers, given: dict[Any, Sequence[Any]]) -> None:
        super().__init__(peers.table, peers.rank)
        self.kept = given

    def give(self, key: Hashable, things: Sequence[Any], to: Sequence[int]) -> None:
        copies = [thing.cpu() if isinstance(thing, Tensor) else thing for thing in things]
        self.kept.update({(self.rank, other, key): copies for other in to})
        super().give(key, things, to)


class FromHost(Everything):
    """The same, brought to the card when it is wanted. What this worker gives stays for a pass, as long as others may
    take to fetch it."""

    def __init__(self, given: dict[Any, Sequence[Any]], rank: int) -> None:
        super().__init__(given, rank)
        self.step, self.held = -1, list[Any]()

    def give(self, key: Hashable, things: Sequence[Any], to: Sequence[int]) -> None:
        self._now(key)
        self.held.append(things)

    def _now(self, key: Any) -> None:
        if key[0] != self.step:
            self.step = key[0]
            self.held.clear()

    def take(self, key: Hashable, of: int) -> Any:
        self._now(key)
        things = self.given[of, self.rank, key]
        return lambda device: [thing.to(device) if isinstance(thing, Tensor) else thing for thing in things]


def of_worker(case: Case, rank: int, workers: int, peers: Peers, budget: float) -> tuple[Tensor, BandRun]:
    share = Share.of(rank, [1.0] * workers, case.x.shape[-2])
    run = BandRun(share, peers, budget, owned=list(case.module.parameters()), figures=FIGURES)
    run.height = case.x.shape[-2]
    first, stop = share.rows(case.x.shape[-2])
    return run.run(case.module, case.x[..., first:stop, :]), run


@pytest.mark.parametrize("workers", [2, 3])
def test_each_within_its_share(case: Case, workers: int) -> None:
    single = case.run(1.15 * case.largest)[3].peak
    budget = single / workers + HALO * single
    given: dict[Any, Sequence[Any]] = {}
    made = together(lambda rank, peers: of_worker(case, rank, workers, Keeping(peers, given), budget), workers)
    assert error_of(torch.cat([band.cpu() for band, _ in made], -2), case.truth) <= case.allowed
    planned = [run.report.peak for _, run in made]
    del made
    for rank in range(workers):
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        case.card.reset()
        of_worker(case, rank, workers, FromHost(given, rank), budget)
        torch.cuda.synchronize()
        peak = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
        assert peak <= planned[rank] <= budget
        assert peak >= 0.9 * planned[rank]


def test_nothing_races(case: Case) -> None:
    """A worker on a card whose kernels run as late as they may; maps lie in host memory too."""
    given: dict[Any, Sequence[Any]] = {}
    budget = 0.35 * case.largest
    made = together(lambda rank, peers: of_worker(case, rank, 2, Keeping(peers, given), budget), 2)
    expected = [band.cpu() for band, _ in made]
    assert any(run.report.host_peak for _, run in made), "copies beside the computation are what may race"
    slow(case.card, races=True, lazy=True)
    for rank in range(2):
        case.card.reset()
        band = of_worker(case, rank, 2, FromHost(given, rank), budget)[0].cpu()
        torch.cuda.synchronize()
        assert case.card.races == []
        assert torch.equal(band, expected[rank])


def of_video(name: str, x: Tensor, rank: int, peers: Peers, outside: bool) -> tuple[Tensor, ChunkedBand]:
    """One of two workers' band of a video, chunk by chunk, its frames gathered in host memory."""
    model = followed(name)
    chunks = strips_of(model, Direction.DECODE)
    assert chunks is not None
    share = Share.of(rank, [1.0, 1.0], x.shape[-2])
    run = ChunkedBand(
        share, peers, partial(chunks, model), outside=outside, rows=8, out_device=torch.device("cpu"),
        out_dtype=torch.float32, owned=list(model.parameters()), figures=FIGURES,
        attend=attend,
    )  # fmt: skip
    run.height = x.shape[-2]
    run.bring = lambda part: part.to("cuda")
    first, stop = share.rows(x.shape[-2])
    return run.run(model.decode, x[..., first:stop, :]), run


def kept_of_video(
    name: str, x: Tensor, given: dict[Any, Sequence[Any]], outside: bool, rank: int, peers: ThreadPeers
) -> tuple[Tensor, ChunkedBand]:
    return of_video(name, x, rank, Keeping(peers, given), outside)


@pytest.fixture
def on_card(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A worker's module, whose weights are on the card as long as the test runs."""
    name = request.getfixturevalue("name")
    yield followed(name).cuda()
    followed(name).cpu()


@at_night
@pytest.mark.parametrize(("name", "outside"), grid(["wan21", "wan22", "hunyuan_video", "cogvideox"], [False, True]))
def test_chunks_of_a_video(card: Card, on_card: Any, name: str, outside: bool) -> None:
    """What is kept from chunk to chunk lies on the card, or beside it: nothing races, and a worker takes what was
    planned, of many chunks as of a few."""
    vae, taken = AUTOENCODERS[name].load(), []
    for cells in (5, 9):
        slow(card)
        x = AUTOENCODERS[name].latent(8, 10, cells_in_time=cells)
        x, given = x.to(vae.vae_dtype), dict[Any, Sequence[Any]]()
        expected = on_card.decode(x.cuda()).float().cpu()
        made = together(partial(kept_of_video, name, x, given, outside), 2)
        assert psnr(torch.cat([band for band, _ in made], -2), expected) >= (100 if vae.vae_dtype.itemsize > 2 else 40)
        bands = [band for band, _ in made]
        del made
        for rank in range(2):
            slow(card, races=True, lazy=True)
            torch.cuda.synchronize()
            gc.collect()
            torch.cuda.empty_cache()
            before = torch.cuda.memory_stats()["requested_bytes.all.current"]
            card.reset()
            band, run = of_video(name, x, rank, FromHost(given, rank), outside)
            torch.cuda.synchronize()
            peak = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
            assert card.races == []
            assert torch.equal(band, bands[rank])
            assert 0.95 * run.report.peak <= peak <= run.report.peak * MORE.get(name, 1.0)
            taken.append(peak)
    if name.startswith("wan"):  # the others see all frames in their middle
        assert taken[2:] == pytest.approx(taken[:2], rel=0.02)
