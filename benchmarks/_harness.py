"""What the benchmarks share: the package, interleaved runs, peak bytes, the machine's name, the written table."""

from __future__ import annotations

import atexit
import gc
import importlib
import importlib.util
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

WARM_UPS = 3
ROOT = Path(__file__).resolve().parent.parent
Work = Callable[[], object]
CONVOLUTION = "aten::mkldnn_convolution"


def load_package() -> None:
    """Loads the checkout as the package ``headroom``, whatever its folder is called."""
    spec = importlib.util.spec_from_file_location(
        "headroom", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["headroom"] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)


def enter_host(*arguments: str) -> None:
    """Makes the host importable; ``python3 -m tools bench`` says where it is. Its own folders are a temporary place.

    Args:
        arguments: for the host, such as ``--cpu``; it reads the command line when it is imported.
    """
    if "HEADROOM_COMFYUI" not in os.environ:
        raise SystemExit("HEADROOM_COMFYUI is not set: start this by `python3 -m tools bench`")
    base = Path(tempfile.mkdtemp(prefix="headroom-bench-"))
    atexit.register(shutil.rmtree, base, ignore_errors=True)
    before, sys.argv = sys.argv, ["comfyui", *arguments, "--base-directory", str(base)]
    sys.path.insert(0, os.environ["HEADROOM_COMFYUI"])  # before this folder, whose names are not to be the host's
    importlib.import_module("comfy.options").enable_args_parsing()
    importlib.import_module("comfy.cli_args")
    sys.argv = before


def interleaved_cpu_seconds(cases: Mapping[str, Work], runs: int, warm_ups: int = WARM_UPS) -> dict[str, list[float]]:
    """Process CPU seconds of each case, run one after the other, ``runs`` times over, after warming up.

    The first calls of a size pay for pages the allocator later keeps; a model makes thousands of calls.
    """
    for work in list(cases.values()) * warm_ups:
        work()
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(runs):
        for name, work in cases.items():
            start = time.process_time()
            work()
            seconds[name].append(time.process_time() - start)
    return seconds


def median_ratio(seconds: Mapping[str, Sequence[float]], name: str, baseline: str) -> float:
    """Median of one case over median of another, of the same interleaved runs."""
    return statistics.median(seconds[name]) / statistics.median(seconds[baseline])


def peak_bytes(work: Work, scratch: bool = True) -> int:
    """The most bytes alive at once in torch's CPU allocator that ``work`` allocated, its result included.

    Args:
        work: called once.
        scratch: with what oneDNN takes while one of its convolutions runs, which another CPU may not.
    """
    gc.collect()  # what others left must not be freed within: it would count as less
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        result = work()
    del result
    events = recorded.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    if not scratch:
        runs = [(one.start_ns(), one.start_ns() + one.duration_ns()) for one in events if one.name() == CONVOLUTION]
        changes = _without_scratch(changes, sorted(runs))
    live = highest = 0
    for _, change in changes:
        live += change
        highest = max(highest, live)
    return highest


def _without_scratch(changes: Sequence[tuple[int, int]], runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Without what is allocated and freed again within one of ``runs``, which do not overlap."""
    kept: list[tuple[int, int]] = []
    at, here = 0, list[tuple[int, int]]()
    for change in changes:
        while at < len(runs) and runs[at][1] < change[0]:
            kept += here
            here, at = [], at + 1
        if at == len(runs) or change[0] < runs[at][0]:
            kept.append(change)
            continue
        taken = next((one for one in reversed(here) if one[1] == -change[1] > 0), None)
        if taken is None:
            here.append(change)
        else:
            here.remove(taken)
    return kept + here


def measured_cpu(threads: int) -> Any:
    """This CPU as a card whose figures are measured, as ``cli/calibrate.py`` does, with the tests' models at hand."""
    enter_host("--cpu")
    import folder_paths
    import psutil

    from headroom.memory.prediction import Card
    from headroom.memory.speed.measuring import measure

    for name in ("diffusion_models", "vae"):
        folder_paths.add_model_folder_path(name, str(Path(os.environ["HEADROOM_MODELS"]) / "models" / name))
    torch.set_num_threads(threads)
    device = torch.device("cpu")
    total = int(psutil.virtual_memory().total)
    return Card("cpu", device, total, threads=threads, measured=measure(device))


def machine() -> str:
    """CPU, cores, load, torch: what a ratio was measured on."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{_cpu_name()}, {os.cpu_count()} cores{load}, {platform.system()}, torch {torch.__version__}"


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def publish(name: str, text: str) -> None:
    """Prints the result and keeps it beside the benchmark."""
    print(text)
    (Path(__file__).parent / f"{name}.md").write_text(text + "\n", encoding="utf-8")
