"""Small damage to JSON: prompts as a careless program or a hostile person would write them."""

from __future__ import annotations

import copy
import math
import random
from typing import Any

from headroom.graph.prompt import is_link

Workflow = dict[str, dict[str, Any]]
NUMBERS = (
    0, 1, -1, 2, 3, 7, 0.1, -0.5, 1e-9, 1e9, 1e15, 2**31, -(2**63), 10**400, math.nan, math.inf, -math.inf, True, 8, 24,
    40, 72, 100,
)  # fmt: skip
WORDS = (
    "", " ", "all", "none", "../../x", "C:\\x", "\x00", "é" * 300, "9" * 5000, "double:" + "9" * 400, "*", "auto", "[",
    "(a+)+$", "%s%n", "{}", "null", "NaN", "tiny_sd15.safetensors", "tiny_vae_wan21.safetensors",
)  # fmt: skip
SHAPES = ("width", "height", "length", "batch_size")
SIZES = (16, 24, 32, 40, 64, 72, 96, 1, 2, 5, 9, 0, -8, 10**9, 10**15)
TURNS, MOST_TURNS = ("steps", "grad_accumulation_steps"), 8  # of a training, which nobody is to wait for
# The host's samplers compute as many noise levels as steps divided by this: a billion for 1e-9, which no cancel ends.
LEAST_DENOISE = 1e-4
MOST_WORK = 256 * 256 * 4  # pixels, of sizes that the host takes: a case is to be short


def mutated(workflow: Workflow, chance: random.Random, most: int = 3) -> tuple[Workflow, str]:
    """A damaged copy, and what was done to it."""
    result, done = copy.deepcopy(workflow), []
    for _ in range(chance.randint(1, most)):
        number = chance.choice(list(result))
        way = chance.choice(WAYS)
        done.append(f"{number} {result[number]['class_type']}: {way(result, number, chance)}")
    return result, "; ".join(done)


def work(workflow: Workflow) -> float:
    """Pixels that the host would make of the sizes that it takes."""
    most = 1.0
    for node in workflow.values():
        sizes = [node["inputs"].get(name, 1) for name in SHAPES]
        numbers = [size for size in sizes if isinstance(size, (int, float)) and 1 <= size <= 16384]
        most = max(most, math.prod(numbers))
        denoise = node["inputs"].get("denoise", 1)
        if isinstance(denoise, (int, float)) and 0 < denoise < LEAST_DENOISE:
            return math.inf
        turns = [node["inputs"].get(name, 1) for name in TURNS]
        if node.get("class_type") == "TrainLoraNode" and math.prod(n for n in turns if isinstance(n, int)) > MOST_TURNS:
            return math.inf
    return most


def _number(workflow: Workflow, number: str, chance: random.Random) -> str:
    return _replace(workflow, number, chance, (int, float), NUMBERS)


def _word(workflow: Workflow, number: str, chance: random.Random) -> str:
    return _replace(workflow, number, chance, (str,), WORDS)


def _replace(workflow: Workflow, number: str, chance: random.Random, kinds: tuple[type, ...], values: Any) -> str:
    inputs = workflow[number]["inputs"]
    names = [name for name, value in inputs.items() if isinstance(value, kinds) and not isinstance(value, bool)]
    if not names:
        return "nothing of that kind"
    name = chance.choice(names)
    inputs[name] = chance.choice(SIZES if name in SHAPES else values)
    return f"{name} = {_short(inputs[name])}"


def _kind_of_value(workflow: Workflow, number: str, chance: random.Random) -> str:
    inputs = workflow[number]["inputs"]
    if not inputs:
        return "no inputs"
    name = chance.choice(list(inputs))
    inputs[name] = chance.choice([None, [], {}, [1, 2], {"a": 1}, "text", 3, 0.5, math.nan, True, [["1", 0]], "9" * 99])
    return f"{name} = {_short(inputs[name])}"


def _rewire(workflow: Workflow, number: str, chance: random.Random) -> str:
    inputs = workflow[number]["inputs"]
    links = [name for name, value in inputs.items() if is_link(value)] or list(inputs)
    if not links:
        return "no inputs"
    name = chance.choice(links)
    inputs[name] = [chance.choice([*workflow, "999"]), chance.choice([0, 0, 0, 1, 2, 7, -1, -9])]
    return f"{name} <- {inputs[name]}"


def _drop(workflow: Workflow, number: str, chance: random.Random) -> str:
    inputs = workflow[number]["inputs"]
    if not inputs:
        return "no inputs"
    name = chance.choice(list(inputs))
    del inputs[name]
    return f"without {name}"


def _foreign_input(workflow: Workflow, number: str, chance: random.Random) -> str:
    workflow[number]["inputs"]["surprise"] = chance.choice([1, "x", None, [], {"a": []}])
    return "one input more"


def _empty_latent(workflow: Workflow, number: str, chance: random.Random) -> str:
    """The latent of another family."""
    empties = [key for key, node in workflow.items() if node["class_type"].startswith("Empty")]
    if not empties:
        return "no latent"
    kind, inputs = chance.choice(
        [
            ("EmptyLatentImage", {"width": 64, "height": 64, "batch_size": 1}),
            ("EmptySD3LatentImage", {"width": 64, "height": 72, "batch_size": 2}),
            ("EmptyHunyuanLatentVideo", {"width": 64, "height": 64, "length": 5, "batch_size": 1}),
            ("EmptyLTXVLatentVideo", {"width": 64, "height": 64, "length": 9, "batch_size": 1}),
            ("EmptyLatentAudio", {"seconds": 1.0, "batch_size": 1}),
        ]
    )
    key = chance.choice(empties)
    workflow[key] = {"class_type": kind, "inputs": dict(inputs)}
    return f"{key} = {kind}"


def _batch(workflow: Workflow, number: str, chance: random.Random) -> str:
    for node in workflow.values():
        if "batch_size" in node["inputs"]:
            node["inputs"]["batch_size"] = chance.choice([2, 3])
    return "a batch"


def _odd_size(workflow: Workflow, number: str, chance: random.Random) -> str:
    for node in workflow.values():
        for name in ("width", "height"):
            if name in node["inputs"]:
                node["inputs"][name] = chance.choice([16, 24, 40, 56, 72, 104])
    return "an odd size"


WAYS = (_number, _number, _word, _kind_of_value, _rewire, _drop, _foreign_input, _empty_latent, _batch, _odd_size)


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) < 40 else f"{text[:37]}..."
