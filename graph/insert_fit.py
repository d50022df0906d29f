"""Makes a workflow fit: puts Headroom's nodes into it and changes nothing else. JSON in, JSON out; needs no host."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import litegraph
from .fit_plan import FIT, VAE, Added, FitPlan, FitSettings, Output, Seen, plan_fit
from .litegraph import INPUTS, Level, Node, Place, Source

TITLES = {FIT: "Make It Fit", VAE: "Low-Memory VAE (exact)"}
TYPES = {"model": "MODEL", "vae": "VAE", "samples": "LATENT", "positive": "CONDITIONING", "negative": "CONDITIONING"}
SOCKETS = {FIT: tuple(TYPES), VAE: ("vae",)}
OUTPUTS = {FIT: (("MODEL", "MODEL"), ("VAE", "VAE"), ("plan", "STRING"), ("chart", "IMAGE")), VAE: (("VAE", "VAE"),)}
SIZES = {FIT: (400.0, 400.0), VAE: (300.0, 300.0)}
TITLE_HEIGHT, GAP = 30.0, 30.0  # of the browser's nodes, in its units; pos is the corner below the title
# Where cfg stands among the saved widgets, from the end: a control behind the seed may be there or not.
CFG_FROM_END = {"KSampler": 4, "KSamplerAdvanced": 6, "SamplerCustom": 1, "CFGGuider": 1}


@dataclass(frozen=True)
class Inserted:
    """A workflow made to fit.

    Attributes:
        workflow: in the format it came in.
        added: one line for each node that was added.
        notes: what was left alone, and why.
    """

    workflow: dict[str, Any]
    added: tuple[str, ...]
    notes: tuple[str, ...]


def insert_fit(workflow: dict[str, Any], settings: FitSettings | None = None) -> Inserted:
    """Puts a HeadroomFit before each sampler and low-memory VAEs where pictures are encoded or decoded.

    What is behind one already is left alone, so that fitting twice changes nothing.

    Args:
        workflow: in the API format (nodes by id) or the browser's; not changed.
        settings: the widgets of HeadroomFit.

    Raises:
        ValueError: it is in neither format, or goes in a circle.
    """
    workflow = copy.deepcopy(workflow)
    settings = settings or FitSettings()
    if isinstance(workflow.get("nodes"), list):
        return _into_ui(workflow, settings)
    return _into_api(workflow, settings)


# ------------------------------------------------------------------------------------------------------ the API format


def _into_api(workflow: dict[str, Any], settings: FitSettings) -> Inserted:
    if not all(isinstance(node, dict) and isinstance(node.get("inputs"), dict) for node in workflow.values()):
        raise ValueError("this is no workflow in the API format: every entry needs class_type and inputs")
    seen = {number: _seen_in_api(node) for number, node in workflow.items()}
    first = 1 + max(
        (int(number.partition(":")[0]) for number in workflow if number.partition(":")[0].isdigit()), default=0
    )
    plan = plan_fit(seen, settings, first)
    for one in plan.added:
        links: dict[str, Any] = {name: list(link) for name, link in one.links.items()}
        workflow[one.number] = {
            "class_type": one.kind,
            "inputs": one.widgets | links,
            "_meta": {"title": TITLES[one.kind]},
        }
    for (number, name), link in plan.moved.items():
        workflow[number]["inputs"][name] = list(link)
    return Inserted(workflow, tuple(_lines(plan.added, seen)), tuple(plan.notes))


def _seen_in_api(node: dict[str, Any]) -> Seen:
    links = {
        name: (value[0], value[1])
        for name, value in node["inputs"].items()
        if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], int)
    }
    return Seen(str(node.get("class_type")), links, dict(links), _number(node["inputs"].get("cfg")))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _lines(added: list[Added], seen: dict[str, Seen], where: str = "") -> Iterator[str]:
    for one in added:
        yield f"node {one.number}, {TITLES[one.kind]}, for node {one.beside} ({seen[one.beside].kind}){where}"


# ------------------------------------------------------------------------------------------------- the browser's format


def _into_ui(data: dict[str, Any], settings: FitSettings) -> Inserted:
    workflow = litegraph.Workflow(data, never_passed=(FIT, VAE), closed=True)
    return _Insertion(workflow, settings).run()


class _Insertion:
    def __init__(self, workflow: litegraph.Workflow, settings: FitSettings) -> None:
        self.workflow = workflow
        self.settings = settings
        self.levels = [workflow.root, *workflow.subgraphs.values()]
        self.wanted: dict[str, tuple[str, ...]] = {}  # by subgraph: its inputs with a VAE to be wrapped outside
        self.added: list[str] = []
        self.notes: list[str] = []

    def run(self) -> Inserted:
        for _ in self.workflow.places():  # raises for what is not supported
            pass
        self._level(self.workflow.root, "", "")
        return Inserted(self.workflow.root.data, tuple(self.added), tuple(self.notes))

    def _subgraph(self, kind: str) -> tuple[str, ...]:
        """Fits a subgraph, once."""
        if kind not in self.wanted:
            level = self.workflow.subgraphs[kind]
            plan = self._level(level, INPUTS, f" in subgraph {level.data.get('name', kind)}")
            self.wanted[kind] = tuple(level.data["inputs"][slot]["name"] for slot in sorted(plan.wanted))
        return self.wanted[kind]

    def _level(self, level: Level, outside: str, where: str) -> FitPlan:
        place = Place(level)
        seen = {
            number: self._seen(place, node)
            for number, node in level.nodes.items()
            if node["type"] not in litegraph.VIRTUAL and node.get("mode") not in (litegraph.MUTED, litegraph.BYPASSED)
        }
        plan = plan_fit(seen, self.settings, 1 + self._last("node"), outside, where)
        self._write(level, plan)
        self.added += _lines(plan.added, seen, where)
        self.notes += plan.notes
        return plan

    def _seen(self, place: Place, node: Node) -> Seen:
        seen = Seen(str(node["type"]), cfg=_saved_cfg(node))
        if seen.kind in self.workflow.subgraphs:
            seen.vaes = self._subgraph(seen.kind)
        for entry in node.get("inputs") or ():
            found = self.workflow.source(place, entry)
            if found is None:
                continue
            link = place.level.links[entry["link"]]
            seen.links[entry["name"]] = link.origin, link.slot
            if isinstance(found, Source) and found.node is None:
                seen.origins[entry["name"]] = INPUTS, found.slot
            else:
                assert found.node is not None
                seen.origins[entry["name"]] = str(found.node["id"]), found.slot
        return seen

    # ------------------------------------------------------------------------------------------------------- writing

    def _write(self, level: Level, plan: FitPlan) -> None:
        for one in plan.added:
            node = _node(one, level)
            level.data["nodes"].append(node)
            level.nodes[one.number] = node
            self._count(level, "node", int(one.number))
        for one in plan.added:
            for name, origin in one.links.items():
                self._connect(level, one.number, name, origin)
        for (number, name), origin in plan.moved.items():
            entry = next(entry for entry in level.nodes[number]["inputs"] if entry["name"] == name)
            _move(level, entry["link"], origin)

    def _connect(self, level: Level, number: str, name: str, origin: Output) -> None:
        entries = level.nodes[number]["inputs"]
        slot = next(slot for slot, entry in enumerate(entries) if entry["name"] == name)
        link = 1 + self._last("link")
        entries[slot]["link"] = link
        level.data["links"].append(_row(level, link, origin, (int(number), slot), entries[slot]["type"]))
        _ends(level, origin).append(link)
        self._count(level, "link", link)

    def _last(self, what: str) -> int:
        """The highest id of a node or a link anywhere: the browser wants them different in all graphs."""
        found = [0]
        for level in self.levels:
            state = level.data.get("state") or {}
            found += [level.data.get(f"last_{what}_id") or 0, state.get(f"last{what.title()}Id") or 0]
            found += [row[0] if isinstance(row, list) else row["id"] for row in level.data.get(f"{what}s") or () if row]
        return max(int(one) for one in found if str(one).lstrip("-").isdigit())

    def _count(self, level: Level, what: str, number: int) -> None:
        """The counters of the graph and of the workflow."""
        for data in (level.data, self.workflow.root.data):
            if isinstance(data.get("state"), dict):
                data["state"][f"last{what.title()}Id"] = number
            if f"last_{what}_id" in data or (data is self.workflow.root.data and "state" not in data):
                data[f"last_{what}_id"] = number


def _saved_cfg(node: Node) -> float | None:
    values = node.get("widgets_values")
    if isinstance(values, dict):
        return _number(values.get("cfg"))
    place = CFG_FROM_END.get(str(node["type"]))
    return _number(values[-place]) if place and values and len(values) >= place else None


def _node(added: Added, level: Level) -> Node:
    """A node as the browser saves it, with nothing connected."""
    beside = level.nodes[added.beside]
    entries: list[dict[str, Any]] = [{"name": name, "type": TYPES[name], "link": None} for name in SOCKETS[added.kind]]
    if "cfg" in added.links:
        entries.append({"name": "cfg", "type": "FLOAT", "widget": {"name": "cfg"}, "link": None})
    return {
        "id": int(added.number),
        "type": added.kind,
        "pos": list(_free_place(level, beside, SIZES[added.kind])),
        "size": list(SIZES[added.kind]),
        "flags": {},
        "order": beside.get("order", 0),
        "mode": 0,
        "inputs": entries,
        "outputs": [{"name": name, "type": kind, "links": []} for name, kind in OUTPUTS[added.kind]],
        "properties": {"Node name for S&R": added.kind},
        "widgets_values": list(added.widgets.values()),
    }


def _row(level: Level, number: int, origin: Output, target: tuple[int, int], kind: str) -> Any:
    """A link in the spelling of the graph."""
    start = level.nodes[origin[0]]["id"] if origin[0] in level.nodes else int(origin[0])
    values = (number, start, origin[1], *target, kind)
    rows = level.data["links"]
    if any(isinstance(row, dict) for row in rows) or (not rows and "last_link_id" not in level.data):
        return dict(zip(("id", "origin_id", "origin_slot", "target_id", "target_slot", "type"), values, strict=True))
    return list(values)


def _move(level: Level, number: int, origin: Output) -> None:
    """Lets a link begin at another output; it keeps its id and its end."""
    row = next(row for row in level.data["links"] if (row["id"] if isinstance(row, dict) else row[0]) == number)
    old = level.links[number]
    ends = _ends(level, (old.origin, old.slot))
    if number in ends:
        ends.remove(number)
    if isinstance(row, dict):
        row["origin_id"], row["origin_slot"] = int(origin[0]), origin[1]
        row.pop("parentId", None)
    else:
        row[1], row[2] = int(origin[0]), origin[1]
    _ends(level, origin).append(number)
    _leave_reroutes(level.data, number)


def _ends(level: Level, origin: Output) -> list[int]:
    """The ids of the links at an output."""
    if origin[0] == INPUTS and origin[0] not in level.nodes:
        slot, name = level.data["inputs"][origin[1]], "linkIds"
    else:
        slot, name = level.nodes[origin[0]]["outputs"][origin[1]], "links"
    if slot.get(name) is None:
        slot[name] = []
    ends: list[int] = slot[name]
    return ends


def _leave_reroutes(data: dict[str, Any], number: int) -> None:
    """Takes a link off the points that it was drawn through: they belong to the output where it began."""
    for holder in (data, data.get("extra") or {}):
        for reroute in holder.get("reroutes") or ():
            reroute["linkIds"] = [one for one in reroute.get("linkIds") or () if one != number]
        if holder.get("reroutes"):
            holder["reroutes"] = [one for one in holder["reroutes"] if one["linkIds"] or _is_parent(holder, one)]
        if holder.get("linkExtensions"):
            holder["linkExtensions"] = [one for one in holder["linkExtensions"] if one.get("id") != number]


def _is_parent(holder: dict[str, Any], reroute: dict[str, Any]) -> bool:
    return any(other.get("parentId") == reroute.get("id") for other in holder["reroutes"])


# ----------------------------------------------------------------------------------------------------------- positions


def _free_place(level: Level, beside: Node, size: tuple[float, float]) -> tuple[float, float]:
    """A free place left of a node or above or below that, so that nothing else has to move."""
    left, top = _pair(beside.get("pos"), (0.0, 0.0))
    taken = [_box(node) for node in level.data["nodes"]]
    step = size[1] + TITLE_HEIGHT + GAP
    for column in range(1, 50):
        for row in (0, -1, 1, -2, 2, -3, 3):
            place = left - column * (size[0] + GAP), top + row * step
            if not any(_overlap((*place, *size), other) for other in taken):
                return place
    return left - size[0] - GAP, top


def _box(node: Node) -> tuple[float, float, float, float]:
    return *_pair(node.get("pos"), (0.0, 0.0)), *_pair(node.get("size"), (200.0, 100.0))


def _pair(value: Any, default: tuple[float, float]) -> tuple[float, float]:
    """Two numbers, which old files save as {"0": …, "1": …}."""
    if isinstance(value, dict):
        value = [value.get("0"), value.get("1")]
    if not isinstance(value, list) or len(value) < 2 or None in map(_number, value[:2]):
        return default
    return float(value[0]), float(value[1])


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    """Whether two nodes, (left, top, width, height) with the title above, touch."""
    return (
        one[0] < other[0] + other[2]
        and other[0] < one[0] + one[2]
        and one[1] - TITLE_HEIGHT < other[1] + other[3]
        and other[1] - TITLE_HEIGHT < one[1] + one[3]
    )
