"""Predicts the memory of a workflow file: its stages on a card, from the headers of its models.

    python3 cli/estimate.py WORKFLOW.json --gpu "rtx 3060 12gb"

Exit status: 0 it fits, 3 it does not, 2 the question cannot be answered, or not wholly.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from ..graph import cards, settings
    from . import asking, files, host, process
    from .waiting import waiting_for
else:  # as a script
    import asking
    import files
    import process
    from waiting import waiting_for

    import host

    cards, settings = (importlib.import_module(f"headroom.graph.{name}") for name in ("cards", "settings"))

FITS, CANNOT_ANSWER, DOES_NOT_FIT = 0, 2, 3
GB = 2**30
CARD, MEMORY = "sm86", 8.0  # that is asked about where nothing is said
EXAMPLES = """examples:
  python3 cli/estimate.py workflow.json                            a card of the RTX 30 series with 8 GB
  python3 cli/estimate.py workflow.json --gpu "rtx 4060 ti 16gb"   a card by its name
  python3 cli/estimate.py workflow.json --gpu sm89 --vram 6        by its kernels and memory, as of a laptop
  python3 cli/estimate.py workflow.json --ram 16 --json            the machine's memory too; for programs
  python3 cli/estimate.py workflow.json --server http://127.0.0.1:8188   a ComfyUI that runs, and its own card: faster

exit status: 0 it fits, 3 it does not, 2 it cannot be said, or not wholly"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="estimate",
        description=(__doc__ or "").partition("\n")[0],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("workflow", type=Path, metavar="WORKFLOW.json", help="as saved, or exported (API)")
    top.add_argument("--gpu", help=f"a card's name, or sm75, sm80, sm86, sm89, sm90, sm120 (default {CARD})")
    top.add_argument("--vram", type=float, metavar="GB", help="of the card (default: what its name says, else 8)")
    top.add_argument("--ram", type=float, default=0.0, metavar="GB", help="of the machine (default: not asked)")
    top.add_argument("--limit", type=float, default=0.85, help="share of the card that may be used (default 0.85)")
    top.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    top.add_argument("--server", metavar="URL", help="ask a ComfyUI that runs there, by default for its own card")
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
    if options.server is not None:
        return _of_a_server(options, content)
    asked = _checked(options)
    with waiting_for("importing ComfyUI"):
        host.enter(host.find_comfyui(options.comfyui), options.base_directory, kinds=files.kinds(content))
    prediction = importlib.import_module("headroom.memory.prediction")
    workflows = importlib.import_module("headroom.host.workflow.estimate")
    nodes = importlib.import_module("headroom.nodes").NODES
    torch = importlib.import_module("torch")
    process.imported()
    card = replace(prediction.named_card(asked.kernels, asked.vram_gb), name=asked.title)
    ours = {node.GET_SCHEMA().node_id: node for node in nodes}
    with waiting_for("going through the workflow"), torch.inference_mode():
        found = workflows.estimate_workflow(
            files.as_api(content, ours), card, options.limit, int(options.ram * GB), ours
        )
    return found.numbers, found.text


def _of_a_server(options: argparse.Namespace, content: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """As :func:`answer`, from a ComfyUI that runs."""
    if options.comfyui is not None or options.base_directory is not None:
        raise ValueError("--server: that ComfyUI has its own folders; leave --comfyui and --base-directory out")
    body = {"prompt": files.api_nodes(content), "limit": options.limit}
    if options.ram:
        body["ram_gb"] = options.ram
    if options.gpu is not None or options.vram is not None:
        asked = _checked(options)
        body["vram_gb"] = asked.vram_gb
        body |= {"gpu": asked.kernels} if options.gpu is not None else {}
    settings.check_share("--limit", options.limit)
    settings.check_size("--ram", options.ram)
    with waiting_for(f"asking {options.server}"):
        found = asking.ask(options.server, body)
    text = str(found.pop("text", ""))
    found.pop("notes", None)
    return found, text


def _checked(options: argparse.Namespace) -> cards.KnownCard:
    """The card, whose memory is known.

    Raises:
        ValueError: an option that makes no sense.
    """
    if options.vram is not None:
        settings.check_size("--vram", options.vram)
    settings.check_size("--ram", options.ram)
    settings.check_share("--limit", options.limit)
    known: cards.KnownCard = cards.known_card("--gpu", options.gpu or CARD, options.vram)
    if known.vram_gb is None:
        return known._replace(vram_gb=MEMORY)
    if not known.vram_gb:
        raise ValueError(f"--vram: say how many GB the {options.gpu or CARD} card has")
    return known


def _rounded(value: Any) -> Any:
    """Numbers of GB to a thousandth."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return round(value, 3) if isinstance(value, float) else value


def main(arguments: Sequence[str] | None = None) -> int:
    """Answers, and returns the exit status."""
    options = parser().parse_args(arguments)
    try:
        numbers, text = answer(options)
    except (ValueError, host.NoHost, ModuleNotFoundError) as error:
        print(host.why(error), file=sys.stderr)
        return CANNOT_ANSWER
    print(json.dumps(_rounded(numbers)) if options.json else text)
    if numbers["verdict"] == "does_not_fit":
        return DOES_NOT_FIT
    return FITS if numbers["complete"] else CANNOT_ANSWER


if __name__ == "__main__":
    process.run(main)
