"""The exact VAE against the untiled one and core's tiled nodes: error, CPU time, memory, budgets, video, a sheet.

Each section is written to ``vae.md`` as soon as it is done; ``--only`` measures some of them anew and leaves the rest.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import math
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import torch
from _harness import ROOT, enter_host, interleaved_cpu_seconds, load_package, markdown_table, peak_bytes
from _pictures import colour_shift, flicker_ratio, max_error, psnr, seam_ratio, tile_borders, value_range
from _sections import Report, Section
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

load_package()

from headroom.memory import PeakMeter  # noqa: E402
from headroom.memory.render.chart import BACKGROUND, FAINT, INK  # noqa: E402
from headroom.tools.models import image_vae, sd_vae  # noqa: E402
from headroom.vae.exact.engine import DoesNotFit, ExactRun  # noqa: E402
from headroom.vae.exact.running.heap import give_back_free_pages  # noqa: E402

MIB = 2**20
WIDTH, REACH, LATENTS = 128, 8, 4  # of Stable Diffusion: channels, pixels per cell, channels of a latent
DECODE, ENCODE = "decode", "encode"
ODD = (61, 47)  # cells
MOST_BUDGETED = 2200  # cells in the grid of budgets: near the least one, computing again takes minutes
NOT_THERE = "trained decoder: not there"
PYTORCH_ATTENTION = "--use-pytorch-cross-attention"
Module = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Plan:
    """What the command line asks for.

    Attributes:
        sizes: sides of the pictures, in pixels.
        width: channels of the autoencoder.
        runs: interleaved runs per case.
        checked: sides of the squares that are compared with float64, at most.
        budgeted: cells of the pictures in the grid of budgets.
        large: measure 2048 x 2048 too.
        cases: of :func:`budgets`, which to time; empty = all.
        folder: gets what is written.
    """

    sizes: Sequence[int]
    width: int
    runs: int
    checked: int
    budgeted: Sequence[tuple[int, int]]
    large: bool
    folder: Path
    cases: Sequence[str] = ()


# ------------------------------------------------------------------------------------------------- autoencoders


@contextmanager
def narrowed(width: int) -> Iterator[None]:
    """Within it, the host builds encoders and decoders of this width whatever it finds in a file."""
    from comfy.ldm.modules.diffusionmodules import model

    def narrow(init: Callable[..., None]) -> Callable[..., None]:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **{**kwargs, "ch": width})

        return __init__

    with ExitStack() as stack:
        for part in (model.Encoder, model.Decoder) if width != WIDTH else ():
            stack.enter_context(mock.patch.object(part, "__init__", narrow(part.__init__)))
        yield


def drawn(key: str, shape: Sequence[int]) -> Tensor:
    """Random weights that keep the size of what they are given, depending on key and shape alone."""
    numbers = torch.randn(tuple(shape), generator=torch.Generator().manual_seed(zlib.crc32(key.encode())))
    if len(shape) > 1:
        return numbers / math.sqrt(math.prod(shape[1:]))
    return 1 + 0.1 * numbers if "norm" in key and key.endswith("weight") else 0.1 * numbers


def load(state: Mapping[str, Tensor], dtype: torch.dtype = torch.float32, device: str = "cpu") -> Any:
    """The host's VAE object of a state dict."""
    import comfy.sd

    vae = comfy.sd.VAE(
        sd={key: tensor.float() for key, tensor in state.items()}, dtype=dtype, device=torch.device(device)
    )
    vae.throw_exception_if_invalid()
    return vae


def image_module(width: int) -> Any:
    return image_vae.image_vae_module(LATENTS, quantised=True, narrow=width)


@cache
def random_vae(width: int = WIDTH) -> Any:
    """A Stable Diffusion autoencoder of random weights."""
    with narrowed(width):
        shapes = {key: value.shape for key, value in image_module(width).state_dict().items()}
        return load({key: drawn(key, shape) for key, shape in shapes.items()})


def trained_state(width: int = WIDTH) -> dict[str, Tensor] | None:
    """The trained decoder and its encoder, each channel repeated up to this width; None if it is not there."""
    if not sd_vae.TRAINED.is_file():
        return None
    from safetensors.torch import load_file

    shapes = {key: tuple(value.shape) for key, value in image_module(width).state_dict().items()}
    trained = load_file(sd_vae.TRAINED)
    state: dict[str, Tensor] = sd_vae.vae_sd()
    return state | {key: sd_vae.widened(key, tensor, shapes[key]) for key, tensor in trained.items()}


@cache
def trained_vae(width: int = WIDTH) -> Any | None:
    # The encoder stays as wide as the host pins it, and the decoder is no narrower than it was trained.
    state = trained_state(max(width, 64))
    return None if state is None else load(state)


def largest_map(vae: Any, way: str, height: int, width: int, batch: int = 1) -> int:
    """M: bytes of the largest feature map. The decoder's has twice its narrowest channels."""
    model = vae.first_stage_model
    channels = 2 * model.decoder.conv_out.weight.shape[1] if way == DECODE else model.encoder.conv_in.weight.shape[0]
    return int(channels * height * width * batch * next(model.parameters()).element_size())


def operand(way: str, height_cells: int, width_cells: int, batch: int = 1) -> Tensor:
    """Latents of unit variance, or a noisy picture, the same at every call."""
    rng = torch.Generator().manual_seed(3)
    if way == DECODE:
        return torch.randn(batch, LATENTS, height_cells, width_cells, generator=rng)
    shape = (batch, 3, height_cells * REACH, width_cells * REACH)
    smooth = torch.linspace(-0.7, 0.7, shape[-2])[:, None] * torch.linspace(-1, 1, shape[-1])
    return (smooth + 0.2 * torch.randn(shape, generator=rng)).clamp(-1, 1)


def photograph(name: str, height: int, width: int) -> Tensor:
    """A picture of scikit-image's, cut to shape and resized: (1, 3, height, width) in [0, 1]."""
    from skimage import data

    picture = Image.fromarray(getattr(data, name)())
    scale = min(picture.width / width, picture.height / height)
    wide, high = width * scale, height * scale
    left, top = (picture.width - wide) / 2, (picture.height - high) / 2
    box = (left, top, left + wide, top + high)
    resized = picture.resize((width, height), Image.Resampling.LANCZOS, box)
    return torch.from_numpy(np.asarray(resized).copy()).movedim(-1, 0)[None].float() / 255


# ------------------------------------------------------------------------------------------------------- cases


def core_decode(vae: Any, latent: Tensor, **settings: int) -> Tensor:
    """Core's VAEDecodeTiled, by its defaults where nothing else is given: (B or frames, H, W, C) in [0, 1]."""
    import nodes

    picture: Tensor = nodes.VAEDecodeTiled().decode(
        vae, {"samples": latent}, **defaults_of("VAEDecodeTiled", settings)
    )[0]
    return picture


def core_encode(vae: Any, pixels: Tensor, **settings: int) -> Tensor:
    """Core's VAEEncodeTiled on (B, C, H, W) in [-1, 1]."""
    import nodes

    images = (pixels.movedim(1, -1) + 1) / 2
    latent: Tensor = nodes.VAEEncodeTiled().encode(vae, images, **defaults_of("VAEEncodeTiled", settings))[0]["samples"]
    return latent


def defaults_of(node: str, settings: Mapping[str, int]) -> dict[str, int]:
    """The widgets' defaults, with some of them changed."""
    import nodes

    inputs = getattr(nodes, node).INPUT_TYPES()["required"]
    return {name: spec[1]["default"] for name, spec in inputs.items() if len(spec) > 1} | dict(settings)


def picture_of(vae: Any, decoded: Tensor) -> Tensor:
    """What the host makes of a decoder's output: (B, H, W, C) in [0, 1]."""
    picture: Tensor = vae.process_output(decoded.clone()).movedim(1, -1)
    return picture


def exact(module: Module, x: Tensor, keywords: Mapping[str, Any]) -> Tensor:
    return ExactRun(**keywords).run(module, x)


def budgets(way: str, size: int, largest: int) -> dict[str, dict[str, Any]]:
    """The ways to run exactly that there are goals for."""
    if way == ENCODE:
        return {"default": {}, "lean": {"budget": 1.5 * largest}}
    lean = 1.0 if size < 1024 else 0.65
    return {
        "default": {},
        "lean": {"budget": lean * largest},
        "lean, fp16 store": {"budget": 0.35 * largest, "store": torch.float16},
        "store offloaded": {"offload": True},
    }


def strip_borders(run: ExactRun, rows: int) -> list[int]:
    """First rows of the strips of the last pass, in rows of the result."""
    windows = run.report.schedules[-1].windows[-1]
    return [rows * start // windows.clock for start in range(windows.rows, windows.clock, windows.rows)]


def least_budget(module: Module, x: Tensor, **keywords: Any) -> int:
    """Bytes of the schedule that needs least; nothing is computed."""
    try:
        ExactRun(budget=1, **keywords).run(module, x)
    except DoesNotFit as error:
        return error.least
    raise AssertionError("it ran in one byte")


# ------------------------------------------------------------------------------------------- decode and encode


def accuracy_section(plan: Plan) -> Section:
    """Error against float64, both ways."""
    section = Section()
    for way in (DECODE, ENCODE):
        accuracy(way, plan, section)
    return section


def way_section(way: str, plan: Plan) -> Section:
    """Time, memory and likeness to untiled at every size."""
    section = Section()
    for size in plan.sizes:
        of_size(way, size, plan, section)
    return section


def accuracy(way: str, plan: Plan, section: Section) -> None:
    """Against float64: squares, odd sizes and a batch; random and trained weights."""
    square = plan.checked // REACH
    odd = tuple(cells * square // 64 for cells in ODD)
    shapes = [(square, square, 1), (*odd, 1), (*odd, 2)]
    rows, worst = [], 0.0
    for weights, vae in (("random", random_vae(plan.width)), ("trained", trained_vae(plan.width))):
        if vae is None:
            section.parts.append(NOT_THERE)
            continue
        double = copy.deepcopy(vae.first_stage_model).double()
        for height, width, batch in shapes:
            x = operand(way, height, width, batch)
            truth = getattr(double, way)(x.double())
            module: Module = getattr(vae.first_stage_model, way)
            untiled = module(x)
            own, span = max_error(untiled, truth), value_range(truth)
            allowed = max(2 * own, 1e-5 * span)
            largest = largest_map(vae, way, height * REACH, width * REACH, batch)
            for name, keywords in budgets(way, 512, largest).items():
                if name not in ("default", "lean"):
                    continue
                least = least_budget(module, x)
                budget = max(keywords.get("budget", math.inf), least)
                error = max_error(exact(module, x, {"budget": budget}), truth)
                worst = max(worst, error / allowed)
                shape = f"{height * REACH} x {width * REACH}, batch {batch}"
                rows.append(
                    (weights, shape, name, f"{own / span:.2g}", f"{error / span:.2g}", f"{error / allowed:.2f}")
                )
                print(way, *rows[-1], flush=True)
        del double
    goal = "≤ max(2x untiled's own, 1e-5 of range)"
    section.goal(f"{way}, error against float64", goal, f"{worst:.2f} of that", worst <= 1)
    header = ("weights", "picture", "exact", "untiled's error / range", "exact's error / range", "of what is allowed")
    section.parts.append(f"### Largest error, {way}\n\n{markdown_table(header, rows)}")


def of_size(way: str, size: int, plan: Plan, section: Section) -> None:
    """One size: what comes out, what it takes, beside untiled."""
    vae = random_vae(plan.width)
    module: Module = getattr(vae.first_stage_model, way)
    x, largest = operand(way, size // REACH, size // REACH), largest_map(vae, way, size, size)
    alike: dict[str, tuple[str, str, str]] = {}
    likeness: dict[str, tuple[float, float]] = {}
    predicted: dict[str, float] = {}
    cases: dict[str, Callable[[], object]] = {}
    reference = None
    # Where memory is short, the size is measured without untiled rather than by the machine's swapping.
    if psutil.virtual_memory().available > 5 * largest:
        cases["untiled"] = partial(module, x)
        reference = module(x)
    for name, keywords in budgets(way, size, largest).items():
        if plan.cases and name not in plan.cases:
            continue
        run = ExactRun(**keywords)
        try:
            result = run.run(module, x)
        except DoesNotFit as refusal:
            limit = keywords["budget"] / largest
            section.goal(f"{way} {size}, {name}", f"≤ {limit:g} M", f"at least {refusal.least / largest:.2f} M", False)
            continue
        cases[name], predicted[name] = partial(exact, module, x, keywords), run.report.peak / largest
        if reference is not None:
            borders = strip_borders(run, result.shape[-2])
            likeness[name] = psnr(result, reference), seam_ratio(result - reference, borders)
            error = max_error(result, reference) / value_range(reference)
            alike[name] = (f"{likeness[name][0]:.1f}", f"{error:.1e}", f"{likeness[name][1]:.3f}")
    print(way, size, likeness, flush=True)
    seconds = interleaved_cpu_seconds(cases, plan.runs, warm_ups=0)  # the comparison above was one
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    peaks = {name: peak_bytes(work) for name, work in cases.items()}
    ratios = {name: medians[name] / medians["untiled"] for name in cases} if reference is not None else {}
    goals_of_size(way, size, {name: peaks[name] / largest for name in peaks}, peaks, ratios, likeness, section)
    rows = [
        (
            name,
            f"{medians[name]:.2f}",
            f"{ratios[name]:.2f}" if ratios else "",
            f"{peaks[name] / MIB:.0f}",
            f"{peaks[name] / largest:.3f}",
            f"{predicted[name]:.3f}" if name in predicted else "",
            *alike.get(name, ("", "", "")),
        )
        for name in cases
    ]
    header = (
        "case", "CPU s", "/ untiled", "peak MiB", "/ M", "predicted / M", "PSNR, dB", "max error / range", "seam ratio",
    )  # fmt: skip
    section.parts.append(f"### {size} x {size}, M = {largest / MIB:.0f} MiB\n\n{markdown_table(header, rows)}")
    print(section.parts[-1], flush=True)


def goals_of_size(
    way: str,
    size: int,
    shares: Mapping[str, float],
    peaks: Mapping[str, int],
    ratios: Mapping[str, float],
    likeness: Mapping[str, tuple[float, float]],
    section: Section,
) -> None:
    big = size >= 1024
    times = {"default": 1.15, "lean": 1.35 if way == DECODE else 1.3}
    memory = {"default": 2.6, "lean": 1.5}
    if way == DECODE:
        memory = {"default": 1.15 if big else 1.3, "lean": 0.65 if big else 1.0, "lean, fp16 store": 0.35}
    if way == DECODE and not big:
        del memory["lean, fp16 store"]
    for name in shares:
        if name in times and name in ratios:
            section.most(f"{way} {size}, {name}: time / untiled", times[name], ratios[name])
        if name in memory:
            section.most(f"{way} {size}, {name}: peak", memory[name], shares[name], "M")
    for name, (decibels, seams) in likeness.items():
        least = 65 if "fp16" in name else 100
        section.least(f"{way} {size}, {name}: PSNR against untiled", least, decibels, "dB")
        if name in times:
            section.most(f"{way} {size}, {name}: seam ratio", 1.05, seams)
    if "store offloaded" in peaks and size in (512, 1024):
        limit = 140 if big else 48
        section.most(f"{way} {size}, store offloaded: peak", limit, peaks["store offloaded"] / MIB, "MiB")


# -------------------------------------------------------------------------------------------- core's tiled nodes


def core_section(plan: Plan) -> Section:
    """Time and likeness of core's tiled nodes and of the exact decode; photographs through the trained decoder."""
    section, rows = Section(), []
    trained = trained_vae(plan.width)
    if trained is None:
        section.parts.append(NOT_THERE)
    vae = trained or random_vae(plan.width)
    for way, size in product((DECODE, ENCODE), plan.sizes):
        picture = photograph("astronaut", size, size) * 2 - 1
        x = vae.first_stage_model.encode(picture) if way == DECODE else picture
        module: Module = getattr(vae.first_stage_model, way)
        core = partial(core_decode if way == DECODE else core_encode, vae)
        reference = shown(vae, way, module(x))
        exactly = shown(vae, way, ExactRun().run(module, x))
        tiled = core(x) if way == ENCODE else core(x).movedim(-1, 1)
        cases: dict[str, Callable[[], object]] = {
            "exact": partial(exact, module, x, {}),
            "core": partial(core, x),
        }
        seconds = interleaved_cpu_seconds(cases, plan.runs, warm_ups=0)
        medians = {name: statistics.median(times) for name, times in seconds.items()}
        ratio = medians["core"] / medians["exact"]
        if way == DECODE and size in (512, 1024):
            section.least(f"{way} {size}: core's CPU time / exact's", 3 if size == 512 else 2.2, ratio)
        borders = core_borders(size, defaults_of("VAEDecodeTiled", {}), REACH if way == ENCODE else 1)
        for name, result in (("exact", exactly), ("core", tiled)):
            lines = borders if name == "core" else set()
            shift = max(map(abs, colour_shift(result, reference)))
            rows.append(
                (
                    f"{way} {size}, {name}",
                    f"{medians[name]:.2f}",
                    f"{peak_bytes(cases[name]) / MIB:.0f}",
                    f"{psnr(result, reference):.1f}",
                    f"{max_error(result, reference) / value_range(reference):.2g}",
                    f"{shift / value_range(reference):.2g}",
                    f"{seam_ratio(result - reference, lines, lines):.3f}" if lines else "",
                )
            )
            print(*rows[-1], flush=True)
    header = (
        "case", "CPU s", "peak MiB", "PSNR against untiled, dB", "max error / range", "colour shift / range",
        "seam ratio",
    )  # fmt: skip
    section.parts.append(markdown_table(header, rows))
    section.parts.append(
        "A photograph; decoded pictures are compared as the host shows them, clamped to [0, 1]. Core: VAEDecodeTiled"
        " and VAEEncodeTiled by their defaults. Up to its tile size core still makes three passes, two of them over"
        " narrower tiles. Seam ratio at the borders of all of core's tiles: they are faded into each other, so that its"
        " errors are of colour and spread over the overlaps rather than steps at a line."
    )
    return section


def shown(vae: Any, way: str, result: Tensor) -> Tensor:
    """(B, C, H, W): latents as they are, pictures as the host shows them."""
    return result if way == ENCODE else picture_of(vae, result).movedim(-1, 1)


def core_borders(length: int, settings: Mapping[str, int], shrink: int = 1) -> set[int]:
    """Borders of the tiles of all three passes, which are square, wide and high."""
    size, overlap = settings["tile_size"], settings["overlap"]
    tiles = (size // 2, size, size * 2)
    return {border // shrink for tile in tiles for border in tile_borders(length, tile, min(overlap, size // 4))}


# ------------------------------------------------------------------------------------------- resident memory


def rss_section(plan: Plan) -> Section:
    """Growth of the resident set, each case in a process of its own."""
    section, rows = Section(), []
    for way, size in product((DECODE, ENCODE), plan.sizes):
        largest = largest_map(random_vae(plan.width), way, size, size)
        for name, keywords in budgets(way, size, largest).items():
            found = in_fresh_process(way, size, plan.width, keywords, peak=True)
            case = f"{way} {size}, {name}"
            if "least" in found:
                section.goal(case, "fits", f"at least {found['least'] / MIB:.0f} MiB", False)
                continue
            # Memory of the host that stands for offloaded maps is not in torch's allocator, but resident.
            expected = found["peak"] + found["host_peak"]
            ratio = found["growth"] / expected
            rows.append((case, f"{found['growth'] / MIB:.0f}", f"{expected / MIB:.0f}", f"{ratio:.2f}"))
            print(*rows[-1], flush=True)
            section.most(f"{case}: RSS growth / peak", 1.25, ratio)
    section.parts.append(markdown_table(("case", "RSS growth, MiB", "peak (and offloaded maps), MiB", "ratio"), rows))
    section.parts.append(
        "Each case in a fresh process. Before it starts, a picture of 64 x 64 is done so that libraries are loaded, and"
        " what the C library keeps is given back; growth is the high-water mark of the resident set over that."
    )
    return section


def in_fresh_process(
    way: str, size: int, width: int, keywords: Mapping[str, Any], peak: bool = False
) -> dict[str, Any]:
    """What :func:`measure_here` finds in a process of its own."""
    order: dict[str, Any] = {"way": way, "size": size, "width": width, "peak": peak, **keywords}
    if "store" in order:
        order["store"] = str(order["store"]).removeprefix("torch.")
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", json.dumps(order)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure_here(order: dict[str, Any]) -> dict[str, Any]:
    """Growth of this process's resident set in one run, seconds, and if asked for the allocator's peak."""
    way, size, width, peak = (order.pop(key) for key in ("way", "size", "width", "peak"))
    if "store" in order:
        order["store"] = getattr(torch, order["store"])
    module: Module = getattr(random_vae(width).first_stage_model, way)
    x, tiny = operand(way, size // REACH, size // REACH), operand(way, 8, 8)
    exact(module, tiny, {**order, "budget": math.inf} if "budget" in order else order)
    gc.collect()
    give_back_free_pages()  # else memory kept from loading would hide growth
    run = ExactRun(**order)
    start = time.process_time()
    before = psutil.Process().memory_info().rss
    highest = HighWater()
    try:
        with highest:
            result = run.run(module, x)
    except DoesNotFit as error:
        return {"least": error.least}
    seconds = time.process_time() - start
    assert result.isfinite().all()
    del result
    report = run.report
    found = {
        "growth": highest.bytes - before, "total": highest.bytes, "seconds": seconds,
        "predicted": report.peak, "host_peak": report.host_peak if order.get("offload") else 0,
    }  # fmt: skip
    return found | ({"peak": peak_bytes(partial(exact, module, x, order))} if peak else {})


class HighWater:
    """Context manager; :attr:`bytes` is the most that was resident within: Linux's own mark, elsewhere sampled."""

    def __init__(self) -> None:
        self.bytes = 0

    def __enter__(self) -> HighWater:
        self._exact = True
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            self._exact = False
            self._meter = PeakMeter(torch.device("cpu"))
            self._meter.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        if not self._exact:
            self._meter.__exit__(*failure)
            assert self._meter.peak is not None
            self.bytes = self._meter.peak.highest
            return
        status = Path("/proc/self/status").read_text().splitlines()
        self.bytes = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def large_section(plan: Plan) -> Section:
    """A picture of 2048 x 2048 in 3.5 GB, and in 1.9 GB with maps stored in half precision."""
    section, rows = Section(), []
    cases: tuple[tuple[str, dict[str, Any]], ...] = (
        ("3.5 GB", {"budget": 3.5e9}),
        ("1.9 GB, fp16 store", {"budget": 1.9e9, "store": torch.float16}),
    )
    for name, keywords in cases:
        found = in_fresh_process(DECODE, 2048, plan.width, keywords)
        if "least" in found:
            section.goal(f"decode 2048 in {name}", "fits", f"at least {found['least'] / 1e9:.2f} GB", False)
            continue
        section.most(f"decode 2048 in {name}: RSS growth", keywords["budget"] / 1e9, found["growth"] / 1e9, "GB")
        figures = (found["predicted"], found["growth"], found["total"])
        rows.append((name, *(f"{value / 1e9:.2f}" for value in figures), f"{found['seconds']:.0f}"))
        print(*rows[-1], flush=True)
    header = ("budget", "predicted, GB", "RSS growth, GB", "RSS with weights and libraries, GB", "CPU s")
    section.parts.append(markdown_table(header, rows))
    section.parts.append("Weights of the full-size autoencoder in fp32, a fresh process each; GB = 10^9 bytes.")
    return section


# ------------------------------------------------------------------------------------------------------ budgets


def budget_section(plan: Plan) -> Section:
    """Predicted and measured peaks stay within the budget on a grid; below the least there is an error."""
    vae, section, rows = random_vae(plan.width), Section(), []
    worst, refused, honest, cases = 0.0, True, True, 0
    for way, (height, width), batch in product((DECODE, ENCODE), plan.budgeted, (1, 2)):
        if height * width * batch > MOST_BUDGETED:
            continue
        module: Module = getattr(vae.first_stage_model, way)
        x, largest = operand(way, height, width, batch), largest_map(vae, way, height * REACH, width * REACH, batch)
        least = least_budget(module, x)
        refused &= refuses(module, x, least)
        found = []
        for budget in sorted({least, *(int(share * least) for share in (1.1, 1.3, 1.7, 2.5)), 3 * largest}):
            try:
                predicted, measured = peaks_within(module, x, budget)
            except DoesNotFit:  # an error that names too little
                honest = False
                continue
            found.append((predicted / budget, measured / budget, measured / predicted))
        planned, shares, against = (list(figures) for figures in zip(*found))
        worst, cases = max(worst, *shares, *planned), cases + len(found)
        shape = f"{way} {height * REACH} x {width * REACH}, batch {batch}"
        figures = (f"{least / largest:.3f}", f"{max(planned):.3f}", f"{max(shares):.3f}")
        rows.append((shape, *figures, f"{min(against):.2f} to {max(against):.2f}"))
        print(*rows[-1], flush=True)
    section.goal(f"peak, predicted and measured / budget, {cases} cases", "≤ 1", f"{worst:.3f}", worst <= 1)
    section.goal("one byte below the least", "an error naming it", "yes" if refused else "no", refused)
    section.goal("the least that an error names", "is enough", "yes" if honest else "no", honest)
    header = ("case", "least / M", "most predicted / budget", "most measured / budget", "measured / predicted")
    section.parts.append(markdown_table(header, rows))
    return section


def peaks_within(module: Module, x: Tensor, budget: int) -> tuple[int, int]:
    """Predicted and measured. The result of the run is part of what was measured."""
    run = ExactRun(budget=budget)
    measured = peak_bytes(lambda: run.run(module, x))
    return run.report.peak, measured


def refuses(module: Module, x: Tensor, least: int) -> bool:
    """Whether a byte less than the least is refused, and the error names it."""
    try:
        ExactRun(budget=least - 1).run(module, x)
    except DoesNotFit as error:
        return error.least == least and str(least) in str(error)
    return False


# -------------------------------------------------------------------------------------------------------- video


def video_section(plan: Plan) -> Section:
    """Narrow Wan 2.1 and LTX-Video autoencoders, in strips of rows and by core in tiles of space and time."""
    from headroom.tests.host.autoencoders import AUTOENCODERS

    section, rows = Section(), []
    for name, (height, width), longest in (("wan21", (16, 20), 5), ("ltx", (6, 8), 3)):
        kind = AUTOENCODERS[name]
        vae = kind.load()
        module: Module = vae.first_stage_model.decode
        for cells in range(1, longest + 1):
            frames, latent = kind.frames(cells), kind.latent(height, width, cells_in_time=cells)
            if frames not in (1, 5, 9, 17):
                continue
            starts = [kind.frames(before) for before in range(1, cells)]
            reference = seeded(module, latent)
            run = ExactRun(rows=8)
            result = seeded(partial(run.run, module), latent)
            pictures = [vae.process_output(video.clone()).movedim(1, -1)[0] for video in (result, reference)]
            tiled = core_decode(vae, latent, tile_size=128, overlap=32, temporal_size=8, temporal_overlap=4)
            exactly, core = psnr(result, reference), psnr(tiled, pictures[1])
            flicker = flicker_ratio(result - reference, starts, dim=2)
            flicker_core = flicker_ratio(tiled - pictures[1], starts)
            section.least(f"{name}, {frames} frames: PSNR against untiled", 90, exactly, "dB")
            if cells > 1:
                section.most(f"{name}, {frames} frames: flicker ratio", 1.05, flicker)
            seams = seam_ratio(result - reference, strip_borders(run, result.shape[-2]))
            figures = (f"{exactly:.1f}", f"{flicker:.3f}", f"{seams:.3f}", f"{core:.1f}", f"{flicker_core:.2f}")
            rows.append((name, frames, run.report.strips, *figures))
            print(*rows[-1], flush=True)
    header = (
        "autoencoder", "frames", "strips", "PSNR, dB", "flicker ratio", "seam ratio", "core's PSNR, dB",
        "core's flicker ratio",
    )  # fmt: skip
    section.parts.append(markdown_table(header, rows))
    section.parts.append(
        "Random weights, narrow. Flicker ratio: the mean change of the error into a frame that begins a latent frame,"
        " over that into the other frames. Core: tiles of 128 pixels and 8 frames. LTX-Video has no 5 frames."
    )
    return section


def seeded(module: Module, x: Tensor) -> Tensor:
    """Decoders that add noise get the same one."""
    torch.manual_seed(5)
    return module(x)


# ------------------------------------------------------------------------------------------------ contact sheet


AMPLIFIED, TILE, MOST_BYTES, MOST_WIDTH, MARGIN = 20, 256, 700_000, 1600, 16


def sheet_section(plan: Plan) -> Section:
    """Untiled, core's tiles and exact; below, their differences from untiled."""
    vae, weights = trained_vae(plan.width), "the trained decoder"
    section = Section()
    if vae is None:
        vae, weights = random_vae(plan.width), "random weights"
        section.parts.append(NOT_THERE)
    picture = photograph("coffee", 400, 512)
    latent = vae.first_stage_model.encode(picture * 2 - 1)
    untiled = picture_of(vae, vae.first_stage_model.decode(latent))
    tiled = core_decode(vae, latent, tile_size=TILE)
    largest = largest_map(vae, DECODE, 400, 512)
    strips = ExactRun(budget=max(largest, least_budget(vae.first_stage_model.decode, latent)))
    exactly = picture_of(vae, strips.run(vae.first_stage_model.decode, latent))
    results = {
        "untiled": untiled,
        f"core, tiles of {TILE}": tiled,
        f"Headroom exact, {strips.report.strips} strips": exactly,
    }
    panels = [
        (name if result is untiled else f"{name}: {psnr(result, untiled, 1.0):.1f} dB", result[0])
        for name, result in results.items()
    ]
    differences = [
        (f"difference x {AMPLIFIED}, largest {max_error(result, untiled):.1g}", AMPLIFIED * (result - untiled).abs()[0])
        for result in (tiled, exactly)
    ]
    differences.insert(0, ("the photograph", picture[0].movedim(0, -1)))
    save_sheet([panels, differences], f"A photograph through {weights}", plan.folder / "vae.png")
    section.parts.append(f"![{', '.join(results)}, and their differences from untiled](vae.png)")
    return section


def save_sheet(rows: Sequence[Sequence[tuple[str, Tensor]]], title: str, path: Path) -> None:
    """Panels with captions, as large as the limits allow."""
    width = (MOST_WIDTH - (len(rows[0]) + 1) * MARGIN) // len(rows[0])
    while True:
        sheet = draw_sheet(rows, title, width)
        sheet.save(path, optimize=True)
        if path.stat().st_size <= MOST_BYTES:
            return
        width = int(0.93 * width)


def draw_sheet(rows: Sequence[Sequence[tuple[str, Tensor]]], title: str, width: int) -> Image.Image:
    caption_height, head = 32, 44
    height = round(width * rows[0][0][1].shape[0] / rows[0][0][1].shape[1])
    size = (
        len(rows[0]) * (width + MARGIN) + MARGIN,
        head + MARGIN + len(rows) * (height + caption_height + MARGIN),
    )
    sheet = Image.new("RGB", size, BACKGROUND)
    canvas = ImageDraw.Draw(sheet)
    canvas.text((MARGIN, MARGIN - 2), title, INK, ImageFont.load_default(22))
    for i, row in enumerate(rows):
        top = head + MARGIN + i * (height + caption_height + MARGIN)
        for j, (caption, pixels) in enumerate(row):
            image = Image.fromarray((pixels.clamp(0, 1) * 255).round().byte().numpy())
            left = MARGIN + j * (width + MARGIN)
            sheet.paste(image.resize((width, height), Image.Resampling.LANCZOS), (left, top))
            canvas.text((left, top + height + 6), caption, FAINT, ImageFont.load_default(16))
    return sheet


# ------------------------------------------------------------------------------------------------------ on a GPU


GPU_SIZES = (1024, 2048, 4096, 8192)


def gpu_section(plan: Plan) -> Section:
    """Decoding in bfloat16: untiled, by core's tiles, exact."""
    import comfy.model_management as management

    device = torch.device("cuda")
    width = WIDTH
    shapes = {key: value.shape for key, value in image_module(width).state_dict().items()}
    vae = load({key: drawn(key, shape) for key, shape in shapes.items()}, torch.bfloat16, "cuda")
    vae.output_device = device  # the copy of the picture to the host is no part of what is compared
    rows = []
    for size in GPU_SIZES if plan.width == WIDTH else GPU_SIZES[:1]:
        latent = operand(DECODE, size // REACH, size // REACH)
        management.load_models_gpu([vae.patcher], force_full_load=True)
        module: Module = vae.first_stage_model.decode
        x, largest = latent.to(device, torch.bfloat16), largest_map(vae, DECODE, size, size)
        cases: dict[str, Callable[[], Tensor]] = {
            "untiled": partial(module, x),
            "core tiled": partial(core_decode, vae, latent),
            **{name: partial(exact, module, x, keywords) for name, keywords in budgets(DECODE, size, largest).items()},
        }
        del cases["lean, fp16 store"]  # no narrower than the maps are
        untiled = None
        for name, work in cases.items():
            row, result = on_gpu(work, plan.runs)
            if name == "untiled" and result is not None:
                untiled = result.float().cpu()
            likeness = ""
            if untiled is not None and result is not None and name not in ("untiled", "core tiled"):
                likeness = f"{psnr(result.float().cpu(), untiled):.1f}"
            rows.append((size, name, *row, likeness))
            print(*rows[-1], flush=True)
            del result
    section = Section()
    header = ("size", "case", "s", "peak MiB over weights and latent", "PSNR against untiled, dB")
    section.parts.append(markdown_table(header, rows))
    section.parts.append(
        f"{torch.cuda.get_device_name(device)}, bfloat16, random weights; medians of {plan.runs} runs after one to warm"
        " up; peak = torch.cuda.max_memory_allocated less what was allocated before."
    )
    return section


def on_gpu(work: Callable[[], Tensor], runs: int) -> tuple[tuple[str, str], Tensor | None]:
    """Median seconds and peak, and the result; None if it did not fit."""
    try:
        work()
        seconds = []
        for _ in range(runs):
            torch.cuda.synchronize()
            start = time.perf_counter()
            work()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = work()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        return (f"{statistics.median(seconds):.3f}", f"{peak / MIB:.0f}"), result
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return ("out of memory", ""), None
    except DoesNotFit as error:
        return ("does not fit", f"at least {error.least / MIB:.0f}"), None


# ------------------------------------------------------------------------------------------------------ the file

SECTIONS: dict[str, tuple[str, Callable[[Plan], Section]]] = {
    "accuracy": ("Against float64", accuracy_section),
    "decode": ("Decode against untiled", partial(way_section, DECODE)),
    "encode": ("Encode against untiled", partial(way_section, ENCODE)),
    "core": ("Against core's tiled nodes", core_section),
    "rss": ("Resident memory of fresh processes", rss_section),
    "budget": ("Budgets", budget_section),
    "video": ("Video", video_section),
    "sheet": ("Contact sheet", sheet_section),
    "large": ("2048 x 2048 in a budget", large_section),
    "gpu": ("On a GPU", gpu_section),
}
INTRODUCTION = """# VAE: exact in strips, untiled, and core's tiles

The autoencoder of Stable Diffusion at its full width of 128 channels, fp32, one thread, built by the host's own loader;
untiled with the host's PyTorch attention. Times are process CPU seconds, medians of interleaved runs. Peak = most live
bytes in torch's CPU allocator during the call: scratch and output included, weights and input not. M = bytes of the
largest feature map: for decoding 256 MiB at 512 x 512, for encoding 128 MiB; it grows with the area. PSNR and errors
are relative to the range of the reference. Seam ratio: mean step of the error across borders of strips or tiles over
that elsewhere; 1 = no seams. "default" has no budget, "lean" a budget as small as its goal."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024], help="sides in pixels (default 512 1024)")
    parser.add_argument("--runs", type=int, default=3, help="interleaved runs per case (default 3)")
    parser.add_argument("--only", metavar="NAME,...", help=f"of {', '.join(SECTIONS)} (default: all; large, if asked)")
    parser.add_argument("--cases", default="", metavar="NAME,...", help="of a size: default, lean, ... (default: all)")
    parser.add_argument("--large", action="store_true", help="2048 x 2048 in a fixed budget too: about 20 minutes more")
    parser.add_argument("--quick", action="store_true", help="narrow and small, into output/: to see whether it runs")
    parser.add_argument("--measure", metavar="JSON", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.only = options.only.split(",") if options.only else None
    if unknown := [name for name in options.only or () if name not in SECTIONS]:
        parser.error(f"unknown section: {', '.join(unknown)}")
    return options


def plan_of(options: argparse.Namespace) -> Plan:
    if options.quick:
        folder = ROOT / "output" / "bench"
        folder.mkdir(parents=True, exist_ok=True)
        return Plan([512], 32, 1, 256, [(16, 16), (13, 17)], options.large, folder)
    cases = options.cases.split(",") if options.cases else ()
    shapes = [(32, 32), (48, 48), (64, 64), (61, 47), (37, 29)]
    return Plan(options.sizes, WIDTH, options.runs, 512, shapes, options.large, Path(__file__).resolve().parent, cases)


def chosen(options: argparse.Namespace) -> list[str]:
    if options.only:
        return list(options.only)
    absent = {"gpu"} if not torch.cuda.is_available() else set()
    return [name for name in SECTIONS if name not in absent and (name != "large" or options.large)]


def on_the_gpu_instead() -> None:
    """The host takes either the CPU or the GPU, for good: the section on a GPU gets a process of its own."""
    rest = [word for word in sys.argv[1:] if word in ("--quick",)]
    subprocess.run([sys.executable, str(Path(__file__).resolve()), "--only", "gpu", *rest], check=True)


def main() -> None:
    options = arguments()
    names = [] if options.measure else chosen(options)
    gpu = names == ["gpu"]
    enter_host(*(() if gpu else ("--cpu",)), PYTORCH_ATTENTION)
    torch.set_num_threads(1)
    with torch.inference_mode():
        if options.measure:
            print(json.dumps(measure_here(json.loads(options.measure))))
            return
        plan = plan_of(options)
        titles = {name: title for name, (title, _) in SECTIONS.items()}
        report = Report(plan.folder / "vae.md", INTRODUCTION, titles)
        for name in names:
            if name == "gpu" and not gpu:
                on_the_gpu_instead()
                continue
            report.measure(name, partial(SECTIONS[name][1], plan), plan.runs)


if __name__ == "__main__":
    main()
