"""A real ComfyUI with the pack, in a private folder of its own: nothing is written into ComfyUI's tree.

with Server(Environment.from_variables()) as server:
    client = Client(server.url)
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import TextIO

from ..setup.environment import Environment

PACK_FOLDER = "ComfyUI-Headroom"
LOOPBACK = "127.0.0.1"
BUSY = "is already in use"
POLL_SECONDS, STOP_SECONDS, QUOTED_LINES, ATTEMPTS = 0.2, 10.0, 5, 3


class ServerError(RuntimeError):
    """The host did not start, in one sentence."""


class PortInUse(ServerError):
    """Another program listens on the port."""


class Server:
    """ComfyUI in a process group of its own, ready when the `with` block begins and gone when it ends.

    Args:
        environment: what to run; see `environment.prepare`.
        pack: whether the pack is among the custom nodes.
        extra_args: more options for ComfyUI's `main.py`.
        port: a fixed port; a free one if None.
        base: the folder for input, output, user data and log; a temporary one, deleted at the end, if None.
        cpu: run without an accelerator; if None, whenever the machine has none.
        timeout: seconds to wait for the host to answer.
        variables: more environment variables for it, such as those of an emulated card (`emulator.variables`).
    """

    def __init__(
        self,
        environment: Environment,
        pack: bool = True,
        extra_args: Sequence[str] = (),
        *,
        port: int | None = None,
        base: Path | None = None,
        cpu: bool | None = None,
        timeout: float = 180.0,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        if port:
            require_free(port)
        self.environment, self.pack, self.extra_args = environment, pack, tuple(extra_args)
        self.cpu = not has_accelerator(environment.python) if cpu is None else cpu
        self.timeout, self.variables = timeout, dict(variables or {})
        self.base = Path(base or tempfile.mkdtemp(prefix="headroom-")).resolve()
        self._temporary = base is None
        self._wanted_port, self.port = port, 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where the host answers."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def log_path(self) -> Path:
        """The host's output."""
        return self.base / "server.log"

    @property
    def pid(self) -> int:
        """The host's process, also its process group."""
        return self._running.pid

    @property
    def ended(self) -> int | None:
        """The host's exit status, below zero for the signal that killed it; None while it runs."""
        return self._running.poll()

    def __enter__(self) -> Server:
        self._lay_out()
        try:
            self._start()
        except BaseException:
            self._stop_process()  # the folder stays: the log is in it
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_process()
        if self._temporary:
            shutil.rmtree(self.base, ignore_errors=True)

    def follow(self, stream: TextIO) -> int:
        """Copy the log to a stream until the host ends; its exit status."""
        with self.log_path.open(encoding="utf-8", errors="replace") as log:
            while True:
                ended = self.ended is not None
                stream.write(log.read())
                stream.flush()
                if ended:
                    return self._running.returncode
                time.sleep(POLL_SECONDS)

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerError("ComfyUI has not been started: use the server in a `with` statement.")
        return self._process

    # ------------------------------------------------------------------------------------------ its folder

    def _lay_out(self) -> None:
        """Everything that ComfyUI expects under its base directory; what is only read is linked."""
        for name in ("custom_nodes", "input", "output", "temp", "user"):
            (self.base / name).mkdir(parents=True, exist_ok=True)
        for name in ("models", "datasets"):
            _link(self.environment.models / name, self.base / name)
        for folder in (self.environment.models / "datasets").iterdir():
            _link(folder, self.base / "output" / folder.name)  # where hosts before 0.24 look for them
        _link(self.environment.pack if self.pack else None, self.base / "custom_nodes" / PACK_FOLDER)
        if (pictures := self.environment.models / "input").is_dir():
            shutil.copytree(pictures, self.base / "input", dirs_exist_ok=True)

    def _command(self) -> list[str]:
        options = ["--base-directory", str(self.base), "--listen", LOOPBACK, "--port", str(self.port)]
        options += ["--disable-auto-launch", "--disable-api-nodes"]
        options += ["--database-url", "sqlite:///:memory:"]  # the default is a file in ComfyUI's tree
        options += ["--cpu"] if self.cpu else []
        if self.environment.frontend is not None:
            options += ["--front-end-root", str(self.environment.frontend)]
        program = [str(self.environment.python), str(self.environment.comfyui / "main.py")]
        return [*ends_with_its_parent(), *program, *options, *self.extra_args]

    # ----------------------------------------------------------------------------------------- its process

    def _start(self) -> None:
        for attempts_left in reversed(range(ATTEMPTS)):
            self.port = self._wanted_port or free_port()
            self._spawn()
            try:
                self._wait_until_ready()
                return
            except PortInUse:  # another program took it since
                if self._wanted_port or not attempts_left:
                    raise

    def _spawn(self) -> None:
        variables = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(),
                cwd=self.base,
                env={**os.environ, **variables, **self.variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # its own process group; on Windows the flags do that
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.timeout
        while not self._answers():
            if (status := self._running.poll()) is not None:
                if BUSY in self._log():
                    raise PortInUse(busy_sentence(self.port))
                raise ServerError(f"ComfyUI ended with status {status} while starting{self._quote()}")
            if time.monotonic() > deadline:
                raise ServerError(f"ComfyUI did not answer within {self.timeout:g} s{self._quote()}")
            time.sleep(POLL_SECONDS)
        self._require_pack()

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=10)
        try:
            connection.request("GET", "/system_stats")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _require_pack(self) -> None:
        """ComfyUI goes on without a custom node that it cannot import, and says so only in its log."""
        mentions = [line.strip() for line in self._log().splitlines() if PACK_FOLDER in line]
        reasons = [line for line in mentions if "IMPORT FAILED" not in line]
        if len(reasons) < len(mentions):
            reason = reasons[-1] if reasons else "it does not say why"
            raise ServerError(f"ComfyUI could not load the pack: {reason} (log: {self.log_path}).")

    def _stop_process(self) -> None:
        """End the whole process group, politely first."""
        process, self._process = self._process, None
        if process is None:
            return
        _signal_group(process, force=False)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        _signal_group(process, force=True)
        process.wait()

    def _log(self) -> str:
        """The log so far, without the colours."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.log_path.read_text(encoding="utf-8", errors="replace"))

    def _quote(self) -> str:
        lines = [line.strip() for line in self._log().splitlines() if line.strip()]
        return f"; its log ends with: {' | '.join(lines[-QUOTED_LINES:])} (log: {self.log_path})."


@functools.lru_cache
def ends_with_its_parent() -> tuple[str, ...]:
    """What to put before a command so that it ends even if the program that began it is killed; empty where that
    cannot be asked for. A suite that is interrupted kills the processes that hold its servers."""
    words = ("setpriv", "--pdeathsig", "TERM", "--")  # of util-linux; others of that name lack the option
    if sys.platform != "linux" or shutil.which(words[0]) is None:
        return ()
    return () if subprocess.run([*words, "true"], check=False, capture_output=True).returncode else words


@functools.lru_cache
def has_accelerator(python: Path) -> bool:
    """Whether torch in this Python sees a device other than the CPU that ComfyUI would use."""
    code = "import torch; print(torch.cuda.is_available() or torch.backends.mps.is_available())"
    answer = subprocess.run([python, "-c", code], check=False, capture_output=True, text=True)
    return answer.stdout.strip() == "True"


def free_port() -> int:
    """A port of the loopback interface that nothing listens on right now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def require_free(port: int) -> None:
    """Raise `PortInUse` if something listens on the port."""
    with socket.socket() as probe:
        if probe.connect_ex((LOOPBACK, port)) == 0:
            raise PortInUse(busy_sentence(port))


def busy_sentence(port: int) -> str:
    """What to tell the person whose port is taken."""
    return f"Port {port} {BUSY}: close the program that uses it, or choose another port with --port."


def unwind_on_terminate() -> None:
    """Make SIGTERM unwind the program as Ctrl-C does, so that a `with Server(...)` can end its host."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def _link(target: Path | None, place: Path) -> None:
    """Make `place` a link to a folder, whatever it linked to before; nothing if the folder does not exist."""
    if os.path.lexists(place):
        place.unlink()
    if target is not None and target.is_dir():
        _make_link(target, place)


if sys.platform == "win32":
    import _winapi

    def _make_link(target: Path, place: Path) -> None:
        _winapi.CreateJunction(str(target), str(place))  # symbolic links need a privilege there

    def _signal_group(process: subprocess.Popen[bytes], *, force: bool) -> None:
        command = ["taskkill", "/T", *(["/F"] if force else []), "/PID", str(process.pid)]
        subprocess.run(command, check=False, capture_output=True)

else:

    def _make_link(target: Path, place: Path) -> None:
        place.symlink_to(target, target_is_directory=True)

    def _signal_group(process: subprocess.Popen[bytes], *, force: bool) -> None:
        with contextlib.suppress(ProcessLookupError):  # the whole group is gone
            os.killpg(process.pid, signal.SIGKILL if force else signal.SIGTERM)
