"""Makes a workflow file fit: puts Headroom's nodes into it and changes nothing else.

    python3 cli/fit.py IN.json -o OUT.json

It needs no ComfyUI and no GPU: what fits is found when the workflow runs, on the machine that runs it.
Exit status: 0 written, 2 it cannot be.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from . import files, host
else:  # as a script
    import files

    import host

WRITTEN, CANNOT = 0, 2
QUALITIES = ("exact", "near_exact", "any")
GPUS = ("this machine", "sm75", "sm80", "sm86", "sm89", "sm90", "sm120")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="fit", description=(__doc__ or "").partition("\n")[0])
    top.add_argument("workflow", type=Path, metavar="IN.json", help="in the browser's format or the API format")
    top.add_argument("-o", "--out", type=Path, metavar="OUT.json", help="where to write it, in the same format")
    top.add_argument("--quality", choices=QUALITIES, default=QUALITIES[0], help="what may be lost (default exact)")
    top.add_argument("--vram", type=float, default=0.0, metavar="GB", help="of the card (default: all it has)")
    top.add_argument("--gpu", choices=GPUS, default=GPUS[0], help="default: of the machine that runs it")
    top.add_argument("--limit", type=float, default=0.85, help="share of the card that may be used (default 0.85)")
    top.add_argument("--comfyui", metavar="FOLDER", help="as in estimate; nothing of it is needed")
    return top


def answer(options: argparse.Namespace) -> str:
    """Writes the workflow; what was inserted, as text.

    Raises:
        ValueError: an option or the workflow is not usable.
    """
    content = files.read(options.workflow)
    inserted = _inserted(content, options)
    result = inserted.workflow
    files.write(options.out, {**content, "prompt": result} if _is_request(content) else result)
    lines = inserted.added or ("nothing to insert: it is as it was",)
    return "\n".join([*lines, *inserted.notes])


def _inserted(content: dict[str, Any], options: argparse.Namespace) -> Any:
    if options.out is None:
        raise ValueError(f"-o is missing: name the file to write, which may be {options.workflow} itself")
    if options.vram < 0:
        raise ValueError(f"--vram: {options.vram:g} is less than nothing; 0 means all that the card has")
    if not 0.1 <= options.limit <= 1:
        raise ValueError(f"--limit: {options.limit:g} is no share of a card; choose from 0.1 to 1")
    host.load_pack()
    module = importlib.import_module("headroom.graph.insert_fit")
    settings = module.FitSettings(options.quality, options.vram, options.gpu, options.limit)
    return module.insert_fit(files.api_nodes(content) if _is_request(content) else content, settings)


def _is_request(content: dict[str, Any]) -> bool:
    return not files.is_ui(content) and "prompt" in content


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes, and returns the exit status."""
    options = parser().parse_args(arguments)
    try:
        print(answer(options))
    except ValueError as error:
        print(error, file=sys.stderr)
        return CANNOT
    return WRITTEN


if __name__ == "__main__":
    sys.exit(main())
