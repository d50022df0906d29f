"""Write small checkpoints that the stock ComfyUI loaders accept, so that nothing has to be downloaded.

    python -m tools.models --comfyui HOST --out DIR [names...]

in the root of the checkout, by a Python with the host's requirements: `tools/setup/environment.py` does so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .files import FILES, GROUPS, expand, write
from .from_host import enter_host


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--comfyui", type=Path, metavar="HOST", help="the ComfyUI folder")
    parser.add_argument("--out", type=Path, metavar="DIR", help="gets models/, datasets/ and input/")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("names", nargs="*", default=["all"], help="files or groups (default: all)")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in FILES and name not in GROUPS]
    if unknown:
        parser.error(f"unknown name: {', '.join(unknown)} (--list prints those there are)")
    if not options.list and not (options.comfyui and options.out):
        parser.error("--comfyui and --out are both needed")
    return options


def main() -> int:
    options = parse()
    if options.list:
        print(*FILES, *(f"{group}: {' '.join(names)}" for group, names in GROUPS.items()), sep="\n")
        return 0
    name = "anything"
    try:
        enter_host(options.comfyui.resolve())
        for name in expand(options.names):
            for file in FILES[name]:
                write(file, options.out)
    except (OSError, ImportError, AttributeError, TypeError, RuntimeError) as error:
        print(f"{name} could not be written: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
