"""What a video's strips are cut along, and the runs that cut it so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ...vae.exact import ChunkedRun, ExactRun, PlannedChunks, PlannedRun
from .chunks import Chunks

OUTSIDE = "chunks, outside"
#: As the report calls them: rows of all frames, or of a chunk's, with what the VAE keeps from chunk to chunk on the
#: device or in host memory, or frames.
ALONG = {
    "rows": "strips",
    "chunks": "strips of chunks of frames",
    OUTSIDE: "strips of chunks of frames",
    "frames": "windows of frames",
}


def others(along: str, has_chunks: bool, has_link: bool) -> Iterator[str]:
    """Ways that may need less of the device than this one, as they are tried.

    Args:
        along: of :data:`ALONG`.
        has_chunks: the host itself runs such a video in chunks.
        has_link: the device has memory of its own, with a link to the host's.
    """
    if along == "rows" and has_chunks:
        yield "chunks"
    if along in ("rows", "chunks") and has_chunks and has_link:
        yield OUTSIDE
    if along == "rows":
        yield "frames"


def is_chunked(along: str) -> bool:
    """Whether it goes chunk by chunk."""
    return along in ("chunks", OUTSIDE)


def maker_of(kind: type[ExactRun], chunks: type[Chunks] | None, model: Any, along: str) -> Callable[..., Any]:
    """What makes a run of a kind, or where it goes chunk by chunk one that does, or a plan where ``kind`` is one."""
    if not is_chunked(along):
        return kind
    assert chunks is not None, "a way by chunks is only for what has some"
    made = PlannedChunks if issubclass(kind, PlannedRun) else ChunkedRun
    return partial(made, partial(chunks, model), outside=along == OUTSIDE)
