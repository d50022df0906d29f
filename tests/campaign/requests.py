"""Hostile requests to the server, hostile files to the commands, hostile models to an estimate."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from time import monotonic
from typing import Any

from headroom.tools.server.server import PACK_FOLDER
from headroom.tools.setup.environment import PACK

from .cases import DEATH, FINE, HANG, OUTSIDE, RAW, SENTENCE, THEIRS, Found
from .mutate import NUMBERS, WORDS, mutated
from .stand import Stand, api_graphs, files_under

LONGEST = 5.0  # seconds for an answer
PATHS = ("/headroom/estimate", "/api/headroom/estimate", "/headroom/fit", "/prompt")
RUNS = ("", "x", "..", "%2e%2e%2f", "a" * 3000, "%00", "1?follow=1", "é", "*", "' or 1=1")
SETTINGS = ("limit", "vram_gb", "ram_gb", "gpu", "quality", "surprise")


def ui_files() -> list[Any]:
    """The templates, in the browser's format."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((PACK / "workflows").glob("*.json"))]


def damaged(content: Any, chance: random.Random, most: int = 4) -> Any:
    """A copy of any JSON with some places changed."""
    content = json.loads(json.dumps(content))
    for _ in range(chance.randint(1, most)):
        holder = content
        while True:
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            if not keys:
                break
            key = chance.choice(keys)
            if isinstance(holder[key], (dict, list)) and holder[key] and chance.random() < 0.8:
                holder = holder[key]
                continue
            if chance.random() < 0.3:
                del holder[key]
            else:
                holder[key] = chance.choice([*NUMBERS, *WORDS, None, [], {}, [[]], {"a": None}, nested(chance)])
            break
    return content


def nested(chance: random.Random) -> Any:
    """Lists in lists."""
    content: Any = None
    for _ in range(chance.choice([3, 50, 400])):
        content = [content]
    return content


class Routes:
    """Bodies that make no sense, to every route of ours and to /prompt with a limit."""

    name = "routes"

    def __init__(self, stand: Stand) -> None:
        self.stand, self.graphs, self.templates = stand, api_graphs(), ui_files()

    def case(self, chance: random.Random) -> Found:
        """One request: it is answered soon, without HTTP 500, and nothing is written."""
        if chance.random() < 0.1:
            path, body = f"/headroom/runs/{chance.choice(RUNS)}", None
        else:
            path, body = chance.choice(PATHS), self.body(chance)
        before, logged = files_under(self.stand.server.base), self.stand.server.log_path.stat().st_size
        started = monotonic()
        status, said = ask(f"{self.stand.server.url}{path}", body)
        seconds, what = monotonic() - started, f"{path} {(body or b'')[:200]!r}"
        self.stand.client.post("/interrupt")
        self.stand.client.post("/queue", {"clear": True})
        written = {name for name in files_under(self.stand.server.base) - before if not harmless(name)}
        if not self.stand.is_alive():
            return Found(DEATH, what)
        if status >= 500:
            where = self.raised_in(logged)
            theirs = path == "/prompt" and where and PACK_FOLDER not in where
            return Found(THEIRS if theirs else RAW, what, f"HTTP {status} {said[:100]} {where}")
        if seconds > LONGEST:
            return Found(HANG, what, f"{seconds:.1f} s, HTTP {status} {said[:200]}")
        if written and path != "/prompt":
            return Found(OUTSIDE, what, ", ".join(sorted(written)))
        return Found(FINE if status == 200 else SENTENCE, what[:120], f"HTTP {status} {said[:120]}")

    def raised_in(self, logged: int) -> str:
        """The innermost line of code of the last traceback that was logged since: the host has errors of its own."""
        with self.stand.server.log_path.open(encoding="utf-8", errors="replace") as log:
            log.seek(logged)
            places = [line.strip() for line in log if line.lstrip().startswith("File ")]
        return places[-1] if places else ""

    def body(self, chance: random.Random) -> bytes:
        """Something to send."""
        kind = chance.random()
        if kind < 0.1:
            return bytes(chance.randrange(256) for _ in range(chance.randint(0, 200)))
        if kind < 0.15:
            return chance.choice([b"[" * 100_000, b'{"prompt":' * 5000, b"null", b"[]", b"{}", b"\xff\xfe", b"1e999"])
        if kind < 0.55:
            workflow: Any = mutated(chance.choice(list(self.graphs.values())), chance)[0]
        else:
            workflow = damaged(chance.choice(self.templates), chance)
        if chance.random() < 0.3:
            workflow = damaged(workflow, chance)
        asked: dict[str, Any] = {"prompt": workflow, "workflow": workflow}
        if chance.random() < 0.7:
            asked.pop(chance.choice(["prompt", "workflow"]))
        for name in chance.sample(SETTINGS, chance.choice([0, 0, 1, 2])):
            asked[name] = chance.choice([*NUMBERS, *WORDS, None, [], {}, "sm86", 0.5, 8])
        limit = chance.choice(
            [0.5, 1e-9, *NUMBERS, {"vram_gb": 8.0}, {"gpu": "sm86", "vram_gb": number_or_word(chance)}]
        )
        asked["extra_data"] = chance.choice([{"headroom_limit": limit}, {"headroom_limit": limit}, None, [], "x"])
        return json.dumps(asked).encode()


def number_or_word(chance: random.Random) -> Any:
    """A number or a word that is no size."""
    return chance.choice([*NUMBERS, *WORDS])


def harmless(name: str) -> bool:
    """What the host itself writes while it runs."""
    return name.startswith(("user/", "temp/", "output/")) or name.endswith((".log", ".db", ".pyc", ".lock"))


def ask(url: str, body: bytes | None) -> tuple[int, str]:
    """A request's status and answer; 599 where the connection broke."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    url = urllib.request.quote(url, safe=":/?=&%")  # type: ignore[attr-defined]
    try:
        with opener.open(urllib.request.Request(url, body, {"Content-Type": "application/json"}), timeout=90) as answer:
            return answer.status, answer.read(2000).decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read(2000).decode(errors="replace")
    except OSError as error:
        return 599, str(error)


class Commands:
    """The command lines with hostile files and options: an exit status of theirs, one sentence, no traceback."""

    name = "commands"
    KNOWN = (0, 2, 3)

    def __init__(self, stand: Stand) -> None:
        self.stand, self.graphs, self.templates = stand, api_graphs(), ui_files()

    def case(self, chance: random.Random) -> Found:
        """One start of a command. `estimate` starts ComfyUI, which takes its time: one case in twelve."""
        command = "estimate" if chance.random() < 1 / 12 else "fit"
        with tempfile.TemporaryDirectory(prefix="headroom-campaign-") as folder:
            place = Path(folder)
            (place / "in.json").write_bytes(self.file(chance))
            arguments = self.arguments(command, chance)
            before = {place / "in.json"}
            started = monotonic()
            done = subprocess.run(
                [sys.executable, str(PACK / "cli" / f"{command}.py"), *arguments],
                cwd=place, capture_output=True, text=True, errors="replace", timeout=180, check=False,
                env={**os.environ, "COMFYUI_PATH": str(self.stand.environment.comfyui)},
            )  # fmt: skip
            seconds = monotonic() - started
            written = {path for path in place.rglob("*") if path.is_file()} - before - {place / "out.json"}
        what = f"{command} {' '.join(arguments)[:200]}"
        if "Traceback" in done.stderr or done.returncode not in self.KNOWN:
            return Found(RAW, what, f"{done.returncode}: {done.stderr[-400:]}")
        if seconds > LONGEST + (60 if command == "estimate" else 0):
            return Found(HANG, what, f"{seconds:.1f} s")
        if written:
            return Found(OUTSIDE, what, str(written))
        return Found(FINE if done.returncode == 0 else SENTENCE, what[:120], (done.stderr or done.stdout)[:120])

    def file(self, chance: random.Random) -> bytes:
        """A workflow file."""
        kind = chance.random()
        if kind < 0.1:
            return bytes(chance.randrange(256) for _ in range(chance.randint(0, 200)))
        if kind < 0.15:
            return chance.choice([b"", b"null", b"[" * 100_000, b'{"nodes":[]}', b"\xef\xbb\xbf{}", b"1" * 5000])
        known = list(self.graphs.values()) if chance.random() < 0.4 else self.templates
        workflow = chance.choice(known)
        return json.dumps(damaged(workflow, chance) if chance.random() < 0.8 else workflow).encode()

    def arguments(self, command: str, chance: random.Random) -> list[str]:
        """Options, some of them senseless."""
        found = [chance.choice([*["in.json"] * 9, "missing.json", ".", ""])]
        if command == "fit" and chance.random() < 0.9:
            found += ["-o", chance.choice([*["out.json"] * 6, "no/such/folder/out.json", ".", ""])]
        for option in ("--vram", "--limit", "--gpu", *(("--ram",) if command == "estimate" else ("--quality",))):
            if chance.random() < 0.12:
                found += [option, chance.choice(["nan", "inf", "-1", "1e400", "0", "8", "sm86", "", "é", "9" * 5000])]
        return found


class Headers:
    """Model files whose headers lie, to an estimate and to a prompt that loads them."""

    name = "headers"

    def __init__(self, stand: Stand) -> None:
        self.stand = stand

    def case(self, chance: random.Random) -> Found:
        """One file, asked about over HTTP."""
        server = self.stand.server
        source = server.base / "models" / "vae" / "tiny_vae_flux.safetensors"
        name = f"campaign_{chance.randrange(10**9)}.safetensors"
        path = self.stand.models / "vae" / name
        path.write_bytes(self.lying(source.read_bytes(), chance))
        workflow = {
            "1": {"class_type": "VAELoader", "inputs": {"vae_name": name}},
            "2": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
            "3": {"class_type": "VAEDecode", "inputs": {"samples": ["2", 0], "vae": ["1", 0]}},
        }
        started = monotonic()
        try:
            status, said = ask(f"{server.url}/headroom/estimate", json.dumps({"prompt": workflow}).encode())
        finally:
            path.unlink()
        seconds, what = monotonic() - started, f"a header of {name}"
        if not self.stand.is_alive():
            return Found(DEATH, what)
        if status >= 500:
            return Found(RAW, what, f"HTTP {status} {said[:300]}")
        if seconds > LONGEST:
            return Found(HANG, what, f"{seconds:.1f} s")
        return Found(FINE if status == 200 else SENTENCE, what, said[:160])

    def lying(self, content: bytes, chance: random.Random) -> bytes:
        """A file with a header that is not of it."""
        size = struct.unpack("<Q", content[:8])[0]
        if chance.random() < 0.3:
            cut = bytearray(content[: chance.randint(0, len(content))])
            for _ in range(chance.randint(0, 8)):
                if cut:
                    cut[chance.randrange(min(len(cut), 8 + size))] = chance.randrange(256)
            return bytes(cut)
        header = json.dumps(damaged(json.loads(content[8 : 8 + size]), chance)).encode()
        length = chance.choice([len(header)] * 6 + [0, 2**63, len(header) + 9])
        return struct.pack("<Q", length) + header + content[8 + size :]


PARTS = (Routes, Commands, Headers)
