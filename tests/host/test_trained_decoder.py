"""The trained autoencoder in the host: as good as the figures in the file of its decoder say."""

import json
import math

import pytest
import torch
from safetensors import safe_open

from headroom.tools.models.sd_vae import TRAINED

from .conftest import ENVIRONMENT
from .families import load_vae

MARGIN_DB = 0.5  # half precision, and other processors


@pytest.mark.parametrize("name", ["coffee.png"])
def test_a_photograph_survives(name: str) -> None:
    import nodes

    assert (ENVIRONMENT.models / "input" / name).is_file()
    with safe_open(TRAINED, "pt") as file:
        claimed, _ = json.loads(file.metadata()["psnr_ssim"])[name]
    picture, _ = nodes.LoadImage().load_image(name)
    result = load_vae("sd").decode(load_vae("sd").encode(picture))
    assert result.shape == picture.shape
    assert -10 * math.log10((result - picture).square().mean().item()) > claimed - MARGIN_DB


def test_a_flat_picture_keeps_its_colour() -> None:
    """What a norm that takes away each channel's mean would not let through."""
    for colour in ((0.2, 0.3, 0.6), (0.8, 0.7, 0.5)):
        picture = torch.tensor(colour).expand(1, 128, 128, 3)
        result = load_vae("sd").decode(load_vae("sd").encode(picture))
        assert (result - picture).abs().mean() < 0.1
