"""Runs a program in the environment, in the foreground, as if it had been typed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from .environment import Environment


def run(environment: Environment, *command: str | Path, variables: Mapping[str, str] | None = None) -> int:
    """Run a program in the checkout and pass its exit status on."""
    every = {**os.environ, **environment.variables(), **(variables or {})}
    with subprocess.Popen(command, cwd=environment.pack, env=every) as child:
        while True:
            try:
                status = child.wait()
                return status if status >= 0 else 128 - status
            except KeyboardInterrupt:
                continue  # the child got it too, and may need a while to stop a host
            except SystemExit:
                child.terminate()
                raise
