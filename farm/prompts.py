"""Prompts as files: read, divided, named, and what about them matters to a worker.

A job is one prompt for one server. Its id holds a sum of its content, so that a run that goes on knows what it has done
already, whatever the files are called and whichever were added.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from ..graph.formats import BadWorkflow, Called, check_api, is_api, is_request, is_ui
from ..graph.prompt import Prompt, is_link
from .plain import MODEL_FILES

SEEDS = ("seed", "noise_seed")
WITHOUT_MEANING = (*SEEDS, "filename_prefix")  # to how long a prompt takes and what it needs
BATCH, LATENT = "batch_size", "LatentFromBatch"
SIZES = ("width", "height", "length", BATCH)
SAMPLERS = ("sampler_name",)
# Those of the host, by name or as nodes of their own, that draw no noise but the first and take each picture by itself;
# any other may draw some at each step, over the whole batch, or choose its steps by all of it (dpm_adaptive).
WITHOUT_NOISE = {
    "euler", "euler_cfg_pp", "heun", "heunpp2", "dpm_2", "lms", "dpm_fast", "dpmpp_2m",
    "dpmpp_2m_cfg_pp", "ddim", "uni_pc", "uni_pc_bh2", "ipndm", "ipndm_v", "deis", "res_multistep",
    "res_multistep_cfg_pp", "gradient_estimation", "gradient_estimation_cfg_pp", "SamplerLMS", "SamplerEulerCFGpp",
}  # fmt: skip
SAMPLER, SAMPLING = "Sampler", ("SamplerCustom", "SamplerCustomAdvanced")  # nodes that are one, and that run any
LATENTS = {"StableCascade_EmptyLatentImage": (0, 1)}  # a node's outputs that are latents, where not the first alone
CELL, NORMALS = 8, 4  # px of an Empty Latent Image's; cells of whose 4 channels PyTorch draws 16 numbers at once
BROWSERS = "is in the browser's format: export it with Workflow > Export (API), which is what a server runs"
SUM = 12  # hexadecimal digits of a job's sum that its id shows


@dataclass(frozen=True)
class Job:
    """One prompt for one server.

    Attributes:
        name: its id and the name of its folder of results.
        prompt: in the API format.
        source: the file it came from.
        notes: what the user should know of its results.
        uploads: by the name under which the prompt has it, a file to put into the server's input folder.
    """

    name: str
    prompt: Prompt
    source: str
    notes: tuple[str, ...] = ()
    uploads: Mapping[str, Path] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """A sum of all that matters to what it needs and how long it takes: not of seeds and names of its files."""
        plain = {
            number: {
                "class_type": node["class_type"],
                "inputs": {name: value for name, value in node["inputs"].items() if name not in WITHOUT_MEANING},
            }
            for number, node in self.prompt.items()
        }
        return _sum(plain)

    @property
    def size(self) -> int:
        """Pixels of the largest thing that it makes, over frames and batch: a guess at what needs the most memory."""
        return max(
            math.prod(
                value for name, value in node["inputs"].items() if name in SIZES and type(value) is int and value > 0
            )
            for node in self.prompt.values()
        )

    def content(self) -> dict[str, bytes]:
        """Of its uploads, by the names under which the prompt has them."""
        return {there: file.read_bytes() for there, file in self.uploads.items()}

    @property
    def models(self) -> frozenset[str]:
        """The model files that it names."""
        return frozenset(
            value
            for node in self.prompt.values()
            for value in node["inputs"].values()
            if isinstance(value, str) and value.lower().endswith(MODEL_FILES)
        )


def read(paths: Iterable[Path]) -> list[Job]:
    """The jobs of files, each of which holds a workflow in the API format or a request that has one.

    Raises:
        BadWorkflow: a file cannot be read or is not in this format; nothing has been sent yet.
    """
    jobs = [_read(path) for path in paths]
    if not jobs:
        raise BadWorkflow("no prompts: name files as Export (API) writes them, such as prompts/*.json")
    return list(_with_own_names(jobs))


def ends_first(jobs: Iterable[Job]) -> list[Job]:
    """The largest, the smallest, the second largest, the second smallest, and so on: what each server is best at is
    asked about early, and the large one does not begin with what a small one could do."""
    left = deque(sorted(jobs, key=lambda job: job.size))
    return [left.popleft() if number % 2 else left.pop() for number in range(len(left))]


def with_seeds(jobs: Iterable[Job], count: int) -> list[Job]:
    """Each job with its seeds as they are, then with each one higher by one, and so on.

    Raises:
        BadWorkflow: a job has no seed of its own to count up.
    """
    made = [with_seed(job, number) for job in jobs for number in range(count)] if count > 1 else list(jobs)
    return list(_with_own_names(made))


def with_seed(job: Job, more: int) -> Job:
    """A job whose seeds are higher by a number."""
    prompt, found = copy.deepcopy(job.prompt), False
    for node in prompt.values():
        for name in SEEDS:
            value = node["inputs"].get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                node["inputs"][name], found = (value + more) % 2**64, True
    if not found:
        raise BadWorkflow(f"{job.source}: no seed in it to count up; leave --seeds out")
    return replace(job, prompt=prompt)


def split(jobs: Iterable[Job]) -> list[Job]:
    """Jobs with a batch in parts of one picture each.

    Each part has the host cut its picture out of the batch's latent (*Latent From Batch*), by which its sampler draws
    the first noise that this picture has in the batch: parts are the same on any machine.

    Raises:
        BadWorkflow: a batch in a job has no latent to cut from.
    """
    return list(_with_own_names(part for job in jobs for part in _parts(job)))


def with_inputs(jobs: Iterable[Job], folder: Path) -> list[Job]:
    """Jobs whose inputs that name a file of a folder stand for that file, wherever they run.

    On a server the file lies in a folder of ours, under a sum of its content: two of one name do not mix.
    """
    root = folder.resolve()
    return [_with_inputs(job, root) for job in jobs]


def _with_inputs(job: Job, root: Path) -> Job:
    prompt, uploads = copy.deepcopy(job.prompt), dict[str, Path]()
    for node in prompt.values():
        for name, value in node["inputs"].items():
            file = _within(root, value)
            if file is not None:
                digest = hashlib.sha256(file.read_bytes()).hexdigest()[:SUM]
                node["inputs"][name] = there = f"headroom_farm/{digest}/{file.name}"
                uploads[there] = file
    return replace(job, prompt=prompt, uploads=uploads)


def _within(root: Path, value: Any) -> Path | None:
    """The file of a folder that a value names, if there is one and it does not lead out of it."""
    if not isinstance(value, str) or not value or "\n" in value or len(value) > 255:
        return None
    file = (root / value).resolve()
    return file if root in file.parents and file.is_file() else None


def _read(path: Path) -> Job:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadWorkflow(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BadWorkflow(f"{path} is no JSON: {error}") from error
    if is_ui(content):
        raise BadWorkflow(f"{path} {BROWSERS}")
    nodes = content["prompt"] if is_request(content) else content
    if is_ui(nodes):
        raise BadWorkflow(f"{path} {BROWSERS}")
    if not is_api(nodes) or not nodes:
        raise BadWorkflow(f"{path} is no ComfyUI workflow: every entry needs class_type and inputs")
    check_api(nodes, Called(str(path)))
    return Job(path.stem, {str(number): node for number, node in nodes.items()}, str(path))


def _parts(job: Job) -> Iterator[Job]:
    sizes = {
        number: node["inputs"][BATCH]
        for number, node in job.prompt.items()
        if isinstance(node["inputs"].get(BATCH), int) and node["inputs"][BATCH] > 1
    }
    if not sizes:
        yield job
        return
    if len(sizes) > 1:
        raise BadWorkflow(f"{job.source}: nodes {', '.join(sizes)} each have a batch; it can be split where one has")
    ((number, size),) = sizes.items()
    if "Latent" not in job.prompt[number]["class_type"]:
        kind = job.prompt[number]["class_type"]
        raise BadWorkflow(
            f"{job.source}: the batch of node {number} ({kind}) is no empty latent, which alone can be split"
        )
    notes = (*job.notes, _note(job.prompt, job.prompt[number]))
    for index in range(size):
        yield replace(job, prompt=_part(job.prompt, number, index), notes=notes)


def _part(prompt: Prompt, number: str, index: int) -> Prompt:
    """The prompt with one picture of the batch that a node makes."""
    free = (str(one) for one in count(1) if str(one) not in prompt)
    made, cuts = copy.deepcopy(prompt), dict[int, str]()
    latents = LATENTS.get(prompt[number]["class_type"], (0,))
    for node in made.values():
        for name, value in node["inputs"].items():
            if is_link(value) and value[0] == number and value[1] in latents:
                if value[1] not in cuts:
                    cuts[value[1]] = next(free)
                node["inputs"][name] = [cuts[value[1]], 0]
    for output, cut in cuts.items():
        inputs = {"samples": [number, output], "batch_index": index, "length": 1}
        made[cut] = {"class_type": LATENT, "inputs": inputs}
    return made


def _note(prompt: Prompt, made_by: Mapping[str, Any]) -> str:
    """What splitting does to the pictures.

    Args:
        made_by: the node that makes the batch.
    """
    names = {str(value) for node in prompt.values() for name, value in node["inputs"].items() if name in SAMPLERS}
    names |= {kind for node in prompt.values() if (kind := node["class_type"]).startswith(SAMPLER)} - {*SAMPLING}
    drawing = sorted(names - WITHOUT_NOISE)
    if drawing:
        return (
            f"split by batch: {', '.join(drawing)} may draw noise at each step over the whole batch, so that these"
            " pictures are others than those of the batch in one piece"
        )
    sides = [made_by["inputs"].get(name) for name in ("width", "height")]
    is_known = made_by["class_type"] == "EmptyLatentImage" and all(type(side) is int for side in sides)
    if is_known and math.prod(side // CELL for side in sides) % NORMALS:
        return (
            f"split by batch: at {sides[0]} x {sides[1]} PyTorch draws other numbers picture by picture, so that with"
            " models of 4 latent channels (SD1.5, SDXL) these pictures are others than those of the batch in one piece"
        )
    return "split by batch: the same first noise as in the batch in one piece, computed one picture at a time"


def _with_own_names(jobs: Iterable[Job]) -> Iterator[Job]:
    """Names that tell the file and the content; a second one of the same content is counted."""
    seen: dict[str, int] = {}
    for job in jobs:
        stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(job.source).stem).strip(".-")[:60] or "prompt"
        name = f"{stem}-{_sum(job.prompt)[:SUM]}"
        seen[name] = seen.get(name, 0) + 1
        yield replace(job, name=name if seen[name] == 1 else f"{name}-{seen[name]}")


def _sum(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
