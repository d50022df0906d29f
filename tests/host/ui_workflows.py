"""Small workflows in the browser's format."""

from __future__ import annotations

from typing import Any

Workflow = dict[str, Any]
# The browser opens a workflow of another id in a tab of its own; newer ones give what is no UUID an id of their own.
ID, OTHER_ID = "0b1f4f3e-6a55-4d2a-9c6e-000000000001", "0b1f4f3e-6a55-4d2a-9c6e-000000000002"

# Of a template, a node whose saved values have another order where it lacks an input: older hosts' Train LoRA.
LATER = {"train_lora": ("TrainLoraNode", "quantized_backward")}


def ui_node(number: int, kind: str, inputs: dict[str, str] | None = None, outputs: str = "", **more: Any) -> Workflow:
    """A node: inputs by name with their types, a name with * is a widget; types of outputs in a row."""
    entries: list[Workflow] = []
    for name, type_ in (inputs or {}).items():
        widget = {"widget": {"name": name.removesuffix("*")}} if name.endswith("*") else {}
        entries.append({"name": name.removesuffix("*"), "type": type_, "link": None, **widget})
    return {
        "id": number, "type": kind, "pos": [number * 400, 0], "size": [300, 200], "flags": {}, "order": number,
        "mode": 0, "inputs": entries, "properties": {}, "widgets_values": [],
        "outputs": [{"name": one, "type": one, "links": []} for one in outputs.split()],
    } | more  # fmt: skip


def graph(nodes: list[Workflow], *links: tuple[int, int, int, str], **more: Any) -> Workflow:
    """A workflow with links (from, output, to, name of the input)."""
    by_number = {node["id"]: node for node in nodes}
    rows = []
    for number, (start, output, end, name) in enumerate(links, 1):
        entries = by_number[end]["inputs"]
        slot = next(slot for slot, entry in enumerate(entries) if entry["name"] == name)
        entries[slot]["link"] = number
        by_number[start]["outputs"][output]["links"].append(number)
        rows.append([number, start, output, end, slot, entries[slot]["type"]])
    last = {"last_node_id": max(by_number), "last_link_id": len(rows)}
    return {"id": ID, "revision": 0, **last, "nodes": nodes, "links": rows, "groups": [], "version": 0.4} | more


def text_to_image(**sampler: Any) -> Workflow:
    """Loader 1, prompts 2 and 3, latent 4, sampler 5, decode 6, save 7."""
    conditioning, inputs = "CONDITIONING", {"model": "MODEL", "positive": "CONDITIONING", "negative": "CONDITIONING"}
    return graph(
        [
            ui_node(1, "CheckpointLoaderSimple", {}, "MODEL CLIP VAE", widgets_values=["tiny_sd15.safetensors"]),
            ui_node(2, "CLIPTextEncode", {"clip": "CLIP"}, conditioning, widgets_values=["a lighthouse"]),
            ui_node(3, "CLIPTextEncode", {"clip": "CLIP"}, conditioning, widgets_values=["blurry"]),
            ui_node(4, "EmptyLatentImage", {}, "LATENT", widgets_values=[128, 128, 1]),
            ui_node(5, "KSampler", {**inputs, "latent_image": "LATENT", "cfg*": "FLOAT"}, "LATENT",
                    **{"widgets_values": [7, "fixed", 2, 4.0, "euler", "normal", 1.0]} | sampler),
            ui_node(6, "VAEDecode", {"samples": "LATENT", "vae": "VAE"}, "IMAGE"),
            ui_node(7, "SaveImage", {"images": "IMAGE"}, widgets_values=["x"]),
        ],
        (1, 0, 5, "model"), (1, 1, 2, "clip"), (1, 1, 3, "clip"), (2, 0, 5, "positive"), (3, 0, 5, "negative"),
        (4, 0, 5, "latent_image"), (5, 0, 6, "samples"), (1, 2, 6, "vae"), (6, 0, 7, "images"),
    )  # fmt: skip


def node_of(workflow: Workflow, number: int) -> Workflow:
    return next(node for node in workflow["nodes"] if node["id"] == number)


def relink(workflow: Workflow, number: int, start: int, output: int) -> None:
    """Lets a link begin somewhere else."""
    row = next(row for row in workflow["links"] if row[0] == number)
    node_of(workflow, row[1])["outputs"][row[2]]["links"].remove(number)
    row[1], row[2] = start, output
    node_of(workflow, start)["outputs"][output]["links"].append(number)


def between(workflow: Workflow, link: int, node: Workflow, name: str, output: int = 0) -> Workflow:
    """A node put into a link, by its input ``name`` and one of its outputs."""
    row = next(row for row in workflow["links"] if row[0] == link)
    workflow["nodes"].append(node)
    start, taken, number = row[1], row[2], workflow["last_link_id"] + 1
    relink(workflow, link, node["id"], output)
    slot = next(slot for slot, entry in enumerate(node["inputs"]) if entry["name"] == name)
    node["inputs"][slot]["link"] = number
    workflow["links"].append([number, start, taken, node["id"], slot, row[5]])
    node_of(workflow, start)["outputs"][taken]["links"].append(number)
    workflow["last_link_id"], workflow["last_node_id"] = number, max(workflow["last_node_id"], node["id"])
    return workflow


def in_a_subgraph(workflow: Workflow, prompt: str | None = None) -> Workflow:
    """All but the save node as subgraph node 20 with an input ``text`` for the positive prompt."""
    outer = ui_node(20, "sub", {"text*": "STRING"}, "IMAGE", widgets_values=[] if prompt is None else [prompt])
    inside = [node for node in workflow["nodes"] if node["type"] != "SaveImage"]
    save = node_of(workflow, 7)
    names = ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")
    rows = [dict(zip(names, row, strict=True)) for row in workflow["links"]]
    last = next(row for row in rows if row["target_id"] == 7)
    last |= {"target_id": -20, "target_slot": 0}
    first = {"id": 50, "origin_id": -10, "origin_slot": 0, "target_id": 2, "target_slot": 1, "type": "STRING"}
    node_of(workflow, 2)["inputs"].append({"name": "text", "type": "STRING", "widget": {"name": "text"}, "link": 50})
    definition = {
        "id": "sub", "version": 1, "name": "Lighthouse", "nodes": inside, "links": [*rows, first], "groups": [],
        "state": {"lastGroupId": 0, "lastNodeId": 20, "lastLinkId": 50, "lastRerouteId": 0},
        "inputNode": {"id": -10, "bounding": [0, 0, 1, 1]}, "outputNode": {"id": -20, "bounding": [0, 0, 1, 1]},
        "inputs": [{"id": "i", "name": "text", "type": "STRING", "linkIds": [50]}],
        "outputs": [{"id": "o", "name": "IMAGE", "type": "IMAGE", "linkIds": [last["id"]]}],
    }  # fmt: skip
    for entry in save["inputs"]:
        entry["link"] = None
    return graph([outer, save], (20, 0, 7, "images"), definitions={"subgraphs": [definition]})


def doubling(levels: int, copies: int) -> Workflow:
    """A small file that stands for ``copies ** levels`` nodes: subgraphs that hold copies of the next one."""
    subgraphs = [
        {"id": f"s{n}", "nodes": [ui_node(one, f"s{n + 1}", {}) for one in range(copies)], "links": []}
        for n in range(levels)
    ]
    return {"nodes": [ui_node(1, "s0", {})], "links": [], "definitions": {"subgraphs": subgraphs}}


def consistent(workflow: Workflow) -> None:
    """Links have both their ends, and ids are counted and different."""
    graphs = [workflow, *workflow.get("definitions", {}).get("subgraphs", [])]
    for one in graphs:
        rows = {}
        for row in one["links"]:
            number, start, output, end, slot = list(row.values())[:5] if isinstance(row, dict) else row[:5]
            rows[number] = (start, output, end, slot)
        assert len(rows) == len(one["links"])
        by_number = {node["id"]: node for node in one["nodes"]}
        assert len(by_number) == len(one["nodes"])
        begun = {n: (node["id"], slot) for node in one["nodes"] for slot, entry in enumerate(node["outputs"])
                 for n in entry["links"] or ()}  # fmt: skip
        begun |= {n: (-10, slot) for slot, entry in enumerate(one.get("inputs", [])) for n in entry["linkIds"]}
        ended = {entry["link"]: (node["id"], slot) for node in one["nodes"]
                 for slot, entry in enumerate(node["inputs"]) if entry["link"] is not None}  # fmt: skip
        ended |= {n: (-20, slot) for slot, entry in enumerate(one.get("outputs", [])) for n in entry["linkIds"]}
        assert {number: row[:2] for number, row in rows.items()} == begun
        assert {number: row[2:] for number, row in rows.items() if row[2] != 2 or row[0] != -10} == {
            number: end for number, end in ended.items() if rows[number][0] != -10 or rows[number][2] != 2
        }
        counters = one.get("state") or {"lastNodeId": one["last_node_id"], "lastLinkId": one["last_link_id"]}
        assert counters["lastNodeId"] >= max(by_number)
        assert counters["lastLinkId"] >= max(rows, default=0)


def overlap(one: Workflow, other: Workflow) -> bool:
    (x, y), (w, h), (x2, y2), (w2, h2) = one["pos"], one["size"], other["pos"], other["size"]
    return x < x2 + w2 and x2 < x + w and y - 30 < y2 + h2 and y2 - 30 < y + h
