"""Which autoencoders are run in chunks of frames, and how."""

from __future__ import annotations

from typing import Any

from ...vae import Direction
from .chunks import Chunks
from .cogvideo import CogVideoDecode, CogVideoEncode
from .cosmos import CosmosDecode, CosmosEncode
from .hunyuan import HunyuanDecode, HunyuanEncode
from .ltx import LTXConditionedDecode, LTXDecode, LTXEncode
from .mochi import MochiDecode
from .tiny import TinyDecode, TinyEncode
from .wan import Wan21Decode, Wan21Encode, Wan22Decode, Wan22Encode

Kinds = dict[Direction, tuple[type[Chunks], ...]]  # by turns: one of them may know the module


def _both(*decodes: type[Chunks], encode: type[Chunks]) -> Kinds:
    return {Direction.DECODE: decodes, Direction.ENCODE: (encode,)}


LTX = _both(LTXDecode, LTXConditionedDecode, encode=LTXEncode)
HUNYUAN = _both(HunyuanDecode, encode=HunyuanEncode)
#: By module and name of the class in the host.
FAMILIES: dict[tuple[str, str], Kinds] = {
    ("comfy.ldm.wan.vae", "WanVAE"): _both(Wan21Decode, encode=Wan21Encode),
    ("comfy.ldm.wan.vae2_2", "WanVAE"): _both(Wan22Decode, encode=Wan22Encode),
    ("comfy.ldm.models.autoencoder", "AutoencoderKL"): HUNYUAN,
    ("comfy.ldm.models.autoencoder", "AutoencodingEngine"): HUNYUAN,
    ("comfy.ldm.cogvideo.vae", "AutoencoderKLCogVideoX"): _both(CogVideoDecode, encode=CogVideoEncode),
    ("comfy.ldm.genmo.vae.model", "VideoVAE"): {Direction.DECODE: (MochiDecode,)},
    ("comfy.ldm.cosmos.vae", "CausalContinuousVideoTokenizer"): _both(CosmosDecode, encode=CosmosEncode),
    ("comfy.ldm.lightricks.vae.causal_video_autoencoder", "VideoVAE"): LTX,
    ("comfy.taesd.taehv", "TAEHV"): _both(TinyDecode, encode=TinyEncode),
}


def chunks_of(model: Any, direction: Direction) -> type[Chunks] | None:
    """How an autoencoder is run in chunks; None where there are none, or other ones than are known here."""
    kind = type(model)
    known = FAMILIES.get((kind.__module__, kind.__name__), {}).get(direction, ())
    return next((chunks for chunks in known if chunks.knows(model)), None)


def strips_of(model: Any, direction: Direction) -> type[Chunks] | None:
    """As :func:`chunks_of`, if chunks can be cut into strips: not where their convolutions look ahead."""
    found = chunks_of(model, direction)
    return None if found is None or found.looks_ahead else found
