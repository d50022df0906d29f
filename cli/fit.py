"""Makes a workflow file fit: puts Headroom's nodes into it and changes nothing else.

    python3 cli/fit.py IN.json -o OUT.json --gpu "rtx 3060 12gb"

It needs no ComfyUI and no GPU: what fits is found when the workflow runs, on the machine that runs it.
Exit status: 0 written, 2 it cannot be.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from ..graph import cards, formats
    from ..graph.fit import insert
    from ..graph.settings import GPUS, QUALITIES, FitSettings
    from . import files
else:  # as a script
    import files

    cards, formats, insert, settings = (
        importlib.import_module(f"headroom.graph.{name}") for name in ("cards", "formats", "fit.insert", "settings")
    )
    GPUS, QUALITIES, FitSettings = settings.GPUS, settings.QUALITIES, settings.FitSettings

WRITTEN, CANNOT = 0, 2
OPTIONS = {"quality": "--quality", "vram_gb": "--vram", "gpu": "--gpu", "limit": "--limit"}  # by setting

EXAMPLES = """examples:
  python3 cli/fit.py workflow.json -o fitted.json                           for the machine that runs it
  python3 cli/fit.py workflow.json -o fitted.json --gpu "rtx 4060 ti 16gb"  for a card by its name
  python3 cli/fit.py workflow.json -o workflow.json --quality near_exact    in place; 8-bit weights are allowed

exit status: 0 written, 2 it cannot be"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="fit",
        description=(__doc__ or "").partition("\n")[0],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("workflow", type=Path, metavar="IN.json", help="in the browser's format or the API format")
    top.add_argument("-o", "--out", type=Path, metavar="OUT.json", help="where to write it, in the same format")
    top.add_argument("--quality", choices=QUALITIES, default=QUALITIES[0], help="what may be lost (default exact)")
    top.add_argument("--vram", type=float, metavar="GB", help="of the card (default: all it has)")
    top.add_argument("--gpu", default=GPUS[0], help="a card's name or kernels (default: the machine's that runs it)")
    top.add_argument("--limit", type=float, default=0.85, help="share of the card that may be used (default 0.85)")
    top.add_argument("--comfyui", metavar="FOLDER", help="as in estimate; nothing of it is needed")
    return top


def answer(options: argparse.Namespace) -> str:
    """Writes the workflow; what was inserted, as text.

    Raises:
        ValueError: an option or the workflow is not usable.
    """
    content = files.read(options.workflow)
    if options.out is None:
        raise ValueError(f"-o is missing: name the file to write, which may be {options.workflow} itself")
    gpu, vram = options.gpu, options.vram
    if gpu not in GPUS:
        _, gpu, vram = cards.known_card("--gpu", gpu, vram)
    settings = FitSettings(options.quality, vram or 0.0, gpu, options.limit)
    settings.check(OPTIONS)
    inserted = insert.insert_fit(files.api_nodes(content), settings)
    result = inserted.workflow
    files.write(options.out, {**content, "prompt": result} if formats.is_request(content) else result)
    lines = inserted.added or ("nothing to insert: it is as it was",)
    return "\n".join([*lines, *inserted.notes])


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
