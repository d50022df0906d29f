"""What people's cards would take: stock ways beside ours, by the real code on an emulated card of each kind.

Computed, not measured: `tests/emulator/README.md` tells how and what is left out. Products leave out their arithmetic
(`shapes`), so every size takes seconds; bytes and time depend on shapes alone. Each card is a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import _streaming
from _harness import ROOT, enter_host, load_package, markdown_table

load_package()

from headroom.tools.card import emulator  # noqa: E402
from headroom.tools.card.cards import CARDS, CardModel  # noqa: E402
from headroom.tools.setup.environment import Environment  # noqa: E402

HERE = Path(__file__)
RESULTS = HERE.with_suffix(".md")
SIZES = (512, 1024, 2048)
SHARES = (1.15, 0.65)  # of M, the largest map
DTYPES = {"float32": "--fp32-vae", "bfloat16": "--bf16-vae", "float16": "--fp16-vae"}
KNOBS: dict[str, dict[str, float]] = {  # what the conclusions may hang on
    "as above": {},
    "dispatch 10 µs": {"dispatch_us": 10},
    "dispatch 20 µs": {"dispatch_us": 20},
    "smallest kernel 5 µs": {"kernel_us": 5},
    "no waves": {"waves": 0},
}
PARTS = ("vae", "knobs", "streaming")
GB = 2**30
WIDTH, REACH, LATENTS = 128, 8, 4  # channels, pixels of a cell, channels of a latent
UNTILED, CORE, LEAST = "untiled", "core's tiles", "least"
Row = dict[str, Any]
REMARKS = "## What was found"  # and what follows it is written by hand, and kept
INTRODUCTION = """# What people's cards would take

Computed on an emulated card (`tests/emulator`), not measured on a GPU: the real code of PyTorch, ComfyUI and Headroom
ran, its kernels were counted and its time reckoned from each card's documented figures (`tools/card/cards.py`). Stable
Diffusion's VAE at full width. A cell: time (against untiled), bytes beyond the weights in M, the largest map, and
kernels. Core's tiles are its tiled way's defaults. To repeat: `python3 -m tools bench virtual_cards`."""


# ------------------------------------------------------------------------------------------- in a process on a card


def on_card(order: dict[str, Any]) -> list[Row]:
    """The rows of one card: each way of decoding and encoding at each size, or of streaming weights."""
    streaming = "dtype" not in order
    enter_host(*order["options"] if streaming else (DTYPES[order["dtype"]],))
    import torch

    _calibrate()
    with torch.inference_mode():
        if streaming:
            return list(_streaming.rows())
        return [row for size in order["sizes"] for way in ("decode", "encode") for row in _ways(way, size)]


def _calibrate() -> None:
    """The card's kernels hold nothing inside, and plans are to know it, as those of a user who has calibrated do."""
    import torch

    from headroom.host.measure.calibrated import calibration_path
    from headroom.memory.prediction.calibration import SEVERAL, Key, calibrate, save

    layers = "stride 1x1 padding 1x1 dilation 1x1 groups 1"
    lines = [f"float32 1x8x{8 + n}x8 contiguous 8x8x3x3 contiguous {layers}" for n in range(SEVERAL)]
    device = torch.device("cuda:0")
    save(calibration_path(), Key.of(device), calibrate(lines, device))


def _ways(way: str, size: int) -> Iterator[Row]:
    import torch

    model = _autoencoder()
    shape = (1, LATENTS, size // REACH, size // REACH) if way == "decode" else (1, size, size, 3)
    operand = torch.zeros(shape)
    weights = _weights(model)
    largest = _largest_map(model, way, size)
    works: dict[str, Callable[[], object]] = {
        UNTILED: lambda: getattr(model, way)(operand),
        CORE: lambda: getattr(model, f"{way}_tiled")(operand),
    }
    for share in SHARES:
        ours = _low_memory(model, (weights + share * largest) / GB)
        works[f"ours in {share} M"] = lambda ours=ours: getattr(ours, way)(operand)
    works[f"ours, {LEAST}"] = lambda: getattr(_low_memory(model, _least_gb(model, way, operand)), way)(operand)
    untiled = 0.0
    for name, work in works.items():
        row = {"way": way, "size": size, "name": name} | _one(work, largest)
        untiled = untiled or row.get("seconds", 0.0)
        yield row | ({"ratio": row["seconds"] / untiled} if "seconds" in row else {})


@cache
def _autoencoder() -> Any:
    """Stable Diffusion's at full width, loaded by the host as it would load a file; its weights do not matter here."""
    import comfy.sd

    from headroom.tools.models.image_vae import image_vae_module

    return comfy.sd.VAE(sd=image_vae_module(LATENTS, quantised=True, narrow=WIDTH).state_dict())


def _largest_map(model: Any, way: str, size: int) -> int:
    """M: bytes of the largest feature map. The decoder's has twice its narrowest channels."""
    channels = 2 * WIDTH if way == "decode" else WIDTH
    return int(channels * size * size * next(model.first_stage_model.parameters()).element_size())


def _weights(model: Any) -> int:
    """As the allocator gives them out, which is what a budget counts."""
    from headroom.host.vae.room import uncut_of

    module = model.first_stage_model
    return sum(parameter.nbytes for parameter in module.parameters()) + uncut_of(module)


def _low_memory(model: Any, budget_gb: float) -> Any:
    from headroom.host.vae.settings import VAESettings
    from headroom.host.vae.wrapper import low_memory_vae

    return low_memory_vae(model, replace(VAESettings(), method="exact", vram_budget_gb=budget_gb))


def _least_gb(model: Any, way: str, operand: Any) -> float:
    """The least budget, as the error names it, a thousandth up for its rounding."""
    import re

    try:
        getattr(_low_memory(model, 1e-3), way)(operand)
    except ValueError as error:
        found = re.search(r"less than the ([\d.]+) GB", str(error))
        return float(found[1]) + 0.001 if found else 0.0
    raise AssertionError("a budget of a thousandth of a GB was enough")


def _one(work: Callable[[], object], largest: int) -> Row:
    """Virtual seconds, kernels and bytes of the second run, weights loaded and plan made."""
    import comfy.model_management
    import emulated_card
    import torch

    torch.cuda.empty_cache()  # the card's memory is this machine's
    torch._C._host_emptyCache()
    try:
        work()
        gc.collect()
        torch.cuda.synchronize()
        emulated_card.reset()
        torch.cuda.reset_peak_memory_stats()
        before, held = emulated_card.stats(), torch.cuda.memory_allocated()
        work()
        torch.cuda.synchronize()
    except (torch.OutOfMemoryError, comfy.model_management.OOM_EXCEPTION):
        comfy.model_management.unload_all_models()
        return {"failed": "out of memory"}
    after = emulated_card.stats()
    return {
        "seconds": after["virtual_s"] - before["virtual_s"],
        "launches": after["computes"],
        "maps": (torch.cuda.max_memory_allocated() - held) / largest,
        "peak": torch.cuda.max_memory_allocated(),
    }


# ----------------------------------------------------------------------------------------------- one after the other


class Ended(Exception):
    """A process on a card failed, or had no memory."""


def start(card: CardModel, order: dict[str, Any], **settings: Any) -> list[Row]:
    """Runs an order on a card and gives its rows."""
    environment = Environment.from_variables()
    variables = emulator.variables(environment, card, shapes=1, **settings) | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE), "--order", json.dumps(order)]
    done = subprocess.run(
        command, env={**os.environ, **variables}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Ended(f"ended with {done.returncode}, {done.stderr[-2000:]}")
    rows: list[Row] = json.loads(done.stdout.splitlines()[-1])
    return rows


def cell(row: Row | None) -> str:
    if row is None or "failed" in row:
        return str(row["failed"]) if row else ""
    time_ = f"{row['seconds']:.3f} s" if row["name"] == UNTILED else f"{row['ratio']:.2f}x"
    return f"{time_}, {row['maps']:.2f} M, {row['launches']:,}"


def table(rows: Sequence[Row]) -> str:
    """A line for each way and size."""
    names = list(dict.fromkeys(row["name"] for row in rows))
    lines = []
    for way, size in dict.fromkeys((row["way"], row["size"]) for row in rows):
        found = {row["name"]: row for row in rows if (row["way"], row["size"]) == (way, size)}
        lines.append([f"{way} {size} px", *(cell(found.get(name)) for name in names)])
    return markdown_table(["", *names], lines)


def card_part(name: str, dtype: str, sizes: Sequence[int]) -> str:
    """Each size by itself: the card's memory is this machine's, and the largest size may not find enough of it."""
    card, rows = CARDS[name], []
    for size in sizes:
        try:
            rows += start(card, {"sizes": [size], "dtype": dtype})
        except Ended as error:
            print(f"{card.title}, {dtype}, {size} px: {error}", file=sys.stderr)
    return f"## {card.title} {card.vram_gb:g} GB, VAE in {dtype}\n\n{table(rows)}"


def knobs_part() -> str:
    """How far the conclusions hang on what the clock assumes."""
    lines, names = [], []
    for knob, settings in KNOBS.items():
        every = start(CARDS["rtx3060"], {"sizes": [SIZES[0]], "dtype": "float32"}, **settings)
        rows = [row for row in every if row["way"] == "decode"]
        names = [row["name"] for row in rows]
        lines.append([knob, *map(cell, rows)])
    text = "RTX 3060, decode in float32, the clock's assumptions changed one at a time."
    return f"## What this hangs on\n\n{text}\n\n{markdown_table(['', *names], lines)}"


def streaming_part(names: Sequence[str]) -> str:
    """Block Offload beside the host's own streaming, on each card; on the first also as `--lowvram` starts it."""
    lines, header = [], [""]
    for name, options in [(name, ()) for name in names] + [(names[0], ("--lowvram",))]:
        rows = start(CARDS[name], {"options": options})
        header = ["", "a step with all resident", *(f"{100 * row['share']:.0f} % of the weights" for row in rows[1:])]
        lines.append(
            [" ".join([CARDS[name].title, *options]), f"{rows[0]['seconds']:.3f} s", *map(_streamed, rows[1:])]
        )
    return f"## Weights streamed\n\n{_streaming.ABOUT}\n\n{markdown_table(header, lines)}"


def _streamed(row: Row) -> str:
    host = f"{row['host']:.2f}x" if row["host"] else "cannot"
    return f"{row['ours']:.2f}x, {host}, {100 * row['reached']:.0f} %"


def parts(options: argparse.Namespace) -> Iterator[str]:
    """The file, part by part."""
    yield INTRODUCTION
    if "vae" in options.parts:
        for name in options.cards:
            for dtype in options.dtypes:
                yield card_part(name, dtype, options.sizes if name in options.in_full else options.sizes[:1])
    if "knobs" in options.parts:
        yield knobs_part()
    if "streaming" in options.parts:
        yield streaming_part(options.cards)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--order", help=argparse.SUPPRESS)
    parser.add_argument("--cards", nargs="+", choices=list(CARDS), default=list(CARDS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="others are left out")
    parser.add_argument("--in-full", nargs="*", default=["rtx3060"], help="cards at every size; others at the first")
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=["float32", "bfloat16"])
    options = parser.parse_args()
    if options.order:
        print(json.dumps(on_card(json.loads(options.order))))
        return
    began = time.time()
    done: list[str] = []
    before = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    remarks = [REMARKS + before.partition(REMARKS)[2].rstrip()] if REMARKS in before else []
    for part in parts(options):
        done.append(part)
        print(part + "\n", flush=True)
        took = f"{(time.time() - began) / 60:.0f} minutes."
        RESULTS.write_text("\n\n".join([*done, took, *remarks]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
