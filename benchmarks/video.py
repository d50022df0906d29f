"""Videos decoded straight to a file: memory and time by the number of frames; writes ``video.md``.

Each run is a process of its own, so that nothing that an earlier one left in memory hides what it takes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import linear_regression, mean, median, quantiles
from typing import Any

import torch
from _harness import enter_host, load_package
from _sections import Report, Section

load_package()

FRAMES = (81, 321, 1281, 5121)
SMALL, LARGE = (4, 6), (16, 28)  # cells
LARGE_ONES, MIDDLE = ("wan21", "wan22", "ltx", "ltx, windows", "cogvideox", "mochi", "sd"), 81  # frames
FULL, FULL_WIDTH, FEWER = "wan21, full width", 96, 17  # as it is published; frames
BEFORE = (33, 89, 57, 73)  # frames that a server has decoded before, so that it is warm
SERVERS = 3
MIB = 2**20
LTX_BUDGET = 0.05  # GB, less than its module needs for 81 frames
BUDGETS = {"cogvideox, strips": 0.045}  # GB, the same
LOSSLESS, LOSSY, NO_FILE = "mkv ffv1", "mp4 h264", "no file"
INTRODUCTION = f"""# Videos decoded straight to a file

*VAE Decode to Video* on a CPU, small instances of ComfyUI's own classes in float32, one thread, without a Memory
Report; each row is one run in a process of its own.

By the number of frames: latents of {SMALL[0]} x {SMALL[1]} cells, {LOSSLESS}. Memory: the most anonymous memory
(Linux: what lies in no file) beyond what the process had before, sampled every 20 ms; beside it what was predicted
beyond the weights. Where less grows than was predicted, memory that the process had freed before was used again. Time:
CPU seconds a frame, over those of the same way at {FRAMES[0]} frames, what goes before the first frame included."""
TITLES = {
    "wan21": "Wan 2.1, in ComfyUI's own chunks",
    "wan22": "Wan 2.2, in ComfyUI's own chunks",
    "ltx": "LTX-Video, eight latent frames at a time, by its module",
    "ltx, windows": "LTX-Video, in windows of frames, as where its module does not fit",
    "hunyuan_video15": "HunyuanVideo 1.5, in ComfyUI's own chunks behind its middle, which sees all frames",
    "cogvideox": "CogVideoX, in ComfyUI's own chunks behind its first blocks, which see all frames",
    "cogvideox, strips": "CogVideoX, in strips, within a budget that its module does not fit",
    "mochi": "Mochi, two latent frames at a time, by its module",
    "cosmos": "Cosmos, two latent frames at a time, by its module, behind its middle, which sees all frames",
    "sd": "Pictures of SD, one by one",
    "server": "A whole server",
    "time": "Time against the stock decode",
}
# File, node of an empty latent, pixels of a cell, budget in GB (0: all there is).
ON_SERVER = {
    "Wan 2.1, in ComfyUI's own chunks": ("tiny_vae_wan21.safetensors", "EmptyHunyuanLatentVideo", 8, 0.0),
    "LTX-Video, in windows of frames": ("tiny_vae_ltx.safetensors", "EmptyLTXVLatentVideo", 32, LTX_BUDGET),
}
REPORT = Report(Path(__file__).with_suffix(".md"), INTRODUCTION, TITLES)


def anonymous(process: int | str) -> int:
    """Bytes of a process's memory that lie in no file."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous"))


@contextmanager
def anonymous_growth(found: list[int], process: int | str = "self") -> Iterator[None]:
    """Appends the growth of a process's anonymous memory, every 20 ms and at the end."""
    done = threading.Event()

    def sample() -> None:
        while not done.wait(0.02):
            found.append(anonymous(process) - before)

    before = anonymous(process)
    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        found.append(anonymous(process) - before)


@torch.inference_mode()
def measure(family: str, frames: int, cells: Sequence[int], form: str, against: bool) -> dict[str, Any]:
    """One decode to a file; ``against``: after a stock one of the same latent."""
    enter_host("--cpu")
    import folder_paths

    from headroom.host.measure import runs
    from headroom.host.streaming import host_chunks
    from headroom.host.video_files.to_file import FileRequest, decode_to_file
    from headroom.tests.host.autoencoders import AUTOENCODERS, wan21
    from headroom.video.writer import SegmentWriter

    torch.set_num_threads(1)
    name, _, way = family.partition(", ")
    kind = wan21(width=FULL_WIDTH) if family == FULL else AUTOENCODERS[name]
    assert kind is not None
    vae = kind.build()
    runs.is_reported = lambda prompt: False
    if way == "windows":
        host_chunks.fits_as_module = lambda *_: False
    if form == NO_FILE:  # a frame of each window is written, that there is a file
        write, form = SegmentWriter.add, LOSSLESS
        SegmentWriter.add = lambda writer, frames: write(writer, frames[:1])  # type: ignore[method-assign]
    per_cell = (kind.frames(5) - kind.frames(3)) // 2 if kind.temporal else 1
    in_time = {"cells_in_time": 1 + (frames - 1) // per_cell} if kind.temporal else {"batch": frames}
    x = kind.latent(*cells, **in_time)
    request = FileRequest(form, 24.0, -1.0, "bench", None, {})
    Path(folder_paths.get_output_directory()).mkdir(parents=True, exist_ok=True)
    stock = 0.0
    if against:
        vae.decode(x[:1] if not kind.temporal else x[:, :, :2])
        started = time.process_time()
        vae.decode(x)
        stock = time.process_time() - started
    grown: list[int] = []
    # Looking at the memory takes CPU seconds of its own, by the pages that there are.
    looked_at = nullcontext(grown.append(0)) if against else anonymous_growth(grown)
    started = time.process_time()
    with looked_at:
        written = decode_to_file(vae, {"samples": x}, request, BUDGETS.get(family, 0.0))
    seconds = time.process_time() - started
    row = runs.LOG.rows("", "")[-1]
    counted = next(int(line.split()[0]) for line in written.report.splitlines() if " frames to " in line)
    return {
        "frames": counted,
        "anonymous": max(grown),
        "predicted": row.predicted.activations if row.predicted else 0,
        "seconds": seconds / counted,
        "ratio": seconds / stock if stock else 0.0,
    }


def child(*arguments: object) -> dict[str, Any]:
    """A run in a process of its own."""
    command = [sys.executable, __file__, "--run", json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def by_frames(family: str) -> Section:
    """Memory and time by the number of frames."""
    section, rows = Section(), []
    found = [child(family, frames, SMALL, LOSSLESS, False) for frames in FRAMES]
    for one in found:
        rows.append((
            one["frames"], f"{one['anonymous'] / MIB:.0f} MiB",
            f"{one['predicted'] / MIB:.1f} MiB" if one["predicted"] else "not predicted",
            f"{one['seconds'] / found[0]['seconds']:.2f}x",
        ))  # fmt: skip
    section.table(("frames", "anonymous memory", "predicted", "time a frame"), rows)
    return section


def against_stock() -> Section:
    """Time beside the untiled stock decode of the same latent in the same process."""
    section = Section()
    section.parts.append(
        f"Latents of {LARGE[0]} x {LARGE[1]} cells, CPU seconds over those of the untiled stock decode of the same"
        " latent in the same process, which goes first and makes no file: to frames alone, of which one a window is"
        " written, and with all of them encoded. These networks are small: of a real one the file, and what is done"
        f" with each frame, is a smaller part, as the last row shows ({FULL_WIDTH} channels, as Wan 2.1 is published)."
    )
    rows = []
    for family, frames in (*((family, MIDDLE) for family in LARGE_ONES), (FULL, FEWER)):
        found = [child(family, frames, LARGE, form, True) for form in (NO_FILE, LOSSLESS, LOSSY)]
        rows.append((family, found[1]["frames"], *(f"{one['ratio']:.2f}x" for one in found)))
    section.table(("family", "frames", "frames alone", LOSSLESS, LOSSY), rows)
    return section


def on_server() -> Section:
    """Memory of a server by the number of frames, over HTTP; each number on servers of its own."""
    section = Section()
    section.parts.append(
        "Anonymous memory of a server while it decodes to a file, everything included, looked at every 20 ms: the most,"
        " what it has for nine tenths of the time at most, and each over the first row's; along: how far a line through"
        " all looks rises from the first to the last, over their mean. The memory sways by some percent, so that a"
        " longer decode meets a higher most; growth would show in all of them. Prompts over HTTP, a Memory"
        f" Report behind each. Each number of frames on {SERVERS} servers of its own, which had decoded"
        f" {', '.join(map(str, BEFORE))} frames before, since a server's memory grows with its first prompts; the"
        " middle of them, and the least and the most. LTX-Video with a budget of"
        f" {LTX_BUDGET} GB, less than its module needs. Empty latents of {SMALL[0]} x {SMALL[1]} cells, {LOSSLESS}."
    )
    rows = []
    for name, graph in ON_SERVER.items():
        found: dict[int, list[tuple[float, float, float]]] = {frames: [] for frames in FRAMES}
        for _ in range(SERVERS):
            for frames, looks in found.items():
                looks.append(memory_of_a_server(graph, frames))
                print(f"{name}, {frames} frames: {looks[-1]}", file=sys.stderr, flush=True)
        first_most, first_mostly, _ = (median(one) for one in zip(*found[FRAMES[0]], strict=True))
        for frames, looks in found.items():
            most, mostly, rise = zip(*looks, strict=True)
            row = [name, frames, f"{median(most):.0f} MiB", f"{min(most):.0f} to {max(most):.0f}"]
            row += [f"{median(most) / first_most:.3f}x", f"{median(mostly):.0f} MiB"]
            rows.append((*row, f"{median(mostly) / first_mostly:.3f}x", f"{median(rise):+.1%}"))
    columns = ("way", "frames", "at most", "of the servers", "over the first", "nine tenths", "over the first", "along")
    section.table(columns, rows)
    return section


def memory_of_a_server(graph: tuple[str, str, int, float], frames: int) -> tuple[float, float, float]:
    """Anonymous memory while a new server decodes so many frames: MiB at most, and for nine tenths of the time; the
    rise of a line through all of it, over its mean."""
    from headroom.tools.server.client import Client
    from headroom.tools.server.server import Server
    from headroom.tools.setup.environment import Environment

    file, empty, pixels, budget = graph
    with Server(Environment.from_variables(), cpu=True, variables={"OMP_NUM_THREADS": "1"}) as server:
        client, grown = Client(server.url, timeout=600), list[int]()
        for few in BEFORE:
            client.free()
            client.run(decode_graph(file, empty, pixels, few, budget), timeout=1800)
        client.free()
        before = anonymous(server.pid)
        with anonymous_growth(grown, server.pid):
            client.run(decode_graph(file, empty, pixels, frames, budget), timeout=1800)
        rise = linear_regression(range(len(grown)), grown).slope * len(grown) / (before + mean(grown))
        return (before + max(grown)) / MIB, (before + quantiles(grown, n=10)[-1]) / MIB, rise


def decode_graph(file: str, empty: str, pixels: int, frames: int, budget: float) -> dict[str, Any]:
    """An empty latent, decoded to a file."""
    size = {"height": SMALL[0] * pixels, "width": SMALL[1] * pixels, "length": frames, "batch_size": 1}
    decode = {
        "samples": ["2", 0], "vae": ["1", 0], "format": LOSSLESS, "fps": 24.0, "crf": -1.0,
        "filename_prefix": "bench", "vram_budget_gb": budget,
    }  # fmt: skip
    return {
        "1": {"class_type": "VAELoader", "inputs": {"vae_name": file}},
        "2": {"class_type": empty, "inputs": size},
        "3": {"class_type": "HeadroomVAEDecodeVideo", "inputs": decode},
        "4": {"class_type": "HeadroomReport", "inputs": {"anything": ["3", 0]}},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument(
        "--only", nargs="+", choices=list(TITLES), default=list(TITLES), help="sections to measure anew"
    )
    options = parser.parse_args()
    if options.run:
        print(json.dumps(measure(*options.run)))
        return
    for name in options.only:
        work = {"time": against_stock, "server": on_server}.get(name, partial(by_frames, name))
        REPORT.measure(name, work, 1)


if __name__ == "__main__":
    main()
