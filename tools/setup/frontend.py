"""Another frontend than the one that a ComfyUI's requirements name."""

from __future__ import annotations

from pathlib import Path

from . import cache
from .install import make_venv, pip
from .progress import SetupError, Stage

PACKAGE, STATIC = "comfyui-frontend-package", Path("comfyui_frontend_package") / "static"
SIZE_GB = 0.3


def fetch(version: str) -> Path:
    """What `--front-end-root` takes: the pages of this version of the frontend, installed into the cache if need be.

    Raises:
        SetupError: there is no such version, or its package holds no pages.
    """

    def build(folder: Path) -> None:
        log = cache.log_path(folder.name)
        with Stage(f"Getting the frontend {version}") as stage:
            # From a throw-away environment: nothing is installed into the one that ComfyUI runs in.
            python = make_venv(folder / "venv", log, stage)
            pip(
                python, "install", "--no-deps", "--target", folder / "package", f"{PACKAGE}=={version}",
                log=log, stage=stage,
            )  # fmt: skip

    pages = cache.cached(f"frontend-{version}", f"the frontend {version}", SIZE_GB, build) / "package" / STATIC
    if not (pages / "index.html").is_file():
        raise SetupError(f"{PACKAGE} {version} has no {STATIC / 'index.html'}: name another version.")
    return pages
