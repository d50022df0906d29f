"""Loads the checkout as the package ``headroom``, whatever its folder is called.

Its root must not stand on ``sys.path``: the host has a top-level module ``nodes`` of its own.
"""

import importlib.util
import sys
from pathlib import Path

import pytest

from .nightly import at_night, night_tests

ROOT = Path(__file__).resolve().parent.parent


def _load_package() -> None:
    spec = importlib.util.spec_from_file_location(
        "headroom", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["headroom"] = package
    spec.loader.exec_module(package)


assert str(ROOT) not in sys.path, "start pytest by its console script: `python -m pytest` puts the checkout on sys.path"
_load_package()


class NamedAtOnce:
    """Names a test when it has failed, for a run that is ended before its summary."""

    def __init__(self, config: pytest.Config) -> None:
        self.plugins = config.pluginmanager

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self.plugins.get_plugin("terminalreporter")  # which is not there yet when pytest is configured
        if report.failed and terminal is not None:
            terminal.write_line(f"\nfailed: {report.nodeid}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves the tests of ``night.txt`` to the night."""
    listed = set(night_tests())
    for item in items:
        if not listed.isdisjoint((item.nodeid, item.nodeid.partition("[")[0])):
            item.add_marker(at_night)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(NamedAtOnce(config))
