"""Which autoencoders are run in chunks of frames, and how."""

from __future__ import annotations

import sys
from typing import Any

from ...vae import Direction
from . import tiny_chunks
from .chunks import Chunks, Wan21Decode, Wan21Encode, Wan22Decode, Wan22Encode

#: By module and name of the class in the host.
FAMILIES: dict[tuple[str, str], dict[Direction, type[Chunks]]] = {
    ("comfy.ldm.wan.vae", "WanVAE"): {Direction.DECODE: Wan21Decode, Direction.ENCODE: Wan21Encode},
    ("comfy.ldm.wan.vae2_2", "WanVAE"): {Direction.DECODE: Wan22Decode, Direction.ENCODE: Wan22Encode},
    ("comfy.taesd.taehv", "TAEHV"): {Direction.DECODE: tiny_chunks.TinyDecode},
}


def chunks_of(model: Any, direction: Direction) -> type[Chunks] | None:
    """How an autoencoder is run in chunks; None where there are none, or other ones than are known here."""
    kind = type(model)
    found = FAMILIES.get((kind.__module__, kind.__name__), {}).get(direction)
    if found is tiny_chunks.TinyDecode:
        return found if tiny_chunks.is_known(model) else None
    return found if found is not None and hasattr(sys.modules[kind.__module__], found.counter) else None
