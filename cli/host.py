"""Finds ComfyUI and makes it and the pack importable in this process."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import os
import re
import sys
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import Any

PACK = Path(__file__).resolve().parent.parent
QUOTED = re.compile(r"""(?<=["'])[^"'\n]*(?=["'])""")  # and what stands between two such


class NoHost(Exception):
    """There is no ComfyUI; the message says how to name one."""


def find_comfyui(named: str | None = None) -> Path:
    """The ComfyUI that is named, that the environment names, or whose ``custom_nodes`` holds the pack.

    Raises:
        NoHost: none of them is one.
    """
    places = [named, os.environ.get("COMFYUI_PATH"), os.environ.get("HEADROOM_COMFYUI"), str(PACK.parent.parent)]
    for place in places:
        if place and (Path(place) / "comfy" / "sd.py").is_file():
            return Path(place).resolve()
    raise NoHost("no ComfyUI here: put the pack into its custom_nodes, or name its folder by --comfyui or COMFYUI_PATH")


def why(error: Exception) -> str:
    """Why something could not start, in a sentence."""
    if isinstance(error, ModuleNotFoundError):
        return f"{error}; run it with the Python that ComfyUI runs with"
    return str(error) or type(error).__name__


def enter(
    comfyui: Path, base: str | None = None, cpu: bool = True, extras: bool = True, kinds: Collection[str] | None = None
) -> ModuleType:
    """Imports the host and the pack; gives the pack back.

    Args:
        comfyui: its folder.
        base: whose ``models``, ``input`` and ``user`` count; the host's own if None.
        cpu: the host is to leave the machine's card alone.
        extras: with the nodes that the host keeps in files of their own, which takes seconds.
        kinds: only those of its files in which one of these class names stands; None: all.
    """
    before = sys.argv
    sys.argv = ["comfyui", *(["--cpu"] if cpu else []), *(["--base-directory", base] if base else [])]
    sys.path.insert(0, str(comfyui))  # the pack's own folders have names that the host has too
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() not in (PACK, PACK / "cli")]
    logging.disable(logging.WARNING)
    importlib.import_module("comfy.options").enable_args_parsing()
    importlib.import_module("comfy.cli_args")
    sys.argv = before
    nodes = importlib.import_module("nodes")
    if extras:
        asyncio.run(_load_extras(nodes, kinds))
    return load_pack()


async def _load_extras(nodes: ModuleType, kinds: Collection[str] | None) -> None:
    """Loads the host's own list of files, as the host does, or those of them that are asked for; where one of these
    cannot be loaded without others before it, all."""
    if kinds is None:
        await nodes.init_builtin_extra_nodes()
        return
    load, results = nodes.load_custom_node, list[bool]()

    async def if_named(path: str, *args: Any, **kwargs: Any) -> bool:
        if names_one(Path(path), kinds):
            results.append(await load(path, *args, **kwargs))
        return True

    nodes.__dict__["load_custom_node"] = if_named
    try:
        await nodes.init_builtin_extra_nodes()
    finally:
        nodes.__dict__["load_custom_node"] = load
    if not all(results):
        await nodes.init_builtin_extra_nodes()


def names_one(file: Path, kinds: Collection[str]) -> bool:
    """Whether a class of these is written in a file, as the host's are: in quotes."""
    if not file.is_file():
        return True  # the host tells of it
    return not set(QUOTED.findall(file.read_text(encoding="utf-8"))).isdisjoint(kinds)


def load_pack() -> ModuleType:
    """The pack as the package ``headroom``, whatever its folder is called."""
    if "headroom" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "headroom", PACK / "__init__.py", submodule_search_locations=[str(PACK)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules["headroom"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["headroom"]
