"""Ray: a cluster of its own on this machine, or one that its owner has started; an actor for each worker."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from .workers import Worker

STORE = 256 * 2**20  # bytes of Ray's object store: results pass through it in pieces
ALONGSIDE = 64  # questions that an actor has open at a time
NEEDED = ("ray", "aiohttp", "filelock", "rich")
# Before Ray is imported. The third has a cluster of its own listen on the loopback interface alone, as Ray does by
# itself on Windows and macOS.
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what Ray is going to do by itself, and warns of until then
}
# Actors alone, which ask for no core: for each core there is Ray starts a process beforehand, which none would use.
OWN = {"include_dashboard": False, "object_store_memory": STORE, "_node_ip_address": "127.0.0.1", "num_cpus": 0}


class FarmError(ValueError):
    """The farm cannot work, in one sentence that says what to do."""


def require_libraries() -> None:
    """Raises:
    FarmError: one is missing; the sentence has the line that installs it.
    """
    from importlib.util import find_spec

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise FarmError(f"the farm needs {', '.join(missing)}: {sys.executable} -m pip install {' '.join(NEEDED)}")


@contextmanager
def cluster(address: str | None) -> Iterator[Any]:
    """Ray, for as long as the context lasts.

    Args:
        address: of a cluster that its owner has started, as ``host:6379``; None: one of its own, on this machine alone.

    Raises:
        FarmError: the cluster does not answer, or does not let us in.
    """
    os.environ.update({name: value for name, value in SETTINGS.items() if not (address and "CLUSTER" in name)})
    import ray

    from . import actor, comfy, plain

    for module in (plain, comfy, actor):  # other machines need Ray and aiohttp, but not this pack
        ray.cloudpickle.register_pickle_by_value(module)
    own: dict[str, Any] = {} if address else OWN
    try:
        ray.init(address=address or "local", logging_level=logging.ERROR, log_to_driver=False, **own)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FarmError(f"--ray: no cluster at {address or 'this machine'} lets us in: {reason}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def actors(ray: Any, workers: list[Worker]) -> Mapping[str, Any]:
    """An actor for each worker, by its name; one that dies is started again."""
    from .actor import ComfyActor

    remote = ray.remote(ComfyActor)
    found = {}
    for worker in workers:
        where = {"resources": {f"node:{worker.node}": 0.001}} if worker.node else {}
        options = remote.options(num_cpus=0, max_restarts=-1, max_concurrency=ALONGSIDE, **where)
        found[worker.name] = options.remote(asdict(worker.address))
    return found
