"""One exact encode or decode over several workers: error of every kind of autoencoder, memory, bytes, time.

Each section is written to ``bands.md`` as soon as it is done; ``--only`` measures some of them anew.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _harness import ROOT, enter_host, load_package, markdown_table, peak_bytes
from _sections import Report, Section
from torch import Tensor

load_package()

from headroom.vae.exact import ExactRun  # noqa: E402
from headroom.vae.exact.bands.chunked import ChunkedBand  # noqa: E402
from headroom.vae.exact.bands.peers import Peers  # noqa: E402
from headroom.vae.exact.bands.run import BandRun  # noqa: E402
from headroom.vae.exact.bands.threads import ThreadPeers, together  # noqa: E402
from headroom.vae.exact.cutting.share import Share  # noqa: E402

MIB = 2**20
WORKERS = (2, 3, 4)
CELLS = (64, 60)  # of the pictures whose memory is measured: 512 x 480 pixels
FEW_AND_MANY = {"wan21": (21, 81), "wan22": (21, 81), "taew21": (21, 81), "mochi": (13, 49)}  # latent frames
HALO = 8 * MIB  # beside 1/N of a single plan: rows from others, and what a plan adds for what it does not see
TITLES = {
    "kinds": "Every kind of autoencoder",
    "memory": "Memory of each worker, bytes between them",
    "videos": "Videos in chunks and windows of frames",
    "cluster": "Processes of a Ray cluster",
}
INTRODUCTION = """# One exact encode or decode over several workers

Written by `benchmarks/bands.py`. Each worker has a band of rows of every map; what it is
given of the others is counted where it arrives ("measured") and by the plan, before anything runs ("planned"). On a
CPU."""


def _run(model: Any, way: str, x: Tensor, share: Share, peers: Peers, **named: Any) -> tuple[BandRun, Tensor]:
    """A worker's band, made of its own rows alone."""
    run = BandRun(share, peers, **named)
    run.height = x.shape[-2]
    first, stop = share.rows(x.shape[-2])
    return run, run.run(getattr(model, way), x[..., first:stop, :])


def kinds() -> Section:
    """Every kind in both directions: against untiled float32 and against float64."""
    tests = importlib.import_module("headroom.tests.host.test_bands")
    psnr = importlib.import_module("headroom.tests.host.families").psnr
    section, rows, worst, lost = Section(), [], math.inf, 0
    for name in tests.KINDS:
        vae = tests.AUTOENCODERS[name].load()
        for way in ("decode", "encode"):
            if tests.goes_its_own_way(vae) or (way == "encode" and name in tests.FOUR_CHANNELS):
                continue
            work, x = tests.module_and_input(name, way)
            expected, single = _seeded(partial(work, x)), _seeded(partial(ExactRun(rows=3).run, work, x))
            bands = [_seeded(partial(tests.in_bands, work, x, number, rows=3)) for number in WORKERS]
            truth = _truth(vae, way, x)
            near = [min(psnr(band, expected) for band, _ in bands), psnr(single, expected)]
            of_truth = [psnr(expected, truth), min(psnr(band, truth) for band, _ in bands)]
            exchanged = all(planned == measured for _, received in bands for planned, measured in received)
            lost += not exchanged
            known = of_truth[0] > 100  # a module that draws noise draws other numbers in float64
            worst = min(worst, of_truth[1] - of_truth[0]) if known and not math.isinf(of_truth[0]) else worst
            shown = [_decibels(one) for one in (*near, *(of_truth if known else (math.nan, math.nan)))]
            rows.append((f"{name}, {way}", *shown, "equal" if exchanged else "**not equal**"))
    least = [float(row[1]) for row in rows if row[1] != "same bits"]
    section.goal(
        "PSNR against untiled, the worst of all",
        "≥ 130 dB",
        f"{min(least):.1f} dB; {sum(one >= 130 for one in least) + len(rows) - len(least)} of {len(rows)} reach it",
        min(least) >= 130,
    )
    section.goal(
        "the same against float64, beside untiled's own", "≥ -3 dB", f"{worst:.1f} dB at the worst", worst >= -3
    )
    section.goal("bytes measured = planned", "all", "all" if not lost else f"all but {lost}", not lost)
    section.table(
        ("small models of the kind", "2 to 4 workers against untiled, dB", "one worker's strips against untiled",
         "untiled against float64", "2 to 4 workers against float64", "bytes planned and measured"),
        rows,
    )  # fmt: skip
    return section


def _seeded(work: Any) -> Any:
    torch.manual_seed(5)
    return work()


def _truth(vae: Any, way: str, x: Tensor) -> Tensor:
    module = copy.deepcopy(vae.first_stage_model).double()
    return _seeded(lambda: getattr(module, way)(x.double()))


def _decibels(value: float) -> str:
    return "" if math.isnan(value) else "same bits" if math.isinf(value) else f"{value:.1f}"


def memory() -> Section:
    """The full-width autoencoder of Stable Diffusion: each worker with 1/N of what one plans."""
    vae = importlib.import_module("vae")
    psnr = importlib.import_module("headroom.tests.host.families").psnr
    model, section, rows = copy.deepcopy(vae.random_vae().first_stage_model), Section(), []
    importlib.import_module("headroom.host.bands.work").follow_attention(model)
    for way in ("decode", "encode"):
        x = vae.operand(way, *CELLS)
        single = ExactRun()
        expected = single.run(getattr(model, way), x)
        plan = single.report.peak
        flops = single.report.schedules[-1].flops
        rows.append((way, 1, f"{plan / MIB:.0f}", "", "", "", "", "1.00x"))
        for workers in WORKERS:
            budget = plan / workers + HALO
            case = _Case(model, way, x, workers, budget)
            made = together(case.run, workers)
            peaks = [peak_bytes(partial(case.alone, rank)) for rank in range(workers)]
            planned = [run.report.peak for run, _, _ in made]
            received = [run.report.received for run, _, _ in made]
            assert received == [measured for _, _, measured in made]
            near = psnr(torch.cat([band for _, band, _ in made], -2), expected)
            more = max(run.report.schedules[-1].flops for run, _, _ in made) / flops
            section.goal(
                f"{way}, {workers} workers: live bytes of the one that takes most",
                f"≤ {budget / MIB:.0f} MiB (1/{workers} of {plan / MIB:.0f}, and {HALO // MIB})",
                f"{max(peaks) / MIB:.0f} MiB",
                max(peaks) <= budget and all(live <= most for live, most in zip(peaks, planned)),
            )
            rows.append(
                (way, workers, f"{max(planned) / MIB:.0f}", f"{max(peaks) / MIB:.0f}", f"{budget / MIB:.0f}",
                 f"{max(received) / MIB:.2f}", f"{near:.1f}", f"{more:.2f}x")
            )  # fmt: skip
    size = " x ".join(str(8 * cells) for cells in CELLS)
    section.table(
        (f"SD at full width, {size}", "workers", "planned peak, MiB", "measured", "budget of each",
         "received, at most: planned = measured", "dB against one worker", "operations of all together"),
        rows,
    )  # fmt: skip
    return section


@dataclass
class _Case:
    """A number of workers."""

    model: Any
    way: str
    x: Tensor
    workers: int
    budget: float
    given: dict[Any, Any] = field(default_factory=dict)

    def run(self, rank: int, peers: ThreadPeers) -> tuple[BandRun, Tensor, int]:
        """One of them, and the bytes that it received."""
        return *self._of(rank, _Keeping(peers, self.given)), peers.received

    def alone(self, rank: int) -> None:
        """The same by itself, once the others have given all."""
        self._of(rank, importlib.import_module("headroom.tests.unit.test_bands").Everything(self.given, rank))

    def _of(self, rank: int, peers: Peers) -> tuple[BandRun, Tensor]:
        share = Share.of(rank, [1.0] * self.workers, self.x.shape[-2])
        return _run(self.model, self.way, self.x, share, peers, budget=self.budget)


class _Keeping(Peers):
    """Other workers, with all that is given kept for one that runs by itself later."""

    def __init__(self, peers: ThreadPeers, given: dict[Any, Any]) -> None:
        self.peers, self.given = peers, given

    def give(self, key: Any, things: Sequence[Any], to: Sequence[int]) -> None:
        copies = [thing.clone() if isinstance(thing, Tensor) else thing for thing in things]
        self.given.update({(self.peers.rank, other, key): copies for other in to})
        self.peers.give(key, things, to)

    def take(self, key: Any, of: int) -> Any:
        return self.peers.take(key, of)


def videos() -> Section:
    """Chunk after chunk, or in windows of frames, each of 2 to 4 workers with its band; and what two workers take of
    four times as many frames."""
    tests = importlib.import_module("headroom.tests.host.test_bands")
    psnr = importlib.import_module("headroom.tests.host.families").psnr
    torch.set_num_threads(1)
    section, rows, worst, lost = Section(), [], math.inf, 0
    for name, way in [*tests.IN_CHUNKS, *((name, "windows") for name in tests.IN_WINDOWS)]:
        work, x = tests.module_and_input(name, "decode" if way == "windows" else way, cells=5)
        by = tests.in_windows if way == "windows" else tests.in_chunks
        expected = _seeded(partial(work, x))
        single, *bands = (_seeded(partial(by, work, x, number, rows=3)) for number in (1, *WORKERS))
        alone, near = psnr(single[0], expected), min(psnr(band, expected) for band, _ in bands)
        exchanged = all(planned == measured for _, received in bands for planned, measured in received)
        lost += not exchanged
        worst = min(worst, 0.0 if math.isinf(near) else near - alone)
        most = max(measured for _, received in bands for _, measured in received)
        shown = "decode in windows" if way == "windows" else f"{way} in chunks"
        rows.append((f"{name}, {shown}", _decibels(near), _decibels(alone), f"{most / MIB:.2f}", x.shape[2]))
    section.goal("PSNR of 2 to 4 workers, beside one's", "≥ -1 dB", f"{worst:.1f} dB at the worst", worst >= -1)
    section.goal("bytes measured = planned", "all", "all" if not lost else f"all but {lost}", not lost)
    section.table(
        ("small models of the kind, 7 x 5 cells", "2 to 4 workers against untiled, dB", "one worker against untiled",
         "received by one, at most, MiB", "frames that go in"),
        rows,
    )  # fmt: skip
    lives = []
    for name in ("wan21", "wan22", "taew21", "mochi"):
        peaks = [_live_of_two(tests, name, cells) for cells in FEW_AND_MANY[name]]
        slope = max(peaks[1]) / max(peaks[0]) - 1
        frames = [tests.AUTOENCODERS[name].frames(cells) for cells in FEW_AND_MANY[name]]
        section.goal(
            f"{name}: live bytes of a worker, {frames[0]} to {frames[1]} frames", "+1 %", f"{slope:+.1%}", slope <= 0.01
        )
        lives.append((name, *frames, *(f"{max(peak) / MIB:.2f}" for peak in peaks)))
    section.table(
        ("two workers of one thread, frames handed on", "frames", "frames", "live MiB, at most", "live MiB, at most"),
        lives,
    )
    return section


def _live_of_two(tests: Any, name: str, cells: int) -> list[int]:
    """Live bytes of each of two workers, which hand their frames on."""
    case = _Video(tests, name, tests.module_and_input(name, "decode", cells=cells)[1])
    together(case.run, 2)
    return [peak_bytes(partial(case.alone, rank)) for rank in range(2)]


@dataclass
class _Video:
    """A video that two workers decode chunk by chunk."""

    tests: Any
    name: str
    x: Tensor
    given: dict[Any, Any] = field(default_factory=dict)

    def run(self, rank: int, peers: ThreadPeers) -> None:
        """One of them."""
        self._of(rank, _Keeping(peers, self.given))

    def alone(self, rank: int) -> None:
        """The same by itself, once the other has given all."""
        self._of(rank, importlib.import_module("headroom.tests.unit.test_bands").Everything(self.given, rank))

    def _of(self, rank: int, peers: Peers) -> None:
        model, share = self.tests.followed(self.name), Share.of(rank, [1.0, 1.0], self.x.shape[-2])
        attend = importlib.import_module("headroom.host.attention.in_vae").attend
        run = ChunkedBand(
            share,
            peers,
            partial(self.tests.strips_of(model, self.tests.Direction.DECODE), model),
            rows=8,
            attend=attend,
        )
        run.height = self.x.shape[-2]
        first, stop = share.rows(self.x.shape[-2])
        run.stream(lambda frames: None, model.decode, self.x[..., first:stop, :])


def cluster() -> Section:
    """One and two processes of one thread each, by turns, on loopback."""
    vae = importlib.import_module("vae")
    bands = importlib.import_module("headroom.host.bands.cluster")
    named = importlib.import_module("headroom.host.bands.named").NamedCluster
    crew = importlib.import_module("headroom.host.bands.crew")
    start = importlib.import_module("headroom.tests.host.ray_cluster").ray_cluster
    comfyui = Path(sys.modules["comfy"].__path__[0]).parent
    torch.set_num_threads(1)
    model, x = vae.random_vae().first_stage_model, vae.operand("decode", *CELLS)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    facts: dict[int, Any] = {}
    with start(3, comfyui, ROOT) as (address, token):
        joined = bands.RayCrew(named("desk", address, 2, 4.0, str(token)))
        both = list(joined.workers)
        for turn in range(4):
            for count in (1, 2):
                joined.workers = both[:count]
                task = crew.Task(
                    model, "decode", x.device, x, torch.float32, {}, False, 0, lambda share: None, lambda text: None
                )  # fmt: skip
                begun = time.perf_counter()
                _, facts[count] = joined.compute(task)
                if turn:  # the first brings the weights there
                    seconds[count].append(time.perf_counter() - begun)
        joined.leave()
    ratio = statistics.median(seconds[2]) / statistics.median(seconds[1])
    section = Section()
    section.parts.append(
        markdown_table(
            ("SD at full width, 512 x 480, decode", "seconds, median of 3 by turns", "",
             "received by all, MiB: planned", "measured"),
            [
                (f"{count} process{'es' * (count > 1)} of one thread", f"{statistics.median(seconds[count]):.1f}",
                 "1.00x" if count == 1 else f"{ratio:.2f}x", f"{facts[count].received / MIB:.2f}",
                 f"{facts[count].measured / MIB:.2f}")
                for count in (1, 2)
            ],
        )
    )  # fmt: skip
    return section


def main() -> None:
    command = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    command.add_argument("--only", nargs="+", choices=TITLES, default=list(TITLES))
    chosen = command.parse_args()
    enter_host("--cpu")
    report = Report(Path(__file__).with_suffix(".md"), INTRODUCTION, TITLES)
    with torch.inference_mode():
        for name in chosen.only:
            report.measure(name, {"kinds": kinds, "memory": memory, "videos": videos, "cluster": cluster}[name], 1)


if __name__ == "__main__":
    main()
