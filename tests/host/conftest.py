"""A real ComfyUI: imported into this process, and as a server of its own with and without the pack.

`python3 -m tools test` says where it is (HEADROOM_COMFYUI) and where its small checkpoints are (HEADROOM_MODELS).
"""

import asyncio
import atexit
import ctypes
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from headroom.tools.card import emulator
from headroom.tools.server.client import Client
from headroom.tools.server.server import Server
from headroom.tools.setup.environment import Environment

ENVIRONMENT = Environment.from_variables(os.environ)
ON_CARD = emulator.is_on() or os.environ.get("HEADROOM_GPU") == "1"
HOST_DEVICE = () if ON_CARD else ("--cpu",)


def _import_host() -> None:
    """Imports the host on the CPU, or on the emulated card that this process was started on (`tools test --card`), or
    with HEADROOM_GPU=1 on the machine's own.

    Its folders are in a temporary place that links to the checkpoints.
    """
    base = Path(tempfile.mkdtemp(prefix="headroom-host-"))
    atexit.register(shutil.rmtree, base, ignore_errors=True)
    for name in ("models", "datasets", "input"):
        (base / name).symlink_to(ENVIRONMENT.models / name, target_is_directory=True)
    arguments, sys.argv = sys.argv, ["comfyui", *HOST_DEVICE, "--base-directory", str(base)]
    sys.path.insert(0, str(ENVIRONMENT.comfyui))
    import comfy.options

    comfy.options.enable_args_parsing()
    import comfy.cli_args

    sys.argv = arguments
    import utils.json_util  # noqa: F401  # as the host's start does: its nodes put comfy/ before it, where utils is another

    import nodes  # noqa: F401


_import_host()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves out what is asked of a kind of VAE that an older host does not have."""
    from .autoencoders import ABSENT

    for item in items:
        call = getattr(item, "callspec", None)
        given = call.params.values() if call else ()
        names = [one for value in given for one in (value if isinstance(value, tuple) else (value,))]
        for name in ABSENT.intersection(one for one in names if isinstance(one, str)):
            item.add_marker(pytest.mark.skip(reason=f"this ComfyUI has no {name}"))


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    """The host runs its nodes so."""
    import torch

    with torch.inference_mode():
        yield


@pytest.fixture(autouse=True, scope="module")
def _memory_given_back() -> Iterator[None]:
    """What the C library keeps of freed memory: several processes like this one, and their servers, share a machine."""
    yield
    gc.collect()
    with suppress(OSError, AttributeError):  # other systems have no such call
        ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small maps gain nothing from a second thread, and on a busy machine it costs ten times the time."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def extra_nodes() -> None:
    """Nodes that the host keeps in files of their own, and imports when it starts: once, it takes seconds."""
    import nodes

    asyncio.run(nodes.init_builtin_extra_nodes())


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The host with the pack, for the whole session."""
    with Server(ENVIRONMENT, cpu=not ON_CARD) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: Server) -> Client:
    return Client(server.url)
