"""What differs between hosts: what only newer ones have is named, and older ones get what they know."""

from typing import Any

import pytest
import torch

from headroom.host.casting.quantised import why_not
from headroom.host.core.compat import latent_for
from headroom.offload import STORAGES

from .conftest import ENVIRONMENT
from .families import FAMILIES

VERSION = tuple(int(part) for part in ENVIRONMENT.version.split("."))
SINCE = {"int8_convrot": (0, 27), "asym_w4a8_int8": (0, 33)}


def test_storages_that_only_newer_hosts_have_are_named() -> None:
    lacking = {name: why_not(storage) for name, storage in STORAGES.items() if why_not(storage) is not None}
    assert set(lacking) == {name for name, since in SINCE.items() if since > VERSION}
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
