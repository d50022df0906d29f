"""The exact engine over several workers, on modules of plain torch: the same result, and what it takes."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headroom.benchmarks._harness import peak_bytes
from headroom.vae.exact import DoesNotFit, ExactRun, StoreOverflow
from headroom.vae.exact.bands.attend import AttendBands
from headroom.vae.exact.bands.peers import PeerLost, Peers
from headroom.vae.exact.bands.planned import PlannedBand
from headroom.vae.exact.bands.run import BandRun
from headroom.vae.exact.bands.threads import ThreadPeers, together
from headroom.vae.exact.cutting.share import Share
from headroom.vae.exact.running.banded import Gift, Parts

from .test_exact_vae import decoder, encoder, error_of, least_bytes, noise, psnr, run_and_peak, seeded, wide

MIB = 2**20


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def weights_of(workers: int, even: bool) -> list[float]:
    return [1.0 if even else 1.0 + 2 * (rank % 2) for rank in range(workers)]


def in_bands(
    module: Any, x: Tensor, workers: int, budgets: Sequence[float] = (), even: bool = True, **options: Any
) -> tuple[Tensor, list[BandRun], list[ThreadPeers]]:
    """The result, put together of what each worker made of its own rows alone; the runs, and what they received."""

    def work(rank: int, peers: ThreadPeers) -> tuple[Tensor, BandRun, ThreadPeers]:
        share = Share.of(rank, weights_of(workers, even), x.shape[-2])
        run = BandRun(share, peers, budgets[rank] if budgets else math.inf, **options)
        run.height = x.shape[-2]
        first, stop = share.rows(x.shape[-2])
        return run.run(module, x[..., first:stop, :].clone()), run, peers

    made = together(work, workers)
    return torch.cat([band for band, _, _ in made], -2), [run for _, run, _ in made], [peers for _, _, peers in made]


class TestAgainstFloat64:
    @pytest.mark.parametrize("even", [True, False])
    @pytest.mark.parametrize("rows", [0, 1, 3])
    @pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
    @pytest.mark.parametrize(
        ("make", "shape"),
        [(decoder, (2, 4, 7, 5)), (decoder, (1, 4, 6, 9)), (encoder, (2, 3, 37, 17)), (encoder, (1, 3, 42, 31))],
    )
    def test_as_near_as_one_piece(
        self, make: Callable[[], nn.Module], shape: tuple[int, ...], workers: int, rows: int, even: bool
    ) -> None:
        """Seven workers of six rows: one has none."""
        x = noise(*shape)
        truth, plain = seeded(make).double()(x.double()), seeded(make)(x)
        result, runs, peers = in_bands(seeded(make), x, workers, even=even, rows=rows)
        assert result.shape == plain.shape
        assert error_of(result, truth) <= 2 * error_of(plain, truth)
        assert psnr(result, plain) >= 130
        assert [run.report.received for run in runs] == [one.received for one in peers], "planned and measured"

    def test_in_float64(self) -> None:
        x = noise(1, 4, 9, 8, dtype=torch.float64)
        module = seeded(decoder).double()
        assert psnr(in_bands(module, x, 3)[0], module(x)) >= 280


class TestModules:
    def test_what_asks_for_a_whole_map(self) -> None:
        """It gets one on every worker; what goes on with it is in bands again."""

        class Module(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)

            def forward(self, x: Tensor) -> Tensor:
                h = self.first(x)
                return self.second(h * torch.cumsum(h, 2).tanh())

        module, x = seeded(Module), noise(1, 3, 21, 9)
        result, runs, peers = in_bands(module, x, 3)
        assert psnr(result, module(x)) >= 130
        assert all(run.report.materialised == ["cumsum"] for run in runs)
        assert [run.report.received for run in runs] == [one.received for one in peers]

    def test_random_numbers_are_drawn_once(self) -> None:
        class Noisy(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x + torch.randn(x.shape[0], x.shape[1], 1, 1)

        x = noise(1, 4, 9, 9)
        torch.manual_seed(3)
        expected = Noisy()(x)
        torch.manual_seed(3)
        assert torch.equal(in_bands(Noisy(), x, 3)[0], expected)

    def test_what_is_no_map_in_the_end(self) -> None:
        """A module that puts its result together by itself: each worker keeps its rows."""

        class Module(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return torch.cumsum(x, 2)

        x = noise(1, 2, 10, 4)
        assert torch.equal(in_bands(Module(), x, 3)[0], torch.cumsum(x, 2))

    def test_a_narrower_store(self) -> None:
        module, x, expected = wide()
        result, _, _ = in_bands(module, x, 2, store=torch.float16)
        assert 60 <= psnr(result, expected) < 110


class Everything(Peers):
    """Other workers who have given all that they will: for one worker that runs by itself, to be measured."""

    def __init__(self, given: dict[Any, Sequence[Any]], rank: int) -> None:
        self.given, self.rank = given, rank

    def give(self, key: Hashable, things: Sequence[Any], to: Sequence[int]) -> None:
        pass

    def take(self, key: Hashable, of: int) -> Gift:
        things = self.given[of, self.rank, key]
        return lambda device: [thing.clone() if isinstance(thing, Tensor) else thing for thing in things]


class TestMemory:
    @pytest.mark.parametrize("workers", [2, 3, 4])
    def test_a_band_s_share_is_enough(self, workers: int) -> None:
        """Each worker gets 1/N of what one device plans, and what it takes from others; it keeps to that, by torch's
        own allocator."""
        module, x, expected = wide()
        single = run_and_peak(math.inf)[0].report.peak
        given: dict[Any, Sequence[Any]] = {}

        class Recording(ThreadPeers):
            def give(self, key: Hashable, things: Sequence[Any], to: Sequence[int]) -> None:
                copies = [thing.clone() if isinstance(thing, Tensor) else thing for thing in things]
                given.update({(self.rank, other, key): copies for other in to})
                super().give(key, things, to)

        halo = 2 * MIB  # rows beside the band, and what a plan adds for what it does not see
        budget = single / workers + halo

        def run_of(rank: int, peers: Peers) -> tuple[BandRun, Tensor]:
            share = Share.of(rank, weights_of(workers, True), x.shape[-2])
            run = BandRun(share, peers, budget)
            run.height = x.shape[-2]
            first, stop = share.rows(x.shape[-2])
            return run, run.run(module, x[..., first:stop, :])

        made = together(lambda rank, peers: run_of(rank, Recording(peers.table, rank)), workers)
        assert psnr(torch.cat([band for _, band in made], -2), expected) >= 130
        for rank, (run, _) in enumerate(made):
            assert run.report.peak <= budget
            peak = peak_bytes(lambda rank=rank: run_of(rank, Everything(given, rank)))  # type: ignore[misc]
            assert peak <= run.report.peak

    def test_bands_by_what_each_can_hold(self) -> None:
        """A plan that fits the first worker may not fit the second: it is looked for within less."""
        module, x, expected = wide()
        budgets = [32 * MIB, 12 * MIB, 20 * MIB]

        def work(rank: int, peers: ThreadPeers) -> tuple[Tensor, BandRun]:
            run = BandRun(Share.of(rank, budgets, x.shape[-2]), peers, budgets[rank])
            return run.run(module, x), run

        made = together(work, 3)
        assert psnr(torch.cat([band for band, _ in made], -2), expected) >= 130
        assert all(run.report.peak <= budget for (_, run), budget in zip(made, budgets))
        assert [band.shape[-2] for band, _ in made] == [22 * 8, 8 * 8, 14 * 8]

    def test_what_does_not_fit_is_said_before_any_work(self) -> None:
        module, x, _ = wide()
        with pytest.raises(DoesNotFit) as failure:
            in_bands(module, x, 2, budgets=[1, 1])
        assert MIB < failure.value.least <= least_bytes()
        result, _, _ = in_bands(module, x, 2, budgets=[failure.value.least] * 2)
        assert psnr(result, wide()[2]) >= 130

    def test_planned_without_data(self) -> None:
        """What a plan foretells is what a run plans: bytes at the peak and from others."""
        module, x, _ = wide()

        def work(rank: int, peers: ThreadPeers) -> tuple[int, int]:
            run = PlannedBand(Share.of(rank, [1.0] * 3, x.shape[-2]), peers, 20 * MIB)
            run.run(module, x)
            return run.report.peak, run.report.received

        _, runs, _ = in_bands_of_whole(module, x, 3, 20 * MIB)
        assert together(work, 3) == [(run.report.peak, run.report.received) for run in runs]


def in_bands_of_whole(module: Any, x: Tensor, workers: int, budget: float) -> tuple[Tensor, list[BandRun], None]:
    """As :func:`in_bands`, with an input that all workers have."""

    def work(rank: int, peers: ThreadPeers) -> tuple[Tensor, BandRun]:
        run = BandRun(Share.of(rank, [1.0] * workers, x.shape[-2]), peers, budget)
        return run.run(module, x), run

    made = together(work, workers)
    return torch.cat([band for band, _ in made], -2), [run for _, run in made], None


class TestAttention:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
    def test_parts_of_the_keys(self, dtype: torch.dtype) -> None:
        """Large scores too, and parts of different lengths."""
        q, k, v = (noise(2, 1, 40, 16, seed=seed).to(dtype) for seed in (1, 2, 3))
        truth = nn.functional.scaled_dot_product_attention(q.double() * 30, k.double(), v.double())
        share = Share.of(0, [1.0, 2.0, 1.0], 8)
        cuts = [5 * border for border in share.cuts]
        parts = [Parts([_gift(x[..., a:b, :]) for a, b in pairwise(cuts)]) for x in (k, v)]
        out = AttendBands(lambda *given: pytest.fail("not by parts"), share)(q * 30, *parts, None)
        assert out.dtype is dtype
        assert error_of(out, truth) <= {8: 1e-13, 4: 1e-5, 2: 2e-2}[dtype.itemsize]


def _gift(part: Tensor) -> Gift:
    return lambda device: [part]


class TestShares:
    @pytest.mark.parametrize("rows", [1, 2, 5, 8, 63, 64, 999])
    @pytest.mark.parametrize("weights", [[1], [1, 1], [3, 1, 2], [1e9, 1, 1e9], [1] * 7])
    def test_every_row_is_one_worker_s(self, rows: int, weights: list[float]) -> None:
        for grain in (1, 5, 8, 64):
            spans = [share.rows(rows) for share in Share.of(0, weights, grain).every()]
            assert spans[0][0] == 0
            assert spans[-1][1] == rows
            assert all(end == start for (_, end), (start, _) in pairwise(spans))

    def test_borders_are_the_same_places_at_every_height(self) -> None:
        share = Share.of(1, [1, 1, 1], 16)
        first, stop = share.rows(16)
        assert share.rows(128) == (8 * first, 8 * stop)


class TestFailures:
    def test_one_that_fails_ends_all(self) -> None:
        module, x, _ = wide()

        def work(rank: int, peers: ThreadPeers) -> Tensor:
            def stop(share: float, out: Any) -> None:
                if rank == 1 and share > 0.3:
                    raise OSError("the disk is gone")

            return BandRun(Share.of(rank, [1.0] * 3, x.shape[-2]), peers, rows=8, on_strip=stop).run(module, x)

        before = threading.active_count()
        with pytest.raises(OSError, match="the disk is gone"):
            together(work, 3)
        assert threading.active_count() == before

    def test_one_that_is_lost(self) -> None:
        module, x, _ = wide()
        met: list[int] = []

        def work(rank: int, peers: ThreadPeers) -> None:
            if rank == 2:
                peers.table.fail(2)
                return
            with pytest.raises(PeerLost) as lost:
                BandRun(Share.of(rank, [1.0] * 3, x.shape[-2]), peers).run(module, x)
            met.append(lost.value.rank)

        together(work, 3)
        assert met == [2, 2]

    def test_an_overflow_of_the_store(self) -> None:
        class Module(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv, self.norm, self.out = nn.Conv2d(32, 32, 3), nn.GroupNorm(4, 32), nn.Conv2d(32, 3, 3)

            def forward(self, x: Tensor) -> Tensor:
                return self.out(self.norm(self.conv(x * 1e6)))

        with pytest.raises(StoreOverflow):
            in_bands(seeded(Module), noise(1, 32, 40, 40), 2, store=torch.float16)

    def test_one_worker_is_the_plain_run(self) -> None:
        module, x, _ = wide()
        assert torch.equal(in_bands(module, x, 1, rows=16)[0], ExactRun(rows=16).run(module, x))
