"""Memory that runs out at any operator of a prompt, by a fault in the server; for real it does in `card.py`."""

from __future__ import annotations

import random
import re

from headroom.tools.server.client import PromptFailed, Workflow

from .cases import DIFFERENT, FINE, RAW, SENTENCE, STOPPED, THEIRS, Found
from .prompts import resized, results
from .stand import Stand, api_graphs, judged

FAULTS = "faults"
# What the host logs, and goes on without the patch of that weight.
WITHOUT_PATCH = re.compile(r"ERROR \w+ \S+ CUDA out of memory")
OTHERWISE = re.compile(r"approximate|falls? back|fell back|instead|out of memory.*: tried", re.IGNORECASE)


class Injected:
    """The n-th operator of a prompt fails: the prompt ends in the host's way, or goes on as its report says; the next
    one is what it always was."""

    name = "memory"
    GRAPHS = (
        "sd15_text_to_image", "flux_text_to_image", "wan_video_decode", "flux_low_vram", "sd15_image_to_image",
        "flux_cast_lora", "sd15_local_attention", "vae_round_trip",
    )  # fmt: skip
    SIZE = {"width": 96, "height": 96, "steps": 2}

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        stand.with_pack(FAULTS)
        graphs = api_graphs()
        self.graphs = {name: resized(graphs[name], self.SIZE) for name in self.GRAPHS}
        self.expected: dict[str, tuple[dict[str, str], int]] = {}

    def reference(self, name: str) -> tuple[dict[str, str], int]:
        """What a graph makes when nothing fails, and how many operators it takes."""
        if name not in self.expected:
            self.arm(0)
            found = self.fresh(self.graphs[name])
            self.expected[name] = found, self.stand.client.get("/campaign/fault")["operators"]
        return self.expected[name]

    def case(self, chance: random.Random) -> Found:
        """One failed allocation."""
        name = chance.choice(list(self.graphs))
        expected, operators = self.reference(name)
        after = chance.randint(1, operators)
        self.arm(after)
        outcome, detail, made = FINE, "", None
        try:
            made = self.fresh(self.graphs[name])
        except PromptFailed as error:
            outcome, detail = STOPPED, f"{error.node_type}: {error.exception_type}: {error.exception_message}"[:300]
            if "OutOfMemory" not in error.exception_type and "memory" not in error.exception_message:
                outcome = judged(error)[0]  # a library of the host may have made another error of it
        state = self.stand.client.get("/campaign/fault")
        self.arm(0)
        what = f"{name} at operator {after} of {operators}, {state['failed'] or 'not reached'}"
        if outcome == RAW:
            return Found(RAW, what, detail)
        if made is not None and made != expected:
            said = said_of(self.stand)
            if WITHOUT_PATCH.search(said):
                outcome, detail = THEIRS, said[-200:]
            elif not OTHERWISE.search(said):
                return Found(DIFFERENT, what, f"and nothing says why: {said[-600:]}")
            else:
                outcome, detail = SENTENCE, said[:200]
        if self.fresh(self.graphs[name]) != expected:
            return Found(DIFFERENT, what, f"the next prompt; before it: {detail}")
        return Found(outcome, what, detail)

    def arm(self, after: int) -> None:
        self.stand.client.post("/campaign/fault", {"after": after})

    def fresh(self, workflow: Workflow) -> dict[str, str]:
        """Results with models loaded anew."""
        self.stand.client.free()
        return results(self.stand.client, workflow)


def said_of(stand: Stand) -> str:
    """What the last prompt's rows and the end of the log say."""
    last = stand.client.get("/history?max_items=1")
    rows = [stand.client.get(f"/headroom/runs/{prompt}")["rows"] for prompt in last]
    return f"{rows} {stand.server.log_path.read_text(errors='replace')[-2000:]}"


PARTS = (Injected,)
