"""Files that the pack keeps: damaged, on a disk that fills up, by a server that is killed; and a clock that jumps."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headroom.tools.server.client import Client, ClientError, PromptFailed, Workflow

from .cases import DEATH, DIFFERENT, FINE, LEFT, SENTENCE, Found
from .memory import FAULTS
from .prompts import resized, results
from .stand import LONGEST, Stand, api_graphs, judged

SIZE = {"width": 96, "height": 96, "steps": 2}
LONG_AGO = 0.0  # what was written seconds ago may be another machine's work: the pack waits before it removes that


class Kept:
    """Two graphs whose casts keep files, and what they make when nothing is wrong.

    Attributes:
        pack: that the server needs, for faults of its own; empty: none.
    """

    pack = ""

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        if self.pack:
            stand.with_pack(self.pack)
        graph = until_latent(resized(api_graphs()["flux_cast_lora"], SIZE))
        self.graphs = {
            "cache_file": changed(graph, cache_file="campaign"),
            "sensitivity": changed(
                graph, **{"sensitivity": "size", "sensitivity.size_limit": 0.5, "positive": ["5", 0]}
            ),
        }
        self.expected: dict[str, dict[str, str]] = {}

    def any_graph(self, chance: random.Random) -> str:
        """One of the graphs, of which is known what it makes."""
        name = chance.choice(list(self.graphs))
        if name not in self.expected:
            self.run(name)
        return name

    def run(self, name: str) -> Found:
        """A graph with its models loaded anew: good is what it always makes, or a sentence."""
        try:
            self.stand.client.free()
            made = results(self.stand.client, self.graphs[name])
        except PromptFailed as error:
            outcome, _, detail = judged(error)
            return Found(outcome, name, detail)
        except ClientError as error:
            if not self.stand.is_alive():
                return Found(DEATH, name, str(error))
            raise
        expected = self.expected.setdefault(name, made)
        return Found(FINE if made == expected else DIFFERENT, name)

    def files(self) -> list[Path]:
        """All that is kept at the moment."""
        folders = (self.stand.base / name for name in ("output", "user"))
        return sorted(path for folder in folders for path in folder.glob("headroom/*"))

    def forget(self) -> None:
        """Takes all of it away."""
        for path in self.files():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def again(self, found: Found, what: str) -> Found:
        """The verdict of a case: what it came to, and the next prompt, which must be what it always was."""
        if found.outcome not in (FINE, SENTENCE):
            return Found(found.outcome, what, found.detail)
        if found.outcome == SENTENCE:
            self.forget()  # as such a sentence says
        after = self.run(found.what)
        if after.outcome != FINE:
            return Found(DIFFERENT, what, f"the next prompt: {after.detail}; before it: {found.detail}")
        return Found(found.outcome, what, found.detail)

    def unfinished(self) -> list[str]:
        """Files that were not written to their end."""
        return [path.name for path in self.files() if path.suffix not in (".safetensors", ".json")]


class Damaged(Kept):
    """Kept files are exchanged for damaged ones: they are made anew, or a sentence names them."""

    name = "files"

    def case(self, chance: random.Random) -> Found:
        """One damaged file."""
        name = self.any_graph(chance)
        for path in filter(Path.is_dir, self.files()):  # of a case before: what is no file the pack leaves where it is
            path.rmdir()
        reference = self.run(name)  # with files to damage
        if reference.outcome != FINE:
            return reference
        path = chance.choice(self.files())
        kind = self.damage(path, chance)
        return self.again(self.run(name), f"{path.name} {kind}")

    def damage(self, path: Path, chance: random.Random) -> str:
        """Puts something else in a file's place, in one go; returns what."""
        content = path.read_bytes()
        front = 8 + int.from_bytes(content[:8], "little") if path.suffix == ".safetensors" else len(content)
        kind = chance.choice(["gone", "empty", "noise", "cut", "flipped", "foreign", "longer", "folder"])
        if kind in ("gone", "folder"):
            path.unlink()
            if kind == "folder":
                path.mkdir()
            return kind
        draft = path.with_name(f"campaign-{path.name}")
        draft.write_bytes(self.other(content, front, kind, chance))
        draft.replace(path)
        return kind

    @staticmethod
    def other(content: bytes, front: int, kind: str, chance: random.Random) -> bytes:
        """Contents of a damaged file.

        Args:
            front: bytes that are checked: behind a header nothing tells what the weights were.
        """
        if kind == "noise":
            return chance.randbytes(chance.randint(1, len(content)))
        if kind == "cut":
            return content[: chance.randrange(len(content))]
        if kind == "flipped":
            flipped = bytearray(content)
            flipped[chance.randrange(front)] ^= 1 << chance.randrange(8)
            return bytes(flipped)
        if kind == "foreign":
            return chance.choice([b"null", b"[]", b"{}", b'{"a": NaN}', b"[" * 100_000, b'{"": {}}', b'"\\ud800"'])
        return content + chance.randbytes(8) if kind == "longer" else b""


class Full(Kept):
    """The disk is full after so many bytes of a kept file: a sentence or none kept, and nothing left of it."""

    name, pack = "full", FAULTS

    def case(self, chance: random.Random) -> Found:
        """One disk."""
        name = self.any_graph(chance)
        self.stand.client.free()
        largest = max((path.stat().st_size for path in self.files()), default=1000)
        self.forget()
        room = chance.randint(0, largest)
        self.stand.client.post("/campaign/disk", {"room": room})
        found = self.run(name)
        failed = self.stand.client.get("/campaign/disk")["failed"]
        self.stand.client.post("/campaign/disk", {"room": -1})
        what = f"{name}, full after {room:,} bytes: {failed or 'not reached'}"
        if left := self.unfinished():
            return Found(LEFT, what, ", ".join(left))
        return self.again(found, what)


class Killed(Kept):
    """The server is killed with -9 while a cast writes: the next one reads no half of a file, and removes it."""

    name = "killed"

    def __init__(self, stand: Stand) -> None:
        super().__init__(stand)
        self.seconds: dict[str, float] = {}

    def case(self, chance: random.Random) -> Found:
        """One death."""
        name = self.any_graph(chance)
        if name not in self.seconds:
            self.forget()
            started = time.monotonic()
            self.run(name)
            self.seconds[name] = time.monotonic() - started
        self.stand.client.free()
        self.forget()
        after = chance.uniform(0, self.seconds[name])
        timer = threading.Timer(after, os.kill, (self.stand.server.pid, signal.SIGKILL))
        timer.start()
        with contextlib.suppress(ClientError, OSError, TimeoutError):
            self.stand.client.run(self.graphs[name], timeout=LONGEST * 4)
        timer.join()
        left = self.unfinished()
        what = f"{name} after {after:.2f} of {self.seconds[name]:.2f} s, {len(left)} unfinished"
        self.stand.restart()
        found = self.run(name)
        if found.outcome == FINE and left:
            self.make_old()
            for path in self.files():
                if path.suffix == ".safetensors":
                    path.unlink()
            found = self.run(name)
        # Of a sensitivity's file a few KB may stay, under a name that nobody reads.
        if found.outcome == FINE and (left := [part for part in self.unfinished() if part.endswith(".part")]):
            return Found(LEFT, what, ", ".join(left))
        return self.again(found, what)

    def make_old(self) -> None:
        """As if the server had died long ago."""
        for path in self.files():
            os.utime(path, (LONG_AGO, LONG_AGO))


class Clock(Kept):
    """The machine's clock jumps while prompts run, by seconds or by years: nothing changes."""

    name, pack = "clock", FAULTS

    def case(self, chance: random.Random) -> Found:
        """A prompt, with a jump every few milliseconds."""
        name = self.any_graph(chance)
        reach = chance.choice([1.0, 3600.0, 3e8])
        self.stand.client.post("/campaign/clock", {"reach": reach})
        try:
            found = self.run(name)
            seconds = list(row_seconds(self.stand.client))
        finally:
            self.stand.client.post("/campaign/clock", {"reach": 0.0})
        what = f"{name}, jumps of up to {reach:,.0f} s"
        if not all(0 <= value < 10 * LONGEST for value in seconds):
            return Found(DIFFERENT, what, f"rows of {seconds} s")
        return self.again(found, what)


def row_seconds(client: Client) -> Iterator[float]:
    """What the run log says that the last prompt's work took."""
    for prompt in client.get("/history?max_items=1"):
        yield from (row["seconds"] for row in client.get(f"/headroom/runs/{prompt}")["rows"])


def until_latent(workflow: Workflow) -> Workflow:
    """The same graph without what comes behind its latent, which it saves where no kept file is."""
    behind = ("VAELoader", "HeadroomVAEDecode", "HeadroomReport", "SaveImage")
    kept = {number: node for number, node in workflow.items() if node["class_type"] not in behind}
    return resized(kept, {"filename_prefix": "campaign/latent"})


def changed(workflow: Workflow, **inputs: Any) -> Workflow:
    """The same graph with other inputs of its cast."""
    copied: Workflow = json.loads(json.dumps(workflow))
    copied["17"]["inputs"] |= inputs
    return copied


PARTS = (Damaged, Full, Killed, Clock)
