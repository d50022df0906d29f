"""Loaders: models from the headers of their files. What another pack loads of GGUF files is told, and not followed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import folder_paths

from ...graph.formats import shortened
from ...memory.units import format_bytes
from ...offload.gguf_header import GGUF_SUFFIX, PackedHeader, read_gguf_header
from ..prediction import kept
from ..prediction.header_loading import Absent, loading_headers
from .calling import Outputs
from .findings import Findings
from .inputs import Inputs, NotFollowed

MODEL, TEXT = ("unet_gguf", "diffusion_models"), ("clip_gguf", "text_encoders")
# The classes of city96's ComfyUI-GGUF, with the host's folders in which it looks.
GGUF_LOADERS = {
    "UnetLoaderGGUF": MODEL, "UnetLoaderGGUFAdvanced": MODEL, "CLIPLoaderGGUF": TEXT, "DualCLIPLoaderGGUF": TEXT,
    "TripleCLIPLoaderGGUF": TEXT, "QuadrupleCLIPLoaderGGUF": TEXT,
}  # fmt: skip
NAMES = ("unet_name", "clip_name")  # how its inputs begin that name files
MOST_TYPES = 4  # that are told, those that take most


def load(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """What a loader gives: models without data."""
    key = kind, repr(sorted(inputs.items()))
    if key not in found.loaded:

        def loaded(absent: Absent) -> Outputs:
            with loading_headers(found.mode, found.card, absent):
                return found.nodes.call(kind, inputs)

        if all(isinstance(value, kept.PLAIN) for value in inputs.values()):
            found.loaded[key] = found.loads.get((kept.described(found.card), key), found.absent, loaded)
        else:  # onto a model of this run alone
            found.loaded[key] = loaded(found.absent)
    return found.loaded[key]


def tell_of_gguf(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """Never follows a loader.

    Raises:
        NotFollowed: always; the message says what its files hold.
        NotAHeader: a damaged file.
        OSError: one that cannot be read.
    """
    files = [value for name, value in inputs.items() if name.startswith(NAMES)]
    told = [_told(file, GGUF_LOADERS[kind]) for file in files if str(file).lower().endswith(GGUF_SUFFIX)]
    raise NotFollowed("; ".join([f"{kind} is another pack's, and what it loads is not followed", *told]))


def _told(file: str, folders: tuple[str, ...]) -> str:
    found = next((path for folder in folders if (path := folder_paths.get_full_path(folder, file))), None)
    if found is None:
        return f"{shortened(file)} is not there"
    return f"{Path(found).name} holds {described(read_gguf_header(Path(found)))}"


def described(header: PackedHeader) -> str:
    """The weights of a file, by the types that take most, as "6.31 GB of weights (304 tensors Q4_K, 476 F32)"."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for entry in header.entries.values():
        counts[entry.type.name] += 1
        sizes[entry.type.name] += entry.nbytes
    types = [f"{counts[name]:,} {name}" for name, _ in sizes.most_common(MOST_TYPES)]
    others = counts.total() - sum(counts[name] for name, _ in sizes.most_common(MOST_TYPES))
    kinds = ", ".join([*types, *([f"{others:,} of other types"] if others else [])]) or "none"
    return f"{format_bytes(sizes.total())} of weights, as GGUF stores them (tensors: {kinds})"
