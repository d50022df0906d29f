"""Sliced against the full score matrix, online against torch's fused kernel: CPU time and peak memory, one thread."""

from __future__ import annotations

import argparse
import math
from functools import partial

import torch
from _harness import interleaved_cpu_seconds, load_package, machine, markdown_table, median_ratio, peak_bytes, publish
from torch import Tensor
from torch.nn import functional

load_package()

from headroom.attention import online_attention, sliced_attention  # noqa: E402

SLICED_TOKENS, SLICED_ROWS = 4096, (2048, 1024, 512, 128)
ONLINE_SHAPES = (  # tokens, heads, channels per head
    (1024, 8, 40),
    (2048, 8, 40),
    (4096, 8, 40),
    (8192, 8, 40),
    (16384, 8, 40),
    (4096, 10, 64),
    (4608, 4, 128),
)


def full_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """The plain algorithm at its best: one score matrix for all heads, softmax in place."""
    heads = q.shape[1]
    scores = torch.empty(heads, q.shape[2], k.shape[2])
    torch.baddbmm(scores, q[0], k[0].transpose(1, 2), beta=0, alpha=scale, out=scores)
    torch.softmax(scores, -1, out=scores)
    return torch.bmm(scores, v[0]).transpose(0, 1)[None]


def fused_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, scale=scale)


def operands(tokens: int, heads: int, dim: int) -> tuple[Tensor, Tensor, Tensor, float]:
    """As a model's linear layers leave them: strided (B, H, N, D) views of (B, N, H, D)."""
    q, k, v = (torch.randn(1, tokens, heads, dim).transpose(1, 2) for _ in range(3))
    return q, k, v, 1 / math.sqrt(dim)


def sliced_table(runs: int) -> str:
    call = operands(SLICED_TOKENS, 8, 40)
    cases = {"full": partial(full_attention, *call)}
    cases |= {f"sliced, {rows} rows": partial(sliced_attention, *call, rows=rows) for rows in SLICED_ROWS}
    cases["sliced, automatic rows"] = partial(sliced_attention, *call)
    seconds = interleaved_cpu_seconds(cases, runs)
    peaks = {name: peak_bytes(work) for name, work in cases.items()}
    rows = [
        (
            name,
            f"{peaks[name] / 2**20:.1f}",
            f"{peaks[name] / peaks['full']:.1%}",
            f"{median_ratio(seconds, name, 'full'):.2f}",
        )
        for name in cases
    ]
    return markdown_table(("attention", "peak MiB", "peak / full", "CPU time / full"), rows)


def online_table(runs: int) -> str:
    rows = []
    for tokens, heads, dim in ONLINE_SHAPES:
        call = operands(tokens, heads, dim)
        cases = {"sdpa": partial(fused_attention, *call), "online": partial(online_attention, *call)}
        seconds = interleaved_cpu_seconds(cases, runs)
        output = tokens * heads * dim * 4
        beyond = (peak_bytes(cases["online"]) - output) / 2**20
        rows.append((tokens, heads, dim, f"{median_ratio(seconds, 'online', 'sdpa'):.2f}", f"{beyond:.1f}"))
        print(*rows[-1], flush=True)
    return markdown_table(("tokens", "heads", "channels", "online / SDPA, CPU time", "MiB beyond the output"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs per case (default 5)")
    runs = parser.parse_args().runs
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with torch.inference_mode():
        sliced, online = sliced_table(runs), online_table(runs)
    publish(
        "attention",
        f"""# Attention: time and memory

float32, batch 1, one thread; medians of {runs} interleaved runs of process CPU seconds after three warm-ups; peak =
most live bytes in torch's allocator, output included. Measured on: {machine()}. Not measured on a GPU.

## Sliced against the full score matrix ({SLICED_TOKENS} tokens, 8 heads of 40 channels)
"full" is the plain algorithm with one score matrix and softmax in place.

{sliced}

## Online against torch's fused kernel

{online}""",
    )


if __name__ == "__main__":
    main()
