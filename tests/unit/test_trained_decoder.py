"""The decoder that train_decoder.py trained: its file, and how it is written at a host's widths."""

import json
import math

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from headroom.tools.models.sd_vae import TRAINED
from headroom.tools.models.widening import widened

MOST_BYTES = 8_000_000


def layer(name: str) -> set[str]:
    return {f"{name}.weight", f"{name}.bias"}


def residual_block(name: str) -> set[str]:
    return set().union(*(layer(f"{name}.{part}") for part in ("norm1", "conv1", "norm2", "conv2")))


def decoder_keys() -> set[str]:
    """Of a Stable Diffusion decoder, whose width changes twice on the way up."""
    keys = layer("post_quant_conv")
    for name in ("conv_in", "norm_out", "conv_out", "up.1.block.0.nin_shortcut", "up.0.block.0.nin_shortcut"):
        keys |= layer(f"decoder.{name}")
    for name in ("norm", "q", "k", "v", "proj_out"):
        keys |= layer(f"decoder.mid.attn_1.{name}")
    for name in ("mid.block_1", "mid.block_2", *(f"up.{level}.block.{i}" for level in range(4) for i in range(3))):
        keys |= residual_block(f"decoder.{name}")
    for level in (1, 2, 3):
        keys |= layer(f"decoder.up.{level}.upsample.conv")
    return keys


class TestFile:
    def test_is_small_and_says_where_it_comes_from(self) -> None:
        assert TRAINED.stat().st_size <= MOST_BYTES
        with safe_open(TRAINED, "pt") as file:
            about = file.metadata()
        assert about["script"].endswith("/train_decoder.py")
        assert int(about["steps"]) > 0
        assert about["held_out"] not in json.loads(about["photographs"])
        assert about["held_out"] in json.loads(about["psnr_ssim"])

    def test_holds_a_decoder(self) -> None:
        with safe_open(TRAINED, "pt") as file:
            weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        assert set(weights) == decoder_keys()
        assert all(tensor.dtype == torch.float16 and tensor.isfinite().all() for tensor in weights.values())


class TestWidened:
    """Repeated channels compute what the channels did."""

    def test_norms_and_convolutions(self) -> None:
        rng = torch.Generator().manual_seed(1)
        weights = {"in": (64, 4, 3, 3), "norm": (64,), "bias": (64,), "middle": (64, 64, 3, 3), "out": (3, 64, 3, 3)}
        narrow = {key: torch.randn(shape, generator=rng).half().float() for key, shape in weights.items()}
        shapes = {
            "in": (128, 4, 3, 3),
            "norm": (128,),
            "bias": (128,),
            "middle": (256, 128, 3, 3),
            "out": (3, 256, 3, 3),
        }
        wide = {key: widened(key, tensor, shapes[key]).float() for key, tensor in narrow.items()}

        def run(w: dict[str, Tensor], latent: Tensor) -> Tensor:
            h = F.conv2d(latent, w["in"], padding=1)
            h = F.group_norm(h, 32, w["norm"], w["bias"])
            h = F.conv2d(F.silu(h), w["middle"], padding=1)
            return F.conv2d(F.silu(F.group_norm(h, 32)), w["out"], padding=1)

        latent = torch.randn(1, 4, 8, 8, generator=rng)
        torch.testing.assert_close(run(wide, latent), run(narrow, latent), rtol=1e-3, atol=1e-3)

    def test_attention(self) -> None:
        rng = torch.Generator().manual_seed(1)
        narrow = {f"attn_1.{name}.weight": torch.randn(64, 64, 1, 1, generator=rng) / 4 for name in "qk"}
        wide = {key: widened(key, tensor, (128, 128, 1, 1)).float() for key, tensor in narrow.items()}
        tokens = torch.randn(64, 10, generator=rng)

        def scores(w: dict[str, Tensor], x: Tensor) -> Tensor:
            query, key = (w[f"attn_1.{name}.weight"].flatten(1) @ x for name in "qk")
            return query.T @ key / math.sqrt(len(x))

        repeated = scores(wide, tokens.repeat_interleave(2, 0))
        torch.testing.assert_close(repeated, scores(narrow, tokens), rtol=1e-2, atol=1e-2)
