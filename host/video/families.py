"""Which autoencoders are run in chunks of frames, and how."""

from __future__ import annotations

import sys
from typing import Any

from ...vae import Direction
from . import hunyuan_chunks, tiny_chunks
from .chunks import Chunks
from .cogvideo_chunks import CogVideoDecode, CogVideoEncode
from .hunyuan_chunks import HunyuanDecode, HunyuanEncode
from .wan_chunks import Wan21Decode, Wan21Encode, Wan22Decode, Wan22Encode, WanChunks

Kinds = dict[Direction, type[Chunks]]
HUNYUAN: Kinds = {Direction.DECODE: HunyuanDecode, Direction.ENCODE: HunyuanEncode}
#: By module and name of the class in the host.
FAMILIES: dict[tuple[str, str], Kinds] = {
    ("comfy.ldm.wan.vae", "WanVAE"): {Direction.DECODE: Wan21Decode, Direction.ENCODE: Wan21Encode},
    ("comfy.ldm.wan.vae2_2", "WanVAE"): {Direction.DECODE: Wan22Decode, Direction.ENCODE: Wan22Encode},
    ("comfy.ldm.models.autoencoder", "AutoencoderKL"): HUNYUAN,
    ("comfy.ldm.models.autoencoder", "AutoencodingEngine"): HUNYUAN,
    ("comfy.ldm.cogvideo.vae", "AutoencoderKLCogVideoX"): {
        Direction.DECODE: CogVideoDecode, Direction.ENCODE: CogVideoEncode,
    },
    ("comfy.taesd.taehv", "TAEHV"): {Direction.DECODE: tiny_chunks.TinyDecode},
}  # fmt: skip
HALVES = {Direction.DECODE: "decoder", Direction.ENCODE: "encoder"}


def chunks_of(model: Any, direction: Direction) -> type[Chunks] | None:
    """How an autoencoder is run in chunks; None where there are none, or other ones than are known here."""
    kind = type(model)
    found = FAMILIES.get((kind.__module__, kind.__name__), {}).get(direction)
    return found if found is not None and _is_known(found, model, direction) else None


def _is_known(kind: type[Chunks], model: Any, direction: Direction) -> bool:
    """Whether this host's module is the one that the chunks are made for."""
    if issubclass(kind, WanChunks):
        return hasattr(sys.modules[type(model).__module__], kind.counter)
    if issubclass(kind, hunyuan_chunks.HunyuanChunks):
        return hunyuan_chunks.is_known(getattr(model, HALVES[direction]))
    return kind is not tiny_chunks.TinyDecode or tiny_chunks.is_known(model)
