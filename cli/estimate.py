"""Predicts the memory of a workflow file: its stages on a card, from the headers of its models.

    python3 cli/estimate.py WORKFLOW.json --gpu sm86 --vram 8

Exit status: 0 it fits, 3 it does not, 2 the question cannot be answered, or not wholly.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FITS, CANNOT_ANSWER, DOES_NOT_FIT = 0, 2, 3
GB = 2**30


class BadWorkflow(Exception):
    """A file that is no workflow in the API format; the message says what to do."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="estimate", description=(__doc__ or "").partition("\n")[0])
    top.add_argument("workflow", type=Path, metavar="WORKFLOW.json", help="in the API format (menu: Export (API))")
    top.add_argument("--gpu", default="sm86", help="sm75, sm80, sm86 (default), sm89, sm90, sm120")
    top.add_argument("--vram", type=float, default=8.0, metavar="GB", help="of the card (default 8)")
    top.add_argument("--ram", type=float, default=0.0, metavar="GB", help="of the machine (default: not asked)")
    top.add_argument("--limit", type=float, default=0.85, help="share of the card that may be used (default 0.85)")
    top.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    top.add_argument("--comfyui", metavar="FOLDER", help="where ComfyUI is, if the pack is not in it")
    top.add_argument("--base-directory", metavar="FOLDER", help="whose models and input count, as in ComfyUI")
    return top


def read_workflow(path: Path) -> dict[str, dict[str, Any]]:
    """The nodes of a file in the API format.

    Raises:
        BadWorkflow: it cannot be read, or is in the format of the browser.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadWorkflow(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadWorkflow(f"{path} is no JSON: {error}") from error
    if isinstance(content, dict) and isinstance(content.get("nodes"), list):
        raise BadWorkflow(f"{path} is in the browser's format: export it by the menu's Export (API)")
    nodes = content.get("prompt", content) if isinstance(content, dict) else None
    if not isinstance(nodes, dict) or not all(
        isinstance(node, dict) and "class_type" in node and isinstance(node.get("inputs"), dict)
        for node in nodes.values()
    ):
        raise BadWorkflow(f"{path} is no ComfyUI workflow: every entry needs class_type and inputs")
    return {str(number): node for number, node in nodes.items()}


def answer(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """The answer as numbers and as text."""
    workflow = read_workflow(options.workflow)
    host = _sibling("host")
    host.enter(host.find_comfyui(options.comfyui), options.base_directory)
    prediction = importlib.import_module("headroom.memory.prediction")
    dry_run = importlib.import_module("headroom.host.dry_run")
    nodes = importlib.import_module("headroom.nodes").NODES
    torch = importlib.import_module("torch")
    card = prediction.named_card(options.gpu, options.vram)
    with torch.inference_mode():
        run = dry_run.DryRun(workflow, card, ours={node.GET_SCHEMA().node_id: node for node in nodes}).run()
    forecast = run.forecast(options.limit, int(options.ram * GB))
    unknown = [f"node {number}: {why}" for number, why in run.unknown.items()]
    if not run.stages:
        raise BadWorkflow(
            "nothing to predict in this workflow: " + ("; ".join(unknown) or "no sampler, no VAE, no text")
        )
    notes = tuple(dict.fromkeys([*run.notes, *(f"not followed: {line}" for line in unknown)]))
    if not run.complete:
        notes = ("INCOMPLETE: some of what takes memory was not followed; it may need more", *notes)
    return _numbers(forecast, unknown) | {"complete": run.complete}, prediction.render_forecast(forecast, notes)


def _numbers(forecast: Any, unknown: list[str]) -> dict[str, Any]:
    return {
        "verdict": forecast.verdict.value,
        "card": forecast.card.name,
        "allowed_gb": forecast.allowed / GB,
        "peak_gb": forecast.peak / GB,
        "least_vram_gb": forecast.least / GB,
        "activations_gb": forecast.activations / GB,
        "streamed_gb_per_step": forecast.streamed_per_step / GB,
        "ram_gb": forecast.ram_needed / GB,
        "stages": [
            {
                "work": stage.work,
                "method": stage.method,
                "weights_gb": stage.weights / GB,
                "activations_gb": stage.activations / GB,
                "peak_gb": stage.peak / GB,
                "module": stage.prediction.module,
                "predicted": not stage.doubt,
            }
            for stage in forecast.stages
        ],
        "unknown": unknown,
    }


def _sibling(name: str) -> Any:
    """A file beside this one, whether this is run as a script or imported."""
    spec = importlib.util.spec_from_file_location(f"headroom_cli_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(arguments: Sequence[str] | None = None) -> int:
    """Answers, and returns the exit status."""
    options = parser().parse_args(arguments)
    try:
        numbers, text = answer(options)
    except Exception as error:
        known = isinstance(error, (BadWorkflow, ValueError)) or type(error).__name__ == "NoHost"
        if not known:
            raise
        print(error, file=sys.stderr)
        return CANNOT_ANSWER
    print(json.dumps(numbers) if options.json else text)
    if numbers["verdict"] == "does_not_fit":
        return DOES_NOT_FIT
    return FITS if numbers["complete"] else CANNOT_ANSWER


if __name__ == "__main__":
    sys.exit(main())
