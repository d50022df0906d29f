"""The page of what ComfyUI's official templates take, and the same as JSON."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

# GB of 2^30 bytes, and whose figures tell the time.
CARDS = {6: "RTX 3050", 8: "RTX 4060", 12: "RTX 3060", 16: "RTX 4060 Ti", 24: "RTX 3090", 32: "RTX 5090"}
LIMIT = 0.85
AS_IT_IS, MADE_TO_FIT = "as_it_is", "make_it_fit"
OR_TILES = "or_tiles"  # of what does not fit, where ComfyUI goes on in tiles
SAME = 0.05  # as a share: times that are no further apart are said once


@dataclass(frozen=True)
class Made:
    """Of what a table was made, and when.

    Attributes:
        templates: their package and its version.
        comfyui: the host's version.
        date: as 2026-11-28.
    """

    templates: str
    comfyui: str
    date: str


def page(rows: dict[str, dict[str, Any]], made: Made) -> str:
    """A page of all that were predicted whole, and of what keeps the others from it.

    Args:
        rows: by the templates' names.
        made: of what.
    """
    local = {name: one for name, one in rows.items() if one.get("local")}
    whole = {name: one for name, one in local.items() if one["whole"]}
    asked = sum(all(MADE_TO_FIT in card for card in one["cards"].values()) for one in whole.values())
    heads = [f"{size} GB ({card})" for size, card in CARDS.items()]
    lines = [
        "# Official templates, predicted before anything is downloaded",
        "",
        f"{made.templates} in ComfyUI {made.comfyui}, {made.date}: **{len(whole)} of {len(local)} templates whose nodes"
        " this ComfyUI has, and that compute locally, are predicted whole**, without a card and without the models.",
        "",
        "| in a cell | |",
        "|---|---|",
        "| *whole* | all weights stay on the card |",
        "| *6.9 GB* | so much of the weights comes over the bus at each step |",
        "| *partly* | what samples stays on the card; of another model, as the text's, some comes over the bus |",
        "| *no* | it does not fit, whatever comes over the bus |",
        "| *tiles* | a decode or an encode in one piece does not fit: ComfyUI runs out of memory in it and goes on in"
        " tiles, which give another result; whether those fit was not asked |",
        "| *24 s* | about the time of all that is computed, reading files aside, by the maker's figures of the card in"
        " brackets: **not measured on a GPU** |",
        f"| *fit:* | with *Make It Fit* (exact), where that changes something; asked of {asked} of them |",
        "",
        f"For {LIMIT:.0%} of a card with the kernels of the RTX 30 series, whatever the card whose figures tell the"
        " time. Pictures, videos and sounds that are not there are taken to have a usual size. *At most*: on the"
        " card, where all weights stay. Made by `python3 -m tools templates-table`;"
        " [all numbers as JSON](official_templates.json).",
        "",
        f"| template | at most, GB | RAM, GB | download, GB | {' | '.join(heads)} |",
        f"|{'---|' * (4 + len(CARDS))}",
    ]
    for name, one in whole.items():
        most = one["cards"][str(max(CARDS))][AS_IT_IS]
        cells = " | ".join(cell(one["cards"][str(size)]) for size in CARDS)
        lines.append(f"| {name} | {most['peak']} | {most['ram']} | {one['download']} | {cells} |")
    lines += ["", "What keeps the others from it, the first thing of each:", ""]
    lines += [f"- {name}: {_reason(one['why'])}" for name, one in local.items() if name not in whole]
    return "\n".join(lines) + "\n"


def data(rows: dict[str, dict[str, Any]], made: Made) -> str:
    """The templates that compute locally as JSON, one a line."""
    head = json.dumps({**asdict(made), "limit": LIMIT, "cards": CARDS})[:-1]
    local = [json.dumps(name) + ": " + json.dumps(one) for name, one in rows.items() if one.get("local")]
    return head + ', "templates": {\n' + ",\n".join(local) + "\n}}\n"


def cell(card: dict[str, dict[str, Any]], between: str = "<br>") -> str:
    """A template on a card: as it is, and with *Make It Fit* where that is another thing."""
    plain, fitted = card[AS_IT_IS], card.get(MADE_TO_FIT)
    if fitted is None or _alike(plain, fitted):  # not asked, or the same
        return _words(plain)
    return f"{_words(plain)}{between}fit: {_words(fitted)}"


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if one["verdict"] != other["verdict"] or _share(one) != _share(other):
        return False
    before, after = one.get("seconds"), other.get("seconds")
    if before is None or after is None:
        return before is after
    return one["verdict"] == "does_not_fit" or abs(before - after) <= SAME * max(before, after)


def _share(one: dict[str, Any]) -> str:
    """Where the weights are."""
    if one["verdict"] == "streams":
        return f"{one['streamed']:.1f} GB" if one["streamed"] >= 0.05 else "partly"
    if one["verdict"] == "does_not_fit":
        return "tiles" if one.get(OR_TILES) else "no"
    return {"resident": "whole"}.get(one["verdict"], "not known")


def _words(one: dict[str, Any]) -> str:
    seconds = one.get("seconds")
    if one["verdict"] == "does_not_fit" or not seconds:
        return _share(one)
    units = importlib.import_module("headroom.memory.units")
    return f"{_share(one)}, {units.format_seconds(seconds)}"


def _reason(why: Sequence[str]) -> str:
    """The first of what was not followed, without the node's number."""
    first = (why[0] if why else "nothing of it was followed").partition("; ")[0]
    return re.sub(r"^(nothing to predict in this workflow: )?(node \S+: )?", "", first).rstrip(".")
