"""Predicts ComfyUI's official templates for cards of every size, with nothing downloaded.

    python3 -m tools templates-table [--only NAME ...] [--minutes M] [--page FILE.md]

What is known of a template is one line of a journal, so that a run that was ended goes on where it was: first all of
them as they are (an hour or two), then with Make It Fit, those first that take the least time (some hours more).
As it is, a template is predicted for a card of 24 GB; on a smaller one ComfyUI may compute guidance in turns, in less
memory. With Make It Fit, which plans for a card, it is predicted for each on which its weights do not all stay.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .templates_page import AS_IT_IS, CARDS, LIMIT, MADE_TO_FIT, OR_TILES, Made, cell, data, page

PACK = Path(__file__).resolve().parents[1]
TEMPLATES = "comfyui_workflow_templates_json"
PREDICTED_FOR = 24
KERNELS = "sm86"
LONGEST = 600  # seconds of one prediction
GB = 2**30
FREE = {"verdict": "resident", "peak": 0.0, "streamed": 0.0, "ram": 0.0, "seconds": 0.0}  # takes nothing of a card


def names(folder: Path) -> Iterator[str]:
    """The templates of a package, in its own order."""
    for category in json.loads((folder / "index.json").read_text(encoding="utf-8")):
        yield from (entry["name"] for entry in category["templates"] if (folder / f"{entry['name']}.json").is_file())


def row(workflow: dict[str, Any]) -> dict[str, Any]:
    """What is said of a template.

    Returns:
        ``local``: whether all its nodes are ComfyUI's own. Of those that are: ``whole``, whether all of it was
        predicted, else ``why`` not, a line for each node; ``download`` in GB; ``took``, the seconds of predicting it;
        ``cards``, by their GB, as it is: the verdict, the peak with all weights on the card that may be, what comes
        over the bus at each step and the machine's memory, in GB, and seconds (None: not of every stage known).
    """
    estimate, nodes, prediction = (
        importlib.import_module(f"headroom.{name}")
        for name in ("host.workflow.estimate", "host.core.nodes", "memory.prediction")
    )
    prompt, begin = estimate.as_queued(workflow), time.monotonic()
    if not {node["class_type"] for node in prompt.values()} <= set(nodes.node_classes()):
        return {"local": False}
    try:
        found = _predicted(prompt, card_of(PREDICTED_FOR))
        why = _doubts(found)
        cards = {} if why else _as_it_is(found.forecast.stages)
    except prediction.GivenUp:
        return {"local": True, "whole": False, "why": [f"it takes longer than {LONGEST} s"]}
    except estimate.NothingToPredict as error:
        if not error.complete or error.values:  # a node with an input missing, say, before which nothing runs
            return {"local": True, "whole": False, "why": [str(error)]}
        cards = {str(size): {AS_IT_IS: FREE, MADE_TO_FIT: FREE} for size in CARDS}
        return {"local": True, "whole": True, "why": [], "download": 0.0, "took": 0.0, "cards": cards}
    download, took = sum(file.nbytes for file in found.absent) / GB, time.monotonic() - begin
    numbers = {"download": round(download, 2), "took": round(took, 1)}
    return {"local": True, "whole": not why, "why": why, **numbers, "cards": cards}


def _as_it_is(stages: tuple[Any, ...]) -> dict[str, dict[str, Any]]:
    """A workflow of these stages on each card; where all weights stay there, *Make It Fit* has nothing to do."""
    prediction = importlib.import_module("headroom.memory.prediction")
    cards = {}
    for size in CARDS:
        numbers = _numbers(prediction.Forecast(card_of(size), stages, LIMIT))
        cards[str(size)] = {AS_IT_IS: numbers} | ({MADE_TO_FIT: numbers} if numbers["verdict"] == "resident" else {})
    return cards


def lacks_fit(one: dict[str, Any]) -> bool:
    """Whether a row has cards for which nobody asked what *Make It Fit* would do."""
    return any(MADE_TO_FIT not in card for card in one.get("cards", {}).values())


def made_to_fit(workflow: dict[str, Any], one: dict[str, Any]) -> dict[str, Any]:
    """A row, with what *Make It Fit* (exact) does on each card; what it cannot make fit, it cannot on a smaller one.
    Made anew where nothing of the template is followed any longer."""
    estimate, prediction, inserting = (
        importlib.import_module(f"headroom.{name}")
        for name in ("host.workflow.estimate", "memory.prediction", "graph.fit.insert")
    )
    fitted = inserting.insert_fit(estimate.as_queued(workflow)).workflow
    cards: dict[str, dict[str, Any]] = {size: dict(card) for size, card in one["cards"].items()}
    fits = True
    for size in sorted(CARDS, reverse=True):
        card = cards[str(size)]
        if MADE_TO_FIT not in card and fits:
            try:
                answer = _predicted(fitted, card_of(size))
                doubts = _doubts(answer)
            except prediction.GivenUp:
                doubts = [f"it takes longer than {LONGEST} s"]
            except estimate.NothingToPredict:
                return row(workflow)
            card[MADE_TO_FIT] = {"verdict": "unknown", "why": doubts} if doubts else _numbers(answer.forecast)
        not_asked = {name: value for name, value in card[AS_IT_IS].items() if name != OR_TILES}
        made = card.setdefault(MADE_TO_FIT, not_asked)
        fits = made["verdict"] != "does_not_fit" or made.get(OR_TILES, False)
    return {**one, "cards": cards}


def card_of(size: int) -> Any:
    """A card of so many GB: kernels of the RTX 30 series, and the figures of one that is sold."""
    known = importlib.import_module("headroom.graph.cards").known_card("card", CARDS[size], float(size))
    prediction, speed = (importlib.import_module(f"headroom.memory.{name}") for name in ("prediction", "speed"))
    card, own = (prediction.named_card(kernels, float(size)) for kernels in (KERNELS, known.kernels))
    return replace(card, name=CARDS[size], measured=speed.documented(CARDS[size], own.total, own.capability))


def _predicted(prompt: dict[str, Any], card: Any) -> Any:
    """Predicts a workflow, for :data:`LONGEST` seconds at most."""
    estimate, prediction = (
        importlib.import_module(f"headroom.{name}") for name in ("host.workflow.estimate", "memory.prediction")
    )
    until = time.monotonic() + LONGEST
    with prediction.while_wanted(lambda: time.monotonic() < until):
        return estimate.estimate_workflow(prompt, card, LIMIT)


def _doubts(found: Any) -> list[str]:
    """What keeps a prediction from being whole, a line for each node or stage."""
    stages = [stage for stage in found.forecast.stages if stage.doubt]
    doubts = [f"{stage.work}: ComfyUI's own estimate, since {stage.doubt}" for stage in stages]
    unknown = [] if found.complete else [*found.unknown]
    return [*unknown, *doubts]


def _numbers(forecast: Any) -> dict[str, Any]:
    """A forecast in GB and seconds."""
    return ({OR_TILES: True} if forecast.or_tiles else {}) | {
        "verdict": forecast.verdict.value,
        "peak": round(forecast.peak / GB, 2),
        "streamed": round(forecast.streamed_per_step / GB, 2),
        "ram": round(forecast.ram_needed / GB, 2),
        "seconds": round(forecast.seconds, 1) if forecast.timed else None,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Goes through the templates."""
    parser = argparse.ArgumentParser(prog="templates-table", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these templates; default: all")
    parser.add_argument("--journal", type=Path, default=PACK / "output" / "templates.jsonl", metavar="FILE")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after as many, and go on another time")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="write what the journal has, and FILE.json")
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
    asked = list(options.only or names(folder))

    def look(name: str, known: dict[str, Any] | None) -> None:
        workflow = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        with torch.inference_mode():
            done[name] = row(workflow) if known is None else made_to_fit(workflow, known)
        with options.journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, **done[name]}) + "\n")
        print(f"{name}: {told(done[name])}", flush=True)

    for name in asked:
        if name not in done and time.monotonic() < until:
            look(name, None)
    lacking = [name for name in asked if name in done and lacks_fit(done[name])]
    for name in sorted(lacking, key=lambda one: done[one]["took"]):
        if time.monotonic() < until:
            look(name, done[name])
    local = [one for one in done.values() if one["local"]]
    print(f"{sum(one['whole'] for one in local)} of {len(local)} predicted whole; {len(done)} templates looked at")
    if options.page:
        version = importlib.import_module("importlib.metadata").version(TEMPLATES.replace("_", "-"))
        comfyui = importlib.import_module("comfyui_version").__version__
        made = Made(f"{TEMPLATES} {version}", comfyui, time.strftime("%Y-%m-%d"))
        rows = {name: done[name] for name in names(folder) if name in done}
        options.page.write_text(page(rows, made), encoding="utf-8")
        options.page.with_suffix(".json").write_text(data(rows, made), encoding="utf-8")
    return 0


def rows_of(journal: Path) -> dict[str, dict[str, Any]]:
    """What a journal has, by the templates' names, the latest line of each; one that was cut off is left out."""
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
    return ", ".join(f"{size} GB: {cell(card, '; ')}" for size, card in one["cards"].items())


if __name__ == "__main__":
    sys.exit(main())
