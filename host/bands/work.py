"""What a worker does: its band of an encode or decode."""

from __future__ import annotations

import traceback
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor

from ...memory.accelerator import random_numbers
from ...memory.link import link_speed
from ...vae import Direction
from ...vae.exact import CannotRecord, DoesNotFit, StoreOverflow
from ...vae.exact.bands.chunked import ChunkedBand
from ...vae.exact.bands.peers import PeerLost, Peers
from ...vae.exact.bands.run import BandRun
from ...vae.exact.bands.talk import HOST, Talk
from ...vae.exact.cutting.share import Share
from ...vae.exact.planning.card import figures_of
from ...vae.exact.planning.device import Figures
from ...vae.exact.planning.remembered import remembered
from ...vae.exact.running.banded import banded
from ..attention.in_vae import ATTRIBUTES, AttentionInStrips, attend
from ..chunks.chunks import Chunks, State, gone_on, saved
from ..chunks.families import strips_of
from ..core.compat import interruptions, is_out_of_memory
from ..measure.calibrated import in_strips, workspaces_on
from ..video.along import OUTSIDE, first_way, is_chunked, others

STEPS = 40  # bits of the numbers of what is exchanged on one way


def dim_of(along: str) -> int:
    """Of (B, C, [T,] H, W), what bands are cut along."""
    return 2 if along == "frames" else -2


@dataclass
class BandWork:
    """A worker's part.

    Attributes:
        method: of the module: decode or encode.
        band: its rows of the input, (B, C, [T,] rows, W), or its frames. height: rows, or frames, of all of it.
        dtype: of the module.
        options: further arguments of the method; ``device``, if there, is the worker's own.
        budget: bytes on the device, weights not counted.
        half_store: maps are kept in float16.
        rows: of the result in a strip; 0 = by the budget.
        along: what bands are cut along: rows or frames.
        hands_on: the result is handed on chunk by chunk, and kept nowhere.
        frames: of the input, which comes chunk by chunk, the band being a likeness of one of them; 0: the band is all
            of it.
        done: frames of the result that are there already. state: what is kept behind them, by place: tensors, of which
            there are more rows in all than a worker's band has (0: it is no map).
    """

    method: str
    band: Tensor
    height: int
    dtype: torch.dtype
    budget: float
    options: dict[str, Any] = field(default_factory=dict)
    half_store: bool = False
    rows: int = 0
    along: str = "rows"
    hands_on: bool = False
    frames: int = 0
    done: int = 0
    state: dict[str, tuple[Tensor, int]] = field(default_factory=dict)

    @property
    def by_chunks(self) -> bool:
        """Whether it comes so, or is handed on so: there is no other way."""
        return self.hands_on or bool(self.frames)


def computed(
    model: Any,
    work: BandWork,
    share: Share,
    peers: Peers,
    device: torch.device,
    on_strip: Callable[[float], None],
    make: Callable[[float], None] = lambda needed: None,
) -> dict[str, Any]:
    """The band of the result, or why there is none: plain values, since other processes have classes of their own.

    Args:
        make: called with the bytes of each plan, before it runs.

    Returns:
        ``status``: done, does_not_fit, overflow, not_exact, out_of_memory, lost, interrupted or failed. Of what is
        done ``band`` (float32, in host memory; None if it was handed on), ``rows``, ``way``, ``peak``, ``received``,
        ``strips``, ``passes``; else ``why`` or ``least``.
    """
    try:
        return _computed(model, work, share, peers, device, on_strip, make)
    except DoesNotFit as error:
        return {"status": "does_not_fit", "least": error.least}
    except StoreOverflow as error:
        return {"status": "overflow", "why": str(error)}
    except CannotRecord as error:
        return {"status": "not_exact", "why": str(error)}
    except PeerLost as error:
        return {"status": "lost", "rank": error.rank, "why": str(error)}
    except interruptions():
        return {"status": "interrupted"}
    except Exception as error:
        kind = "out_of_memory" if is_out_of_memory(error) else "failed"
        return {"status": kind, "why": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def _computed(
    model: Any,
    work: BandWork,
    share: Share,
    peers: Peers,
    device: torch.device,
    on_strip: Callable[[float], None],
    make: Callable[[float], None],
) -> dict[str, Any]:
    least, talk, draw_again = list[int](), Talk(peers, _kept), random_numbers(device)
    with torch.inference_mode():
        for number, way in enumerate(_agreed(peers, share, _ways(model, work, device))):
            run = _run(model, work, share, peers, device, way, on_strip)
            run.on_plan = lambda schedule: make(schedule.peak)
            run.steps = count(number << STEPS)  # no way takes what another one was given
            if share.rank == 0:  # which draws for all
                draw_again()
            try:
                band = _by(run, model, work, device, talk)
            except DoesNotFit as error:
                least.append(error.least)
                continue
            finally:
                run.close()
            report = run.report
            return {
                "status": "done",
                "band": band,
                "way": way,
                "rows": talk.rows if band is None else band.shape[dim_of(work.along)],
                "peak": report.peak,
                "received": report.received,
                "strips": report.strips,
                "passes": report.passes,
            }
    raise DoesNotFit(min(least))


def _agreed(peers: Peers, share: Share, ways: Sequence[str]) -> Sequence[str]:
    """The first worker's, for all."""
    if share.rank == 0:
        peers.give("ways", list(ways), share.others)
        return ways
    found: list[str] = peers.take("ways", 0)(HOST)
    return found


def _ways(model: Any, work: BandWork, device: torch.device) -> list[str]:
    """What strips are cut along, by turns, of :data:`..video.along.ALONG`."""
    if work.along == "frames":
        return ["frames"]
    chunks = _chunks(model, work)
    first = "chunks" if work.by_chunks else first_way(chunks)
    further = others(first, chunks, device, _figures(device).link, work.by_chunks)
    return [first, *(way for way in further if way != "frames")]


def _chunks(model: Any, work: BandWork) -> type[Chunks] | None:
    one_video = work.band.ndim == 5 and work.band.shape[0] == 1 and (work.by_chunks or work.band.shape[2] > 1)
    return strips_of(model, Direction(work.method)) if one_video else None


def _run(
    model: Any,
    work: BandWork,
    share: Share,
    peers: Peers,
    device: torch.device,
    way: str,
    on_strip: Callable[[float], None],
) -> BandRun:
    kind: Callable[..., BandRun] = BandRun
    chunks = _chunks(model, work)
    if is_chunked(way):
        assert chunks is not None, "a way by chunks is only for what has some"
        kind = partial(ChunkedBand, begin=partial(gone_on, chunks, model), outside=way == OUTSIDE)
    run = kind(
        share,
        peers,
        budget=work.budget,
        store=torch.float16 if work.half_store else None,
        rows=work.rows if way == first_way(chunks) else 0,
        along="frames" if way == "frames" else "rows",
        out_device=HOST,
        out_dtype=torch.float32,
        on_strip=lambda done, out: on_strip(done),
        on_search=lambda: on_strip(0.0),
        attend=attend,
        owned=list(model.parameters()),
        plans=remembered(model),
        figures=_figures(device),
    )
    run.height, run.unbroken = work.height, way == "frames"
    return run


def _figures(device: torch.device) -> Figures:
    return figures_of(device, link_speed(device), in_strips(workspaces_on(device)))


def _by(run: BandRun, model: Any, work: BandWork, device: torch.device, talk: Talk) -> Tensor | None:
    """The band of the result; None where it is handed on chunk by chunk."""
    options = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in work.options.items()}
    if "device" in options:
        options["device"] = device
    module = getattr(model, work.method)
    if not isinstance(run, ChunkedBand):
        x = work.band.to(device=device, dtype=work.dtype)
        run.beside = [x.nbytes]
        return run.run(module, x, **options).contiguous()
    run.bring, band = lambda part: part.to(device=device, dtype=work.dtype), work.band
    if work.frames:
        band = band.expand(-1, -1, work.frames, -1, -1)
        run.fetch = lambda part, start, stop: talk.chunk(start).to(device=device, dtype=work.dtype)
    if work.hands_on:
        _hand_on(run, module, work, device, talk)
        return None
    found = run.run(module, band, **options).contiguous()
    if work.frames:
        talk.end()
    return found


def _hand_on(run: ChunkedBand, module: Callable[..., Any], work: BandWork, device: torch.device, talk: Talk) -> None:
    begin, state = run.begin, {name: band for name, (band, _) in work.state.items()}
    own = weakref.proxy(run)  # which is not to hold itself

    def put(name: str, band: Tensor) -> Any:
        _, height = work.state[name]
        return own.restored(band, device, height) if height else band.to(device)

    run.begin = lambda frames: begin(frames, work.done, state, put)  # type: ignore[call-arg]
    run.after_chunk = talk.chunk_is_done
    talk.begin(work.done)
    run.stream(talk.take, module, work.band)
    talk.end()


def _kept(chunks: Any) -> tuple[State, list[str]]:
    """What is kept behind a chunk, and which of it are bands."""
    entries = chunks.kept().items()
    return saved(chunks), [name for name, entry in entries if hasattr(entry, "node") and banded(entry.node)]


def follow_attention(model: Any) -> None:
    """Has a module of the worker's own take recorded maps in its attention blocks."""
    for module in model.modules():
        for attribute in ATTRIBUTES:
            function = module.__dict__.get(attribute)
            if callable(function) and not isinstance(function, AttentionInStrips):
                setattr(module, attribute, AttentionInStrips(function))
