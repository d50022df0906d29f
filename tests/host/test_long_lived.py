"""A server does not look again and again at what it has loaded, and lets go of everything else as before."""

from collections.abc import Iterator

import pytest

from headroom.tools.server.client import Client
from headroom.tools.server.server import Server

from .conftest import ENVIRONMENT, ON_CARD
from .workflows import with_headroom

# A node pack of somebody else's that tells what Python's collector sees.
COUNTED = """
import gc

from aiohttp import web
from server import PromptServer

NODE_CLASS_MAPPINGS = {}


@PromptServer.instance.routes.get("/counted")
async def counted(request):
    models = [one for one in gc.get_objects() if type(one).__name__ == "ModelPatcher"]
    aside = gc.get_freeze_count()
    return web.json_response({"aside": aside, "seen": len(gc.get_objects()), "models": len(models)})
"""


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server with such a pack beside ours."""
    base = tmp_path_factory.mktemp("counted")
    pack = base / "custom_nodes" / "counted"
    pack.mkdir(parents=True)
    (pack / "__init__.py").write_text(COUNTED)
    with Server(ENVIRONMENT, cpu=not ON_CARD, base=base) as server:
        yield Client(server.url)


def test_what_is_loaded_at_the_start_is_not_looked_at(counted: Client) -> None:
    """Most of all objects are the host's modules, functions and classes."""
    found = counted.get("/counted")
    assert found["aside"] > 300_000
    assert found["seen"] < found["aside"] / 4


def test_models_are_seen_and_let_go(counted: Client) -> None:
    aside = counted.get("/counted")["aside"]
    counted.run(with_headroom())
    assert counted.get("/counted")["models"] > 0
    counted.free()
    found = counted.get("/counted")
    assert found["models"] == 0
    assert found["aside"] <= aside
