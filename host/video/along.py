"""What a video's strips are cut along, and the runs that cut it so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...memory.accelerator import has_own_memory
from ...memory.units import format_bytes
from ...vae import Direction
from ...vae.exact import ChunkedRun, ExactRun, Hold, PlannedChunks, PlannedRun, Report
from ..chunks.chunks import Chunks

OUTSIDE = "chunks, outside"
MIB = 2**20
#: As the report calls them: rows of all frames, or of a chunk's, with what the VAE keeps from chunk to chunk on the
#: device or in host memory, or frames.
ALONG = {
    "rows": "strips",
    "chunks": "strips of chunks of frames",
    OUTSIDE: "strips of chunks of frames",
    "frames": "windows of frames",
}


def first_way(chunks: type[Chunks] | None) -> str:
    """What is tried first: rows of all frames, but for autoencoders that the host runs as a whole in part and in chunks
    for the rest, since to plan all of that at once takes minutes."""
    return "chunks" if chunks is not None and chunks.comes_first else "rows"


def others(
    along: str, chunks: type[Chunks] | None, device: torch.device, link: float, handed_on: bool
) -> Iterator[str]:
    """Ways that may need less of the device than this one, as they are tried.

    Args:
        along: of :data:`ALONG`.
        chunks: in which the host itself runs such a video.
        link: bytes a second between the host's memory and the device, which needs some of its own; 0: unknown.
        handed_on: frames are taken chunk by chunk: rows of all of them are of no use.
    """
    if along == "rows" and chunks is not None:
        yield "chunks"
    if along in ("rows", "chunks") and chunks is not None and link and has_own_memory(device):
        yield OUTSIDE
    if along == "chunks" and first_way(chunks) == along and not handed_on:
        yield "rows"  # which short videos need less for than what is kept from chunk to chunk
    if along == "rows":
        yield "frames"


def is_chunked(along: str) -> bool:
    """Whether it goes chunk by chunk."""
    return along in ("chunks", OUTSIDE)


def maker_of(
    kind: type[ExactRun], chunks: type[Chunks] | None, model: Any, along: str, hold: Hold | None
) -> Callable[..., Any]:
    """What makes a run of a kind, or where it goes chunk by chunk one that does, or a plan where ``kind`` is one.

    Args:
        hold: makes room on disk for maps of all frames; None: they lie in memory.
    """
    if not is_chunked(along):
        return kind
    assert chunks is not None, "a way by chunks is only for what has some"
    made = PlannedChunks if issubclass(kind, PlannedRun) else ChunkedRun
    on_disk: dict[str, Any] = {} if hold is None else {"hold": hold, "holds_on_disk": True}
    return partial(made, partial(chunks, model), outside=along == OUTSIDE, **on_disk)


def hand_on(run: ExactRun, vae: Any, x: Tensor, direction: Direction = Direction.DECODE) -> Tensor:
    """A video by a run of chunks, which are brought to the device one by one, and of whose results nothing is kept.

    Args:
        x: a latent (1, C, T, h, w) or pixels (1, 3, T, H, W), prepared.

    Returns:
        What it was given: there is no result.
    """
    assert isinstance(run, ChunkedRun)
    run.bring = lambda part: part.to(device=vae.device, dtype=vae.vae_dtype)
    run.stream(lambda frames: None, getattr(vae.first_stage_model, direction.value), x)
    return x


def cut_into(along: str, strips: int, passes: int) -> str:
    """How finely maps were cut, from the strips of all passes over them."""
    return f"{ALONG[along]}, {round(strips / max(1, passes), 2):g} for each map on average"


def described(report: Report, along: str, store: torch.dtype | None) -> Iterator[str]:
    """What ran, for the report of a node.

    Args:
        along: of :data:`ALONG`.
        store: dtype of stored maps, None = their own.
    """
    if not report.passes:
        return
    kind = "exact" if store is None else "near-exact, float16 store"
    yield f"{kind}: in {cut_into(along, report.strips, report.passes)}, planned peak {format_bytes(report.peak)}"
    if report.done.recomputed:
        yield f"{report.done.recomputed} maps computed again instead of stored"
    if report.carried:
        yield f"what the VAE keeps from chunk to chunk in host memory, {format_bytes(report.carried)}"
    if report.aside > MIB:
        yield f"maps of all frames beside its chunks, {format_bytes(report.aside)}"
    if report.host_peak:
        where = "a file" if report.in_file else "host memory"
        yield f"stored maps in {where}, {format_bytes(report.host_peak)}"
    if report.materialised:
        named = ", ".join(f"{name} x{count}" for name, count in sorted(Counter(report.materialised).items()))
        yield f"whole maps, beyond the plan, for: {named}"
