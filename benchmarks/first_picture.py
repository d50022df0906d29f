"""Seconds until a small graph's first picture is there: stock nodes, Headroom's without a report, and with one.

A server of its own for every run, since what a server has planned and predicted once it keeps; the ways take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

from _harness import load_package
from _sections import Report, Section

load_package()

from headroom.tools.demo.__main__ import WORKFLOWS, shrunk  # noqa: E402
from headroom.tools.demo.twin import stock_twin  # noqa: E402
from headroom.tools.server.client import Client, Result, Workflow  # noqa: E402
from headroom.tools.server.server import Server  # noqa: E402
from headroom.tools.setup.environment import Environment  # noqa: E402

GRAPHS = {
    "sd15_text_to_image": "SD 1.5 text to image",
    "flux_text_to_image": "Flux text to image",
    "sd3_text_to_image": "SD 3 text to image",
    "sd15_image_to_image": "SD 1.5 image to image",
    "wan_video_decode": "Wan 2.1 video",
}
REPORT_NODE = "HeadroomReport"
STOCK, STOCK_REPORT = "stock", "stock with a report"
BARE, REPORT = "Headroom without a report", "Headroom with a report"
MOST = {BARE: 1.02, REPORT: 1.1}
INTRODUCTION = """# Until the first picture

From the start of a prompt to the end of the node that saves its picture, on a server that has just started: loading the
models, planning the strips and the Memory Report's predictions are in it. One small prompt ran before (another size,
one step), so that what Python loads once is not. Servers took turns; medians of wall time, and the quartiles."""


def without_report(workflow: Workflow) -> Workflow:
    """The workflow with every Memory Report passed by."""
    passed = {
        number: node["inputs"]["anything"] for number, node in workflow.items() if node["class_type"] == REPORT_NODE
    }

    def origin(value: object) -> object:
        return passed.get(value[0], value) if isinstance(value, list) else value

    return {
        number: {**node, "inputs": {name: origin(value) for name, value in node["inputs"].items()}}
        for number, node in workflow.items()
        if number not in passed
    }


def with_report(workflow: Workflow) -> Workflow:
    """The stock workflow with a Memory Report in front of the node that saves the picture."""
    saves = picture_node(workflow)
    report = {"class_type": REPORT_NODE, "inputs": {"anything": workflow[saves]["inputs"]["images"]}}
    saving = {**workflow[saves], "inputs": {**workflow[saves]["inputs"], "images": ["report", 0]}}
    return {**workflow, "report": report, saves: saving}


def picture_node(workflow: Workflow) -> str:
    """The number of the node that saves the picture."""
    return next(number for number, node in workflow.items() if "images" in node["inputs"])


WAYS: dict[str, Callable[[Workflow], Workflow]] = {
    STOCK: stock_twin,
    STOCK_REPORT: lambda workflow: with_report(stock_twin(workflow)),
    BARE: without_report,
    REPORT: dict,
}


def until_picture(result: Result, node: str) -> float:
    """Seconds from the prompt's start to the end of a node; they run in the order in which they are noted."""
    numbers = list(result.node_seconds)
    return sum(result.node_seconds[number] for number in numbers[: numbers.index(node) + 1])


def first_picture(environment: Environment, workflow: Workflow) -> float:
    """Seconds until the picture of a workflow is there, on a server of its own."""
    with Server(environment) as server:
        client = Client(server.url)
        client.run(shrunk(workflow))
        client.free()
        return until_picture(client.run(workflow), picture_node(workflow))


def section(environment: Environment, demo: str, runs: int) -> Section:
    """All ways of one demo graph in turns."""
    workflow = json.loads((WORKFLOWS / f"{demo}.json").read_text(encoding="utf-8"))
    ways = {name: change(workflow) for name, change in WAYS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(runs):
        for name, changed in ways.items():
            seconds[name].append(first_picture(environment, changed))
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    result = Section()
    for name, most in MOST.items():
        result.most(f"{name}, against stock nodes", most, middle[name] / middle[STOCK])
    result.most(f"{STOCK_REPORT}, against stock nodes", MOST[REPORT], middle[STOCK_REPORT] / middle[STOCK])
    result.table(
        ("way", "seconds", "quartiles", "against stock"),
        [[name, f"{middle[name]:.2f}", quartiles(values), f"{middle[name] / middle[STOCK]:.3f}x"]
         for name, values in seconds.items()],
    )  # fmt: skip
    return result


def quartiles(values: list[float]) -> str:
    """The first and the third."""
    if len(values) < 2:
        return ""
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return f"{first:.2f} to {third:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--only", nargs="*", choices=GRAPHS, default=list(GRAPHS))
    options = parser.parse_args()
    environment = Environment.from_variables()
    report = Report(Path(__file__).with_suffix(".md"), INTRODUCTION, GRAPHS)
    for demo in options.only:
        report.measure(demo, partial(section, environment, demo, options.runs), options.runs)


if __name__ == "__main__":
    main()
