"""A cast model in a file: converted one layer at a time, written once, read back memory-mapped.

For machines whose RAM cannot hold the original and the converted weights. The file's pages are the system's to evict.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import comfy.utils
import folder_paths
from torch import Tensor, nn

from ...offload import CastLayer, CastReport, Layer, fingerprint
from ...offload.safetensors_header import NotAHeader, read_header
from ...offload.safetensors_stream import ALIGNMENT, SafetensorsWriter, header_room, remove_unfinished
from .layers import Caster
from .quantised import exchange, read_quantised, set_plain

FOLDER = "headroom"
METADATA = "headroom_cast"
METADATA_PER_LAYER = 256
MOST_NAME = 180  # bytes: file systems take 255, and ours adds 38, or while it is written up to 54
GB = 2**30
# What reading raises where a file is not what was written. Its weights are not looked at: nothing would tell.
DAMAGED = (KeyError, TypeError, ValueError, RecursionError)

log = logging.getLogger(__name__)


def cache_path(name: str, network: nn.Module, settings: str) -> Path:
    """The file of a cast: its name holds a hash of all weights and the settings, so that no two casts share a file.

    Reads every weight: 0.6 s of a core per GB.

    Raises:
        ValueError: the name is no plain file name.
    """
    check_name(name)
    mark = fingerprint(network.state_dict().items(), settings)
    folder = Path(folder_paths.get_output_directory()) / FOLDER
    return folder / f"{name.removesuffix('.safetensors')}.{mark[:12]}.safetensors"


def check_name(name: str) -> None:
    """Refuses what is no plain file name.

    Raises:
        ValueError: folders, spaces, or other characters than letters, digits, _, - and dots.
    """
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"cache_file: {name!r} is no file name; use letters, digits, _ - and . only, without folders")
    if len(name.encode()) > MOST_NAME:
        raise ValueError(f"cache_file: the name has {len(name)} characters; file systems take {MOST_NAME} bytes of it")


def write_cache(path: Path, network: nn.Module, report: CastReport, convert: Callable[[Layer], None]) -> None:
    """Converts and writes one layer after the other; each is put back as it was before the next.

    Args:
        network: a copy whose modules may be exchanged.
        convert: exchanges one layer of it and notes it in ``report``.

    Raises:
        ValueError: too little room on the disk, or a folder that cannot be written to. No file is left then.
    """
    try:
        remove_unfinished(path)
        _write(path, network, report, convert)
    except OSError as error:
        raise ValueError(
            f"cache_file: {path} cannot be written ({error.strerror or error}); free some room on its disk, see that"
            " ComfyUI may write there, or leave cache_file empty"
        ) from error


def _write(path: Path, network: nn.Module, report: CastReport, convert: Callable[[Layer], None]) -> None:
    chosen = {layer.name: layer for layer in report.layers if layer.reason is None}
    state = network.state_dict()
    path.parent.mkdir(parents=True, exist_ok=True)
    _check_room(path, sum(tensor.nbytes for tensor in state.values()))
    kept = [(key, tensor) for key, tensor in state.items() if key.rpartition(".")[0] not in chosen]
    room = header_room(len(state) + 3 * len(chosen), 4 * sum(map(len, state)), METADATA_PER_LAYER * len(chosen))
    with SafetensorsWriter(path, room) as writer:
        _add(writer, kept)
        for name in chosen:
            module = network.get_submodule(name)
            weight = module.weight
            convert(chosen[name])
            converted = network.get_submodule(name)
            _add(writer, [(f"{name}.{key}", tensor) for key, tensor in converted.state_dict().items()])
            exchange(network, name, module)
            module.weight = weight  # a plain cast changes the module itself
        writer.metadata[METADATA] = json.dumps([_packed(done) for done in report.done], separators=(",", ":"))


def is_kept(path: Path, report: CastReport) -> bool:
    """Whether there is a file of an earlier cast. One that is damaged is taken away, with a line in the log.

    Args:
        report: of the cast that is to be done.

    Raises:
        ValueError: a folder in its place.
    """
    if path.is_dir():
        raise ValueError(f"cache_file: {path} is a folder; take it away, or choose another name")
    if not path.exists():
        return False
    try:
        header = read_header(path)
        _layers_in(header.metadata, report)
        if header.is_alone:
            raise NotAHeader("there are no tensors behind its header")
    except (NotAHeader, OSError, *DAMAGED) as error:
        log.warning("Headroom: %s is damaged and is written anew: %s", path, error)
        path.unlink()
        return False
    return True


def read_cache(path: Path, network: nn.Module, report: CastReport, caster: Caster) -> None:
    """Puts the file's tensors into a copy of the network, memory-mapped: their pages are read when they are used.

    Raises:
        ValueError: the file is not what :func:`write_cache` wrote for this cast.
    """
    state, metadata = comfy.utils.load_torch_file(str(path), return_metadata=True)
    try:
        report.done = _layers_in(metadata, report)
        chosen = {done.layer.name for done in report.done}
        for key, _ in list(network.named_parameters()):
            if key in state and key.removesuffix(".weight") not in chosen:
                _set_parameter(network, key, state[key])
        for done in report.cast:
            _put(network, done.layer.name, caster, state)
    except DAMAGED as error:
        raise ValueError(f"cache_file: {path} is damaged ({error!r}); delete it, and it is written anew") from None


def _put(network: nn.Module, name: str, caster: Caster, state: Mapping[str, Tensor]) -> None:
    module = network.get_submodule(name)
    if f"{name}.comfy_quant" not in state:
        set_plain(module, state[f"{name}.weight"])
        return
    weight = read_quantised(module, state, f"{name}.", caster.compute)
    exchange(network, name, caster.linear(module, weight))


def _set_parameter(network: nn.Module, key: str, value: Tensor) -> None:
    path, _, name = key.rpartition(".")
    if value.shape != network.get_parameter(key).shape:
        raise ValueError(f"{key} has the shape {tuple(value.shape)}")
    network.get_submodule(path)._parameters[name] = nn.Parameter(value, requires_grad=False)


def _add(writer: SafetensorsWriter, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Writes the widest dtypes first, so that most tensors begin at a multiple of their item size."""
    for key, tensor in sorted(tensors, key=lambda entry: -entry[1].dtype.itemsize):
        writer.add(key, _padded(tensor) if key.endswith(".comfy_quant") else tensor)


def _padded(text: Tensor) -> Tensor:
    """JSON of a length that leaves the next tensor aligned."""
    return nn.functional.pad(text, (0, -text.numel() % ALIGNMENT), value=ord(" "))


def _check_room(path: Path, needed: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise ValueError(
            f"cache_file: up to {needed / GB:.1f} GB are needed, but {path.parent} has {free / GB:.1f} GB left; free"
            " some, or leave cache_file empty"
        )


def _packed(done: CastLayer) -> list[object]:
    return [done.layer.name, done.stored, done.bytes_before, done.bytes_after, done.sqnr, done.problem]


def _layers_in(metadata: Mapping[str, str], report: CastReport) -> list[CastLayer]:
    """What a file says of each layer that was cast; it has to be the layers of this cast.

    Raises:
        one of DAMAGED: it is not.
    """
    layers = {layer.name: layer for layer in report.layers}
    done = [_unpacked(entry, layers) for entry in json.loads(metadata[METADATA])]
    if {one.layer.name for one in done} != {layer.name for layer in report.layers if layer.reason is None}:
        raise KeyError(METADATA)
    return done


def _unpacked(entry: list, layers: Mapping[str, Layer]) -> CastLayer:
    name, *rest = entry
    return CastLayer(layers[name], *rest)
