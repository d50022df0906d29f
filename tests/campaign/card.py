"""Memory of the emulated card that is taken away in the middle of prompts, so that torch's own allocator runs out."""

from __future__ import annotations

import io
import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors.numpy
from PIL import Image

from headroom.tools.server.client import Client, PromptFailed, Workflow

from .cases import DIFFERENT, FINE, LEFT, RAW, SENTENCE, STOPPED, THEIRS, Found
from .memory import FAULTS, OTHERWISE, said_of
from .prompts import reseeded, resized
from .stand import LONGEST, Stand, api_graphs, judged

MB = 2**20
CASTS = {"HeadroomCast", "HeadroomCastCLIP"}
Made = dict[str, Any]  # arrays by node, kind and place
LATENT_DB, LEVELS = 90.0, 1  # what another order of sums makes of a latent, and of a picture in 8 bits
CAST_DB = 30.0  # weights in 8 bits are brought back with a LoRA at another moment where they are streamed, as in stock


@dataclass
class Whole:
    """What a graph does when nothing is taken away.

    Attributes:
        made: its results, by the variant of the graph.
        operators: that it takes, its models in this machine's memory and not on the card.
        peak: bytes of the card that it takes.
        kept: bytes that stay allocated when all models are let go.
    """

    made: list[Made]
    operators: int
    peak: int
    kept: int


class CardMemory:
    """From some operator on the card has a part of what the graph takes: the prompt ends in the host's way, or goes on
    as its report says; with the memory given back, the next prompt is what it always was, and nothing stays behind.

    A case is a graph that goes through this several times, its files loaded once: by turns the variant that memory is
    taken from, and another one (other seed, other words) that is looked at. Exact ways by other sums, as strips are,
    may differ in the last bits while memory is short, and not after it.
    """

    name = "card_memory"
    on_card = True
    GRAPHS = (
        "sd15_text_to_image", "flux_text_to_image", "wan_video_decode", "flux_low_vram", "flux_cast_lora",
        "sd15_local_attention", "sd3_text_to_image", "qwen_image_text_to_image",
    )  # fmt: skip
    SIZE = {"width": 32, "height": 32, "steps": 1, "length": 1}
    LARGER = {"sd15_text_to_image": 64, "sd15_local_attention": 64}  # their networks halve a latent three times
    rounds = 8
    OF_ALL, OF_GIVEN = (0.01, 0.3), (0.01, 0.3)  # of what the graph takes, and of what it has taken by then

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        stand.with_pack(FAULTS)
        graphs = api_graphs()
        self.graphs: dict[str, tuple[Workflow, Workflow]] = {}
        for name in self.GRAPHS:
            side = self.LARGER.get(name, self.SIZE["width"])
            self.graphs[name] = variants(resized(graphs[name], self.SIZE | {"width": side, "height": side}))
        self.known: dict[str, Whole] = {}

    def case(self, chance: random.Random) -> Found:
        """Some rounds of one graph."""
        name = chance.choice(list(self.graphs))
        self.take_away(0)
        whole = self.whole(name)
        if whole is None:
            return Found(DIFFERENT, f"{name}, with nothing taken away")
        told, outcomes = [], []
        for _ in range(self.rounds):
            found = self.round(name, whole, chance)
            told.append(found.what)
            outcomes.append(found.outcome)
            if found.outcome not in (FINE, STOPPED, SENTENCE):
                return Found(found.outcome, f"{name}: {'; '.join(told)}", found.detail)
        outcome = STOPPED if STOPPED in outcomes else SENTENCE if SENTENCE in outcomes else FINE
        return Found(outcome, f"{name}: {'; '.join(told)}")

    def whole(self, name: str) -> Whole | None:
        """The graph as it is, run so that its files are loaded; None: its results are not those of before."""
        first, second = self.graphs[name]
        made = [made_by(self.stand.client, first), made_by(self.stand.client, second)]
        if name not in self.known:
            kept = self.unload()
            again = made_by(self.stand.client, first)
            card = self.stand.client.get("/campaign/card")
            self.known[name] = Whole(made, card["operators"], card["peak"], kept)
            made = [again, made_by(self.stand.client, second)]
        return self.known[name] if all(map(same, made, self.known[name].made)) else None

    def round(self, name: str, whole: Whole, chance: random.Random) -> Found:
        """Memory taken away once, and given back."""
        first, second = self.graphs[name]
        self.unload()
        after, of_all = chance.randint(1, whole.operators), chance.random() < 0.5
        share = chance.uniform(*(self.OF_ALL if of_all else self.OF_GIVEN))
        self.take_away(after, share * whole.peak if of_all else 0, 0 if of_all else share)
        outcome, detail, made = FINE, "", None
        try:
            made = made_by(self.stand.client, first)
        except PromptFailed as error:
            kind, _, detail = judged(error)
            # A sentence of ours may speak of a budget; of an error of the host's nodes, memory has to be the reason.
            outcome = STOPPED if kind == SENTENCE or (kind == THEIRS and "memory" in detail.lower()) else RAW
        state = self.stand.client.get("/campaign/card")
        what = (
            f"{state['room'] / MB:.0f} of {whole.peak / MB:.0f} MB from operator {after} of {whole.operators} on:"
            f" {state['failed']} out of memory, {outcome}"
        )
        self.take_away(0)
        if made is not None and not same(made, whole.made[0]):
            said = said_of(self.stand)
            outcome, detail = SENTENCE, f"{difference(made, whole.made[0])}: {said[:2000]}"
            if not near(made, whole.made[0], CASTS & kinds_of(first)) and not OTHERWISE.search(said):
                return Found(DIFFERENT, what, f"and nothing says why: {detail}")
            what = f"{what}, {difference(made, whole.made[0])}"
        if outcome == RAW:
            return Found(RAW, what, detail)
        if not same(made_by(self.stand.client, second), whole.made[1]):
            return Found(DIFFERENT, what, f"the next prompt; before it: {detail}")
        left = self.unload() - whole.kept
        if left > 0:
            return Found(LEFT, what, f"{left} bytes are still allocated; before it: {detail}")
        return Found(outcome, what, detail)

    def take_away(self, after: int, room: float = 0.0, share: float = 0.0) -> None:
        """From an operator of the next prompt on, the card has so many bytes, or a share of those it gave out by then.

        Operator 0: it has all of them, at once.
        """
        self.stand.client.post("/campaign/card", {"after": after, "bytes": room, "share": share})

    def unload(self) -> int:
        """Has the host let all models go from the card; bytes that are allocated after it."""
        return int(self.stand.client.post("/campaign/unload")["allocated"])


def made_by(client: Client, workflow: Workflow) -> Made:
    """The pixels and latents that a graph saves."""
    made: Made = {}
    for number, output in client.run(workflow, timeout=8 * LONGEST).outputs.items():
        for kind in ("images", "latents") if workflow[number]["class_type"].startswith("Save") else ():
            for place, entry in enumerate(output.get(kind, ())):
                file = client.file(entry)
                if kind == "images":
                    made[f"{number} {kind} {place}"] = np.asarray(Image.open(io.BytesIO(file)).convert("RGB"), float)
                else:
                    made[f"{number} {kind} {place}"] = safetensors.numpy.load(file)["latent_tensor"].astype(float)
    return made


def same(made: Made, expected: Made) -> bool:
    """Bit for bit."""
    return made.keys() == expected.keys() and all(np.array_equal(made[one], expected[one]) for one in made)


def near(made: Made, expected: Made, is_cast: Any) -> bool:
    """Whether exact ways by other sums make both."""
    if made.keys() != expected.keys() or any(made[one].shape != expected[one].shape for one in made):
        return False
    if is_cast:
        return all(decibels(made[one], expected[one]) > CAST_DB for one in made)
    return all(
        decibels(made[one], expected[one]) >= LATENT_DB
        if "latents" in one
        else np.abs(made[one] - expected[one]).max() <= LEVELS
        for one in made
    )


def difference(made: Made, expected: Made) -> str:
    """The greatest of pictures, in levels of 255, and the least of latents, in dB."""
    levels = [np.abs(made[one] - expected[one]).max() for one in made if "images" in one and one in expected]
    least = [decibels(made[one], expected[one]) for one in made if "latents" in one and one in expected]
    return f"other by {max(levels, default=0):g} levels, latents within {min(least, default=math.inf):.0f} dB"


def decibels(made: Any, expected: Any) -> float:
    error = float(np.mean((made - expected) ** 2))
    return math.inf if error == 0 else 10 * math.log10(float(np.ptp(expected)) ** 2 / error)


def kinds_of(workflow: Workflow) -> set[str]:
    return {node["class_type"] for node in workflow.values()}


def variants(workflow: Workflow) -> tuple[Workflow, Workflow]:
    """A graph, and the same of other words and with another seed: of neither is anything kept when the other ran."""
    for node in workflow.values():
        if node["class_type"] == "SaveAnimatedWEBP":  # compressed with losses
            kept = {name: node["inputs"][name] for name in ("images", "filename_prefix")}
            node.update(class_type="SaveImage", inputs=kept)
    other = reseeded(workflow, 2)
    for node in other.values():
        if "text" in node["inputs"]:
            node["inputs"]["text"] = f"{node['inputs']['text']}, seen from afar"
    return reseeded(workflow, 1), other


PARTS = (CardMemory,)
