"""The memory report of a prompt: which nodes stand before the report node, and what the run log knows of them."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import comfy.model_management
import numpy as np
import torch
from torch import Tensor

from ...graph.prompt import Graph, parents, upstream
from ...memory import Row
from ...memory.accelerator import has_own_memory
from ...memory.prediction import CannotPredict, GivenUp, while_wanted
from ...memory.render import MemoryBar, NodeReport, draw_report, measured_bar, render_report
from ..attention.override import overrides_of
from ..core.device import describe_machine
from ..core.internals import missing, withheld
from ..core.nodes import display_names
from ..measure.runs import LOG
from ..measure.wrappers import settings_of
from .rows import ask

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

log = logging.getLogger(__name__)

LONGEST = 15.0  # seconds of a core that a report takes to predict what its rows measured


@dataclass(frozen=True)
class MemoryReport:
    """Of a prompt so far.

    Attributes:
        text: for people.
        chart: IMAGE (1, H, W, 3), float32 from 0 to 1.
        bar: measured peaks against the device.
    """

    text: str
    chart: Tensor
    bar: MemoryBar


def memory_report(prompt: str, node: str, graph: Graph, model: ModelPatcher | None) -> MemoryReport:
    """What the nodes of a prompt have done so far, those before ``node`` first."""
    nodes = list(_node_reports(prompt, node, graph))
    settings = [] if model is None else _describe_model(model)
    device = comfy.model_management.get_torch_device()
    machine = describe_machine(device)
    chart = np.asarray(draw_report(nodes, machine), dtype=np.float32) / 255.0
    total = int(comfy.model_management.get_total_memory(device))
    bar = measured_bar(nodes, total, own_memory=has_own_memory(device))
    return MemoryReport(render_report(nodes, machine, settings), torch.from_numpy(chart)[None], bar)


def _node_reports(prompt: str, node: str, graph: Graph) -> Iterator[NodeReport]:
    """Nodes before the report, each after those it depends on; then whatever else this prompt has run so far."""
    depended_on, limit = _upstream(node, graph), _Limit(LONGEST)
    elsewhere = [other for other in LOG.nodes(prompt) if other not in depended_on and graph.has_node(other)]
    for before in (*depended_on, *elsewhere):
        class_type = graph.get_node(before)["class_type"]
        signature = _signature(before, graph)
        rows = LOG.rows(prompt, before)
        for row in rows:
            row.signature = signature
            _ask(row, limit)
        cached = [] if rows else LOG.earlier(before, signature)
        if class_type.startswith("Headroom") and not rows and not cached:
            continue  # it set something up; the node that used it is measured
        yield NodeReport(before, _display_name(class_type), rows or cached, cached=bool(cached))


class _Limit:
    """Of the time that all predictions of a report take; of this thread, so that a busy machine shortens none."""

    def __init__(self, seconds: float) -> None:
        self.end = time.thread_time() + seconds

    def is_kept(self) -> bool:
        return time.thread_time() < self.end


@cache
def _can_predict() -> bool:
    """Whether this host has what predictions reach of it."""
    return "HeadroomEstimate" not in withheld(missing())


def _ask(row: Row, limit: _Limit) -> None:
    """Has a row's work predicted, unless it has told already; a report must neither fail for it nor wait for long."""
    if row.outcome != "done" or row.predicted is not None or not _can_predict():
        return
    try:
        with while_wanted(limit.is_kept):
            ask(row)
    except GivenUp:
        row.lines.append(f"not predicted: a report predicts for {LONGEST:g} s; Will It Fit? for as long as it takes")
    except (CannotPredict, ValueError, RuntimeError):
        log.debug("Headroom: no prediction of a measured stretch of work", exc_info=True)


def _upstream(node: str, graph: Graph) -> list[str]:
    """Every node that ``node`` depends on, dependencies first. What was never expanded into the graph is left out."""
    return upstream(node, lambda number: filter(graph.has_node, parents(graph.get_node(number))))


def _signature(node: str, graph: Graph) -> str:
    """Of a node and all before it: equal while the host would reuse its cached result."""
    parts = [(n, graph.get_node(n)["class_type"], graph.get_node(n)["inputs"]) for n in (*_upstream(node, graph), node)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _display_name(class_type: str) -> str:
    return display_names().get(class_type, class_type)


def _describe_model(model: ModelPatcher) -> list[str]:
    found = [*settings_of(model), *(override.describe() for override in overrides_of(model))]
    return [f"model: {line}" for line in found or ["no Headroom node on it"]]
