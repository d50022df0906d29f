"""Loads models by the host's own loaders from the headers of their files, without a byte of their weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import comfy.utils
import folder_paths
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ...memory.prediction import Card, CountingModules
from ...offload.safetensors_header import NotAHeader, StoredTensor, read_header
from ..catalogue.entries import PublicFile, public_file
from ..catalogue.networks import NoSuchNetwork
from ..core.internals import find
from .host_answers import answering, apply_by_exchange, card_answers, free_memory_answer, modules_with, replaced

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I64": torch.int64, "I32": torch.int32,
    "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
# What is no weight: how a tensor is quantised, as JSON, and tokenizers. The host reads them to know what it has.
DESCRIPTIONS = (".comfy_quant", "spiece_model", "tekken_model", "tokenizer_json")
MEL = "torchaudio.functional"
MOST_DESCRIBED = 2**28  # bytes of one: tokenizers have some ten million


class Description(Tensor):
    """A tensor that was read: in a fake mode, torch's own ``numpy`` would give that of one without data."""

    held: Any

    def numpy(self, *, force: bool = False) -> Any:
        """What was read."""
        return self.held

    def tolist(self) -> Any:
        """What was read, as numbers."""
        return self.held.tolist()


def fake_state_dict(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A file's tensors without data, and its metadata. Call it in a fake mode.

    Raises:
        NotAHeader: no safetensors file, or a damaged one.
    """
    header = read_header(path)
    return {name: _fake_entry(path, name, entry, header.begin) for name, entry in header.entries.items()}, (
        header.metadata
    )


def _fake_entry(path: Path, name: str, entry: StoredTensor, begin: int) -> Tensor:
    dtype = DTYPES.get(entry.dtype)
    if dtype is None:
        raise NotAHeader(f"{path.name}: {name} is {entry.dtype}, which this version does not know")
    if not name.endswith(DESCRIPTIONS):
        return torch.empty(entry.shape, dtype=dtype)
    if entry.last - entry.first > MOST_DESCRIBED:
        raise NotAHeader(f"{path.name}: {name} describes a layer, and has {entry.last - entry.first} bytes")
    with path.open("rb") as file:
        file.seek(begin + entry.first)
        data = bytearray(file.read(entry.last - entry.first))
    if len(data) != entry.last - entry.first:
        raise NotAHeader(f"{path.name}: {name} is not in it, which says what the tensors are; download it again")
    return _read_from(data, dtype, entry.shape)


def _read_from(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        if not data:
            return _held(torch.empty(shape, dtype=dtype))
        return _held(torch.frombuffer(data, dtype=dtype).reshape(shape))


def public_state_dict(file: PublicFile) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A public file's tensors without data, and its metadata, of a file that is not there. Call it in a fake mode.

    Raises:
        NotAHeader: this host does not know the model.
    """
    try:
        tensors = file.tensors()
    except NoSuchNetwork as error:
        raise NotAHeader(f"{file.name}: {error}") from error
    return {
        name: torch.empty(one.shape, dtype=one.dtype)
        if one.data is None
        else _read_from(bytearray(one.data), one.dtype, one.shape)
        for name, one in tensors.items()
    }, file.header()


Whereabouts = tuple[str, int, int] | None


def _whereabouts(path: str | None) -> Whereabouts:
    if path is None:
        return None
    status = Path(path).stat()
    return path, status.st_size, status.st_mtime_ns


class Absent:
    """Files that are not on this machine, and that the catalogue of public files knows.

    Attributes:
        asked: those that a loader asked for, by the paths that it got.
        used: those of them that were loaded: this host may not know the model of another.
        places: all files that it asked for, by folder and name: where each is, how large, of when; None: nowhere.
    """

    def __init__(self) -> None:
        self.asked: dict[Path, PublicFile] = {}
        self.used: dict[Path, PublicFile] = {}
        self.places: dict[tuple[str, str], Whereabouts] = {}

    def holds(self) -> bool:
        """Whether all files that were asked for are where they were, and as they were."""
        return all(_whereabouts(folder_paths.get_full_path(*asked)) == place for asked, place in self.places.items())

    def add(self, other: Absent) -> None:
        """Takes over what another has noted."""
        self.asked |= other.asked
        self.used |= other.used
        self.places |= other.places

    @contextmanager
    def finding(self) -> Iterator[None]:
        """Within it, the host finds a path for a public file that is not there, too."""
        find = folder_paths.get_full_path

        def get_full_path(folder_name: str, filename: str) -> str | None:
            found = find(folder_name, filename)
            self.places[folder_name, filename] = _whereabouts(found)
            file = public_file(filename, folder_name) if found is None else None
            if file is None or file.folder != folder_name:
                return found
            path = Path(folder_name) / filename
            self.asked[path] = file
            return str(path)

        with replaced(folder_paths, "get_full_path", get_full_path):
            yield

    def load(self, path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
        """A file's tensors without data and its metadata: the one that is there always goes before the catalogue's."""
        file = self.asked.get(path)
        if file is None:
            return fake_state_dict(path)
        found = public_state_dict(file)
        self.used[path] = file
        return found


@contextmanager
def loading_headers(mode: FakeTensorMode, card: Card, absent: Absent | None = None) -> Iterator[None]:
    """Within it, the host's loaders make models without data, as they would on a machine with this card.

    Args:
        absent: takes note of files that are not there, and come from the catalogue; None: they are missing.
    """
    load = fake_state_dict if absent is None else absent.load

    def load_torch_file(ckpt: str, *_: Any, return_metadata: bool = False, **__: Any) -> Any:
        tensors, metadata = load(Path(ckpt))
        return (tensors, metadata) if return_metadata else tensors

    answers = {
        **card_answers(card),
        "get_free_memory": free_memory_answer(card),
    }
    finder = absent.finding() if absent is not None else nullcontext()
    moving = replaced(nn.Module, "_apply", apply_by_exchange)
    with answering(answers), ExitStack() as loaders, finder, _older_forms(), mode, CountingModules(), moving:
        for module in modules_with("load_torch_file", comfy.utils.load_torch_file):
            loaders.enter_context(replaced(module, "load_torch_file", load_torch_file))
        banks = find(f"{MEL}:melscale_fbanks")
        if banks is not None:
            loaders.enter_context(replaced(sys.modules[MEL], "melscale_fbanks", _with_data(banks)))
        yield


def _with_data(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of numbers alone that looks at what it computes, such as a table of the ear's frequencies."""

    def computed(*args: Any, **kwargs: Any) -> Any:
        with torch._subclasses.fake_tensor.unset_fake_temporarily():
            return function(*args, **kwargs)

    return computed


@contextmanager
def _older_forms() -> Iterator[None]:
    """The host describes layers of older 8-bit files in today's way: what it writes there is to be read again."""
    convert = getattr(comfy.utils, "convert_old_quants", None)
    if convert is None:  # an older host
        yield
        return

    def converted(*args: Any, **kwargs: Any) -> Any:
        with torch._subclasses.fake_tensor.unset_fake_temporarily():
            tensors, *more = convert(*args, **kwargs)
            made = {name: _held(one) for name, one in tensors.items() if _is_made(name, one)}
        return ({**tensors, **made}, *more)

    with replaced(comfy.utils, "convert_old_quants", converted):
        yield


def _is_made(name: str, tensor: Tensor) -> bool:
    return name.endswith(DESCRIPTIONS) and not isinstance(tensor, (Description, torch._subclasses.FakeTensor))


def _held(tensor: Tensor) -> Description:
    description: Description = tensor.as_subclass(Description)
    description.held = tensor.numpy()
    return description
