"""What a workflow takes, as numbers and as text: for the command line, the server's routes and its admission."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import comfy.model_management as model_management
import torch

from ...graph.fit.cfg_source import follow_cfg
from ...graph.formats import PROMPT, WORKFLOW, Called, check_api, check_sent, is_ui
from ...graph.prompt import Prompt
from ...graph.settings import GPUS, THIS_MACHINE, check_choice, check_names, check_share, check_size
from ...graph.to_api import to_api
from ...memory.prediction import Card, Forecast, forecast_numbers
from ...memory.render import render_forecast
from ...memory.units import format_bytes
from ..catalogue.entries import PublicFile
from ..core.device import GB, ram_total
from ..core.nodes import display_names, node_classes
from ..following.loads import Loads
from ..prediction.stages import chosen_card
from .dry_run import DryRun
from .isolation import beside_the_prompt
from .running import ends_of, lines_on_the_rest, part_that_runs

# Inputs of our nodes that write to the disk, and what they are where they change nothing of what is predicted.
LEFT_OUT: dict[str, Callable[[Any], bool]] = {
    "cache_file": lambda value: True,
    "sensitivity": lambda value: value == "off",
}
INCOMPLETE = "INCOMPLETE: some of what takes memory was not followed; it may need more"


@dataclass(frozen=True)
class Terms:
    """What a workflow is measured against.

    Attributes:
        limit: share of the card's memory that may be used.
        vram_gb: of the card, in GB of 2^30 bytes; 0: all of this machine's.
        ram_gb: of the machine; 0: this machine's.
        gpu: one of :data:`...graph.settings.GPUS`.
    """

    limit: float = 0.85
    vram_gb: float = 0.0
    ram_gb: float = 0.0
    gpu: str = THIS_MACHINE

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Terms:
        """From a request; what is not given keeps its default.

        Raises:
            ValueError: a value that makes no sense, named with what to send instead.
        """
        check_names(values, tuple(cls.__dataclass_fields__))
        terms = cls(**values)
        check_share("limit", terms.limit)
        check_size("vram_gb", terms.vram_gb)
        check_size("ram_gb", terms.ram_gb)
        check_choice("gpu", terms.gpu, GPUS)
        return terms

    def card(self) -> Card:
        """The card that is meant.

        Raises:
            ValueError: a card by name without its memory, on a machine that is not like it.
        """
        return chosen_card(self.gpu, self.vram_gb, model_management.get_torch_device())


def checked_prompt(content: Any) -> Prompt:
    """A workflow in the API format, its nodes by their ids; one in the browser's format is converted.

    Raises:
        BadWorkflow: it is none.
    """
    check_sent(content, PROMPT)
    if is_ui(content):
        return as_queued(content, called=PROMPT)
    check_api(content, PROMPT)
    prompt: Prompt = content
    return prompt


def as_queued(workflow: dict[str, Any], ours: Mapping[str, Any] | None = None, called: Called = WORKFLOW) -> Prompt:
    """A workflow in the browser's format in the API format, by this host's nodes.

    Args:
        workflow: the JSON object; not changed.
        ours: this pack's nodes by their ids, where the host has not loaded them.
        called: what the workflow is called in sentences.

    Raises:
        BadWorkflow: it is not in this format or not whole, uses group nodes, or goes in a circle.
    """
    return to_api(workflow, {**node_classes(), **(ours or {})}, display_names(), called)


@dataclass(frozen=True)
class WorkflowAnswer:
    """A workflow's forecast, and what it leaves out.

    Attributes:
        forecast: of the stages that were followed.
        notes: what it leaves out, for people.
        unknown: one line per node that was not followed.
        complete: whether all that may take memory was followed.
        stages_followed: whether every text, sampling, encode and decode was: other nodes can only add to it.
        absent: files that are not on this machine and were taken from the catalogue.
    """

    forecast: Forecast
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    complete: bool = True
    stages_followed: bool = True
    absent: tuple[PublicFile, ...] = ()

    @property
    def numbers(self) -> dict[str, Any]:
        """For programs, as JSON takes it; sizes in GB of 2^30 bytes."""
        return {
            **forecast_numbers(self.forecast, self.unknown, self.complete),
            "absent": list(map(_absent, self.absent)),
        }

    @property
    def text(self) -> str:
        """For people."""
        notes = tuple(note for note in self.notes if note != INCOMPLETE)
        return render_forecast(self.forecast, notes, "" if self.complete else INCOMPLETE)

    @property
    def guessed(self) -> bool:
        """Whether the host's own estimate stands for a stage that could not be predicted."""
        return any(stage.doubt for stage in self.forecast.stages)


class NothingToPredict(ValueError):
    """Nothing of a workflow that was followed takes memory of a card; the message says what was not.

    Attributes:
        complete: whether all of it was followed.
        code, values: which sentence it is and what stands in it, for whoever says it in another language.
    """

    def __init__(self, reasons: str, complete: bool) -> None:
        super().__init__(f"nothing to predict in this workflow: {reasons or 'no sampler, no VAE, no text'}")
        self.complete = complete
        self.code, self.values = ("nothing_followed", {"why": reasons}) if reasons else ("nothing_to_predict", {})


def estimate_workflow(
    workflow: Prompt,
    card: Card,
    limit: float,
    ram: int = 0,
    ours: Mapping[str, Any] | None = None,
    ends: Sequence[str] | None = None,
    loads: Loads | None = None,
) -> WorkflowAnswer:
    """Goes through what of a workflow runs, without data. Reads headers of models and pictures, and writes nothing.

    Args:
        workflow: in the API format.
        card: where it would run.
        limit: share of the card's memory that may be used.
        ram: bytes of the machine's memory; 0: not asked.
        ours: this pack's nodes by their ids, where the host has not loaded them.
        ends: the nodes that are to run, with all before them; None: those that save or show something.
        loads: what loaders gave to earlier runs of this thread; None: nothing.

    Raises:
        NothingToPredict: there is nothing in it to predict.
        ValueError: a workflow that makes no sense.
    """
    ends = ends_of(workflow, ours=ours) if ends is None else ends
    runs = partial(part_that_runs, ends=ends)
    prompt = runs(follow_cfg(_without_writing(workflow), runs))
    run = DryRun(prompt, card, ours or {}, limit, loads=loads or Loads()).run()
    rest = tuple(lines_on_the_rest(workflow, ends))
    unknown = tuple(f"node {number}: {why}" for number, why in run.unknown.items())
    if not run.stages:
        raise NothingToPredict("; ".join([*_not_followed(run), *rest]), run.complete)
    not_followed = (f"not followed: {line}" for line in _not_followed(run))
    notes = tuple(dict.fromkeys([*_from_the_catalogue(run), *not_followed, *rest, *run.notes]))
    if not run.complete:
        notes = (INCOMPLETE, *notes)
    absent = tuple(run.absent.used.values())
    return WorkflowAnswer(run.forecast(ram), notes, unknown, run.complete, run.stages_followed, absent)


def _absent(file: PublicFile) -> dict[str, Any]:
    return {"name": file.name, "folder": file.folder, "gb": file.nbytes / GB, "confirmed": file.confirmed}


def _from_the_catalogue(run: DryRun) -> Iterator[str]:
    """The files that are not on this machine and were taken from the catalogue, with what to download to where."""
    for file in run.absent.used.values():
        doubt = "" if file.confirmed else "; no published size confirms the entry"
        size = format_bytes(file.nbytes)
        yield f"{file.name} ({size}, models/{file.folder}) is not there: from the catalogue, not from your file{doubt}"


def _not_followed(run: DryRun) -> Iterator[str]:
    """What was not followed, a line for each reason: files that are missing, other nodes, how many wait for these."""
    reasons: dict[str, list[str]] = {}
    alone = [number for number in run.unknown if number not in run.waiting]
    for number in sorted(alone, key=lambda one: one not in run.missing):
        reasons.setdefault(run.unknown[number], []).append(number)
    for why, numbers in reasons.items():
        yield f"node{'s' * (len(numbers) > 1)} {', '.join(numbers)}: {why}"
    if run.waiting:
        count = len(run.waiting)
        yield f"{count} node{'s' * (count > 1)} that need{'s' * (count == 1)} what these would give"


_LOADS = Loads()  # of the server's worker, which is one thread


def estimate_beside(workflow: Prompt, terms: Terms, ends: Sequence[str] | None = None) -> WorkflowAnswer:
    """As :func:`estimate_workflow`, in a thread of a server that may run a prompt at the same time.

    Raises:
        ValueError: there is nothing in it to predict, or the card is not known.
    """
    card, ram = terms.card(), ram_total(terms.ram_gb)
    with torch.inference_mode(), beside_the_prompt():
        return estimate_workflow(workflow, card, terms.limit, ram, ends=ends, loads=_LOADS)


def _without_writing(workflow: Prompt) -> Prompt:
    """The same, its nodes of this pack without the inputs that are left out."""

    def stays(name: str, value: Any) -> bool:
        return name not in LEFT_OUT or not LEFT_OUT[name](value)

    return {
        number: {**node, "inputs": {name: value for name, value in node["inputs"].items() if stays(name, value)}}
        if node["class_type"].startswith("Headroom")
        else node
        for number, node in workflow.items()
    }
