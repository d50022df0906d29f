"""What to do about a node that ran out of memory, by its kind and what is before it; needs no host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..formats import as_number
from ..kinds import (
    CAST_CLIP,
    DECODES,
    ENCODES,
    FIT,
    FRAMES_OF_A_FILE,
    FRAMES_TO_A_FILE,
    FROM_FILE,
    LOW_MEMORY,
    SAMPLERS,
    TO_FILE,
    TRAIN,
    TRAINING,
    VAE,
)  # fmt: skip
from ..prompt import Prompt, links
from ..settings import FitSettings
from .insert import insert_fit

WHERE = 'the command "Make It Fit (Headroom)" in the browser\'s menu Edit, or cli/fit.py'
# In the names of what runs or loads a text encoder, and of what loads a model.
TEXTS, LOADERS = ("TextEncode", "CLIPLoader"), ("CheckpointLoader", "UNETLoader")
FOUR_BITS = ("nvfp4", "asym_w4a8_int8")  # the smallest of Layerwise Casting's storages
IN_TILES = "feathered"
TO_A_FILE = "VAE Decode to Video writes each frame to the file as it is decoded"
LESS_WORK = "make the picture smaller or the video shorter"
LEAST, STEP = 0.25, 0.15  # of a limit that is advised to be lowered, and by how much
SHOWN = 2  # of what would be inserted


def advice(prompt: Prompt, number: str, of_card: bool = True) -> str:
    """One sentence for people, empty where nothing of Headroom's would help.

    Args:
        prompt: in the API format, as it was queued.
        number: the node whose work ran out of memory.
        of_card: whether that was a card's, which models share with every other work, or the machine's.
    """
    kind = prompt[number]["class_type"]
    node = f"node {number} ({kind})"
    if not of_card and _for_frames(kind):
        return f"{node}: {_for_frames(kind)}"
    if kind in SAMPLERS:
        return _for_sampler(prompt, number, node)
    if kind in DECODES or kind in ENCODES or kind in LOW_MEMORY:
        frames = f"; of a long video {TO_A_FILE}" if kind in DECODES and not of_card else ""
        return _for_vae(prompt, number, node) + frames
    if kind == TRAIN:
        return _for_training(prompt, number, node)
    if any(word in kind for word in TEXTS):
        return _for_text(prompt, number, node)
    inserted = _what_is_inserted(prompt) if of_card else ""
    less = f"{inserted} would keep less of the models on the card: {WHERE} puts that in" if inserted else ""
    if any(word in kind for word in LOADERS):
        cast = f"{node}: Layerwise Casting behind it, with a cache_file, stores the model in half of the memory"
        return f"{cast}, near-exact; {less}" if less else f"{cast}, near-exact"
    return less


def _for_sampler(prompt: Prompt, number: str, node: str) -> str:
    fit = next((one for one in _before(prompt, number, ("model", "guider")) if _kind(prompt, one) == FIT), None)
    if fit is None:
        inserted = _what_is_inserted(prompt)
        return (
            f"{inserted} would pick settings that fit this card without changing the picture: {WHERE} puts that in"
            if inserted
            else f"{node}: Make It Fit between the loader and it picks settings that fit this card"
        )
    quality, less = prompt[fit]["inputs"].get("quality", "exact"), _less(prompt[fit])
    more = [less] * bool(less) + ["quality near_exact"] * (quality == "exact")
    given = f"give that {' and '.join(more)}, or " if more else ""
    return f"{node} is behind Make It Fit (node {fit}) already: {given}{LESS_WORK}"


def _for_vae(prompt: Prompt, number: str, node: str) -> str:
    kind = _kind(prompt, number)
    wrapped = next((one for one in _before(prompt, number, ("vae",)) if _kind(prompt, one) in (FIT, VAE)), None)
    if kind not in LOW_MEMORY and wrapped is None:
        return (
            f"{node}: VAE {'Encode' if kind in ENCODES else 'Decode'} (exact, low memory) in its place gives the same"
            f" picture in strips that fit; {WHERE} does the same with Low-Memory VAE"
        )
    if kind not in LOW_MEMORY and _kind(prompt, str(wrapped)) == FIT:
        less = _less(prompt[str(wrapped)])
        smaller = f"give that {less}" if less else LESS_WORK
        return f"{node} decodes as Make It Fit (node {wrapped}) planned: {smaller}"
    settings = prompt[number if kind in LOW_MEMORY else str(wrapped)]["inputs"]
    what = "it" if kind in LOW_MEMORY else f"Low-Memory VAE (node {wrapped})"
    ways = [_smaller_budget(settings)]
    if kind not in (TO_FILE, FROM_FILE) and settings.get("method") != IN_TILES:  # those of a file are always exact
        ways.append(f"the method {IN_TILES} (approximate)")
    return f"{node} keeps to a budget already: give {what} {', or '.join(ways)}"


def _smaller_budget(settings: Mapping[str, Any]) -> str:
    all_there_is = as_number(settings.get("vram_budget_gb", 0)) == 0
    return "a vram_budget_gb below what is there (0 is all of it)" if all_there_is else "a smaller vram_budget_gb"


def _for_frames(kind: str) -> str:
    """Of all frames of a video at once, which lie in the machine's memory whatever the VAE does."""
    if kind in FRAMES_OF_A_FILE:
        return "VAE Encode from Video, in place of it and VAE Encode, reads the file a few frames at a time"
    if kind in FRAMES_TO_A_FILE:
        return f"{TO_A_FILE}, in place of it and VAE Decode"
    return ""


def _for_text(prompt: Prompt, number: str, node: str) -> str:
    cast = next((one for one in _before(prompt, number, ("clip",)) if _kind(prompt, one) == CAST_CLIP), None)
    if cast is not None:
        smaller = f"give the casting of its text encoder (node {cast}) a storage of 4 bits (less near), or "
        return f"{node}: {'' if prompt[cast]['inputs'].get('storage') in FOUR_BITS else smaller}shorten the text"
    return f"{node}: Layerwise Casting (text encoder) behind its loader stores it in half of the memory, near-exact"


def _less(fit: Mapping[str, Any]) -> str:
    """What a Make It Fit would plan less with; empty where its limit is small already."""
    if "limit" in links(fit):
        return "a smaller limit"
    limit = as_number(fit["inputs"].get("limit")) or FitSettings.limit
    return f"a limit of {limit - STEP:.2g} instead of {limit:.2g}" if limit >= LEAST else ""


def _for_training(prompt: Prompt, number: str, node: str) -> str:
    plan = next((one for one in _before(prompt, number, ("model",)) if _kind(prompt, one) == TRAINING), None)
    if plan is None:
        return f"{node}: Training Memory in front of it computes each block again instead of keeping it, the same bits"
    return (
        f"{node}: give Training Memory (node {plan}) the plan 'every block' with checkpoints_in_ram, or train smaller"
        " pictures; Will Training Fit? says beforehand what a plan takes"
    )


def _kind(prompt: Prompt, number: str) -> str:
    return str(prompt[number]["class_type"])


def _before(prompt: Prompt, number: str, names: tuple[str, ...]) -> Iterator[str]:
    """The nodes that a node's input comes through, nearest first, along inputs of these names."""
    seen = {number}
    found = _read(prompt[number], names)
    while found is not None and found in prompt and found not in seen:
        yield found
        seen.add(found)
        found = _read(prompt[found], names)


def _read(node: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    linked = links(node)
    return next((linked[name][0] for name in names if name in linked), None)


def _what_is_inserted(prompt: Prompt) -> str:
    """What Make It Fit's command would add, in words; empty where that is nothing."""
    try:
        added = insert_fit(prompt).added
    except ValueError:
        return ""
    shown = [line.partition(", ")[2] for line in added]
    return "; ".join(shown[:SHOWN]) + (f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else "")
