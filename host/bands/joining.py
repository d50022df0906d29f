"""How ComfyUI joins a Ray cluster: as its client, since a process that joins as Ray's own workers do ends with it."""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any

from .named import NamedCluster

TO_ANSWER = 10.0  # seconds that the cluster itself may take for a small thing
KNOCKS = 4  # at a cluster that turns us away


def join(named: NamedCluster) -> Any:
    """Ray, in the cluster.

    Raises:
        ValueError: Ray is missing, was loaded without tokens, or the cluster does not answer or let us in.
    """
    if "ray" in sys.modules and os.environ.get("RAY_AUTH_MODE") != "token":
        # Ray reads its variables as it is imported. Its client would knock for half a minute and not say why.
        raise ValueError(
            f"workers: {named.name} is a Ray cluster, and another node pack has loaded Ray before, so that it shows no"
            " token; start ComfyUI with RAY_AUTH_MODE=token in its environment"
        )
    # Before Ray is imported: nothing is told to its makers, and a cluster without a token is not joined.
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"})
    os.environ.setdefault("RAY_CLIENT_RECONNECT_GRACE_PERIOD", "5")  # seconds until a cluster that is gone is given up
    if named.token_file:
        os.environ["RAY_AUTH_TOKEN_PATH"] = named.token_file
    try:
        import grpc
        import ray
    except ImportError as error:
        raise ValueError(
            f"workers: {named.name} is a Ray cluster, and Ray is not installed: {sys.executable} -m pip install"
            " 'ray[client]'"
        ) from error
    try:
        if not _encrypts():  # where Ray encrypts, it alone can ask; it tries for half a minute
            with grpc.insecure_channel(named.address) as channel:
                grpc.channel_ready_future(channel).result(timeout=TO_ANSWER)
        _let_in(ray, named)
    except (grpc.FutureTimeoutError, ConnectionError, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [""])[-1][:200]
        raise ValueError(
            f"workers: {named.name}: no Ray cluster at {named.address} lets this server in"
            f"{f' ({reason})' * bool(reason)}; start one by `RAY_AUTH_MODE=token ray start --head`, or correct the"
            " address, which has the port of Ray's clients (10001)"
        ) from error
    return ray


def _let_in(ray: Any, named: NamedCluster) -> None:
    """Raises ConnectionError, RuntimeError. A head that has only just begun turns some away, for a second or two."""
    for left in reversed(range(KNOCKS)):
        try:
            ray.init(f"ray://{named.address}", namespace="headroom", logging_level=logging.ERROR, log_to_driver=False)
            return
        except ConnectionAbortedError:
            ray.shutdown()
            if not left:
                raise
            time.sleep(1.0)


def _encrypts() -> bool:
    """Whether Ray speaks TLS: as Ray itself reads its variable."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")
