"""One process of a ring, as test_ring_attention.py starts several: python ring_rank.py RANK SIZE FOLDER.

Runs every case, and writes what it got beside what it took: `RANK.pt`.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

ROOT = Path(__file__).resolve().parents[2]
HEADS, KEY_HEADS, CHANNELS, VALUES = 4, 2, 16, 24
# Name: query heads, key heads, dtype, the mask's kind.
CASES: dict[str, tuple[int, int, torch.dtype, str]] = {
    "plain": (HEADS, HEADS, torch.float32, "none"),
    "grouped": (HEADS, KEY_HEADS, torch.float32, "none"),
    "boolean": (HEADS, KEY_HEADS, torch.float32, "bool"),
    "additive": (HEADS, HEADS, torch.float32, "added"),
    "broadcast": (HEADS, HEADS, torch.float32, "one column"),
    "whole rows masked": (HEADS, HEADS, torch.float32, "rows"),
    "large scores": (HEADS, HEADS, torch.float32, "none"),
    "float64": (HEADS, HEADS, torch.float64, "added"),
    "bfloat16": (HEADS, KEY_HEADS, torch.bfloat16, "none"),
}


def lengths(size: int) -> list[int]:
    """Tokens of each process: no two alike, one of them without any where there are four."""
    return [53, 37, 64, 0][:size] if size == 4 else [53, 37, 64][:size]


def operands(name: str, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]:
    """The whole sequence's q, k, v, mask and the output's gradient, in float64."""
    heads, key_heads, _, kind = CASES[name]
    total, draw = sum(lengths(size)), torch.Generator().manual_seed(5)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    q, k, v = drawn(2, heads, total, CHANNELS), drawn(2, key_heads, total, CHANNELS), drawn(2, key_heads, total, VALUES)
    if name == "large scores":
        q = q * 60
    d_out, mask = drawn(2, total, heads, VALUES), None
    if kind == "bool":
        mask = drawn(2, 1, total, total) > 0
        mask[..., 0] = True
    elif kind == "added":
        mask = drawn(1, heads, total, total)
    elif kind == "one column":
        mask = drawn(1, 1, total, 1)
    elif kind == "rows":
        mask = drawn(2, 1, total, total) > 0
        mask[:, :, ::3] = False
        mask[:, :, 1::3, : lengths(size)[0]] = False  # a whole part is masked for these
    return q, k, v, mask, d_out


def mine(whole: Tensor | None, rank: int, size: int, dim: int) -> Tensor | None:
    """This process's part of a sequence."""
    if whole is None or whole.shape[dim] == 1:
        return whole
    start = sum(lengths(size)[:rank])
    return whole.narrow(dim, start, lengths(size)[rank])


def run(ring: Any, name: str, rank: int, size: int) -> dict[str, Any]:
    dtype = CASES[name][2]
    q, k, v, mask, d_out = operands(name, size)
    parts = [mine(x, rank, size, 2).to(dtype).requires_grad_() for x in (q, k, v)]  # type: ignore[union-attr]
    mask = mine(mask, rank, size, 2)
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(dtype).requires_grad_()
    sent = Sent()
    with sent:
        out = ring.ring_attention(*parts, CHANNELS**-0.5, mask, query_tile=16, key_tile=16)
    forward, sent.bytes = sent.bytes, 0
    with sent:
        out.backward(mine(d_out, rank, size, 1).to(dtype))  # type: ignore[union-attr]
    gradients = [x.grad for x in (*parts, mask) if x is not None and x.requires_grad]
    return {"out": out.detach(), "gradients": gradients, "sent": (forward, sent.bytes)}


class Sent:
    """Counts what this process sends."""

    bytes = 0

    def __enter__(self) -> None:
        self.before = dist.batch_isend_irecv

        def counted(moves: list[Any]) -> Any:
            self.bytes += sum(one.tensor.nbytes for one in moves if one.op is dist.isend)
            return self.before(moves)

        dist.batch_isend_irecv = counted

    def __exit__(self, *error: object) -> None:
        dist.batch_isend_irecv = self.before


def peak(ring: Any, harness: Any, rank: int, size: int) -> int:
    """Live bytes of forward and backward over 4096 tokens in equal parts, beyond the operands."""
    q, k, v = (torch.randn(1, 2, 4096 // size, 32, requires_grad=True) for _ in range(3))
    work = lambda: ring.ring_attention(q, k, v, 0.2, query_tile=64, key_tile=64).sum().backward()  # noqa: E731
    return int(harness.peak_bytes(work))


def main() -> None:
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    sys.path.insert(0, str(ROOT / "benchmarks"))
    harness = importlib.import_module("_harness")
    harness.load_package()
    ring = importlib.import_module("headroom.attention.ring")
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=size)
    found = {name: run(ring, name, rank, size) for name in CASES}
    found["peak"] = {"bytes": peak(ring, harness, rank, size)}
    try:
        q = torch.zeros(1, 1, 4, 8)
        ring.ring_attention(q, q, q, 1.0, torch.zeros(1, 1, 4, 4 * size + 1))
    except ValueError as error:
        found["refused"] = {"said": str(error)}
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
