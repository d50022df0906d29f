"""Which autoencoders are run in chunks of frames, and how."""

from __future__ import annotations

from typing import Any

from ...vae import Direction
from .chunks import Chunks
from .cogvideo import CogVideoDecode, CogVideoEncode
from .cosmos import CosmosDecode, CosmosEncode
from .hunyuan import HunyuanDecode, HunyuanEncode
from .ltx import LTXDecode, LTXEncode
from .mochi import MochiDecode
from .tiny import TinyDecode, TinyEncode
from .wan import Wan21Decode, Wan21Encode, Wan22Decode, Wan22Encode

Kinds = dict[Direction, type[Chunks]]


def _both(decode: type[Chunks], encode: type[Chunks]) -> Kinds:
    return {Direction.DECODE: decode, Direction.ENCODE: encode}


HUNYUAN = _both(HunyuanDecode, HunyuanEncode)
#: By module and name of the class in the host.
FAMILIES: dict[tuple[str, str], Kinds] = {
    ("comfy.ldm.wan.vae", "WanVAE"): _both(Wan21Decode, Wan21Encode),
    ("comfy.ldm.wan.vae2_2", "WanVAE"): _both(Wan22Decode, Wan22Encode),
    ("comfy.ldm.models.autoencoder", "AutoencoderKL"): HUNYUAN,
    ("comfy.ldm.models.autoencoder", "AutoencodingEngine"): HUNYUAN,
    ("comfy.ldm.cogvideo.vae", "AutoencoderKLCogVideoX"): _both(CogVideoDecode, CogVideoEncode),
    ("comfy.ldm.genmo.vae.model", "VideoVAE"): {Direction.DECODE: MochiDecode},
    ("comfy.ldm.cosmos.vae", "CausalContinuousVideoTokenizer"): _both(CosmosDecode, CosmosEncode),
    ("comfy.ldm.lightricks.vae.causal_video_autoencoder", "VideoVAE"): _both(LTXDecode, LTXEncode),
    ("comfy.taesd.taehv", "TAEHV"): _both(TinyDecode, TinyEncode),
}


def chunks_of(model: Any, direction: Direction) -> type[Chunks] | None:
    """How an autoencoder is run in chunks; None where there are none, or other ones than are known here."""
    kind = type(model)
    found = FAMILIES.get((kind.__module__, kind.__name__), {}).get(direction)
    return found if found is not None and found.knows(model) else None


def strips_of(model: Any, direction: Direction) -> type[Chunks] | None:
    """As :func:`chunks_of`, if chunks can be cut into strips: not where their convolutions look ahead."""
    found = chunks_of(model, direction)
    return None if found is None or found.looks_ahead else found
