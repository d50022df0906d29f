"""Writes a safetensors file one tensor at a time; the library's own writer wants all of them at once.

Format: 8 bytes of header length (little endian), a JSON header, then the tensors without gaps
(https://github.com/huggingface/safetensors#format). The header may end in spaces: room for it is left at the start and
filled at the end.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import time
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import torch
from torch import Tensor

PADDING = "__headroom_padding"
ALIGNMENT = 8
UNFINISHED = ".part"
ABANDONED_SECONDS = 60.0  # a writer adds a layer more often than that
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
if hasattr(torch, "float8_e8m0fnu"):
    DTYPES[torch.float8_e8m0fnu] = "F8_E8M0"


class SafetensorsWriter:
    """Context manager; the file appears under its name when all is written, and not at all after an error.

    Args:
        path: of the file to be.
        header_bytes: room for the header: :func:`header_room`.
    """

    def __init__(self, path: Path, header_bytes: int) -> None:
        self.path = path
        self.metadata: dict[str, str] = {}
        self._room = -(-header_bytes // ALIGNMENT) * ALIGNMENT
        self._entries: dict[str, dict[str, Any]] = {}
        self._offset = 0
        self._unfinished = path.with_name(f"{path.name}.{os.getpid()}{UNFINISHED}")
        self._file: FileIO

    def __enter__(self) -> SafetensorsWriter:
        self._file = self._unfinished.open("wb", buffering=0)
        try:
            self._write(bytes(8 + self._room))
        except OSError:
            self._file.close()
            self._unfinished.unlink()
            raise
        return self

    def add(self, name: str, tensor: Tensor) -> None:
        """Appends a tensor, brought to the CPU for it.

        Raises:
            ValueError: a name that is there already, or a dtype that the format does not know.
        """
        if name in self._entries or tensor.dtype not in DTYPES:
            raise ValueError(f"{name} ({tensor.dtype}) cannot be written: a second one, or of an unknown dtype")
        if self._offset % tensor.dtype.itemsize:
            self._append(f"{PADDING}_{len(self._entries)}", torch.zeros(-self._offset % ALIGNMENT, dtype=torch.uint8))
        self._append(name, tensor)

    def _append(self, name: str, tensor: Tensor) -> None:
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        self._write(data.numpy().data)
        end = self._offset + data.numel()
        self._entries[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [self._offset, end],
        }
        self._offset = end

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with self._file:
                if error is None:
                    self._write_header()
            if error is None:
                os.replace(self._unfinished, self.path)
        finally:
            self._unfinished.unlink(missing_ok=True)

    def _write_header(self) -> None:
        header = json.dumps({"__metadata__": self.metadata, **self._entries}, separators=(",", ":")).encode()
        if len(header) > self._room:
            raise ValueError(f"the header takes {len(header)} bytes, but {self._room} were left for it")
        self._file.seek(0)
        self._write(self._room.to_bytes(8, "little") + header.ljust(self._room))

    def _write(self, data: bytes | memoryview) -> None:
        """All of it. Without a buffer, which would be written once more, in vain, when a full disk's file is closed."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]


def remove_unfinished(path: Path) -> None:
    """Removes what writers of this file have left that were killed: nobody else would, and it may be gigabytes.

    A process of that number may be another machine's that shares the folder: its file is one that still grows.
    """
    for part in path.parent.glob(f"{glob.escape(path.name)}.*{UNFINISHED}"):
        number = part.name[len(path.name) + 1 : -len(UNFINISHED)]
        is_ours = number.isdecimal() and len(number) < 11 and number != str(os.getpid())
        with contextlib.suppress(FileNotFoundError):  # finished meanwhile
            if (
                is_ours
                and not psutil.pid_exists(int(number))
                and time.time() - part.stat().st_mtime > ABANDONED_SECONDS
            ):
                part.unlink()


def header_room(names: int, name_bytes: int, metadata_bytes: int) -> int:
    """Enough bytes for the header of so many tensors, with a padding entry before each."""
    return 2 * (names * 160 + name_bytes) + metadata_bytes + 1024
