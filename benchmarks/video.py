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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from _harness import enter_host, load_package, machine

load_package()

FRAMES = (81, 321, 1281, 5121)
SMALL, LARGE = (4, 6), (16, 28)  # cells
FAMILIES = ("wan21", "wan22", "ltx", "ltx, windows", "sd")
MIB = 2**20
LOSSLESS, LOSSY = "mkv ffv1", "mp4 h264"
HEAD = f"""# Videos decoded straight to a file

*VAE Decode to Video* on a CPU, small instances of ComfyUI's own classes in float32, one thread, without a Memory
Report; each row is one run in a process of its own. LTX-Video runs both ways: by its module, and in windows, as where
that does not fit. `sd` decodes pictures one by one. **Not measured on a GPU.**

## Memory, and time by the number of frames

Latents of {SMALL[0]} x {SMALL[1]} cells, {LOSSLESS}. Memory: the most anonymous memory (Linux: what lies in no file)
beyond what the process had before, sampled every 20 ms; beside it what was predicted beyond the weights. Time: CPU
seconds a frame, over those of the same way at {FRAMES[0]} frames.

"""
AGAINST = f"""
## Time against the stock decode

Latents of {LARGE[0]} x {LARGE[1]} cells, CPU seconds, encoding the file included, over those of the untiled stock
decode of the same latent in the same process, which goes first and makes no file.

"""


@contextmanager
def anonymous_peak(found: list[int]) -> Iterator[None]:
    """Appends the growth of this process's anonymous memory at its highest."""
    done, most = threading.Event(), [0]

    def anonymous() -> int:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous"))

    def sample() -> None:
        while not done.wait(0.02):
            most[0] = max(most[0], anonymous())

    before = anonymous()
    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        found.append(max(most[0], anonymous()) - before)


@torch.inference_mode()
def measure(family: str, frames: int, cells: Sequence[int], form: str, against: bool) -> dict[str, Any]:
    """One decode to a file; ``against``: after a stock one of the same latent."""
    enter_host("--cpu")
    import folder_paths

    from headroom.host.measure import runs
    from headroom.host.streaming import handed_on
    from headroom.host.video_files.to_file import FileRequest, decode_to_file
    from headroom.tests.host.autoencoders import AUTOENCODERS

    torch.set_num_threads(1)
    name, _, way = family.partition(", ")
    kind = AUTOENCODERS[name]
    vae = kind.load()
    runs.is_reported = lambda prompt: False
    if way:
        handed_on.fits_as_module = lambda *_: False
    per_cell = kind.frames(3) - kind.frames(2) if kind.temporal else 1
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
    peak: list[int] = []
    started = time.process_time()
    with anonymous_peak(peak):
        written = decode_to_file(vae, {"samples": x}, request, 0.0)
    seconds = time.process_time() - started
    row = runs.LOG.rows("", "")[-1]
    counted = next(int(line.split()[0]) for line in written.report.splitlines() if " frames to " in line)
    return {
        "frames": counted,
        "anonymous": peak[0],
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(measure(*options.run)))
        return
    lines = ["| family | frames | anonymous memory | predicted | time a frame |", "|---|---|---|---|---|"]
    for family in FAMILIES:
        first = None
        for frames in FRAMES:
            found = child(family, frames, SMALL, LOSSLESS, False)
            first = first or found["seconds"]
            lines.append(
                f"| {family} | {found['frames']} | {found['anonymous'] / MIB:.0f} MiB |"
                f" {found['predicted'] / MIB:.1f} MiB | {found['seconds'] / first:.2f}x |"
            )
            print(lines[-1], flush=True)
            write(lines, [])
    more = ["| family | frames | file | time |", "|---|---|---|---|"]
    for family in FAMILIES:
        for form in (LOSSLESS, LOSSY):
            found = child(family, FRAMES[0], LARGE, form, True)
            more.append(f"| {family} | {found['frames']} | {form} | {found['ratio']:.2f}x |")
            print(more[-1], flush=True)
            write(lines, more)


def write(lines: Sequence[str], more: Sequence[str]) -> None:
    """What there is so far."""
    text = HEAD + "\n".join(lines) + "\n" + (AGAINST + "\n".join(more) + "\n" if more else "")
    Path(__file__).with_suffix(".md").write_text(f"{text}\n{machine()}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
