"""The strategies that Compare runs a step under: a name each, and the MODEL that runs so."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from ...attention import BACKENDS, AttentionCall
from ...offload import STORAGES
from ..attention.backend import BACKEND_CHOICES, apply_attention
from ..casting.bound import bound_to_original
from ..casting.cast import CastSettings, cast_model
from ..casting.quantised import why_not

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

    from ...offload import CastReport

DTYPES = ("float32", "float16", "bfloat16")
CASTS = tuple(name for name, storage in STORAGES.items() if storage.scaled)
# One whole number above 0, or several with commas between them; or nothing.
SIZES = re.compile(r"\s*(0*[1-9][0-9]{0,8}\s*(,\s*0*[1-9][0-9]{0,8}\s*)*)?")
# Of a call that stands for a model's, to ask a backend whether it runs here.
TOKENS, CHANNELS = 1024, 64


@dataclass(frozen=True)
class Switches:
    """Which strategies to compare with the model as it is.

    Attributes:
        dtypes: computing in each of :data:`DTYPES`.
        slice_sizes: query rows of sliced attention, such as "512, 2048".
        backends: every attention backend.
        casting: weights in each of :data:`CASTS`.
    """

    dtypes: bool = True
    slice_sizes: str = ""
    backends: bool = True
    casting: bool = False


class NotHere(Exception):
    """A strategy that this machine or this model cannot do; the message says why."""


@dataclass(frozen=True)
class Strategy:
    """A way to run the model.

    Attributes:
        name: in the table.
        make: a MODEL that runs so, from the one to compare; it raises NotHere.
        backend: the attention that is to run; empty: whichever does.
        reloads: weights are kept or read in another way, so that they leave the device afterwards.
    """

    name: str
    make: Callable[[ModelPatcher], ModelPatcher]
    backend: str = ""
    reloads: bool = False


REFERENCE = Strategy("as it is", lambda model: model.clone())


def strategies(model: ModelPatcher, switches: Switches) -> Iterator[Strategy]:
    """Strategies compared with the unmodified model, in the order of the table."""
    sizes = slice_rows(switches.slice_sizes)
    if switches.dtypes:
        for name in DTYPES:
            if getattr(torch, name) != compute_dtype(model):
                yield Strategy(name, partial(_in_dtype, name=name), reloads=True)
    for rows in sizes:
        yield Strategy(f"sliced, {rows} rows", partial(_attention, backend="sliced", rows=rows), "sliced")
    if switches.backends:
        for name in BACKEND_CHOICES:
            yield Strategy(f"attention {name}", partial(_attention, backend=name), name)
    if switches.casting:
        for name in CASTS:
            yield Strategy(name, partial(_cast, storage=name), reloads=True)


def slice_rows(text: str) -> list[int]:
    """Reads whole numbers above 0 with commas between them; each counts once.

    Raises:
        ValueError: anything else.
    """
    if SIZES.fullmatch(text) is None:
        raise ValueError(
            f"slice_sizes: '{text}' is not a list of whole numbers above 0 with commas between them; write it like"
            " 512, 2048, or leave it empty"
        )
    return list(dict.fromkeys(int(part) for part in text.split(",") if part.strip()))


def compute_dtype(model: ModelPatcher) -> torch.dtype:
    """The dtype that a model computes in, which need not be the one it is stored in."""
    manual: torch.dtype | None = model.get_model_object("manual_cast_dtype")
    return manual or model.model.get_dtype()


def _in_dtype(model: ModelPatcher, name: str) -> ModelPatcher:
    """A model that computes in a dtype; weights that it makes smaller are stored in it too."""
    dtype: torch.dtype = getattr(torch, name)
    if name in STORAGES:
        result, report = _casting(model, CastSettings(name, name, skip=""))
        if report.cast:
            return result
    result = model.clone()
    result.set_model_compute_dtype(dtype)
    return result


def _attention(model: ModelPatcher, backend: str, rows: int = 0) -> ModelPatcher:
    if backend in BACKENDS:
        like = torch.zeros(1, 1, TOKENS, CHANNELS, dtype=compute_dtype(model), device=model.load_device)
        refusal = BACKENDS[backend].refusal(AttentionCall(like, like, like, None, CHANNELS**-0.5))
        if refusal is not None:
            raise NotHere(refusal)
    return apply_attention(model, backend=backend, slice_rows=rows)


def _cast(model: ModelPatcher, storage: str) -> ModelPatcher:
    if (lacking := why_not(STORAGES[storage])) is not None:
        raise NotHere(lacking)
    result, report = _casting(model, CastSettings(storage))
    if not report.cast:
        raise NotHere("there is nothing to cast: the model is stored in as few bits already")
    return result


def _casting(model: ModelPatcher, settings: CastSettings) -> tuple[ModelPatcher, CastReport]:
    try:
        return cast_model(model, settings)
    except ValueError:
        if (bound := bound_to_original(model, "Compare Strategies")) is not None:
            raise NotHere(bound) from None
        raise
