"""The server that a campaign runs against: started anew when it died, with a watch on what it left."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from PIL import Image

from headroom.tools.server.client import Client, ClientError, PromptFailed, PromptRejected, Workflow
from headroom.tools.server.server import PACK_FOLDER, Server
from headroom.tools.setup.environment import PACK, Environment

from .cases import DEATH, FINE, HANG, LONG, RAW, SENTENCE, STOPPED, THEIRS, Found

LONGEST = 30.0  # seconds that a small prompt may take
SOON = 5.0  # seconds in which a cancel ends it, on a busy machine
# What an error is called whose message is written for people: our own kinds are of this pack's modules.
WRITTEN = ("ValueError", "OutOfMemoryError", "torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError")
OURS = "Headroom"
# An emulated card computes as the CPU does, slowly in 16 bits; nothing is kept free for a desktop.
ON_CARD = ("--fp32-unet", "--fp32-vae", "--fp32-text-enc", "--reserve-vram", "0")


class Stand:
    """A server for a campaign, and a client.

    Args:
        environment: to start it in.
        variables: of an emulated card; none: on the CPU.
    """

    def __init__(self, environment: Environment, variables: Mapping[str, str] | None = None) -> None:
        self.environment, self.variables = environment, variables
        self._server: Server | None = None
        self._base: Path | None = None
        self._packs: list[str] = []

    def __enter__(self) -> Stand:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def with_pack(self, name: str) -> None:
        """Has the server load a node pack of this folder, for which it is started anew."""
        if name not in self._packs:
            self._end()
            self._packs.append(name)

    def restart(self) -> None:
        """A server in the place of one that was killed, with all that it has kept."""
        if self._server is not None:
            self._server.__exit__(None, None, None)
        self._server = self._started()

    def _end(self) -> None:
        if self._server is not None:
            self._server.__exit__(None, None, None)
        if self._base is not None:
            shutil.rmtree(self._base, ignore_errors=True)
        self._server = self._base = None

    @property
    def server(self) -> Server:
        """A server that runs."""
        if self._server is not None and self._server.ended is not None:
            self._keep_log(self._server)
            self._end()
        if self._server is None:
            self._base = Path(tempfile.mkdtemp(prefix="headroom-campaign-"))
            for name in self._packs:
                shutil.copytree(Path(__file__).parent / name, self._base / "custom_nodes" / f"campaign_{name}")
            (self.models / "vae").mkdir(parents=True)
            paths = self._base / "paths.yaml"
            paths.write_text(f"campaign:\n  base_path: {self.models}\n  vae: vae\n", encoding="utf-8")
            self._server = self._started()
            self._shrink_pictures()
        return self._server

    def _shrink_pictures(self) -> None:
        """The graphs are made small; so are the pictures that they load."""
        for path in (self.base / "input").glob("*.png"):
            with Image.open(path) as picture:
                small = picture.resize((96, 64))
            small.save(path)

    def _started(self) -> Server:
        return Server(
            self.environment,
            extra_args=(
                *("--extra-model-paths-config", str(self.base / "paths.yaml")),
                *(() if self.variables is None else ON_CARD),
            ),
            cpu=None if self.variables is None else False,
            base=self.base,
            variables=self.variables,
        ).__enter__()

    @property
    def base(self) -> Path:
        """The server's folder, also after it was killed."""
        assert self._base is not None
        return self._base

    @property
    def models(self) -> Path:
        """A folder of models of this server alone, for files that are not as they should be."""
        return self.base / "hostile"

    @property
    def client(self) -> Client:
        """A client of it."""
        return Client(self.server.url, timeout=LONGEST)

    def is_alive(self) -> bool:
        """Whether the server answers, soon; one that died is not started anew for it."""
        if self._server is None or self._server.ended is not None:
            return False
        with contextlib.suppress(ClientError, OSError):
            Client(self._server.url, timeout=LONGEST).system_stats()
            return True
        return False

    def _keep_log(self, server: Server) -> None:
        """What a server wrote that died by itself is kept, and said."""
        kept = PACK / "output" / f"campaign-server-{server.pid}.log"
        kept.parent.mkdir(exist_ok=True)
        shutil.copy(server.log_path, kept)
        print(f"the server ended with status {server.ended}: see {kept}", file=sys.stderr)

    def run(self, workflow: Workflow, extra: Mapping[str, Any] | None = None) -> Found:
        """Runs a prompt and judges how it ends."""
        server = self.server
        try:
            self.client.run(workflow, timeout=LONGEST, extra_data=extra)
        except PromptRejected as error:
            raw = error.status >= 500
            return Found(RAW if raw else THEIRS, "", str(error)[:300])
        except PromptFailed as error:
            return Found(*judged(error))
        except TimeoutError as error:
            # Forty pictures take their time; a hang is what a cancel, which the client sends, does not end.
            idle = waited(Client(server.url, timeout=LONGEST))
            if server.ended is not None:
                return Found(DEATH, "", f"{error} The server ended with status {server.ended}.")
            return Found(LONG if idle < SOON else HANG, "", f"{error} Idle {idle:.1f} s after a cancel.")
        except (ClientError, ConnectionError) as error:
            return Found(STOPPED, "", str(error)) if self.is_alive() else Found(DEATH, "", f"{error} {_status(server)}")
        return Found(FINE, "")


def _status(server: Server) -> int | None:
    """With which a server ended; one that was killed takes a moment to give back its memory."""
    until = time.monotonic() + SOON
    while server.ended is None and time.monotonic() < until:
        time.sleep(0.02)
    return server.ended


def waited(client: Client) -> float:
    """Seconds until nothing runs."""
    started = time.monotonic()
    while time.monotonic() - started < 2 * LONGEST:
        with contextlib.suppress(TimeoutError, ClientError):  # a busy machine's server answers late
            queue = client.get("/queue")
            if not queue["queue_running"] and not queue["queue_pending"]:
                break
        time.sleep(0.02)
    return time.monotonic() - started


def judged(error: PromptFailed) -> tuple[str, str, str]:
    """Whether a node's error is a sentence, the host's own, or a raw one of ours: outcome, what, detail."""
    detail = f"{error.node_type}: {error.exception_type}: {error.exception_message.strip()}"[:600]
    last = next((line for line in reversed(error.traceback) if line.lstrip().startswith("File ")), "")
    is_ours = error.node_type.startswith(OURS) or PACK_FOLDER in last
    if not is_ours:
        return THEIRS, "", detail
    kind = error.exception_type
    written = kind in WRITTEN or PACK_FOLDER in kind
    first = error.exception_message.strip().partition("\n")[0]
    if written and first and "Traceback" not in error.exception_message:
        return SENTENCE, "", detail
    return RAW, "", f"{detail} | {last.strip()}"


def api_graphs() -> dict[str, Workflow]:
    """The graphs that ship with the pack, small: one step, 64 px, 5 frames."""
    small = {"steps": 1, "width": 64, "height": 64, "length": 5, "batch_size": 1}
    graphs = {}
    for path in sorted((PACK / "workflows" / "api").glob("*.json")):
        workflow = json.loads(path.read_text(encoding="utf-8"))
        graphs[path.stem] = {
            number: {**node, "inputs": {name: small.get(name, value) for name, value in node["inputs"].items()}}
            for number, node in workflow.items()
        }
    return graphs


def files_under(folder: Path) -> set[str]:
    """Names of all files in a folder, to see what was written."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
