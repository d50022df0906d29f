"""Fuzzed prompts over HTTP, and prompts that are interrupted."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from typing import Any

import psutil

from headroom.tools.server.client import Client, PromptInterrupted, PromptRejected, Workflow

from .cases import DEATH, DIFFERENT, FINE, HANG, LONG, RAW, STOPPED, Found
from .mutate import MOST_WORK, mutated, work
from .stand import LONGEST, Stand, api_graphs, waited


class Prompts:
    """Every graph of `workflows/api`, damaged in one to three places."""

    name = "prompts"

    def __init__(self, stand: Stand) -> None:
        self.stand, self.graphs = stand, api_graphs()

    def case(self, chance: random.Random) -> Found:
        """One damaged prompt."""
        name = chance.choice(list(self.graphs))
        while True:
            workflow, done = mutated(self.graphs[name], chance)
            if work(workflow) <= MOST_WORK:
                break
        found = self.stand.run(workflow)
        return Found(found.outcome, f"{name}: {done}", found.detail)


class Interrupts:
    """Graphs that are cancelled somewhere: the server is soon idle, and the next pictures are those of before."""

    name = "interrupts"
    GRAPHS = ("sd15_text_to_image", "flux_text_to_image", "wan_video_decode", "flux_low_vram", "sd15_image_to_image")
    SIZE = {"width": 192, "height": 192, "steps": 4}

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        graphs = api_graphs()
        self.graphs = {name: resized(graphs[name], self.SIZE) for name in self.GRAPHS}
        self.expected: dict[str, tuple[dict[str, str], float]] = {}

    def reference(self, name: str, seed: int = 1) -> tuple[dict[str, str], float]:
        """What a graph makes when nobody interrupts it, and the seconds that it takes."""
        if name not in self.expected:
            self.stand.client.free()
            started = time.monotonic()
            self.expected[name] = results(self.stand.client, self.graphs[name]), time.monotonic() - started
        return self.expected[name]

    def case(self, chance: random.Random) -> Found:
        """One interrupt, and every now and then the references again."""
        name = chance.choice(list(self.graphs))
        expected, whole = self.reference(name)
        client = self.stand.client
        client.free()
        after = chance.uniform(0, whole)
        timer = threading.Timer(after, Client(client.url).interrupt)
        timer.start()
        outcome, detail = FINE, ""
        try:
            client.run(self.graphs[name], timeout=LONGEST * 4)
        except PromptInterrupted as error:
            outcome, detail = STOPPED, str(error)
        finally:
            timer.cancel()
        what = f"{name} after {after:.2f} of {whole:.2f} s"
        idle = waited(client)
        if idle > LONGEST:
            return Found(HANG, what, f"busy for {idle:.1f} s more")
        if results(client, self.graphs[name]) != expected:
            return Found(DIFFERENT, what, detail)
        return Found(outcome, what, f"{detail} idle after {idle:.2f} s")


class Soak:
    """The same graphs again and again, with other seeds: nothing grows."""

    name = "soak"
    BETWEEN = 50  # prompts from one look at what is settled to the next
    GRAPHS: tuple[str, ...] = tuple(name for name in api_graphs() if not name.startswith(("compare", "side")))

    def __init__(self, stand: Stand) -> None:
        self.stand, self.prompts, graphs = stand, 0, api_graphs()
        self.graphs = {name: graphs[name] for name in self.GRAPHS}
        stand.with_pack("settling")

    def case(self, chance: random.Random) -> Found:
        """One prompt; the process's sizes are in the detail."""
        name = chance.choice(sorted(self.graphs))
        workflow = reseeded(self.graphs[name], chance.randrange(2**31))
        found = self.stand.run(workflow)
        self.stand.client.post("/history", {"clear": True})  # it keeps ten thousand prompts
        process = psutil.Process(self.stand.server.pid)
        with process.oneshot():
            sizes = (
                f"rss {process.memory_info().rss / 2**20:.1f} MB, {process.num_fds()} descriptors,"
                f" {process.num_threads()} threads"
            )
        self.prompts += 1
        if self.prompts % self.BETWEEN == 1:
            self.stand.client.free()
            self.stand.client.post("/campaign/settle", {})
            sizes += f", settled {process.memory_info().rss / 2**20:.1f} MB"
        outcome = found.outcome if found.outcome in (FINE, LONG, DEATH) else RAW
        return Found(outcome, name, f"{sizes} {found.detail}".strip())


class SoakOfEight(Soak):
    """Eight graphs with all nodes but the comparisons: each comes often enough to see where its memory levels off."""

    name = "soak_eight"
    GRAPHS = (
        "flux_8gb", "make_it_fit", "sd15_local_attention", "train_lora", "upscale_4k", "video_to_video",
        "wan_video_to_file", "will_it_fit",
    )  # fmt: skip


TO_ONE_ESTIMATE = 10  # calls of routes, of which an estimate takes a second or two


class Clients:
    """Several at once: each gets what it gets alone."""

    name = "clients"
    COUNT = 4
    GRAPHS = ("sd15_text_to_image", "flux_text_to_image", "wan_video_decode", "sd3_text_to_image")

    def __init__(self, stand: Stand) -> None:
        self.stand, graphs = stand, api_graphs()
        self.graphs = {name: graphs[name] for name in self.GRAPHS}
        self.answers: list[Any] = []  # of the routes, when nothing else runs

    def asked(self, client: Client, number: int) -> Any:
        """The answer of one of the pack's routes."""
        if number == 0:
            try:
                return client.get("/headroom/runs/nobody")
            except PromptRejected as error:  # with a sentence
                return str(error)
        return client.post("/headroom/estimate", {"prompt": self.graphs[self.GRAPHS[number - 1]], "vram_gb": 8})

    def case(self, chance: random.Random) -> Found:
        """A round: all of them queue different prompts and ask for estimates, and a further one asks the routes all the
        while."""
        routes = 1 + len(self.GRAPHS)
        self.answers = self.answers or [self.asked(self.stand.client, number) for number in range(routes)]
        rounds = [
            (name, reseeded(self.graphs[name], chance.randrange(2**31)))
            for name in chance.choices(list(self.graphs), k=self.COUNT)
        ]
        url, found = self.stand.server.url, {}
        slowest, others = [0.0], list[int]()

        def one(number: int) -> None:
            client = Client(url, timeout=4 * LONGEST)
            found[number] = results(client, rounds[number][1])
            client.post("/headroom/estimate", {"prompt": rounds[number][1], "vram_gb": 8})

        def watch(done: threading.Event) -> None:
            while not done.wait(0.05):
                started = time.monotonic()
                Client(url).system_stats()
                slowest[0] = max(slowest[0], time.monotonic() - started)

        def ask(done: threading.Event) -> None:
            client = Client(url, timeout=4 * LONGEST)
            while not done.wait(0.02):
                number, rest = divmod(len(others), TO_ONE_ESTIMATE)
                number = 0 if rest else 1 + number % (routes - 1)
                others.append(number if self.asked(client, number) == self.answers[number] else -1)

        done = threading.Event()
        threads = [threading.Thread(target=one, args=(number,)) for number in range(self.COUNT)]
        beside = [threading.Thread(target=one, args=(done,)) for one in (watch, ask)]
        for thread in (*threads, *beside):
            thread.start()
        for thread in threads:
            thread.join()
        done.set()
        for thread in beside:
            thread.join()
        what = ", ".join(name for name, _ in rounds)
        for number, (name, workflow) in enumerate(rounds):
            self.stand.client.free()
            if found.get(number) != results(self.stand.client, workflow):
                return Found(DIFFERENT, what, name)
        if -1 in others:
            return Found(DIFFERENT, what, f"a route, after {others.index(-1)} others")
        detail = f"/system_stats within {slowest[0]:.2f} s, {len(others)} answers of routes"
        return Found(HANG if slowest[0] > 0.5 else FINE, what, detail)


def resized(workflow: Workflow, sizes: dict[str, Any]) -> Workflow:
    """The same graph in another size."""
    return {
        number: {**node, "inputs": {name: sizes.get(name, value) for name, value in node["inputs"].items()}}
        for number, node in workflow.items()
    }


def reseeded(workflow: Workflow, seed: int) -> Workflow:
    """The same graph with another seed."""
    return resized(workflow, {"seed": seed, "noise_seed": seed})


def results(client: Client, workflow: Workflow) -> dict[str, str]:
    """Hashes of what a graph's pictures and latents hold, by node; computed anew."""
    outputs = client.run(workflow, timeout=8 * LONGEST).outputs
    found = {}
    for number, output in outputs.items():
        for kind in ("images", "latents"):
            for place, entry in enumerate(output.get(kind, ())):
                if workflow.get(number, {}).get("class_type", "").startswith("Save"):
                    found[f"{number} {kind} {place}"] = hashlib.sha256(_data(client.file(entry), kind)).hexdigest()
    return found


def _data(file: bytes, kind: str) -> bytes:
    """Of a latent its tensors: the header in front of them names the prompt."""
    return file if kind == "images" else file[8 + int.from_bytes(file[:8], "little") :]


PARTS = (Prompts, Interrupts, Soak, SoakOfEight, Clients)
