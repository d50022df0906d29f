"""Measures what the convolutions of a workflow hold inside on this machine's card; predictions use it from then on.

    python3 cli/calibrate.py WORKFLOW.json

It takes about a minute, and as much memory as the largest of them. Not tried on a GPU yet.
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
else:  # as a script
    import files

    import host

MEASURED, CANNOT_MEASURE = 0, 2
MIB = 2**20
ROWS = 20


class NothingToMeasure(Exception):
    """There is nothing here to measure; the message says why."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="calibrate", description=(__doc__ or "").partition("\n")[0])
    top.add_argument("workflow", type=Path, metavar="WORKFLOW.json", help="in either format")
    top.add_argument("--seconds", type=float, default=60.0, help="begin no measurement after them (default 60)")
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
    """Collects, measures, writes the file; what was found as text."""
    content = files.read(options.workflow)
    need_cuda()
    host.enter(host.find_comfyui(options.comfyui), options.base_directory, cpu=False)
    calibrated = importlib.import_module("headroom.host.measure.calibrated")
    calibration = importlib.import_module("headroom.memory.prediction.calibration")
    card = this_card()
    signatures = convolutions_of(content, card)
    found = calibration.calibrate(signatures, card.device, options.seconds)
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
    except (NothingToMeasure, host.NoHost, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return CANNOT_MEASURE
    return MEASURED


if __name__ == "__main__":
    sys.exit(main())
