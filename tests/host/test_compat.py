"""The self-test: what a host lacks is said in one sentence, and the pack is imported all the same."""

import asyncio
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import comfy.patcher_extension
import comfy.sd
import comfy_execution.utils
import pytest
import torch

from headroom.host.casting.quantised import why_not
from headroom.host.core.compat import latent_for, missing_features
from headroom.nodes import NODES
from headroom.offload import STORAGES

from .conftest import ENVIRONMENT
from .families import FAMILIES

ROOT = Path(__file__).parents[2]
VERSION = tuple(int(part) for part in ENVIRONMENT.version.split("."))
NAME = "headroom_imported_anew"
FEATURES = [
    (
        comfy.patcher_extension.WrappersMP,
        "PREDICT_NOISE",
        "sampler wrappers: Attention by Block and Step cannot count its calls or follow the steps",
    ),
    (comfy.sd.VAE, "vae_encode_crop_pixels", "VAE memory estimates: Low-Memory VAE cannot plan its tiles"),
    (
        comfy_execution.utils,
        "get_executing_context",
        "executing context: the memory report cannot tell which node did what",
    ),
]


@pytest.fixture
def anew() -> Iterator[None]:
    """Forgets what a second import of the pack leaves behind."""
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]


def imported() -> ModuleType:
    """The pack, as the host imports a folder of its custom_nodes."""
    spec = importlib.util.spec_from_file_location(NAME, ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[NAME] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_storages_that_only_newer_hosts_have_are_named() -> None:
    lacking = {name: why_not(storage) for name, storage in STORAGES.items() if why_not(storage) is not None}
    assert set(lacking) == ({"int8_convrot"} if VERSION < (0, 27) else set())
    assert all("which this ComfyUI lacks; choose float8_e4m3fn_scaled, or update" in why for why in lacking.values())


@pytest.mark.parametrize(
    ("name", "latent", "shape"),
    [
        ("flux", {"samples": torch.zeros(1, 4, 8, 6)}, (1, 16, 8, 6)),
        ("flux", {"samples": torch.zeros(1, 4, 8, 6), "downscale_ratio_spacial": 16}, (1, 16, 16, 12)),
        (
            "wan21",
            {"samples": torch.zeros(1, 16, 2, 8, 6), "downscale_ratio_temporal": 8},
            (1, 16, 4 if VERSION >= (0, 24) else 2, 8, 6),
        ),
    ],
)
def test_an_empty_latent_becomes_what_the_model_wants(
    name: str, latent: dict[str, Any], shape: tuple[int, ...]
) -> None:
    """As in this host's own samplers: those before 0.24 take a ratio in space alone."""
    assert latent_for(FAMILIES[name].load(), latent).shape == shape


def test_this_host_lacks_nothing() -> None:
    assert missing_features() == []


@pytest.mark.parametrize(("owner", "name", "sentence"), FEATURES)
def test_what_is_missing_is_said_and_the_nodes_are_there(
    owner: Any,
    name: str,
    sentence: str,
    anew: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delattr(owner, name)

    async def started() -> list[Any]:
        extension = await imported().comfy_entrypoint()
        await extension.on_load()
        return await extension.get_node_list()

    nodes = asyncio.run(started())
    assert [node.GET_SCHEMA().node_id for node in nodes] == [node.GET_SCHEMA().node_id for node in NODES]
    (warning,) = [record.getMessage() for record in caplog.records if "Headroom" in record.getMessage()]
    assert warning.startswith(f"Headroom: this ComfyUI lacks its {sentence}; update ComfyUI to ")
