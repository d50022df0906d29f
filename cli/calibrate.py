"""Measures this machine: how fast its device is, and what a workflow's convolutions hold inside on its card.

    python3 cli/calibrate.py                  the speed, in about 40 s; of a card or of a CPU
    python3 cli/calibrate.py WORKFLOW.json    and the convolutions of a workflow, in about a minute; of CUDA's cards

Predictions use it from then on. The first takes 1 GB, the second as much as the largest convolution. Not tried on a
GPU.
Exit status: 0 measured, 2 it cannot be.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from . import files, host
    from .waiting import waiting_for
else:  # as a script
    import files
    from waiting import waiting_for

    import host

MEASURED, CANNOT_MEASURE = 0, 2
MIB = 2**20
ROWS = 20
EXAMPLES = """examples:
  python3 cli/calibrate.py                   what this machine does in a second, for predictions of time
  python3 cli/calibrate.py workflow.json     what the convolutions of this workflow keep on this NVIDIA card as well

exit status: 0 measured, 2 there is nothing to measure or it could not start"""


class NothingToMeasure(Exception):
    """There is nothing here to measure; the message says why."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="calibrate",
        description=(__doc__ or "").partition("\n")[0],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("workflow", type=Path, nargs="?", metavar="WORKFLOW.json", help="in either format")
    top.add_argument("--seconds", type=float, default=60.0, help="begin no convolution after them (default 60)")
    top.add_argument("--cpu", action="store_true", help="the CPU, though there is a card")
    top.add_argument("--comfyui", metavar="FOLDER", help="where ComfyUI is, if the pack is not in it")
    top.add_argument("--base-directory", metavar="FOLDER", help="whose models, input and user count, as in ComfyUI")
    return top


def need_cuda() -> None:
    """
    Raises:
        NothingToMeasure: torch finds no CUDA device.
    """
    if not importlib.import_module("torch").cuda.is_available():
        raise NothingToMeasure("no CUDA device here: calibration measures the card of the machine it runs on")


def measure(options: argparse.Namespace) -> str:
    """Measures, writes the files; what was found as text."""
    content = None if options.workflow is None else files.read(options.workflow)
    if content is not None:
        need_cuda()
    torch = importlib.import_module("torch")
    has_card = torch.accelerator.is_available() if hasattr(torch, "accelerator") else torch.cuda.is_available()
    with waiting_for("importing ComfyUI"):
        host.enter(host.find_comfyui(options.comfyui), options.base_directory, cpu=options.cpu or not has_card)
    with waiting_for("measuring this machine, which takes less than a minute"):
        lines = list(measure_speed())
    if content is not None:
        with waiting_for(f"measuring its convolutions, which takes up to {options.seconds:g} s"):
            lines += ["", measure_convolutions(content, options.seconds)]
    return "\n".join(lines)


def measure_speed() -> Iterable[str]:
    """Measures the device that the host works on; a line for each figure."""
    measuring = importlib.import_module("headroom.memory.speed.measuring")
    kept = importlib.import_module("headroom.memory.speed.kept")
    path = importlib.import_module("headroom.host.measure.speeds").speed_path()
    device = importlib.import_module("comfy.model_management").get_torch_device()
    key = kept.device_key(device)
    try:
        speed = measuring.measure(device)
    except RuntimeError as error:  # no room, most of all
        said = str(error).strip().partition("\n")[0]
        raise NothingToMeasure(
            f"{key} could not be measured: {said}; close what uses it, such as a ComfyUI that runs, and try again"
        ) from error
    kept.save_figures(path, key, speed)
    yield key
    for (kind, dtype), rate in speed.rates.items():
        yield f"{rate / 1e12:10.3f}  10^12 operations a second: {kind} in {str(dtype).removeprefix('torch.')}"
    yield f"{speed.bandwidth / 1e9:10.1f}  GB a second read and written"
    yield f"{1e6 * speed.dispatch:10.1f}  microseconds to start a kernel"
    if speed.functions:
        yield f"{speed.functions / 1e6:10.1f}  million functions (exp, gelu) a second"
    if speed.page:
        yield f"{1 / speed.page / 1e9:10.2f}  GB a second of memory that the system gives anew"
    if speed.link:
        yield f"{speed.link / 1e9:10.1f}  GB a second from the machine's memory"
    yield f"kept in {path}"


def measure_convolutions(content: dict[str, Any], seconds: float) -> str:
    """Collects a workflow's convolutions, measures them, writes the file; what was found as text."""
    calibrated = importlib.import_module("headroom.host.measure.calibrated")
    calibration = importlib.import_module("headroom.memory.prediction.calibration")
    card = this_card()
    signatures = convolutions_of(content, card)
    found = calibration.calibrate(signatures, card.device, seconds)
    key, path = calibration.Key.of(card.device), calibrated.calibration_path()
    calibration.save(path, key, found)
    return "\n".join([str(key), *table(found, card), "", f"kept in {path}"])


def this_card() -> Any:
    """As the node Will It Fit? sees it."""
    device = importlib.import_module("comfy.model_management").get_torch_device()
    choice = importlib.import_module("headroom.memory.prediction").THIS_MACHINE
    return importlib.import_module("headroom.host.prediction.stages").chosen_card(choice, 0.0, device)


def convolutions_of(content: dict[str, Any], card: Any) -> set[str]:
    """Signatures of the convolutions that a workflow's predictions meet.

    Raises:
        NothingToMeasure: it has none.
        ValueError: nothing of it can be predicted.
    """
    workflows = importlib.import_module("headroom.host.workflow.estimate")
    calibrated = importlib.import_module("headroom.host.measure.calibrated")
    nodes = importlib.import_module("headroom.nodes").NODES
    ours = {node.GET_SCHEMA().node_id: node for node in nodes}
    with importlib.import_module("torch").inference_mode(), calibrated.collecting() as seen:
        answer = workflows.estimate_workflow(files.as_api(content, ours), card, 1.0, 0, ours)
    if not seen:
        raise NothingToMeasure("; ".join(("no convolution in this workflow was met", *answer.unknown)))
    found: set[str] = seen
    return found


def table(found: Any, card: Any) -> Iterable[str]:
    """A line per convolution, those that hold most first; what is kept, and what is missing."""
    prediction = importlib.import_module("headroom.memory.prediction")
    by_rule = importlib.import_module("headroom.memory.prediction.calibration").by_rule
    yield f"{'measured':>10} {'by rule':>10}  MiB that a convolution holds inside"
    largest = sorted(found.convolutions.items(), key=lambda one: one[1], reverse=True)
    for signature, size in largest[:ROWS]:
        rule = by_rule(prediction.ConvolutionCall.parse(signature), card)
        yield f"{size / MIB:10.1f} {rule / MIB:10.1f}  {signature}"
    if largest[ROWS:]:
        yield f"… and {len(largest) - ROWS} that hold less"
    if found.product is not None:
        yield f"{found.product / MIB:10.1f} {prediction.DOCUMENTED.constant(card) / MIB:10.1f}  cuBLAS keeps"
    if found.left:
        yield f"no time for {len(found.left)} smaller ones: give it more --seconds"
    for signature, reason in found.failed.items():
        yield f"not run: {signature}: {reason}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, and returns the exit status."""
    options = parser().parse_args(arguments)
    try:
        print(measure(options))
    except (NothingToMeasure, host.NoHost, ModuleNotFoundError, ValueError, OSError) as error:
        print(host.why(error), file=sys.stderr)
        return CANNOT_MEASURE
    return MEASURED


if __name__ == "__main__":
    sys.exit(main())
