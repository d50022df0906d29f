"""Tensors in a safetensors file: written whole or not at all; one that is damaged counts as not there.

Format: 8 bytes of header length (little endian), a JSON header, then the tensors without gaps
(https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from .whole_file import whole_file

log = logging.getLogger(__name__)

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
NAMES = {name: dtype for dtype, name in DTYPES.items()}


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors of any shapes, one at a time; none is a file too.

    Raises:
        ValueError: of a dtype that is not kept.
        OSError: it cannot be written.
    """
    entries, offset = {}, 0
    # The widest first: each then begins at a multiple of its own width.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in DTYPES:
            raise ValueError(f"{name} is of {tensor.dtype}, which is not kept")
        entries[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    header = json.dumps(entries, separators=(",", ":")).encode()
    header = header.ljust(-(-len(header) // 8) * 8)
    with whole_file(path) as part, part.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for name in names:
            data = tensors[name].detach().cpu().contiguous().reshape(-1)
            if data.numel():
                file.write(data.view(torch.uint8).numpy().data)


def read_tensors(path: Path) -> dict[str, Tensor] | None:
    """What a file holds, on the CPU; None without one, and, with a line in the log, where it is damaged."""
    try:
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        entries = json.loads(data[8 : 8 + size])
        content = memoryview(bytearray(data[8 + size :]))
        entries.pop("__metadata__", None)
        if max((entry["data_offsets"][1] for entry in entries.values()), default=0) != len(content):
            raise ValueError("it was cut off")
        return {name: _tensor(entry, content) for name, entry in entries.items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError, struct.error) as error:
        log.warning("Headroom: %s cannot be read and is ignored: %s", path, error)
        return None


def _tensor(entry: dict, content: memoryview) -> Tensor:
    begin, end = entry["data_offsets"]
    dtype = NAMES[entry["dtype"]]
    if begin == end:
        return torch.empty(entry["shape"], dtype=dtype)
    return torch.frombuffer(content[begin:end], dtype=dtype).reshape(entry["shape"])
