"""Predicts the memory of a workflow file: its stages on a card, from the headers of its models.

    python3 cli/estimate.py WORKFLOW.json --gpu sm86 --vram 8

Exit status: 0 it fits, 3 it does not, 2 the question cannot be answered, or not wholly.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from ..graph import settings
    from . import files, host
else:  # as a script
    import files

    import host

    settings = importlib.import_module("headroom.graph.settings")

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


def answer(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """The answer as numbers and as text.

    Raises:
        ValueError: an option or the workflow is not usable.
        NoHost: there is no ComfyUI.
    """
    content = files.read(options.workflow)
    _check(options)
    host.enter(host.find_comfyui(options.comfyui), options.base_directory)
    prediction = importlib.import_module("headroom.memory.prediction")
    workflows = importlib.import_module("headroom.host.workflow.estimate")
    nodes = importlib.import_module("headroom.nodes").NODES
    torch = importlib.import_module("torch")
    card = prediction.named_card(options.gpu, options.vram)
    ours = {node.GET_SCHEMA().node_id: node for node in nodes}
    with torch.inference_mode():
        found = workflows.estimate_workflow(
            files.as_api(content, ours), card, options.limit, int(options.ram * GB), ours
        )
    return found.numbers, found.text


def _check(options: argparse.Namespace) -> None:
    """
    Raises:
        ValueError: an option that makes no sense.
    """
    settings.check_choice("--gpu", options.gpu, settings.CARDS)
    settings.check_size("--vram", options.vram)
    settings.check_size("--ram", options.ram)
    settings.check_share("--limit", options.limit)
    if not options.vram:
        raise ValueError(f"--vram: say how many GB the {options.gpu} card has")


def main(arguments: Sequence[str] | None = None) -> int:
    """Answers, and returns the exit status."""
    options = parser().parse_args(arguments)
    try:
        numbers, text = answer(options)
    except (ValueError, host.NoHost) as error:
        print(error, file=sys.stderr)
        return CANNOT_ANSWER
    print(json.dumps(numbers) if options.json else text)
    if numbers["verdict"] == "does_not_fit":
        return DOES_NOT_FIT
    return FITS if numbers["complete"] else CANNOT_ANSWER


if __name__ == "__main__":
    sys.exit(main())
