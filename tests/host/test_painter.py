"""The small models that paint, in the host: as its loaders want them they are what was trained, and they obey."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from headroom.tools.models.image_vae import image_vae_module
from headroom.tools.models.painter import dit
from headroom.tools.models.painter.judge import obeys
from headroom.tools.models.painter.networks import (
    CHANNELS,
    HOST_CHANNELS,
    HOST_WIDTH,
    TEXT,
    TRAINED,
    UNET,
    WIDTH,
    WORDS,
    TextModel,
    painter_unet,
    unet_module,
)
from headroom.tools.models.painter.scenes import PAIRS, Scene, Thing, draw
from headroom.tools.models.sd_vae import vae_sd

SCENE = Scene(Thing("red", "circle"), "over", Thing("blue", "square"))
SAME_DB = 50.0  # weights are rounded to half precision once more when they are repeated


def part(prefix: str) -> dict[str, Tensor]:
    weights = load_file(TRAINED)
    return {key.removeprefix(prefix): value.float() for key, value in weights.items() if key.startswith(prefix)}


def decibels(result: Tensor, truth: Tensor) -> float:
    return float(10 * torch.log10(truth.square().mean() / (result - truth).square().mean()))


@pytest.fixture(scope="module")
def checkpoint() -> Iterator[tuple[Any, Any, Any]]:
    import nodes

    with torch.inference_mode():
        yield nodes.CheckpointLoaderSimple().load_checkpoint("painter_sd15.safetensors")


def test_repeated_channels_compute_what_was_trained() -> None:
    import comfy.ops

    where = {"device": "cpu", "dtype": torch.float32, "operations": comfy.ops.disable_weight_init}
    narrow, wide = unet_module(CHANNELS, WIDTH, **where), unet_module(HOST_CHANNELS, HOST_WIDTH, **where)
    narrow.load_state_dict(part(UNET))
    wide.load_state_dict({key: value.float() for key, value in painter_unet().items()})
    rng = torch.Generator().manual_seed(1)
    latents, context = torch.randn(2, 4, 16, 24, generator=rng), torch.randn(2, 77, WIDTH, generator=rng)
    time = torch.tensor([20.0, 900.0])
    truth = narrow(latents, time, context=context)
    result = wide(latents, time, context=context.repeat_interleave(HOST_WIDTH // WIDTH, -1))
    assert decibels(result, truth) > SAME_DB


def test_the_text_encoder_says_what_was_trained(checkpoint: tuple[Any, Any, Any]) -> None:
    import nodes

    clip = checkpoint[1]
    ((context, _),) = nodes.CLIPTextEncode().encode(clip, str(SCENE))[0]
    words = load_file(TRAINED)[WORDS].tolist()
    (tokens,) = clip.tokenize(str(SCENE))["l"]
    text = TextModel(len(words))
    text.load_state_dict(part(TEXT))
    truth = text(torch.tensor([[words.index(token) for token, _ in tokens]]))
    assert decibels(context, truth.repeat_interleave(HOST_WIDTH // WIDTH, -1)) > SAME_DB


def test_it_paints_what_it_is_told(checkpoint: tuple[Any, Any, Any]) -> None:
    import nodes

    model, clip, vae = checkpoint
    told, untold = (nodes.CLIPTextEncode().encode(clip, text)[0] for text in (str(SCENE), ""))
    (empty,) = nodes.EmptyLatentImage().generate(256, 256, 1)
    (latent,) = nodes.KSampler().sample(model, 1, 12, 3.0, "dpmpp_2m", "karras", told, untold, empty)
    (pictures,) = nodes.VAEDecode().decode(vae, latent)
    assert obeys(pictures[0].numpy(), SCENE)


class TestFlux:
    def test_its_blocks_compute_what_was_trained(self) -> None:
        import comfy.ldm.flux.model
        import comfy.ops

        where = {"device": "cpu", "dtype": torch.float32, "operations": comfy.ops.disable_weight_init}
        flux = comfy.ldm.flux.model.Flux(
            image_model="flux", in_channels=16, out_channels=16, vec_in_dim=768, context_in_dim=768, hidden_size=256,
            mlp_ratio=4.0, num_heads=2, depth=1, depth_single_blocks=3, axes_dim=[16, 56, 56], theta=10000,
            patch_size=2, qkv_bias=True, guidance_embed=True, txt_ids_dims=[], **where,
        )  # fmt: skip
        rng, model = torch.Generator().manual_seed(1), dit.DiT()
        for parameter in model.parameters():  # gates that are open, unlike those that training begins with
            parameter.copy_(torch.randn(parameter.shape, generator=rng) / parameter.shape[-1] ** 0.5)
        flux.load_state_dict({key: value.float() for key, value in dit.painter_flux(model).items()})
        latents, context = torch.randn(2, 16, 20, 24, generator=rng), torch.randn(2, 77, WIDTH, generator=rng)
        time = torch.tensor([0.3, 0.95])
        pooled, guidance = torch.randn(2, 768, generator=rng), torch.tensor([1.0, 3.5])
        with torch.inference_mode():
            truth = model(latents, time, context)
            wide = context.repeat_interleave(HOST_WIDTH // WIDTH, -1)
            result = flux(latents, time, wide, y=pooled, guidance=guidance)
        assert decibels(result, truth) > SAME_DB

    def test_its_autoencoder_is_the_small_one(self) -> None:
        small, spread_out = image_vae_module(4, quantised=True, narrow=64), image_vae_module(16, False, narrow=64)
        spread = 2 * torch.linalg.qr(torch.randn(16, 4, generator=torch.Generator().manual_seed(1))).Q
        for module, weights in ((small, vae_sd()), (spread_out, dit.painter_vae_flux(spread))):
            module.load_state_dict({key: value.float() for key, value in weights.items()})
        pictures = draw(PAIRS[5:7], 128, torch.Generator().manual_seed(1)) * 2 - 1
        with torch.inference_mode():
            result, truth = (module.decode(_mean(module.encode(pictures))) for module in (spread_out, small))
        assert decibels(result, truth) > SAME_DB

    def test_it_paints_what_it_is_told(self, checkpoint: tuple[Any, Any, Any]) -> None:
        """As a graph of Flux does: no second prompt."""
        from comfy_extras.nodes_flux import FluxGuidance
        from comfy_extras.nodes_sd3 import EmptySD3LatentImage

        import nodes

        with torch.inference_mode():
            (model,) = nodes.UNETLoader().load_unet("painter_flux.safetensors", "default")
            (vae,) = nodes.VAELoader().load_vae("painter_vae_flux.safetensors")
            (told,) = nodes.CLIPTextEncode().encode(checkpoint[1], str(SCENE))
            (told,) = FluxGuidance.execute(told, 3.5).result
            (empty,) = EmptySD3LatentImage.execute(256, 256, 1).result
            (latent,) = nodes.KSampler().sample(model, 1, 20, 1.0, "euler", "simple", told, told, empty)
            (pictures,) = nodes.VAEDecode().decode(vae, latent)
        assert obeys(pictures[0].numpy(), SCENE)


def _mean(latents: Any) -> Tensor:
    mean: Tensor = latents[0] if isinstance(latents, tuple) else latents
    return mean
