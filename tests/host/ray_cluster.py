"""A Ray cluster on the loopback interface, as its owner would start one: `ray start --head`, with a token."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from headroom.tools.server.server import free_port

MARK = "HEADROOM_TEST_CLUSTER"
STORE = 256 * 2**20
TOKEN = secrets.token_hex(32)  # of all clusters here: Ray reads one for as long as a process lives
TO_START = 60.0


@contextmanager
def ray_cluster(cpus: int, comfyui: Path, pack: Path) -> Iterator[tuple[str, Path]]:
    """The address of its clients' port, and the file of its token, as long as the context lasts."""
    folder = Path(tempfile.mkdtemp(prefix="hr-"))  # short: Ray puts sockets there
    token = folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    port = free_port()
    variables = {
        **os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "HEADROOM_COMFYUI": str(comfyui), "HEADROOM_PACK": str(pack),
        "OMP_NUM_THREADS": "1", MARK: str(folder), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_memory_monitor_refresh_ms": "0",  # other tests take of the memory by which it would end workers
        "RAY_worker_niceness": "0",  # by itself 15: beside other tests its processes would hardly run
    }  # fmt: skip
    command = [
        str(Path(sys.executable).with_name("ray")), "start", "--head", "--node-ip-address", "127.0.0.1",
        "--port", str(free_port()), "--ray-client-server-port", str(port), "--num-cpus", str(cpus), "--num-gpus", "0",
        "--include-dashboard", "false", "--object-store-memory", str(STORE), "--temp-dir", str(folder / "ray"),
        "--min-worker-port", "0", "--max-worker-port", "0", "--disable-usage-stats",
    ]  # fmt: skip
    # It comes back when all is there: a client that asks earlier is turned away.
    subprocess.run(command, env=variables, check=True, timeout=TO_START, capture_output=True)
    try:
        yield f"127.0.0.1:{port}", token
    finally:
        end(token)
        shutil.rmtree(folder, ignore_errors=True)


def end(token: Path) -> None:
    """Ends a cluster at once, by hand: `ray stop` would end everybody else's too."""
    for process in processes_of(token.parent):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def processes_of(folder: Path) -> list[psutil.Process]:
    """All that was started with the cluster, by what it began with."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == str(folder):
                found.append(process)
    return found
