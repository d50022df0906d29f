"""Makes a workflow in the browser's format fit: nodes with their places on the canvas, links with both their ends."""

from __future__ import annotations

from typing import Any

from ..formats import LINK_NAMES, as_number
from ..kinds import CAST_CLIP, FIT, TRAINING, VAE
from ..litegraph import BYPASSED, INPUTS, MUTED, VIRTUAL, Instance, Link, NodeData, UIGraph, UIWorkflow, slot_of
from ..prompt import Output
from ..settings import FitSettings
from ..sources import Origin, Sources
from .places import free_place
from .plan import Added, FitPlan, Seen, plan_fit
from .remedies import HELPS, REMEDIES, helped_already

TYPES = {
    "model": "MODEL", "vae": "VAE", "samples": "LATENT", "positive": "CONDITIONING", "negative": "CONDITIONING",
    "clip": "CLIP",
}  # fmt: skip
SOCKETS = {
    FIT: ("model", "vae", "samples", "positive", "negative"), VAE: ("vae",), CAST_CLIP: ("clip",),
    TRAINING: ("model",),
}  # fmt: skip
OUTPUTS = {
    FIT: (("MODEL", "MODEL"), ("VAE", "VAE"), ("plan", "STRING"), ("chart", "IMAGE")),
    VAE: (("VAE", "VAE"),),
    CAST_CLIP: (("CLIP", "CLIP"), ("report", "STRING")),
    TRAINING: (("MODEL", "MODEL"), ("report", "STRING")),
}
# What a plan or a report needs.
SIZES = {
    FIT: (560.0, 470.0), VAE: (300.0, 300.0), CAST_CLIP: (390.0, 350.0), TRAINING: (560.0, 400.0),
}  # fmt: skip
# Where cfg stands among the saved widgets, from the end: a control behind the seed may be there or not.
CFG_FROM_END = {"KSampler": 4, "KSamplerAdvanced": 6, "SamplerCustom": 1, "CFGGuider": 1}


def insert_into_ui(workflow: UIWorkflow, settings: FitSettings) -> list[FitPlan]:
    """Fits a workflow and its subgraphs, each once. Its JSON object is changed.

    Returns:
        What was planned for each graph, the workflow's own last.

    Raises:
        BadWorkflow: it uses group nodes, or is not whole.
        ValueError: it goes in a circle.
    """
    for _ in workflow.places():  # raises for what is not supported
        pass
    insertion = _Insertion(workflow, settings)
    plan = insertion.fit(workflow.root, "", "")
    return [*insertion.plans.values(), plan]


def insert_remedy_into_ui(workflow: UIWorkflow, asked: str, path: str) -> list[FitPlan]:
    """Puts in what helps one node; a text encoder is cast in the graph that loads it. Its JSON object is changed.

    Args:
        workflow: whole.
        asked: one of :data:`~.remedies.REMEDIES`.
        path: the node's id, behind those of the subgraphs that it is in: "12:5".

    Raises:
        BadWorkflow: it uses group nodes, or is not whole.
        ValueError: there is no such node, or it is of another kind.
    """
    for _ in workflow.places():  # raises for what is not supported
        pass
    return [_Insertion(workflow, None).remedy(asked, path)]


class _Insertion:
    """Writes into the graphs of a workflow; without settings nothing is fitted."""

    def __init__(self, workflow: UIWorkflow, settings: FitSettings | None) -> None:
        self.workflow = workflow
        self.settings = settings
        self.sources = Sources(workflow, never_passed=(FIT, VAE), closed=True)
        self.graphs = (workflow.root, *workflow.subgraphs.values())
        self.plans: dict[str, FitPlan] = {}  # by subgraph

    def fit(self, graph: UIGraph, outside: str, where: str) -> FitPlan:
        """Plans a graph and writes what is planned; the subgraphs that it uses come first."""
        assert self.settings is not None
        plan = plan_fit(self._all_seen(graph), self.settings, 1 + self._last("node"), outside, where)
        self._write(graph, plan)
        return plan

    def remedy(self, asked: str, path: str) -> FitPlan:
        """Plans and writes what helps a node; what is to be around its subgraph goes there."""
        *inside, number = path.split(":")
        graphs, place = [self.workflow.root], Instance(self.workflow.root)
        for one in inside:
            kind = graphs[-1].nodes.get(one, {}).get("type", "")
            if kind not in self.workflow.subgraphs:
                raise ValueError(f"{asked}: there is no subgraph {one}; send the node's id as ComfyUI's error has it")
            place = self.workflow.child(place, graphs[-1].nodes[one])
            graphs.append(self.workflow.subgraphs[kind])
        seen = self._all_seen(graphs[-1]).get(number)
        if seen is not None and self._is_behind(HELPS[asked].kind, HELPS[asked].name, place, number):
            return helped_already(asked, number, seen.title or seen.kind, place.graph.name if inside else "")
        name: tuple[str, ...] = ()  # the input, around a subgraph
        while True:
            graph = graphs.pop()
            around = (INPUTS, graph.name) if graphs else ("", "")
            plan = REMEDIES[asked](self._all_seen(graph), number, 1 + self._last("node"), *around, *name)
            if not plan.wanted:
                self._write(graph, plan)
                return plan
            number, name = inside.pop(), (graph.slot("inputs", plan.wanted.pop())["name"],)

    def _is_behind(self, kind: str, name: str, place: Instance, number: str) -> bool:
        """Whether a node of a kind is on the way that an input's value comes, around this graph and within others."""
        sources, passed, node = Sources(self.workflow), set[tuple[tuple[str, ...], str]](), place.graph.nodes[number]
        while (at := (place.path, str(node["id"]))) not in passed:
            passed.add(at)
            entry = next((one for one in node.get("inputs") or () if one["name"] == name), None)
            found = None if entry is None else sources.of(place, entry)
            if not isinstance(found, Origin) or found.node is None:
                return False
            if found.node["type"] == kind:
                return True
            place, node = found.place, found.node
        return False

    def _all_seen(self, graph: UIGraph) -> dict[str, Seen]:
        """The nodes of a graph that run."""
        place = Instance(graph)
        return {
            number: self._seen(place, node)
            for number, node in graph.nodes.items()
            if node["type"] not in VIRTUAL and node.get("mode") not in (MUTED, BYPASSED)
        }

    def _subgraph(self, kind: str) -> tuple[str, ...]:
        """Fits a subgraph, once; its inputs whose VAE is to be wrapped outside."""
        graph = self.workflow.subgraphs[kind]
        if kind not in self.plans:
            self.plans[kind] = self.fit(graph, INPUTS, graph.name)
        return tuple(graph.slot("inputs", slot)["name"] for slot in sorted(self.plans[kind].wanted))

    def _seen(self, place: Instance, node: NodeData) -> Seen:
        seen = Seen(node["type"], cfg=_saved_cfg(node))
        if seen.kind in self.workflow.subgraphs:
            seen.title = self.workflow.subgraphs[seen.kind].name
            seen.vaes = None if self.settings is None else self._subgraph(seen.kind)
        for entry in node.get("inputs") or ():
            found = self.sources.of(place, entry)
            if found is None:
                continue
            link = place.graph.links[entry["link"]]
            seen.links[entry["name"]] = link.origin, link.slot
            seen.origins[entry["name"]] = INPUTS if found.node is None else str(found.node["id"]), found.slot
        return seen

    # ------------------------------------------------------------------------------------------------------- writing

    def _write(self, graph: UIGraph, plan: FitPlan) -> None:
        for one in plan.added:
            node = _node(one, graph)
            graph.data["nodes"].append(node)
            graph.nodes[one.number] = node
            self._count(graph, "node", int(one.number))
        for one in plan.added:
            for name, origin in one.links.items():
                self._connect(graph, one.number, name, origin)
        for (number, name), origin in plan.moved.items():
            entries = graph.nodes[number]["inputs"]
            linked = (entry["link"] for entry in entries if entry["name"] == name and entry.get("link") in graph.links)
            _move(graph, next(linked), origin)

    def _connect(self, graph: UIGraph, number: str, name: str, origin: Output) -> None:
        entries = graph.nodes[number]["inputs"]
        slot = next(slot for slot, entry in enumerate(entries) if entry["name"] == name)
        link = 1 + self._last("link")
        entries[slot]["link"] = link
        row = _row(graph, link, origin, (int(number), slot), entries[slot]["type"])
        _links(graph).append(row)
        graph.links[link] = Link.read(row)
        _ends(graph, origin).append(link)
        self._count(graph, "link", link)

    def _last(self, what: str) -> int:
        """The highest id of a node or a link anywhere: the browser wants them different in all graphs."""
        found = [0]
        for graph in self.graphs:
            state = graph.data.get("state") or {}
            found += [graph.data.get(f"last_{what}_id") or 0, state.get(f"last{what.title()}Id") or 0]
            found += [node["id"] for node in graph.data["nodes"]] if what == "node" else list(graph.links)
        return max(int(one) for one in found if str(one).removeprefix("-").isdecimal())

    def _count(self, graph: UIGraph, what: str, number: int) -> None:
        """The counters of the graph and of the workflow."""
        for data in (graph.data, self.workflow.root.data):
            if isinstance(data.get("state"), dict):
                data["state"][f"last{what.title()}Id"] = number
            if f"last_{what}_id" in data or (data is self.workflow.root.data and "state" not in data):
                data[f"last_{what}_id"] = number


def _saved_cfg(node: NodeData) -> float | None:
    values = node.get("widgets_values")
    if isinstance(values, dict):
        return as_number(values.get("cfg"))
    place = CFG_FROM_END.get(node["type"])
    return as_number(values[-place]) if place and values and len(values) >= place else None


def _node(added: Added, graph: UIGraph) -> NodeData:
    """A node as the browser saves it, with nothing connected."""
    beside = graph.nodes[added.beside]
    entries: list[dict[str, Any]] = [{"name": name, "type": TYPES[name], "link": None} for name in SOCKETS[added.kind]]
    if "cfg" in added.links:
        entries.append({"name": "cfg", "type": "FLOAT", "widget": {"name": "cfg"}, "link": None})
    return {
        "id": int(added.number),
        "type": added.kind,
        "pos": list(free_place(graph.data, beside, SIZES[added.kind])),
        "size": list(SIZES[added.kind]),
        "flags": {},
        "order": beside.get("order", 0),
        "mode": 0,
        "inputs": entries,
        "outputs": [{"name": name, "type": kind, "links": []} for name, kind in OUTPUTS[added.kind]],
        "properties": {"Node name for S&R": added.kind},
        "widgets_values": list(added.widgets.values()),
    }


def _row(graph: UIGraph, number: int, origin: Output, target: tuple[int, int], kind: str) -> Any:
    """A link in the spelling of the graph."""
    values = (number, _start(graph, origin), origin[1], *target, kind)
    rows = _links(graph)
    if any(isinstance(row, dict) for row in rows) or (not rows and "last_link_id" not in graph.data):
        return dict(zip((*LINK_NAMES, "type"), values, strict=True))
    return list(values)


def _start(graph: UIGraph, origin: Output) -> Any:
    """The id that stands in a link for where it begins."""
    return graph.nodes[origin[0]]["id"] if origin[0] in graph.nodes else int(origin[0])


def _links(graph: UIGraph) -> list[Any]:
    """The rows of a graph's links, which some files have as an object by their ids."""
    rows = graph.data.get("links")
    if not isinstance(rows, list):
        rows = graph.data["links"] = list((rows or {}).values())
    return rows


def _move(graph: UIGraph, number: int, origin: Output) -> None:
    """Lets a link begin at another output; it keeps its id and its end."""
    row = next(row for row in _links(graph) if row and Link.read(row).number == number)
    old = graph.links[number]
    ends = _ends(graph, (old.origin, old.slot))
    if number in ends:
        ends.remove(number)
    if isinstance(row, dict):
        row["origin_id"], row["origin_slot"] = _start(graph, origin), origin[1]
        row.pop("parentId", None)
    else:
        row[1], row[2] = _start(graph, origin), origin[1]
    _ends(graph, origin).append(number)
    _leave_reroutes(graph.data, number)


def _ends(graph: UIGraph, origin: Output) -> list[int]:
    """The ids of the links at an output."""
    if origin[0] == INPUTS and origin[0] not in graph.nodes:
        slot, name = graph.slot("inputs", origin[1]), "linkIds"
    else:
        slot, name = slot_of(graph.nodes[origin[0]], "outputs", origin[1], f"node {origin[0]}"), "links"
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
