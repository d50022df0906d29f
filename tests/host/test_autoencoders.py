"""The small autoencoders are what they are meant to be: the host's classes, loaded by the host, with sane weights."""

import pytest
import torch
from torch import Tensor

from ..nightly import some_of
from .autoencoders import AUTOENCODERS, Autoencoder

EVERYWHERE = {
    "sd", "sd_x4", "sd3", "flux2", "svd", "hunyuan_image", "hunyuan_image_refiner", "hunyuan_video15", "hunyuan_video",
    "wan21", "wan21_rgba", "wan22", "ltx", "ltx_noise", "ltx_conditioned", "ltx_striding", "mochi", "cosmos", "taesd",
    "taesd3", "taew21", "taehv", "taew22", "taehv15", "taeltx2", "stage_a", "stage_c", "pixel_space",
}  # fmt: skip
HEIGHT, WIDTH = 3, 2  # cells
UNSCALED = {"pixel_space"}  # its latent is the picture, so noise is far outside of what a picture is


pytestmark = pytest.mark.usefixtures("one_thread")


def decoded(kind: Autoencoder, latent: Tensor) -> Tensor:
    """With the same noise for those that add some."""
    torch.manual_seed(5)
    return kind.load().decode(latent)


def latent_of(kind: Autoencoder, seed: int = 3, cells: int | None = None) -> Tensor:
    return kind.latent(HEIGHT, WIDTH, cells_in_time=cells or kind.cells, seed=seed)


def test_no_kind_is_lost() -> None:
    """A mistake in finding out what the host has would leave kinds out in silence."""
    assert set(AUTOENCODERS) >= EVERYWHERE


def test_weights_are_the_same_every_time() -> None:
    first, second = (AUTOENCODERS["taesd"].build().first_stage_model.state_dict() for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("name", some_of(list(AUTOENCODERS), 3))
class TestKind:
    def test_the_host_builds_it_from_its_weights(self, name: str, caplog: pytest.LogCaptureFixture) -> None:
        kind = AUTOENCODERS[name]
        vae = kind.load()
        assert type(vae.first_stage_model) is kind.model_class()
        assert (vae.latent_channels, vae.latent_dim) == (kind.channels, 3 if kind.temporal else 2)
        assert vae.vae_dtype == torch.float32
        assert "Missing" not in caplog.text

    def test_decode(self, name: str) -> None:
        kind = AUTOENCODERS[name]
        pictures = decoded(kind, latent_of(kind))
        in_time = (kind.frames(kind.cells),) if kind.temporal else ()
        assert pictures.shape == (1, *in_time, HEIGHT * kind.reach, WIDTH * kind.reach, kind.colours)
        assert torch.isfinite(pictures).all()
        assert not torch.equal(decoded(kind, latent_of(kind, seed=4)), pictures)
        assert 0.05 < pictures.std() < (1 if name in UNSCALED else 0.4)
        assert pictures.std((-3, -2)).mean() > 0.03  # not one colour
        if name not in UNSCALED:
            assert ((pictures > 0) & (pictures < 1)).float().mean() > 0.9

    def test_decode_of_one_cell_in_time(self, name: str) -> None:
        kind = AUTOENCODERS[name]
        if not kind.video:
            pytest.skip("knows no time")
        assert decoded(kind, latent_of(kind, cells=1)).shape[1] == 1

    def test_encode(self, name: str) -> None:
        kind = AUTOENCODERS[name]
        pixels = kind.pixels(HEIGHT * kind.shrink, WIDTH * kind.shrink, frames=kind.frames(kind.cells))
        latent = kind.load().encode(pixels)
        in_time = (latent.shape[2],) if kind.temporal else ()
        assert latent.shape == (1, kind.channels, *in_time, HEIGHT, WIDTH)
        assert torch.isfinite(latent).all()
        assert not torch.equal(kind.load().encode(pixels.flip(1)), latent)
        assert 0.1 < latent.std() < 5
