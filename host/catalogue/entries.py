"""The files of the catalogue: which there are, and the tensors in each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .networks import TensorShapes, build, settings
from .stored import WHOLE, Tensor, stored, to_lift
from .tokenizers import stand_in

CATALOGUE = Path(__file__).with_name("catalogue.json")
UNITS = {"MB": 2**20, "GB": 2**30}


class PublicFile(NamedTuple):
    """A public model file.

    Attributes:
        name: as it is published.
        folder: of the host's models, in which it belongs.
        parts: networks by the prefix of their tensors; "{12}" in one stands for 0 to 11.
        stored: how, see :func:`.stored.stored`.
        stored_apart: of parts that are stored in another way, by their prefix.
        kept: in the names of layers that a quantised file leaves in 16 bits.
        tables: how a quantised file stores its embeddings; empty: in 16 bits.
        more: tensors that no network of the host takes, by name; "{12}" in one stands for 0 to 11.
        markers: names of empty tensors that tell one model from another.
        tokenizer: the tensor that holds one.
        metadata: of its header; names of networks stand for their settings, alone or by parts.
        said: how large it is, as its publishers' notes have it, such as "2.33 GB"; empty: they do not say.
        fitted: whether its sizes were chosen so that it is as large as is said. Of a file of several types as many of
            its first matrices are taken to be in 16 bits: which ones it leaves out is not known.
        confirmed: whether that, or else the total of several files, is what these tensors take.
    """

    name: str
    folder: str
    parts: Mapping[str, str]
    stored: str
    stored_apart: Mapping[str, str] = {}
    kept: tuple[str, ...] = ()
    tables: str = ""
    more: Mapping[str, list[int]] = {}
    markers: tuple[str, ...] = ()
    tokenizer: str = ""
    metadata: Mapping[str, str | Mapping[str, Any]] = {}
    said: str = ""
    fitted: bool = False
    confirmed: bool = False

    def tensors(self) -> dict[str, Tensor]:
        """What is in it.

        Raises:
            NoSuchNetwork: this host does not know the model.
        """
        networks = _catalogue()["networks"]
        result: dict[str, Tensor] = {}
        shapes: TensorShapes = {}
        for prefix, network in self.parts.items():
            way = self.stored_apart.get(prefix, self.stored)
            tensors = build(network, networks).items()
            of_part: TensorShapes = {one + name: shape for one in _each(prefix) for name, shape in tensors}
            result.update(stored(of_part, way, self.kept, self.tables))
            shapes.update(of_part)
        if self.fitted:
            lacking = bytes_said(self.said) - sum(tensor.nbytes for tensor in result.values())
            result = stored(shapes, self.stored, self.kept, self.tables, frozenset(to_lift(shapes, result, lacking)))
        more: TensorShapes = {name: tuple(shape) for key, shape in self.more.items() for name in _each(key)}
        result.update(stored(more, self.stored if self.stored in WHOLE else "bf16"))
        markers: TensorShapes = {name: (0,) for name in self.markers}
        result.update(stored(markers, "fp32"))
        if self.tokenizer:
            data = stand_in(self.tokenizer)
            result[self.tokenizer] = Tensor((len(data),), torch.uint8, data)
        return result

    def header(self) -> dict[str, str]:
        """Its metadata, as a safetensors header has them."""
        networks = _catalogue()["networks"]

        def said(of: Any) -> Any:
            if not isinstance(of, str):
                return of
            given = settings(of, networks)
            return given.get("config", given)

        return {
            key: json.dumps(said(of) if isinstance(of, str) else {part: said(one) for part, one in of.items()})
            for key, of in self.metadata.items()
        }

    @property
    def nbytes(self) -> int:
        """Of its tensors.

        Raises:
            NoSuchNetwork: this host does not know the model.
        """
        return sum(tensor.nbytes for tensor in self.tensors().values())


def bytes_said(size: str) -> int:
    """Bytes of a size as notes have it, such as "2.33 GB", which is rounded."""
    number, unit = size.split()
    return int(float(number) * UNITS[unit])


def public_files() -> dict[str, PublicFile]:
    """All files of the catalogue by their names; after its folder where two have one name."""
    return {name: _file(name, entry) for name, entry in _catalogue()["files"].items()}


def public_file(name: str, folder: str = "") -> PublicFile | None:
    """A file by its name, whatever folders are before it; None if the catalogue has none.

    Args:
        folder: of the host's models, where two files have one name.
    """
    plain, files = name.replace("\\", "/").rpartition("/")[2], _catalogue()["files"]
    entry = files.get(f"{folder}/{plain}", files.get(plain))
    return None if entry is None else _file(plain, entry)


def _each(name: str) -> Iterator[str]:
    before, brace, rest = name.partition("{")
    if not brace:
        yield name
        return
    count, _, after = rest.partition("}")
    yield from (f"{before}{number}{after}" for number in range(int(count)))


def _file(name: str, entry: dict[str, Any]) -> PublicFile:
    given: dict[str, Any] = {key: tuple(value) if key in ("kept", "markers") else value for key, value in entry.items()}
    return PublicFile(name, **given)


@lru_cache(maxsize=1)
def _catalogue() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(CATALOGUE.read_text(encoding="utf-8"))
    return found
