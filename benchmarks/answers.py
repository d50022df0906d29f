"""Seconds until an estimate answers: the command, alone and as an ordinary process would end it, and a running server.

The ways take turns; SD1.5 by its name in the catalogue, so that no file is there.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from _harness import ROOT, load_package
from _sections import Report, Section

load_package()

from headroom.tools.demo.__main__ import WORKFLOWS  # noqa: E402
from headroom.tools.demo.twin import stock_twin  # noqa: E402
from headroom.tools.server.client import Client, Workflow  # noqa: E402
from headroom.tools.server.server import Server  # noqa: E402
from headroom.tools.setup.environment import Environment  # noqa: E402

SIDE = 512
COMMAND, ORDINARY = "the command", "the command, collected and taken apart as Python does by itself"
FIRST, OTHER = "a server's first", "a server's second, of another size"
AGAIN = "a server's third, the second once more"
MOST = {COMMAND: 5.0, OTHER: 1.0}
TITLE = "SD1.5, 512 px"
INTRODUCTION = """# Until an estimate answers

*estimate* of text to image with SD1.5, by stock nodes, from the catalogue: by the command, which imports ComfyUI first,
and of a server that runs (`POST /headroom/estimate`). The command turns Python's collector off while it imports, keeps
what it imported out of its sight and has the system take all back at the end; beside it the same as an ordinary
process. Wall seconds of processes and servers that took turns, medians and quartiles."""
AS_ANY_PROCESS = "import sys; sys.path.insert(0, {cli!r}); import estimate; sys.exit(estimate.main())"


def text_to_image(side: int) -> Workflow:
    """The example of SD1.5 by stock nodes, with the public file."""
    workflow = stock_twin(json.loads((WORKFLOWS / "sd15_text_to_image.json").read_text(encoding="utf-8")))
    for node in workflow.values():
        if node["class_type"] == "CheckpointLoaderSimple":
            node["inputs"]["ckpt_name"] = "v1-5-pruned-emaonly-fp16.safetensors"
        if node["class_type"] == "EmptyLatentImage":
            node["inputs"] |= {"width": side, "height": side}
    return workflow


def seconds_of(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def command(start: list[str], file: Path) -> None:
    """Asks a process of its own."""
    end = [str(file), "--comfyui", os.environ["HEADROOM_COMFYUI"], "--base-directory", str(file.parent)]
    subprocess.run([sys.executable, *start, *end], check=True, capture_output=True, cwd=ROOT)


def ask(client: Client, side: int) -> None:
    client.post("/headroom/estimate", {"prompt": text_to_image(side), "vram_gb": 8})


def section(runs: int) -> Section:
    """All ways in turns."""
    cli = ROOT / "cli"
    seconds: dict[str, list[float]] = {name: [] for name in (COMMAND, ORDINARY, FIRST, OTHER, AGAIN)}
    with ExitStack() as stack:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "workflow.json"
        file.write_text(json.dumps(text_to_image(SIDE)), encoding="utf-8")
        commands = {
            COMMAND: [str(cli / "estimate.py")],
            ORDINARY: ["-c", AS_ANY_PROCESS.format(cli=str(cli))],
        }
        command(commands[COMMAND], file)  # what the disk has to give first
        for _ in range(runs):
            for name, start in commands.items():
                seconds[name].append(seconds_of(partial(command, start, file)))
            with Server(Environment.from_variables(), cpu=True) as server:
                client = Client(server.url)
                client.system_stats()
                seconds[FIRST].append(seconds_of(partial(ask, client, SIDE)))
                for name in (OTHER, AGAIN):
                    seconds[name].append(seconds_of(partial(ask, client, SIDE + 128)))
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    result = Section()
    for name, most in MOST.items():
        result.most(name, most, middle[name], "s")
    rows = [
        [name, f"{middle[name]:.2f}", "{:.2f} to {:.2f}".format(*statistics.quantiles(values, n=4)[::2])]
        for name, values in seconds.items()
    ]
    result.table(("way", "seconds", "quartiles"), rows)
    result.parts.append(f"The command takes {middle[COMMAND] / middle[ORDINARY]:.2f} of the ordinary process's time.")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    report = Report(Path(__file__).with_suffix(".md"), INTRODUCTION, {"answers": TITLE})
    report.measure("answers", partial(section, options.runs), options.runs)


if __name__ == "__main__":
    main()
