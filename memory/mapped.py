"""Which weights are mapped from a file rather than held in memory of their own."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

import psutil
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def file_backed_bytes(tensors: Iterable[Tensor]) -> int | None:
    """Bytes of CPU tensors that lie in mapped files: the system can drop such pages and read them again.

    Returns:
        None where the system does not tell.
    """
    try:
        maps = psutil.Process().memory_maps(grouped=False)
        ranges = sorted(_range(entry.addr) for entry in maps if entry.path.startswith("/"))
    except (AttributeError, NotImplementedError, psutil.Error):
        return None
    starts = [start for start, _ in ranges]
    real = (tensor for tensor in tensors if not isinstance(tensor, FakeTensor))
    return sum(tensor.nbytes for tensor in real if _inside(tensor.data_ptr(), starts, ranges))


def _range(addresses: str) -> tuple[int, int]:
    start, _, end = addresses.partition("-")
    return int(start, 16), int(end, 16)


def _inside(pointer: int, starts: list[int], ranges: list[tuple[int, int]]) -> bool:
    position = bisect.bisect_right(starts, pointer) - 1
    return position >= 0 and pointer < ranges[position][1]
