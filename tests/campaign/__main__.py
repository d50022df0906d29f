"""Started by `python3 -m tools campaign`, which makes the environment that this needs."""

import importlib
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "cli"))

import host

host.load_pack()
sys.exit(importlib.import_module("headroom.tests.campaign.command").main())
