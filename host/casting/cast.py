"""Layerwise casting of a loaded model: a patcher of its own whose layers are stored in fewer bits.

The original stays as it was. The copy has modules of its own on the same storages (``offload.copy_structure``); each
layer that is cast is exchanged there, everything else is shared. Object patches on the weights would not do: clones
share modules, and with them what the host keeps per module of a weight's size and place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import comfy.model_management
import comfy.utils
import torch
from torch import nn

from ...offload import STORAGES, CastReport, Layer, Storage
from ...vae.exact.running.heap import give_back_free_pages
from ..measure.wrappers import measure_sampling
from .bound import bound_to_original
from .cache_file import cache_path, check_name, is_kept, read_cache, write_cache
from .independent import independent
from .layers import Caster, plan_cast
from .quantised import why_not

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

COMPUTE_CHOICES = ("auto", "bfloat16", "float16", "float32")
ATTACHMENT = "headroom_cast"


@dataclass(frozen=True)
class CastSettings:
    """The node's inputs.

    Attributes:
        storage: key of ``offload.STORAGES``.
        compute: one of :data:`COMPUTE_CHOICES`.
        skip: what stays, one rule per line.
        cache_file: name of a file to convert into and to read back; empty: none.
        keep: groups of layers that stay besides (``Layer.group``).
    """

    storage: str
    compute: str = "auto"
    skip: str = "auto"
    cache_file: str = ""
    keep: frozenset[str] = frozenset()

    @property
    def format(self) -> Storage:
        """The entry of ``offload.STORAGES``."""
        return STORAGES[self.storage]

    def check(self) -> None:
        """Refuses what this machine cannot do, before any work.

        Raises:
            ValueError: a storage that torch or the host lacks, or a ``cache_file`` that is no plain file name.
        """
        if (lacking := why_not(self.format)) is not None:
            raise ValueError(lacking)
        if self.cache_file:
            check_name(self.cache_file)


def cast_model(model: ModelPatcher, settings: CastSettings) -> tuple[ModelPatcher, CastReport]:
    """A MODEL whose diffusion model is stored as ``settings`` say; ``model`` is not changed.

    Raises:
        ValueError: an input that does not make sense here, named with what to write instead.
    """
    return _cast(model, settings, DIFFUSION_MODEL)


def cast_clip(clip: Any, settings: CastSettings) -> tuple[Any, CastReport]:
    """A CLIP whose text encoders are stored as ``settings`` say; ``clip`` is not changed.

    Raises:
        ValueError: as :func:`cast_model`.
    """
    patcher, report = _cast(clip.patcher, settings, TEXT_ENCODER)
    result = clip.clone()
    result.patcher = patcher
    result.cond_stage_model = patcher.model
    return result, report


def reload_cast(source: tuple[Any, ...], settings: CastSettings, kind: str, **options: Any) -> ModelPatcher:
    """Loads a model anew by its own factory and casts it again.

    The host asks for it where it wants a copy that nothing has touched: torch.compile and hooks under dynamic VRAM,
    several GPUs, training.

    Args:
        source: the ``cached_patcher_init`` of the model that was cast.
        options: what the host tells the factory.
    """
    factory, arguments, *position = source
    fresh = factory(*arguments, **options)
    return _cast(fresh[position[0]] if position else fresh, settings, KINDS[kind])[0]


@dataclass(frozen=True)
class Kind:
    """Which part of a patcher's model is cast, and how its dtype of computation is chosen.

    Attributes:
        source: the input that it comes by.
        path: of that part.
        compute: dtype that stored weights read as, from the model and the node's choice.
        by_model: the model itself brings its inputs to that dtype; else each product does.
    """

    name: str
    source: str
    path: str
    compute: Callable[[ModelPatcher, str], torch.dtype]
    by_model: bool

    def network(self, model: nn.Module) -> nn.Module:
        """The part of the host's model that is cast."""
        return model.get_submodule(self.path)

    def caster(self, model: ModelPatcher, settings: CastSettings) -> Caster:
        """What casts one layer of ``model``, on its device."""
        compute = self.compute(model, settings.compute)
        product = None if self.by_model or settings.compute == "auto" else compute
        return Caster(settings.format, compute, product, model.load_device)


def _model_compute(model: ModelPatcher, choice: str) -> torch.dtype:
    if choice != "auto":
        return _dtype(choice)
    manual: torch.dtype | None = model.get_model_object("manual_cast_dtype")
    return manual or model.model.get_dtype()


def _text_compute(model: ModelPatcher, choice: str) -> torch.dtype:
    # The host's text encoders hand float32 from layer to layer.
    return torch.float32 if choice == "auto" else _dtype(choice)


def _dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


DIFFUSION_MODEL = Kind("model", "model", "diffusion_model", _model_compute, by_model=True)
TEXT_ENCODER = Kind("text encoder", "clip", "", _text_compute, by_model=False)
KINDS = {kind.name: kind for kind in (DIFFUSION_MODEL, TEXT_ENCODER)}


def _cast(model: ModelPatcher, settings: CastSettings, kind: Kind) -> tuple[ModelPatcher, CastReport]:
    settings.check()
    layers = plan_cast(kind.network(model.model), settings.format, settings.skip, settings.keep)
    caster = kind.caster(model, settings)
    report = CastReport(settings.format, caster.compute, model.model_size(), layers)
    if not any(layer.reason is None for layer in layers):
        return model.clone(), _finished(report, model)
    if (bound := bound_to_original(model)) is not None:
        raise ValueError(f"{kind.source}: {bound}")
    result = independent(model)
    with torch.no_grad():
        _convert(kind.network(result.model), report, caster, settings)
    source = model.cached_patcher_init
    result.cached_patcher_init = None if source is None else (reload_cast, (source, settings, kind.name))
    if kind.by_model:
        _set_compute(result, caster.compute)
    result.size = 0  # counted anew
    result.attachments[ATTACHMENT] = _finished(report, result)
    measure_sampling(result)
    return result, report


def _convert(network: nn.Module, report: CastReport, caster: Caster, settings: CastSettings) -> None:
    """Casts layer by layer, with progress. A cancel leaves the original intact: nothing is written to its weights."""
    chosen = [layer for layer in report.layers if layer.reason is None]
    progress = comfy.utils.ProgressBar(len(chosen))

    def convert(layer: Layer) -> None:
        comfy.model_management.throw_exception_if_processing_interrupted()
        report.done.append(caster(network, layer))
        if caster.device.type == "cpu":
            give_back_free_pages()  # the float32 copies lay between the stored weights, where the heap would keep them
        progress.update(1)

    if not settings.cache_file:
        for layer in chosen:
            convert(layer)
        return
    path = cache_path(settings.cache_file, network, repr(replace(settings, cache_file="")))
    if is_kept(path, report):
        report.notes.append(f"read from {path}")
    else:
        write_cache(path, network, report, convert)
        report.notes.append(f"written to {path} and read from there; delete the file when you no longer need it")
    read_cache(path, network, report, caster)


def _finished(report: CastReport, model: ModelPatcher) -> CastReport:
    report.bytes_after = model.model_size()
    report.tensors = sum(1 for _ in (*model.model.parameters(), *model.model.buffers()))
    if report.cast and not report.storage.scaled and report.storage.bits == 8:
        report.notes.append(
            "a file saved from this has no scales and is read back as a plain 8-bit model, kept layers too; to save,"
            " choose float8_e4m3fn_scaled or int8_convrot"
        )
    return report


def _set_compute(model: ModelPatcher, compute: torch.dtype) -> None:
    """Sets the dtype in which the model computes, and has layers of another dtype brought to it."""
    model.object_patches.pop("manual_cast_dtype", None)
    model.model.manual_cast_dtype = None if compute == model.model.get_dtype() else compute
    for module in model.model.modules():
        own = list(module.parameters(recurse=False))
        if hasattr(module, "comfy_cast_weights") and any(parameter.dtype != compute for parameter in own):
            module.comfy_cast_weights = True
