"""Predicted memory against torch's profiler: sampling steps, VAEs, and the time of predictions at full size.

Each section is written to ``prediction.md`` as soon as it is done; ``--only`` measures some of them anew.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from _harness import ROOT, enter_host, load_package, peak_bytes
from _sections import Report, Section

load_package()

from headroom.memory.prediction import Card, LiveBytes, Workspaces, fake_mode, named_card  # noqa: E402

MIB = 2**20
CPU = torch.device("cpu")
TITLES = {"steps": "Sampling steps", "vae": "VAE", "size": "Models in their real size", "gpu": "On a GPU"}
INTRODUCTION = """# Prediction of memory

The host's own module runs without data, every storage is followed, and kernels' inner buffers are added by rule. Beside
it: the same tracker on the same work with data (which shows that the operators are the same), and the bytes that
torch's own profiler saw in its allocator, an independent instrument. Errors are those of the activations alone: the
peak without the weights, which are the larger part and no guess. Models are the host's own classes at a smaller width,
with random weights, one thread. The rules for kernels were read off single operators (`tests/unit/test_prediction.py`),
not off these cases."""
STEPS = (
    ("sd15", 1, (256, 256)), ("sd15", 2, (320, 200)), ("sd15", 1, (512, 384)), ("sdxl", 1, (256, 256)),
    ("sdxl", 2, (328, 248)), ("sdxl", 1, (512, 512)), ("sd3", 1, (384, 384)), ("sd3", 3, (208, 272)),
    ("flux", 1, (512, 512)), ("flux", 2, (304, 208)), ("flux2", 1, (512, 512)), ("flux2", 2, (272, 304)),
    ("wan21", 1, (256, 192)), ("wan21", 1, (320, 320)), ("ltxv", 1, (512, 384)), ("ltxv", 2, (256, 320)),
    ("chroma", 1, (384, 256)), ("qwen_image", 1, (384, 256)), ("z_image", 1, (384, 256)), ("lumina2", 1, (384, 256)),
    ("hunyuan_video", 1, (256, 192)), ("aura_flow", 1, (384, 256)), ("cosmos_predict2", 1, (256, 192)),
)  # fmt: skip
HALF = (("sd15", 2), ("sdxl", 2), ("sd3", 4), ("flux", 4), ("wan21", 4), ("ltxv", 4))
CODED = {
    "sd": (1, 4, 64, 56), "flux": (1, 16, 40, 48), "flux2": (1, 128, 24, 16), "wan21": (1, 16, 3, 24, 28),
    "ltx": (1, 128, 3, 10, 8),
}  # fmt: skip
FULL = (
    ("SD1.5, 512 px", "checkpoints/full_sd15", (1, 4, 64, 64), 768, None, 7.0),
    ("SD1.5, 2048 px", "checkpoints/full_sd15", (1, 4, 256, 256), 768, None, 7.0),
    ("SDXL, 1024 px", "diffusion_models/full_sdxl_unet", (1, 4, 128, 128), 2048, 1280, 7.0),
    ("Flux, 1024 px", "diffusion_models/full_flux", (1, 16, 128, 128), 4096, 768, 1.0),
    ("Wan 14B, 832 x 480, 81 frames", "diffusion_models/full_wan14b", (1, 16, 21, 60, 104), 4096, None, 5.0),
)


@dataclass(frozen=True)
class Plan:
    """What the command line asks for."""

    runs: int
    quick: bool
    folder: Path

    def some(self, cases: Any) -> Any:
        return cases[:2] if self.quick else cases


def this_cpu() -> Card:
    return Card("cpu", CPU, int(psutil.virtual_memory().total), threads=torch.get_num_threads())


def followed(modules: list[torch.nn.Module], work: Callable[[], object], given: tuple[Any, ...]) -> int:
    """The tracker's peak on work with data."""
    tracker = LiveBytes("cpu", hidden=Workspaces().hidden(this_cpu()))
    tracker.leave_out(given)
    for module in modules:
        tracker.add([*module.parameters(), *module.buffers()])
    held = tracker.peak = tracker.live
    with tracker:
        work()
    return tracker.peak - held


def row(name: str, weights: str, predicted: int, tracked: int, profiled: int) -> tuple[list[str], float, float]:
    by_tracker, by_profiler = predicted / tracked - 1, predicted / profiled - 1
    cells = [name, weights, *(f"{size / MIB:.2f}" for size in (predicted, tracked, profiled))]
    return [*cells, f"{by_tracker:+.2%}", f"{by_profiler:+.2%}"], abs(by_tracker), abs(by_profiler)


HEADER = ("case", "weights", "predicted, MiB", "tracked", "profiled", "off tracked", "off profiled")


def steps_section(plan: Plan) -> Section:
    from headroom.host.prediction.step import Step, predict_step
    from headroom.tests.host.drawn import drawn
    from headroom.tests.host.families import FAMILIES
    from headroom.tests.host.one_step import one_call

    section, rows = Section(), []
    errors: dict[str, list[tuple[float, float]]] = {"float32": [], "bfloat16": []}
    cases = [(name, batch, size, FAMILIES[name].load(), "float32") for name, batch, size in plan.some(STEPS)]
    cases += [(name, 1, (256, 256), drawn(name, 0.02, depth), "bfloat16") for name, depth in plan.some(HALF)]
    for name, batch, (height, width), model, dtype in cases:
        family = FAMILIES[name]
        latent = family.latent(height, width, batch)
        text = family.conditioning(1), family.conditioning(2)
        predicted = predict_step(Step(model, latent, *text, 3.0), this_cpu()).activations
        work = one_call(model, family, tuple(latent.shape))
        work()
        case = f"{name}, {width} x {height}, batch {batch}"
        cells, *error = row(case, dtype, predicted, followed([model.model], work, ()), peak_bytes(work))
        rows.append(cells)
        errors[dtype].append((error[0], error[1]))
    for dtype, limit in (("float32", 0.02), ("bfloat16", 0.1)):
        tracked, profiled = (max(kind) for kind in zip(*errors[dtype]))
        section.most(f"{dtype}, {len(errors[dtype])} cases: worst against the tracker", 0.5, tracked * 100, "%")
        section.most(f"{dtype}: worst against the profiler", limit * 100, profiled * 100, "%")
    section.table(HEADER, rows)
    return section


def vae_section(plan: Plan) -> Section:
    from headroom.host.prediction.vae import Coding, predict_coding
    from headroom.tests.host.families import load_vae

    section, rows, worst = Section(), [], 0.0
    for name, shape in plan.some(list(CODED.items())):
        vae, latent = load_vae(name), torch.zeros(shape)
        pixels = torch.zeros(9 if len(shape) == 5 else 1, 224, 256, 3)
        for work, coding in (("decode", Coding(vae, latent)), ("encode", Coding(vae, pixels, encodes=True))):
            call = partial(getattr(vae, work), coding.x)
            call()
            predicted = predict_coding(coding, this_cpu()).prediction.activations
            tracked = followed([vae.first_stage_model], call, (coding.x,))
            cells, _, error = row(
                f"{name}, {work}, {tuple(coding.x.shape)}", "float32", predicted, tracked, peak_bytes(call)
            )
            rows.append(cells)
            worst = max(worst, error)
    section.most("worst against the profiler", 2, worst * 100, "%")
    section.table(HEADER, rows)
    return section


def size_section(plan: Plan) -> Section:
    """From headers alone: the files are as long as the real ones and hold no weights."""
    from headroom.tests.host import full_size

    section, rows = Section(), []
    with tempfile.TemporaryDirectory() as folder:
        full_size.write_all(Path(folder))
        for name, file, shape, width, pooled, cfg in plan.some(FULL):
            one = sized(Path(folder) / f"{file}.safetensors", shape, width, pooled, cfg, plan.runs)
            section.most(f"{name}: a prediction", 2, one["seconds"], "s")
            section.most(f"{name}: growth of the process", 300, one["growth"] / MIB, "MiB")
            found = one["prediction"]
            kernels = ", ".join(f"{kernel} x{count}" for kernel, count in found.kernels.items())
            sizes = (f"{size / MIB:.0f}" for size in (found.weights, found.live, found.activations))
            rows.append([name, *sizes, kernels, found.module, f"{one['loading']:.1f} s", f"{one['seconds']:.2f} s"])
    head = ("model", "weights, MiB", "tensors", "with kernels", "attention", "most at", "loading", "prediction")
    section.table(head, rows)
    section.parts.append("For a card of sm86 with 24 GB, 256 tokens of text. Medians; what is kept costs no time.")
    return section


def sized(path: Path, shape: tuple[int, ...], width: int, pooled: int | None, cfg: float, runs: int) -> dict[str, Any]:
    import comfy.sd
    import comfy.utils

    from headroom.host.prediction.header_loading import loading_headers
    from headroom.host.prediction.step import Step, predict_step

    process, mode, card = psutil.Process(), fake_mode(), named_card("sm86", 24.0)
    before, start = process.memory_info().rss, time.perf_counter()
    with loading_headers(mode, card):
        tensors = comfy.utils.load_torch_file(str(path))
        if path.parent.name == "checkpoints":
            model = comfy.sd.load_state_dict_guess_config(tensors, disable_dynamic=True)[0]
        else:
            model = comfy.sd.load_diffusion_model_state_dict(tensors, disable_dynamic=True)
    loading, seconds = time.perf_counter() - start, []
    with mode:
        extra = {"pooled_output": torch.zeros(1, pooled)} if pooled else {}
        text, latent = [[torch.zeros(1, 256, width), extra]], torch.zeros(shape)
    for _ in range(runs):
        start = time.perf_counter()
        prediction = predict_step(Step(model, latent, text, text, cfg), card)
        seconds.append(time.perf_counter() - start)
    growth = process.memory_info().rss - before
    return {"prediction": prediction, "loading": loading, "seconds": statistics.median(seconds), "growth": growth}


SECTIONS: dict[str, Callable[[Plan], Section]] = {"steps": steps_section, "vae": vae_section, "size": size_section}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5, help="predictions per case of the real sizes (default 5)")
    parser.add_argument("--only", metavar="NAME,...", default=",".join(SECTIONS), help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--quick", action="store_true", help="a few cases, into output/: to see whether it runs")
    options = parser.parse_args()
    folder = ROOT / "output" / "bench" if options.quick else Path(__file__).resolve().parent
    folder.mkdir(parents=True, exist_ok=True)
    plan = Plan(1 if options.quick else options.runs, options.quick, folder)
    logging.disable(logging.WARNING)
    enter_host("--cpu")
    import folder_paths

    for name in ("diffusion_models", "vae"):
        folder_paths.add_model_folder_path(name, str(Path(os.environ["HEADROOM_MODELS"]) / "models" / name))
    torch.set_num_threads(1)
    report = Report(plan.folder / "prediction.md", INTRODUCTION, TITLES)
    with torch.inference_mode():
        for name in options.only.split(","):
            report.measure(name, partial(SECTIONS[name], plan), plan.runs)


if __name__ == "__main__":
    main()
