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


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="estimate", description=(__doc__ or "").partition("\n")[0])
    top.add_argument("workflow", type=Path, metavar="WORKFLOW.json", help="as saved, or exported (API)")
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
    files = _sibling("files")
    content = files.read(path)
    if files.is_ui(content):
        raise files.BadWorkflow(f"{path} is in the browser's format: export it by the menu's Export (API)")
    return api_nodes(content, {})


def api_nodes(content: dict[str, Any], ours: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The nodes of a file in the API format; that of the browser is converted, for which the host must be there.

    Raises:
        ValueError: the browser's format cannot be converted.
    """
    files = _sibling("files")
    if not files.is_ui(content):
        return {str(number): node for number, node in files.api_nodes(content).items()}
    converted: dict[str, dict[str, Any]] = importlib.import_module("headroom.host.ui_workflow").to_api(content, ours)
    return converted


def answer(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """The answer as numbers and as text."""
    content = _sibling("files").read(options.workflow)
    host = _sibling("host")
    host.enter(host.find_comfyui(options.comfyui), options.base_directory)
    prediction = importlib.import_module("headroom.memory.prediction")
    workflows = importlib.import_module("headroom.host.workflow_estimate")
    nodes = importlib.import_module("headroom.nodes").NODES
    torch = importlib.import_module("torch")
    card = prediction.named_card(options.gpu, options.vram)
    ours = {node.GET_SCHEMA().node_id: node for node in nodes}
    with torch.inference_mode():
        found = workflows.estimate_workflow(api_nodes(content, ours), card, options.limit, int(options.ram * GB), ours)
    return found.numbers, found.text


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
        known = isinstance(error, ValueError) or type(error).__name__ == "NoHost"
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
