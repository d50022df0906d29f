"""Predicts ComfyUI's official templates for cards of every size, with nothing downloaded.

    python3 -m tools templates-table [--only NAME ...] [--minutes M] [--page FILE.md]

Each template is one line of a journal, so that a run that was ended goes on where it was. All take an hour or two.
A template is predicted for a card of 24 GB; on a smaller one ComfyUI may compute guidance in turns, in less memory.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PACK = Path(__file__).resolve().parents[1]
TEMPLATES = "comfyui_workflow_templates_json"
SIZES = (6, 8, 12, 16, 24, 32)  # GB of 2^30 bytes
PREDICTED_FOR = 24
KERNELS, LIMIT = "sm86", 0.85
LONGEST = 600  # seconds of one
GB = 2**30
CELLS = {"resident": "whole", "does_not_fit": "no"}


def names(folder: Path) -> Iterator[str]:
    """The templates of a package, in its own order."""
    for category in json.loads((folder / "index.json").read_text(encoding="utf-8")):
        yield from (entry["name"] for entry in category["templates"] if (folder / f"{entry['name']}.json").is_file())


def row(workflow: dict[str, Any]) -> dict[str, Any]:
    """What is said of a template.

    Returns:
        ``local``: whether all its nodes are ComfyUI's own. Of those that are: ``whole``, whether all of it was
        predicted, else ``why`` not, a line for each node; ``peak``, ``ram`` and ``download`` in GB; ``cards``, by their
        GB what it comes to and how many GB come over the bus at each step.
    """
    estimate, nodes, prediction = (
        importlib.import_module(f"headroom.{name}")
        for name in ("host.workflow.estimate", "host.core.nodes", "memory.prediction")
    )
    prompt = estimate.as_queued(workflow)
    if not {node["class_type"] for node in prompt.values()} <= set(nodes.node_classes()):
        return {"local": False}
    until = time.monotonic() + LONGEST
    try:
        with prediction.while_wanted(lambda: time.monotonic() < until):
            found = estimate.estimate_workflow(prompt, prediction.named_card(KERNELS, PREDICTED_FOR), LIMIT)
    except prediction.GivenUp:
        return {"local": True, "whole": False, "why": [f"it takes longer than {LONGEST} s"]}
    except estimate.NothingToPredict as error:
        if not error.complete:
            return {"local": True, "whole": False, "why": [str(error)]}
        cards = {str(size): ["resident", 0.0] for size in SIZES}  # it takes no memory of a card
        return {"local": True, "whole": True, "why": [], "peak": 0.0, "ram": 0.0, "download": 0.0, "cards": cards}
    stages = found.forecast.stages
    doubts = [f"{stage.work}: ComfyUI's own estimate, since {stage.doubt}" for stage in stages if stage.doubt]
    cards = {}
    for size in SIZES:
        forecast = prediction.Forecast(prediction.named_card(KERNELS, float(size)), stages, LIMIT)
        cards[str(size)] = [forecast.verdict.value, round(forecast.streamed_per_step / GB, 2)]
    return {
        "local": True,
        "whole": found.complete and not doubts,
        "why": [*found.unknown, *doubts],
        "peak": round(found.forecast.peak / GB, 2),
        "ram": round(found.forecast.ram_needed / GB, 2),
        "download": round(sum(file.nbytes for file in found.absent) / GB, 2),
        "cards": cards,
    }


def page(rows: dict[str, dict[str, Any]], version: str, comfyui: str) -> str:
    """A page of all that were predicted whole, and of what keeps the others from it.

    Args:
        rows: by the templates' names.
        version: of the package of templates.
        comfyui: the host's.
    """
    local = {name: one for name, one in rows.items() if one.get("local")}
    whole = {name: one for name, one in local.items() if one["whole"]}
    lines = [
        "# Official templates, predicted before anything is downloaded",
        "",
        f"{TEMPLATES} {version} in ComfyUI {comfyui}, {time.strftime('%Y-%m-%d')}: {len(whole)} of {len(local)}"
        " templates whose nodes this ComfyUI has, and that compute locally, are predicted whole. Computed without a"
        f" card and the models, by `python3 -m tools templates-table`, for {LIMIT:.0%} of a card of the RTX 30 series."
        " *whole*: all weights stay on the card; a number: GB of weights that come over the bus at each step; *no*: it"
        " does not fit as it is. Pictures, videos and sounds that are not there are taken to have a usual size.",
        "",
        f"| template | at most, GB | RAM, GB | download, GB | {' | '.join(f'{size} GB' for size in SIZES)} |",
        f"|{'---|' * (4 + len(SIZES))}",
    ]
    for name, one in whole.items():
        cells = " | ".join(CELLS.get(verdict, f"{streamed}") for verdict, streamed in one["cards"].values())
        lines.append(f"| {name} | {one['peak']} | {one['ram']} | {one['download']} | {cells} |")
    lines += ["", "What keeps the others from it, the first thing of each:", ""]
    lines += [f"- {name}: {_reason(one['why'])}" for name, one in local.items() if name not in whole]
    return "\n".join(lines) + "\n"


def _reason(why: Sequence[str]) -> str:
    """The first of what was not followed, without the node's number."""
    first = (why[0] if why else "nothing of it was followed").partition("; ")[0]
    return re.sub(r"^(nothing to predict in this workflow: )?(node \S+: )?", "", first).rstrip(".")


def main(arguments: Sequence[str] | None = None) -> int:
    """Goes through the templates."""
    parser = argparse.ArgumentParser(prog="templates-table", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these templates; default: all")
    parser.add_argument("--journal", type=Path, default=PACK / "output" / "templates.jsonl", metavar="FILE")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after as many, and go on another time")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="write the table of what the journal has")
    options = parser.parse_args(arguments)
    spec = importlib.util.find_spec(TEMPLATES)
    if spec is None or spec.origin is None:
        parser.error(f"{TEMPLATES} is not installed")
    folder, until = Path(spec.origin).parent / "templates", time.monotonic() + 60 * options.minutes
    host = importlib.import_module("cli.host")
    host.enter(host.find_comfyui())
    torch = importlib.import_module("torch")
    options.journal.parent.mkdir(parents=True, exist_ok=True)
    done = rows_of(options.journal)
    for name in options.only or names(folder):
        if name in done or time.monotonic() > until:
            continue
        workflow = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        with torch.inference_mode():
            done[name] = row(workflow)
        with options.journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, **done[name]}) + "\n")
        print(f"{name}: {told(done[name])}", flush=True)
    local = [one for one in done.values() if one["local"]]
    print(f"{sum(one['whole'] for one in local)} of {len(local)} predicted whole; {len(done)} templates looked at")
    if options.page:
        version = importlib.import_module("importlib.metadata").version(TEMPLATES.replace("_", "-"))
        comfyui = importlib.import_module("comfyui_version").__version__
        options.page.write_text(page(done, version, comfyui), encoding="utf-8")
    return 0


def rows_of(journal: Path) -> dict[str, dict[str, Any]]:
    """What a journal has, by the templates' names; a line that was cut off is left out."""
    found: dict[str, dict[str, Any]] = {}
    for line in journal.read_text(encoding="utf-8").splitlines() if journal.is_file() else ():
        try:
            one = json.loads(line)
        except ValueError:
            continue
        found[one.pop("name")] = one
    return found


def told(one: dict[str, Any]) -> str:
    """A row in a line."""
    if not one["local"]:
        return "computes elsewhere, or needs another pack"
    if not one["whole"]:
        return "; ".join(one["why"]) or "nothing of it was followed"
    return f"{one['peak']} GB; " + ", ".join(f"{size} GB: {verdict}" for size, (verdict, _) in one["cards"].items())


if __name__ == "__main__":
    sys.exit(main())
