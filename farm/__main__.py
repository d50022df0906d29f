"""`python3 -m farm` in the pack's folder; see `command`."""

import importlib
import sys


def main() -> int:
    """As a part of the pack, whatever its folder is called: what knows workflow files is beside it."""
    importlib.import_module("cli.host").load_pack()
    return int(importlib.import_module("headroom.farm.command").main())


if __name__ == "__main__":
    sys.exit(main())
