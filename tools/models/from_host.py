"""What is asked of the host: its classes supply the names of keys and their shapes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import torch


def host(module: str) -> Any:
    """A module of the host, imported when needed: this file must load where no host is."""
    return importlib.import_module(module)


def blank() -> dict[str, Any]:
    """Arguments for a network that is all shapes and no memory."""
    return {"device": "meta", "dtype": torch.float32, "operations": host("comfy.ops").disable_weight_init}


def enter_host(folder: Path) -> None:
    """Make the host importable, on the CPU.

    It takes the place of the checkout, which `-m` puts first: ``nodes`` and ``utils`` must mean the host's. It reads
    the command line on import, hence the argument.
    """
    if not (folder / "comfy" / "ops.py").is_file():
        raise FileNotFoundError(f"{folder} is not a ComfyUI folder: it has no comfy/ops.py")
    sys.path[0] = str(folder)
    sys.argv[1:] = ["--cpu"]
    host("comfy.options").enable_args_parsing()
