"""Exact attention: our backends beside the host's functions and torch's fused kernel. Time, peak memory, error."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _harness import ROOT, enter_host, interleaved_cpu_seconds, load_package, median_ratio, peak_bytes
from _sections import Report, Section, on_gpu
from torch import Tensor
from torch.nn import functional

load_package()

from headroom.attention import (  # noqa: E402
    BACKENDS,
    AttentionCall,
    online_attention,
    online_attention_with_gradients,
    sliced_attention,
)

MIB = 2**20
TITLES = {
    "sliced": "Sliced",
    "online": "Online against torch's fused kernel",
    "masks": "Masks",
    "backward": "The backward of online attention",
    "models": "Shapes of models, beside the host's own functions",
    "fp16": "float16 on a CPU",
    "threads": "Two threads",
    "gpu": "On a GPU",
}
INTRODUCTION = """# Attention: time, memory, error

Batch 1. Times are process CPU seconds at one thread, medians of interleaved runs after warming up; read the ratios.
Peak = most live bytes in torch's CPU allocator during the call, output included, operands not. Error = relative to
float64, ||o - o64|| / ||o64||. Operands are strided views, as a model's linear layers leave them. basic, split and
sub_quad are ComfyUI 0.30's own functions (sub_quad is what it takes on a CPU), pytorch its wrapper of torch's fused
kernel."""
LARGEST = 16384
PYTORCH = "host's pytorch"


@dataclass(frozen=True)
class Shape:
    """Tokens, heads and channels per head of a model's attention; heads fewer than the model's where it has many."""

    name: str
    tokens: int
    heads: int
    channels: int


SD15 = Shape("SD1.5, 512 px", 4096, 8, 40)
MODELS = (
    SD15,
    Shape("SDXL, 1024 px (10 heads)", 4096, 10, 64),
    Shape("SD3.5, 1024 px (4 of 24 heads)", 4250, 4, 64),
    Shape("Flux, 1024 px (4 of 24 heads)", 4608, 4, 128),
    Shape("Wan, 480 x 832, 9 frames (4 of 12 heads)", 4680, 4, 128),
)
ONLINE = (1024, 2048, 4096, 8192, LARGEST)


def operands(shape: Shape, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """(B, H, N, D) views of (B, N, H, D)."""
    torch.manual_seed(0)
    size = (1, shape.tokens, shape.heads, shape.channels)
    return tuple(torch.randn(size).to(dtype).transpose(1, 2) for _ in range(3))  # type: ignore[return-value]


def scale_of(q: Tensor) -> float:
    return 1 / math.sqrt(q.shape[-1])


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """(B, Nq, H, D)."""
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)


def ours(name: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    call = AttentionCall(q, k, v, mask, scale_of(q))
    refusal = BACKENDS[name].refusal(call)
    assert refusal is None, refusal
    return BACKENDS[name].run(call)


def hosts(name: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """One of the host's functions, as a model calls it; (B, Nq, H, D)."""
    from comfy.ldm.modules import attention

    function = getattr(attention, f"attention_{name}")
    out: Tensor = function(q, k, v, q.shape[1], mask=mask, skip_reshape=True)
    return out.unflatten(-1, (q.shape[1], -1))


def error_of(work: Callable[[], Tensor], truth: Tensor) -> float:
    return float((work().double() - truth).norm() / truth.norm())


def truth_of(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    mask = mask if mask is None or mask.dtype == torch.bool else mask.double()
    return fused(q.double(), k.double(), v.double(), mask)


def measured(
    cases: Mapping[str, Callable[[], Tensor]], baseline: str, runs: int, truth: Tensor | None = None
) -> dict[str, tuple[float, int, float]]:
    """Time over the baseline's, peak bytes and error of each case."""
    seconds = interleaved_cpu_seconds(cases, runs)
    return {
        name: (
            median_ratio(seconds, name, baseline),
            peak_bytes(work),
            error_of(work, truth) if truth is not None else math.nan,
        )
        for name, work in cases.items()
    }


# --------------------------------------------------------------------------------------------------- sections


def sliced_section(runs: int) -> Section:
    """Against the host's plain formula, and against our own full slice."""
    section, call = Section(), operands(SD15)
    scale, rows_of = scale_of(call[0]), (4096, 2048, 1024, 512, 128)
    cases: dict[str, Callable[[], Tensor]] = {"host's basic": partial(hosts, "basic", *call)}
    cases |= {f"{rows} rows": partial(full_or_sliced, *call, scale, rows) for rows in rows_of}
    cases["automatic"] = partial(sliced_attention, *call, scale)
    found = measured(cases, "host's basic", runs, truth_of(*call))
    basic, full = found["host's basic"], found["4096 rows"]
    section.most("automatic: time / host's basic", 0.40, found["automatic"][0])
    section.most("automatic: peak / host's basic", 2, 100 * found["automatic"][1] / basic[1], "%")
    section.most("512 rows: peak / full", 14.5, 100 * found["512 rows"][1] / full[1], "%")
    section.most("512 rows: time / full", 0.8, found["512 rows"][0] / full[0])
    rows = [
        (name, f"{time:.2f}", f"{time / full[0]:.2f}", f"{peak / MIB:.1f}", f"{peak / full[1]:.1%}", f"{error:.1e}")
        for name, (time, peak, error) in found.items()
    ]
    section.table(("attention", "time / basic", "time / full", "peak MiB", "peak / full", "error"), rows)
    section.parts.append(f"{SD15.tokens} tokens, 8 heads of 40 channels, fp32; rows of all 8 heads at once. Full = the")
    section.parts[-1] += " plain formula with one score matrix and softmax in place."
    return section


def full_or_sliced(q: Tensor, k: Tensor, v: Tensor, scale: float, rows: int) -> Tensor:
    """The plain formula, ``rows`` query rows of all heads at a time."""
    out = torch.empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3])
    scores = torch.empty(q.shape[1], rows, k.shape[2])
    for start in range(0, q.shape[2], rows):
        torch.baddbmm(scores, q[0, :, start : start + rows], k[0].transpose(1, 2), beta=0, alpha=scale, out=scores)
        torch.softmax(scores, -1, out=scores)
        out[0, start : start + rows] = torch.bmm(scores, v[0]).transpose(0, 1)
    return out


def online_section(runs: int) -> Section:
    section, rows = Section(), []
    shapes = [Shape("", tokens, 8 if tokens < LARGEST else 4, 40) for tokens in ONLINE]
    shapes += [Shape("", 4096, 10, 64), Shape("", 4608, 4, 128)]
    for shape, dtype in [(s, torch.float32) for s in shapes] + [
        (s, torch.bfloat16) for s in shapes if s.tokens == 4096
    ]:
        call = operands(shape, dtype)
        cases = {"sdpa": partial(fused, *call), "online": partial(online_attention, *call, scale_of(call[0]))}
        truth = truth_of(*call) if shape.tokens < LARGEST else None
        found = measured(cases, "sdpa", runs, truth)
        time, peak, error = found["online"]
        beyond = (peak - found["sdpa"][1]) / 1e6
        name = f"{str(dtype).removeprefix('torch.')}, {shape.tokens} tokens, {shape.channels} channels"
        section.most(f"{name}: time / SDPA", 1.10 if dtype == torch.float32 else 0.6, time)
        section.most(f"{name}: peak beyond SDPA's", 10, beyond, "MB")
        if dtype == torch.bfloat16:
            section.most(f"{name}: error / SDPA's", 1, error / found["sdpa"][2])
        errors = ("", "") if truth is None else (f"{error:.1e}", f"{found['sdpa'][2]:.1e}")
        rows.append((name, shape.heads, f"{time:.2f}", f"{beyond:.1f}", *errors))
        print(*rows[-1], flush=True)
    section.table(("operands", "heads", "time / SDPA", "peak beyond SDPA's, MB", "error", "SDPA's error"), rows)
    return section


def masks_section(runs: int) -> Section:
    section, rows, call = Section(), [], operands(SD15)
    tokens = SD15.tokens
    keep = torch.rand(1, 1, tokens, tokens, generator=torch.Generator().manual_seed(1)) > 0.3
    masks = {
        "keys, float (1, 1, 1, N)": torch.randn(1, 1, 1, tokens),
        "float (1, 1, N, N)": torch.randn(1, 1, tokens, tokens),
        "bool (1, 1, N, N)": keep,
    }
    for name, mask in masks.items():
        cases: dict[str, Callable[[], Tensor]] = {"sdpa": partial(fused, *call, mask)}
        cases |= {backend: partial(ours, backend, *call, mask) for backend in ("sliced", "online")}
        found = measured(cases, "sdpa", runs, truth_of(*call, mask))
        section.most(f"online, {name}: time / SDPA", 1.4 if "bool" in name else 1.15, found["online"][0])
        for backend, (time, peak, error) in found.items():
            rows.append((name, backend, f"{time:.2f}", f"{peak / MIB:.1f}", f"{error:.1e}"))
            print(*rows[-1], flush=True)
        for host in ("split", "sub_quad"):  # not timed: some are wrong
            error = error_of(partial(hosts, host, *call, mask), truth_of(*call, mask))
            rows.append((name, f"host's {host}", "", "", f"{error:.1e}"))
    section.table(("mask", "attention", "time / SDPA", "peak MiB", "error"), rows)
    section.parts.append("The host's split and sub_quad add a boolean mask as 0 and 1: their error is not rounding.")
    return section


def backward_section(runs: int) -> Section:
    section = Section()
    q, k, v = (x.detach().requires_grad_() for x in operands(SD15))
    scale = scale_of(q)

    def gradients(attention: Callable[..., Tensor]) -> Tensor:
        with torch.enable_grad():
            return torch.cat([x.flatten() for x in torch.autograd.grad(attention().square().sum(), (q, k, v))])

    cases: dict[str, Callable[[], Tensor]] = {
        "plain formula": partial(gradients, lambda: ((q @ k.mT * scale).softmax(-1) @ v).transpose(1, 2)),
        "sdpa": partial(gradients, lambda: fused(q, k, v)),
        "online": partial(gradients, lambda: online_attention_with_gradients(q, k, v, scale)),
    }
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    with torch.enable_grad():
        found64 = torch.autograd.grad(fused(*exact).square().sum(), exact)
    found = measured(cases, "plain formula", runs, torch.cat([x.flatten() for x in found64]))
    plain = found["plain formula"]
    section.most("peak / autograd through the plain formula", 5, 100 * found["online"][1] / plain[1], "%")
    section.most("error of the gradients, fp32", 1e-6, found["online"][2], "")
    rows = [(name, f"{time:.2f}", f"{peak / MIB:.1f}", f"{error:.1e}") for name, (time, peak, error) in found.items()]
    section.table(("forward and backward", "time / plain", "peak MiB", "error of the gradients"), rows)
    return section


def models_section(runs: int) -> Section:
    """The table that a user chooses by."""
    section, rows = Section(), []
    for shape, dtype in [(s, torch.float32) for s in MODELS] + [(s, torch.bfloat16) for s in MODELS]:
        call = operands(shape, dtype)
        cases: dict[str, Callable[[], Tensor]] = {
            f"host's {name}": partial(hosts, name, *call) for name in ("basic", "split", "sub_quad", "pytorch")
        }
        cases |= {name: partial(ours, name, *call) for name in ("sdpa", "sliced", "online")}
        found = measured(cases, PYTORCH, runs, truth_of(*call))
        for name, (time, peak, error) in found.items():
            rows.append((shape.name, str(dtype)[6:], name, f"{time:.2f}", f"{peak / MIB:.0f}", f"{error:.1e}"))
            print(*rows[-1], flush=True)
    section.table(("shape", "dtype", "attention", "time / pytorch", "peak MiB", "error"), rows)
    draw([row for row in rows if row[1] == "float32"], Path(__file__).with_suffix(".png"))
    section.parts.append("![time and peak memory per attention](attention.png)")
    return section


def fp16_section(runs: int) -> Section:
    """One shape: without warming up, since the host's functions take many seconds."""
    section, call = Section(), operands(SD15, torch.float16)
    cases: dict[str, Callable[[], Tensor]] = {
        f"host's {name}": partial(hosts, name, *call) for name in ("basic", "split", "sub_quad", "pytorch")
    }
    cases |= {name: partial(ours, name, *call) for name in ("sdpa", "sliced", "online")}
    seconds, truth = interleaved_cpu_seconds(cases, runs, warm_ups=0), truth_of(*call)
    rows = [
        (
            name,
            f"{median_ratio(seconds, name, PYTORCH):.2f}",
            f"{peak_bytes(work) / MIB:.0f}",
            f"{error_of(work, truth):.1e}",
        )
        for name, work in cases.items()
    ]
    section.table(("attention", "time / pytorch", "peak MiB", "error"), rows)
    section.parts.append(f"{SD15.tokens} tokens, 8 heads of 40 channels.")
    return section


def threads_section(runs: int) -> Section:
    """Wall time at two threads: online makes many calls whose threads wait for each other."""
    import time

    section, rows = Section(), []
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    for shape in (Shape("", 1024, 8, 40), Shape("", 4096, 8, 40), Shape("", 4608, 4, 128)):
        call = operands(shape)
        cases = {"sdpa": partial(fused, *call), "online": partial(online_attention, *call, scale_of(call[0]))}
        seconds: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(2 * runs):
            for name, work in cases.items():
                start = time.perf_counter()
                work()
                seconds[name].append(time.perf_counter() - start)
        ratio = statistics.median(seconds["online"]) / statistics.median(seconds["sdpa"])
        rows.append((shape.tokens, shape.heads, shape.channels, f"{ratio:.2f}"))
    torch.set_num_threads(before)
    section.table(("tokens", "heads", "channels", "online / SDPA, wall time"), rows)
    return section


def gpu_section(runs: int) -> Section:
    section, rows = Section(), []
    device = torch.device("cuda")
    for shape in (Shape("SDXL, 1024 px", 4096, 10, 64), Shape("Flux, 1024 px", 4608, 24, 128)):
        call = tuple(x.to(device) for x in operands(shape, torch.bfloat16))
        for name in BACKENDS:
            refusal = BACKENDS[name].refusal(AttentionCall(*call, None, scale_of(call[0])))
            if refusal is not None:
                rows.append((shape.name, name, "", "", refusal))
                continue
            seconds, peak = on_gpu(partial(ours, name, *call), runs)
            rows.append((shape.name, name, f"{1e3 * seconds:.2f}", f"{peak / MIB:.0f}", ""))
    section.table(("shape", "backend", "ms", "peak MiB", "refused"), rows)
    section.parts.append(
        f"{torch.cuda.get_device_name(device)}, bfloat16. For comparison, the figure of 2022: xformers up to twice as"
        " fast as plain attention."
    )
    return section


def draw(rows: list[Any], path: Path) -> None:
    """Time and peak of each attention, as bars per model shape."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shapes, names = list(dict.fromkeys(row[0] for row in rows)), list(dict.fromkeys(row[2] for row in rows))
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for axis, column, title in zip(axes, (3, 4), ("CPU time / pytorch", "peak MiB")):
        for index, name in enumerate(names):
            heights = [float(next(row[column] for row in rows if row[0] == s and row[2] == name)) for s in shapes]
            places = [place + (index - len(names) / 2) * 0.11 for place in range(len(shapes))]
            axis.bar(places, heights, 0.11, label=name, color=pyplot.cm.tab10(index))
        axis.set_title(title)
        axis.set_yscale("log")
        axis.set_xticks(range(len(shapes)), [shape.partition(",")[0] for shape in shapes])
    axes[0].axhline(1, color="grey", linewidth=0.8)
    axes[1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=90)


SECTIONS: dict[str, Callable[[int], Section]] = {
    "sliced": sliced_section,
    "online": online_section,
    "masks": masks_section,
    "backward": backward_section,
    "models": models_section,
    "fp16": fp16_section,
    "threads": threads_section,
    "gpu": gpu_section,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs per case (default 5)")
    parser.add_argument("--only", metavar="NAME,...", help=f"of {', '.join(SECTIONS)} (default: all that can run here)")
    parser.add_argument("--quick", action="store_true", help="one run each, into output/: to see whether it runs")
    options = parser.parse_args()
    names = (
        options.only.split(",") if options.only else [n for n in SECTIONS if n != "gpu" or torch.cuda.is_available()]
    )
    if unknown := [name for name in names if name not in SECTIONS]:
        parser.error(f"unknown section: {', '.join(unknown)}")
    enter_host(*(() if names == ["gpu"] else ("--cpu",)))
    torch.set_num_threads(1)
    folder = ROOT / "output" if options.quick else Path(__file__).parent
    folder.mkdir(exist_ok=True)
    runs = 1 if options.quick else options.runs
    report = Report(folder / "attention.md", INTRODUCTION, TITLES)
    with torch.no_grad():
        for name in names:
            report.measure(name, partial(SECTIONS[name], runs), runs)


if __name__ == "__main__":
    main()
