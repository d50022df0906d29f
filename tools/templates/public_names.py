"""Lets a host list the files that the templates name, without having them: empty ones, which nobody loads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ..server.server import Server
from .parts import MODELS

EXAMPLE, PHOTOGRAPH = "example.png", "astronaut.png"  # what ComfyUI comes with, and what stands in for it


def host_options(folder: Path) -> tuple[str, ...]:
    """Options of ComfyUI, after writing what they name into a folder."""
    for name, (kind, _) in MODELS.items():
        (folder / kind).mkdir(parents=True, exist_ok=True)
        (folder / kind / name).touch()
    paths = folder / "extra_model_paths.yaml"
    entries = {kind: kind for kind, _ in MODELS.values()}
    paths.write_text(json.dumps({"headroom": {"base_path": str(folder), **entries}}), encoding="utf-8")  # JSON is YAML
    return "--extra-model-paths-config", str(paths)


def add_example(server: Server) -> None:
    """The picture of ComfyUI's own input folder, which a server's own folder lacks."""
    shutil.copy(server.base / "input" / PHOTOGRAPH, server.base / "input" / EXAMPLE)
