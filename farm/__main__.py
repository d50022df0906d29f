"""`python3 -m farm` in the pack's folder; see `command`."""

import importlib.util
import sys
from pathlib import Path

PACK = Path(__file__).resolve().parent.parent


def main() -> int:
    """As a part of the pack, whatever its folder is called: what knows workflow files is beside it."""
    if "headroom" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "headroom", PACK / "__init__.py", submodule_search_locations=[str(PACK)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules["headroom"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return int(importlib.import_module("headroom.farm.command").main())


if __name__ == "__main__":
    sys.exit(main())
