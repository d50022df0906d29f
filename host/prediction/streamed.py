"""What a decode or encode takes whose frames are handed on, as the nodes for videos of any length do it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...memory.prediction import CannotPredict, Card, Prediction, repeated
from ...memory.speed.kernels import scaled
from ...memory.units import format_bytes
from ...vae import Direction
from ...vae.exact.chunked import ALIKE
from ...video import FORMATS
from ..chunks.chunks import Chunks, head_of
from ..chunks.families import chunks_of, strips_of
from ..core.device import GB
from ..measure.calibrated import workspaces_for
from ..vae.settings import VAESettings
from ..vae.wrapper import PLANNED_BY_WORKERS, LowMemoryVAE, encoder_of_frames, low_memory_vae, workers_of
from ..video.sink import Sink
from .networks import pixels_like
from .vae import Coding, CodingPrediction, predict_coding, predict_work

VIDEO, PICTURE_SIZES = 5, 2  # dimensions of a video's latent; sizes of a picture's
COLOURS = (3, 4)  # channels of pictures; of sounds and shapes there are fewer


def predict_handed_on(vae: Any, x: Tensor, direction: Direction, card: Card) -> Prediction | None:
    """Predicts a video that the module itself computes, its frames handed on.

    Args:
        x: latents (1, C, T, h, w), or pixels (1, 3, T, H, W).

    Returns:
        None for a module that does not hand frames on.

    Raises:
        CannotPredict: the autoencoder looks at its data.
    """
    model = vae.first_stage_model
    chunks = chunks_of(model, direction)
    if chunks is not None:
        return predict_work(vae, x, card, lambda module, x: _first_chunks(chunks, module, x))
    if direction is Direction.DECODE and getattr(model, "comfy_has_chunked_io", False):
        return predict_work(vae, x, card, lambda module, x: module.decode(x, output_buffer=Sink(_drop)))
    return None


def bytes_a_frame(vae: Any, x: Tensor, direction: Direction, card: Card, first: Prediction | None = None) -> float:
    """What each further frame of a video takes by the module itself, where something is computed of all of them: of so
    many frames beside twice as many.

    Args:
        x: as of :func:`predict_handed_on`.
        first: what that has said of it, where it was asked already.

    Raises:
        CannotPredict: the autoencoder looks at its data.
    """
    chunks, frames = chunks_of(vae.first_stage_model, direction), x.shape[2]
    if chunks is None or not (chunks.has_head or chunks.has_tail):
        return 0.0
    more = x[:, :, :1].expand(-1, -1, 2 * frames, -1, -1)
    first = first or predict_handed_on(vae, x, direction, card)
    second = predict_handed_on(vae, more, direction, card)
    assert first is not None
    assert second is not None
    return (second.activations - first.activations) / frames


def _first_chunks(kind: type[Chunks], module: Any, x: Tensor) -> None:
    """After these chunks are alike; what is computed of all frames lies in a file meanwhile.

    Where chunks look ahead the last one is another, and all of a shorter video are run.
    """
    chunks, most = kind(module, x.shape[2]), ALIKE
    whole = len(chunks.borders)
    parts = head_of(chunks, x, lambda x: x, _placeholder)
    if kind.looks_ahead:
        step = chunks.borders[0][1]
        frames = min(x.shape[2], ALIKE * step + x.shape[2] % step)
        parts, chunks, most = [part[:, :, :frames] for part in parts], kind(module, frames), ALIKE + 1
    given: Tensor | None = None
    for number, (start, stop) in enumerate(chunks.borders[:most]):
        of_chunk = [part[:, :, start:stop] for part in parts]
        brought = (part.to(x.device) if chunks.has_head else part.clone() for part in of_chunk)
        last = number == most - 1
        with repeated(1 + whole - len(chunks.borders[:most]) if last else 1):
            for piece in chunks.handed(*brought):
                given = piece.new_empty(()).expand(*piece.shape[:2], chunks.given, *piece.shape[3:])
                del piece
    if chunks.has_tail and given is not None:
        chunks.tail(given.clone() if x.device.type != "cpu" else given)


def _placeholder(x: Tensor) -> Tensor:
    """Of the same shape in host memory, without taking any."""
    return torch.empty((), dtype=x.dtype).expand(x.shape)


def _growing(vae: Any, x: Tensor, card: Card, found: Prediction) -> str:
    more = bytes_a_frame(vae, x, Direction.DECODE, card, found)
    return f"; each further latent frame takes {format_bytes(int(more))}" if more else ""


def _drop(frames: Tensor) -> None:
    """Takes frames and keeps none."""


def predict_to_file(vae: Any, latent: Tensor, card: Card, vram_budget_gb: float) -> CodingPrediction:
    """Predicts a decode to a file: one video of a batch, or one picture, by the way that the node would take.

    Args:
        latent: (B, C, [T,] h, w).
        vram_budget_gb: of the node; 0 = what the card has beside what the host reserves.

    Raises:
        CannotPredict: the autoencoder looks at its data.
        ValueError: a budget that is too small.
    """
    one = latent[:1]
    if workers_of(vae):
        raise CannotPredict(PLANNED_BY_WORKERS)
    if latent.ndim == 5:
        found = predict_handed_on(vae, one, Direction.DECODE, card)
        room = vram_budget_gb * GB if vram_budget_gb else card.seen - card.reserved
        if found is not None and found.weights + found.activations <= room:
            return CodingPrediction(found, f"in the module's own chunks, to a file{_growing(vae, one, card, found)}")
    in_chunks = latent.ndim == 5 and strips_of(vae.first_stage_model, Direction.DECODE) is not None
    settings = VAESettings(method="exact" if in_chunks else "auto", vram_budget_gb=vram_budget_gb)
    coding = Coding(low_memory_vae(vae, settings), one, file_budget_gb=vram_budget_gb)
    found_way = _never_in_tiles(coding, card)
    return replace(found_way, method=f"{found_way.method}, to a file")


def _never_in_tiles(coding: Coding, card: Card) -> CodingPrediction:
    """In one piece or in strips."""
    found, settings = predict_coding(coding, card, workspaces_for(card)), coding.vae.headroom_settings
    if "feathered" not in found.method:
        return found
    exact = low_memory_vae(coding.vae, replace(settings, method="exact"))
    return predict_coding(replace(coding, vae=exact), card, workspaces_for(card))


def predict_from_file(vae: Any, pixels: Tensor, card: Card, vram_budget_gb: float) -> CodingPrediction:
    """Predicts an encode from a file, by the way that the node would take.

    Args:
        pixels: the frames (T, H, W, C), in the size in which they are encoded.
        vram_budget_gb: of the node; 0 = what the card has beside what the host reserves.

    Raises:
        CannotPredict: the autoencoder looks at its data.
        ValueError: a budget that is too small, or what the node refuses.
    """
    if workers_of(vae):
        raise CannotPredict(PLANNED_BY_WORKERS)
    in_chunks = strips_of(vae.first_stage_model, Direction.ENCODE) is not None
    settings = VAESettings(method="exact" if in_chunks else "auto", vram_budget_gb=vram_budget_gb)
    low, (height, width) = low_memory_vae(vae, settings), pixels.shape[1:3]
    encoder_of_frames(low, width, height)  # refuses what the node refuses
    coding = Coding(low, pixels, encodes=True, file_budget_gb=vram_budget_gb)
    if vae.latent_dim == PICTURE_SIZES or getattr(vae, "not_video", False):
        found = _never_in_tiles(replace(coding, x=pixels[:1]), card)
        work = scaled(found.prediction.work, pixels.shape[0])
        found = replace(found, prediction=replace(found.prediction, work=work))
        return replace(found, method=f"{found.method}, frame by frame from a file")
    if chunks_of(vae.first_stage_model, Direction.ENCODE) is not None:
        video = vae.vae_encode_crop_pixels(pixels)[None].movedim(-1, 1)
        whole = predict_handed_on(vae, video, Direction.ENCODE, card)
        room = vram_budget_gb * GB if vram_budget_gb else card.seen - card.reserved
        if whole is not None and whole.weights + whole.activations <= room:
            return CodingPrediction(whole, "in the module's own chunks, from a file")
    found = _never_in_tiles(coding, card)
    return replace(found, method=f"{found.method}, from a file")


def kept_to(coding: Coding, budget_gb: float) -> Coding | None:
    """The same within a budget, weights included; None where it has one already, or keeps to none."""
    if coding.file_budget_gb is not None:
        return None if coding.file_budget_gb else replace(coding, file_budget_gb=budget_gb)
    vae = coding.vae
    if not isinstance(vae, LowMemoryVAE) or vae.headroom_settings.vram_budget_gb:
        return None
    return replace(coding, vae=low_memory_vae(vae, replace(vae.headroom_settings, vram_budget_gb=budget_gb)))


def taken_elsewhere(coding: Coding) -> tuple[int, int]:
    """Bytes of RAM in which the pictures that a VAE decodes lie in the end, and bytes of disk that this takes at most;
    none of RAM for an encode, whose latent is small, and nothing for what is no picture."""
    vae, x = coding.vae, coding.x
    if coding.encodes and coding.file_budget_gb is not None:
        return 0, _held_to_encode(vae, x)
    if coding.encodes or vae.output_channels not in COLOURS:
        return 0, 0
    with torch.device("meta"):
        pictures = pixels_like(vae, x)
    held = _held(vae, x[:1].shape, Direction.DECODE)
    if coding.file_budget_gb is None:
        on_disk = isinstance(vae, LowMemoryVAE) and vae.headroom_settings.frames_on_disk
        return (0, pictures.nbytes + held) if on_disk else (pictures.nbytes, 0)
    frames, height, width, _ = pictures.shape
    form = FORMATS.get(coding.file_format)
    return 0, held + (form.disk(width, height, frames) if form else 0)


def _held_to_encode(vae: Any, pixels: Tensor) -> int:
    """Bytes of what a video that is encoded from a file takes of the disk: all of its frames, where they are gathered,
    or what is computed of all of them behind chunks."""
    if vae.latent_dim == PICTURE_SIZES or getattr(vae, "not_video", False):
        return 0
    shape = torch.Size((1, min(COLOURS), *pixels.shape[:3]))
    if chunks_of(vae.first_stage_model, Direction.ENCODE) is None:
        return int(torch.float32.itemsize * shape.numel())
    return _held(vae, shape, Direction.ENCODE)


def _held(vae: Any, shape: torch.Size, direction: Direction) -> int:
    """Bytes of what is computed of all frames before or behind the chunks of a video, which lies in a file."""
    chunks = chunks_of(vae.first_stage_model, direction) if len(shape) == VIDEO else None
    if chunks is None:
        return 0
    shapes = chunks(vae.first_stage_model, shape[2]).held(shape)
    return int(vae.vae_dtype.itemsize) * sum(map(math.prod, shapes))
