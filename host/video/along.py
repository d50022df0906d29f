"""What a video's strips are cut along, and the runs that cut it so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...memory.accelerator import has_own_memory
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


def others(along: str, has_chunks: bool, device: torch.device, link: float) -> Iterator[str]:
    """Ways that may need less of the device than this one, as they are tried.

    Args:
        along: of :data:`ALONG`.
        has_chunks: the host itself runs such a video in chunks.
        link: bytes a second between the host's memory and the device, which needs some of its own; 0: unknown.
    """
    if along == "rows" and has_chunks:
        yield "chunks"
    if along in ("rows", "chunks") and has_chunks and link and has_own_memory(device):
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


def hand_on(run: ExactRun, vae: Any, latent: Tensor) -> Tensor:
    """A video by a run of chunks, which are brought to the device one by one, and whose frames are kept nowhere.

    Args:
        latent: (1, C, T, h, w), prepared.

    Returns:
        The latent: there is no result.
    """
    assert isinstance(run, ChunkedRun)
    run.bring = lambda part: part.to(device=vae.device, dtype=vae.vae_dtype)
    run.stream(lambda frames: None, vae.first_stage_model.decode, latent)
    return latent
