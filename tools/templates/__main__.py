"""Writes the templates of the browser, `workflows/*.json`, from their API twins in `workflows/api`.

python3 -m tools templates
"""

from __future__ import annotations

import importlib
import os
import sys

from .specs import TEMPLATES
from .template import path_of, template
from .text import as_json


def main() -> int:
    """Write the files, in the environment of the tools; the exit status."""
    if "HEADROOM_COMFYUI" not in os.environ:
        return int(importlib.import_module("tools.commands").main(["templates"]))
    host = importlib.import_module("cli.host")
    host.enter(host.find_comfyui())
    ours = {node.GET_SCHEMA().node_id: node for node in importlib.import_module("headroom.nodes").NODES}
    for name in TEMPLATES:
        path = path_of(name)
        path.write_text(as_json(template(name, ours)), encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
