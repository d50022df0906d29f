"""Every kind of autoencoder for pictures and video that the host's VAE class can load, as small generated instances.

The host's own detection builds each one: it is given a state dict and decides what that is. Two constructions make one
instance. The first is given only the few entries that the detection looks at, and tells which entries there are in all;
the second is given all of them, with seeded weights. Widths that the host takes from its code and not from the state
dict are narrowed by handing other arguments to its classes while they are built; layers and their order stay the
host's (MiniMax's transformer alone has fewer of them). A kind that this version of the host does not have is left out.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import comfy.sd
import pytest
import torch
from torch import Tensor

Draw = Callable[[Tensor, torch.Generator], Tensor]  # from an entry of the state dict to the value it gets
Rules = tuple[tuple[str, Draw], ...]
Shapes = Mapping[str, tuple[int, ...]]
Widths = Mapping[str, Mapping[str, Any]]
Frames = Callable[[int], int]
Kinds = Iterator["Autoencoder | None"]  # None for one that this host does not have
KL = "comfy.ldm.models.autoencoder.AutoencoderKL"
ENGINE = "comfy.ldm.models.autoencoder.AutoencodingEngine"
MODEL = "comfy.ldm.modules.diffusionmodules.model"
LTX = "comfy.ldm.lightricks.vae.causal_video_autoencoder"


@dataclass(frozen=True)
class Autoencoder:
    """A kind of autoencoder: how a small one is built, and what goes in and comes out.

    ``reach`` is how many pixels a latent cell covers, ``shrink`` the same for encoding where that differs. ``frames``
    gives the frames that a number of cells in time decode to (not always what the host says), ``cells`` is how many
    cells it takes for every part that works in time to do so. ``temporal`` latents have an axis of time, even where
    they mean a single picture. ``colours`` are the channels of what is decoded.
    """

    name: str
    video: bool
    build: Callable[[], comfy.sd.VAE]
    model: str
    channels: int
    reach: int
    shrink: int
    temporal: bool
    frames: Frames
    cells: int = 1
    colours: int = 3

    def load(self) -> comfy.sd.VAE:
        """The instance, the same one at every call."""
        return _load(self.name)

    def latent(
        self, height_cells: int, width_cells: int, batch: int = 1, cells_in_time: int = 1, seed: int = 3
    ) -> Tensor:
        """Noise of unit variance, the same at every call."""
        in_time = (cells_in_time,) if self.temporal else ()
        shape = (batch, self.channels, *in_time, height_cells, width_cells)
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed))

    def pixels(self, height: int, width: int, frames: int = 1) -> Tensor:
        """A picture with areas, edges and ripples, or a video of it, (frames, height, width, 3) in [0, 1]."""
        y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
        moving = [torch.stack((x, y, 0.5 + 0.5 * torch.sin(18 * x * y + 0.2 * t)), -1) for t in range(frames)]
        images = torch.stack(moving)
        images[:, height // 4 : height // 2, width // 3 : width // 2] = torch.tensor([0.9, 0.2, 0.1])
        return images

    def model_class(self) -> type:
        """The class that the host is expected to build."""
        return _resolve(self.model)


@dataclass(frozen=True)
class Recipe:
    """What the detection looks at, which widths are narrowed, and the rules by which weights are drawn.

    ``markers`` are entries of the state dict by shape. ``narrow`` are arguments by class. The first of ``rules`` whose
    pattern is found in a key draws that entry. ``rename`` undoes what the host does to prefixes of keys.
    """

    markers: Shapes
    narrow: Widths
    rules: Rules = ()
    metadata: Mapping[str, Any] | None = None
    dtype: torch.dtype = torch.float32
    rename: Mapping[str, str] | None = None


# ------------------------------------------------------------------------------------------------- drawing weights


def gain(factor: float) -> Draw:
    """Random weights that multiply the size of their input by ``factor``, whatever the fan-in."""

    def draw(value: Tensor, rng: torch.Generator) -> Tensor:
        return torch.randn(value.shape, generator=rng) * (factor / math.sqrt(max(1, math.prod(value.shape[1:]))))

    return draw


def balanced(factor: float) -> Draw:
    """The same for inputs that are never negative: their mean goes nowhere."""

    def draw(value: Tensor, rng: torch.Generator) -> Tensor:
        weight = gain(factor)(value, rng)
        return weight - weight.flatten(1).mean(1).reshape(-1, *[1] * (value.ndim - 1))

    return draw


def around(mean: float, spread: float) -> Draw:
    """Values scattered about a mean."""
    return lambda value, rng: mean + spread * torch.randn(value.shape, generator=rng)


def keep(value: Tensor, rng: torch.Generator) -> Tensor:
    """Constants of the host's class."""
    return value.clone()


def _default(key: str, value: Tensor) -> Draw:
    if not value.is_floating_point():
        return keep
    if key.endswith(("bias", "running_mean")):
        return around(0.0, 0.05)
    if key.endswith("running_var") or value.ndim <= 1 or key.endswith("gamma"):
        return around(1.0, 0.1 if value.ndim else 0.0)
    return gain(1.0)


def _draw(key: str, value: Tensor, recipe: Recipe) -> Tensor:
    """Depends on the key and on the shape alone."""
    rule = next((draw for pattern, draw in recipe.rules if re.search(pattern, key)), None) or _default(key, value)
    drawn = rule(value, torch.Generator().manual_seed(zlib.crc32(key.encode())))
    return drawn.to(recipe.dtype) if drawn.is_floating_point() else drawn


# -------------------------------------------------------------------------------------------------------- building


def _resolve(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _exists(path: str) -> bool:
    try:
        _resolve(path)
    except (ImportError, AttributeError):
        return False
    return True


@contextmanager
def _narrowed(widths: Widths) -> Iterator[None]:
    """Within it, these classes of the host are built with these arguments in place of the host's."""
    with pytest.MonkeyPatch.context() as patch:
        for path, arguments in widths.items():
            patch.setattr(_resolve(path), "__init__", _with(_resolve(path).__init__, arguments))
        yield


def _with(init: Callable[..., None], arguments: Mapping[str, Any]) -> Callable[..., None]:
    @functools.wraps(init)
    def narrow(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **{**kwargs, **arguments})

    return narrow


def _build(recipe: Recipe) -> comfy.sd.VAE:
    metadata = dict(recipe.metadata) if recipe.metadata else None
    markers = {key: torch.zeros(shape, dtype=recipe.dtype) for key, shape in recipe.markers.items()}
    with _narrowed(recipe.narrow):
        logging.disable(logging.WARNING)  # that nearly all entries are missing is known here
        try:
            entries = comfy.sd.VAE(sd=dict(markers), metadata=metadata).first_stage_model.state_dict()
        finally:
            logging.disable(logging.NOTSET)
        weights = {_renamed(key, recipe): _draw(key, value, recipe) for key, value in entries.items()}
        return comfy.sd.VAE(sd=markers | weights, metadata=metadata)


def _renamed(key: str, recipe: Recipe) -> str:
    for old, new in (recipe.rename or {}).items():
        if key.startswith(old):
            return new + key.removeprefix(old)
    return key


@cache
def _load(name: str) -> comfy.sd.VAE:
    return AUTOENCODERS[name].build()


# ------------------------------------------------------------------------------------------------------ the kinds


def picture(cells: int) -> int:
    """There is no time."""
    return 1


def causal(step: int) -> Frames:
    """One frame for the first cell in time, ``step`` for every other."""
    return lambda cells: 1 + (cells - 1) * step


def cogvideo_frames(cells: int) -> int:
    """Time is doubled without a first frame of its own where the number of cells is even."""
    return 4 * cells - 3 if cells % 2 else 4 * cells


def minimax_frames(cells: int) -> int:
    """Every 5 cells are a clip of 17 frames, the first of which has a cell of its own."""
    clips, rest = divmod(cells - 1, 5)
    return 17 * clips + 1 + 4 * rest


ATTENTION = (r"(attn_\d|attentions\.\d+)(\.\d)?\.(to_)?[qk]\.", gain(1.5))  # flatter scores would average everything
KL_ENDS = (
    (r"decoder\.conv_out\.(conv\.)?weight", gain(0.55)),
    (r"encoder\.conv_out\.(conv\.)?weight", gain(1.2)),
    (r"time_mix_conv\.weight", gain(1.4)),
    ATTENTION,
)
IMAGE_KL = {f"{MODEL}.Encoder": {"ch": 32}, f"{MODEL}.Decoder": {"ch": 32}}
LTX_WIDTHS = {"encoder_base_channels": 16, "decoder_base_channels": 16}
LTX_BASE = {
    "_class_name": "CausalVideoAutoencoder", "dims": 3, "in_channels": 3, "out_channels": 3, "latent_channels": 128,
    "norm_layer": "pixel_norm", "patch_size": 4, "latent_log_var": "uniform", "causal_decoder": False, **LTX_WIDTHS,
}  # fmt: skip
LTX_RULES = (
    (r"decoder\.conv_out\.conv\.weight", gain(0.6)),
    (r"encoder\.conv_out\.conv\.weight", gain(1.5)),
    (r"scale_shift_table", around(0.0, 0.2)),
    (r"timestep_scale_multiplier", keep),
    (r"per_channel_scale", around(0.0, 0.3)),
    (r"mean-of-means", around(0.0, 0.1)),
    (r"time_embedder.*weight", gain(0.5)),
)


def ltx_config(encoder: list, decoder: list, conditioned: bool) -> dict[str, str]:
    """The metadata of a file with this autoencoder."""
    blocks = {"encoder_blocks": encoder, "decoder_blocks": decoder, "timestep_conditioning": conditioned}
    return {"config": json.dumps({"vae": LTX_BASE | blocks})}


def layers(count: int, **extra: Any) -> list:
    return ["res_x", {"num_layers": count, **extra}]


TAE_BRANCH = (
    (r"conv\.4\.weight", balanced(0.7)),
    (r"conv\.[02]\.weight", balanced(1.7)),
)
TAE_RULES = (
    *TAE_BRANCH,
    (r"pool\.3\.weight", balanced(0.5)),
    (r"vae_(scale|shift)", keep),
    (r"decoder\.19\.weight", balanced(0.18)),
    (r"decoder\.19\.bias", around(0.5, 0.02)),
    (r"coder\.\d+\.weight", balanced(1.5)),
)


def taehv_rules(mean: float, contrast: float) -> Rules:
    """Rules by the mean and about the size of what is decoded."""
    ends = ((r"decoder\.22\.weight", balanced(contrast)), (r"decoder\.22\.bias", around(mean, 0.02)))
    return (*TAE_BRANCH, *ends, (r"coder\.\d+\.(conv\.)?weight", balanced(1.5)))


def taehv(channels: int, patch: int) -> Shapes:
    return {"decoder.22.bias": (3 * patch * patch,), "decoder.1.weight": (256, channels, 3, 3)}


ABSENT: set[str] = set()  # the kinds that this host does not have


def kind(
    name: str,
    model: str,
    channels: int,
    reach: int,
    recipe: Recipe,
    *,
    frames: Frames | None = None,
    temporal: bool = False,
    cells: int = 3,
    shrink: int | None = None,
    colours: int = 3,
    needs: list[str] | None = None,
) -> Autoencoder | None:
    """None where a class that it needs is not there; a kind with ``frames`` is a video's."""
    if not all(map(_exists, [model, *(needs or [])])):
        ABSENT.add(name)
        return None
    video = frames is not None
    return Autoencoder(
        name=name,
        video=video,
        build=functools.partial(_build, recipe),
        model=model,
        channels=channels,
        reach=reach,
        shrink=shrink or reach,
        temporal=video or temporal,
        frames=frames or picture,
        cells=cells if video else 1,
        colours=colours,
    )


def stable_diffusion() -> Kinds:
    """The autoencoder of Stable Diffusion and what was made of it."""
    down = {"encoder.down.2.downsample.conv.weight": (128, 128, 3, 3)}

    def image(channels: int, quantised: bool) -> dict[str, tuple[int, ...]]:
        quantiser = {"post_quant_conv.weight": (channels, channels, 1, 1)} if quantised else {}
        return {"decoder.conv_in.weight": (128, channels, 3, 3), **quantiser}

    yield kind("sd", KL, 4, 8, Recipe(image(4, True) | down, IMAGE_KL, KL_ENDS))
    yield kind("sd_x4", KL, 4, 4, Recipe(image(4, True), IMAGE_KL, KL_ENDS))
    yield kind("sd3", ENGINE, 16, 8, Recipe(image(16, False) | down, IMAGE_KL, KL_ENDS))
    patched = image(32, True) | down | {"bn.running_mean": (128,)}
    yield kind("flux2", KL, 128, 16, Recipe(patched, IMAGE_KL, KL_ENDS))
    # of this one the decoder takes a batch for the frames of a video
    yield kind("svd", ENGINE, 4, 8, Recipe({"decoder.mid.block_1.mix_factor": (1,)}, IMAGE_KL, KL_ENDS))


def hunyuan() -> Kinds:
    """Of pictures, of pictures by the refiner, and of two versions of video."""
    wide = {"block_out_channels": [32, 32, 64, 64, 128, 128]}
    plain = {f"comfy.ldm.hunyuan_video.vae.{name}": wide for name in ("Encoder", "Decoder")}
    marks: Shapes = {"decoder.conv_in.weight": (128, 64, 3, 3)}
    yield kind("hunyuan_image", ENGINE, 64, 32, Recipe(marks, plain, KL_ENDS), needs=[*plain])
    wide = {"block_out_channels": [32, 32, 64, 64, 64]}
    refiner = {f"comfy.ldm.hunyuan_video.vae_refiner.{name}": wide for name in ("Encoder", "Decoder")}
    marks = {"decoder.conv_in.weight": (64, 32, 3, 3, 3)}
    recipe = Recipe(marks, refiner, KL_ENDS)
    yield kind("hunyuan_image_refiner", ENGINE, 32, 16, recipe, temporal=True, needs=[*refiner])
    marks = {"decoder.conv_in.conv.weight": (64, 32, 3, 3, 3)}
    recipe = Recipe(marks, refiner, KL_ENDS)
    yield kind("hunyuan_video15", ENGINE, 32, 16, recipe, frames=causal(4), needs=[*refiner])
    marks = {"decoder.conv_in.conv.weight": (128, 16, 3, 3, 3), "post_quant_conv.weight": (16, 16, 1, 1, 1)}
    yield kind("hunyuan_video", KL, 16, 8, Recipe(marks, IMAGE_KL, KL_ENDS), frames=causal(4))


WAN_RULES = (
    (r"decoder\.head\.2\.weight", gain(0.6)),
    (r"encoder\.head\.2\.weight", gain(1.4)),
    (r"to_qkv\.weight", gain(1.5)),
)


def wan21(name: str = "wan21", colours: int = 3, width: int = 16) -> Autoencoder | None:
    """Wan 2.1's causal autoencoder; the public one's ``width`` is 96."""
    marks: Shapes = {
        "decoder.middle.0.residual.0.gamma": (4 * width, 1, 1, 1),
        "decoder.head.0.gamma": (width, 1, 1, 1),
        "decoder.head.2.weight": (colours, width, 3, 3, 3),
        "encoder.conv1.weight": (width, colours, 3, 3, 3),
    }
    recipe = Recipe(marks, {}, WAN_RULES)
    return kind(name, "comfy.ldm.wan.vae.WanVAE", 16, 8, recipe, frames=causal(4), colours=colours)


def wan() -> Kinds:
    """The causal autoencoders of Wan 2.1 and 2.2."""
    yield wan21()  # Qwen-Image has it too
    yield wan21("wan21_rgba", 4)  # and Qwen-Image-Layered this one
    model = "comfy.ldm.wan.vae2_2.WanVAE"
    marks: Shapes = {
        "decoder.middle.0.residual.0.gamma": (64, 1, 1, 1),
        "decoder.upsamples.0.upsamples.0.residual.2.weight": (64, 64, 3, 3, 3),
    }
    recipe = Recipe(marks, {model: {"dim": 16, "dec_dim": 16}}, WAN_RULES)
    yield kind("wan22", model, 48, 16, recipe, frames=causal(4))


def ltx_video() -> Kinds:
    """LTX-Video: the blocks are in the file's metadata."""

    def ltx(name: str, deep: int, encoder: list, decoder: list, conditioned: bool = False) -> Autoencoder | None:
        marks = {"decoder.up_blocks.0.res_blocks.0.conv1.conv.weight": (deep, deep, 3, 3, 3)}
        recipe = Recipe(marks, {}, LTX_RULES, metadata=ltx_config(encoder, decoder, conditioned))
        return kind(name, f"{LTX}.VideoVAE", 128, 32, recipe, frames=causal(8))

    shuffling = [
        layers(2), ["compress_space_res", {"multiplier": 2}], layers(2), ["compress_time_res", {"multiplier": 2}],
        layers(2), ["compress_all_res", {"multiplier": 2}], layers(2), ["compress_all_res", {"multiplier": 1}],
        layers(2),
    ]  # fmt: skip
    striding = [
        layers(2), ["compress_all", {}], ["res_x_y", 1], layers(2), ["compress_all", {}], ["res_x_y", 1], layers(2),
        ["compress_all", {}], layers(2), layers(2),
    ]  # fmt: skip

    def growing(**extra: Any) -> list:
        up = ["compress_all", {"residual": True, "multiplier": 2}]
        return [layers(2, **extra), up, layers(2, **extra), up, layers(2, **extra), up, layers(2, **extra)]

    yield ltx("ltx", 128, shuffling, growing())
    yield ltx("ltx_noise", 128, striding, growing(inject_noise=True), conditioned=True)
    yield ltx("ltx_conditioned", 128, shuffling, growing(), conditioned=True)
    # the blocks of version 0.9.0: widths change in blocks of their own, which have a norm over channels
    yield ltx("ltx_striding", 64, striding, striding)


def other_videos() -> Kinds:
    """CogVideoX, Mochi, Cosmos."""
    model = "comfy.ldm.cogvideo.vae.AutoencoderKLCogVideoX"
    marks: Shapes = {
        "decoder.conv_in.conv.weight": (64, 16, 3, 3, 3),
        "decoder.mid_block.resnets.0.norm1.norm_layer.weight": (64,),
        "encoder.conv_out.conv.weight": (32, 64, 3, 3, 3),
    }
    modulation = (
        (r"conv_y\.conv\.weight", gain(0.3)),
        (r"conv_y\.conv\.bias", around(1.0, 0.1)),
        (r"conv_b\.conv\.weight", gain(0.3)),
    )
    recipe = Recipe(marks, {model: {"block_out_channels": (32, 32, 64, 64)}}, KL_ENDS + modulation)
    yield kind("cogvideox", model, 16, 8, recipe, frames=cogvideo_frames)

    model = "comfy.ldm.genmo.vae.model.VideoVAE"
    marks = {"decoder.blocks.2.blocks.3.stack.5.weight": (128, 128, 3, 3, 3)}
    widths = {f"comfy.ldm.genmo.vae.model.{name}": {"base_channels": 32} for name in ("Encoder", "Decoder")}
    rules: Rules = ((r"decoder\.output_proj\.weight", gain(0.2)), (r"encoder\.output_proj\.weight", gain(1.5)))
    yield kind("mochi", model, 12, 8, Recipe(marks, widths, rules), frames=causal(6))

    model = "comfy.ldm.cosmos.vae.CausalContinuousVideoTokenizer"
    rules = (
        (r"decoder\.conv_out\.\d\.conv3d\.weight", gain(0.19)),
        (r"encoder\.conv_out\.0\.conv3d\.weight", gain(1.6)),
        (r"latent_mean", around(0.0, 0.1)),
        (r"attn_\d\.\d\.[qk]\.conv3d\.weight", gain(1.5)),
    )
    recipe = Recipe({"decoder.unpatcher3d.wavelets": (2,)}, {model: {"channels": 32}}, rules)
    yield kind("cosmos", model, 16, 8, recipe, frames=causal(8))


def tiny() -> Kinds:
    """The tiny autoencoders for previews, of pictures and of videos."""
    model = "comfy.taesd.taesd.TAESD"
    for name, channels in (("taesd", 4), ("taesd3", 16)):
        yield kind(name, model, channels, 8, Recipe({"taesd_decoder.1.weight": (64, channels, 3, 3)}, {}, TAE_RULES))
    recipe = Recipe({"taesd_decoder.1.weight": (64, 32, 3, 3)}, {}, TAE_RULES, metadata={"tae_latent_channels": 128})
    yield kind("taef2", model, 128, 16, recipe, needs=["comfy.taesd.taesd.DecoderFlux2"])

    model = "comfy.taesd.taehv.TAEHV"
    yield kind("taew21", model, 16, 8, Recipe(taehv(16, 1), {}, taehv_rules(0.5, 0.08)), frames=causal(4))
    # half precision is how the host tells it from the one before
    recipe = Recipe(taehv(16, 1), {}, taehv_rules(0.5, 0.08), dtype=torch.float16)
    yield kind("taehv", model, 16, 8, recipe, frames=causal(4))
    yield kind("taew22", model, 48, 16, Recipe(taehv(48, 2), {}, taehv_rules(0.5, 0.08)), frames=causal(4))
    yield kind("taehv15", model, 32, 16, Recipe(taehv(32, 2), {}, taehv_rules(0.0, 0.07)), frames=causal(4))
    yield kind("taeltx2", model, 128, 32, Recipe(taehv(128, 4), {}, taehv_rules(0.5, 0.08)), frames=causal(8))


def other_pictures() -> Kinds:
    """Stable Cascade, Mage, and the one that does nothing."""
    model = "comfy.ldm.cascade.stage_a.StageA"
    rules: Rules = (
        (r"gammas", around(0.3, 0.1)),
        (r"out_block\.0\.weight", gain(0.15)),
        (r"out_block\.0\.bias", around(0.5, 0.05)),
    )
    recipe = Recipe({"vquantizer.codebook.weight": (64, 4)}, {model: {"c_hidden": 64, "codebook_size": 64}}, rules)
    yield kind("stage_a", model, 4, 4, recipe)
    model = "comfy.ldm.cascade.stage_c_coder.StageC_coder"
    rules = (
        (r"encoder\.(mean|std)", keep),
        (r"previewer\.blocks\.24\.weight", gain(0.18)),
        (r"previewer\.blocks\.24\.bias", around(0.5, 0.02)),
        (r"previewer\.blocks\.(6|12|18)\.weight", gain(2.4)),  # transposed: the fan-in is not what gain takes it for
        (r"previewer\.blocks\.(3|9|15|21)\.weight", gain(1.5)),
        (r"block\.1\.0\.weight", gain(1.5)),
        (r"block\.3\.0\.weight", gain(0.6)),
        (r"mapper\.0\.weight", gain(4.0)),
    )
    marks = {"encoder.backbone.1.0.block.0.1.num_batches_tracked": ()}
    recipe = Recipe(marks, {"comfy.ldm.cascade.stage_c_coder.Previewer": {"c_hidden": 64}}, rules)
    yield kind("stage_c", model, 16, 8, recipe, shrink=32)
    package = "comfy.ldm.mage_flow.vae"
    widths = {
        f"{package}.DConvEncoder": {"hidden_size": 64, "head_size": 64},
        f"{package}.DConvDenoiser": {"hidden_size": 64},
    }
    rename = {"dconv_encoder.": "student.dconv_encoder.", "decoder_model.": "pipeline."}
    rules = ((r"final_layer\.linear\.weight", gain(0.4)), ATTENTION)
    recipe = Recipe({"student.dconv_encoder.proj_out.weight": (256, 64, 1, 1)}, widths, rules, rename=rename)
    yield kind("mage", f"{package}.MageVAE", 128, 16, recipe)
    model = "comfy.pixel_space_convert.PixelspaceConversionVAE"
    yield kind("pixel_space", model, 3, 1, Recipe({"pixel_space_vae": ()}, {}))


def with_own_tiling() -> Kinds:
    """Those that tile by themselves."""
    package = "comfy.ldm.seedvr.vae"
    widths: Widths = {
        f"{package}.{name}": {"block_out_channels": (32, 32, 64, 64)} for name in ("Encoder3D", "Decoder3D")
    }
    marks: Shapes = {"decoder.up_blocks.2.upsamplers.0.upscale_conv.weight": (128, 32, 1, 1, 1)}
    recipe = Recipe(marks, widths, KL_ENDS)
    yield kind("seedvr2", f"{package}.VideoAutoencoderKLWrapper", 16, 8, recipe, frames=causal(4))

    package = "comfy.ldm.minimax.vae"
    widths = {
        f"{package}.MiniMaxH3VideoVAE": {"ch": 32},
        f"{package}.ViT3DDecoder": {"heads": 2, "num_layers": 6},
    }
    marks = {
        "decoder.transformer_blocks.0.scale1": (128,),
        "encoder.down.5.block.0.conv1.weight": (256, 128, 3, 3, 3),
    }
    rules = (
        (r"latents_(mean|std)", keep),
        (r"scale[12]$", around(0.4, 0.1)),
        (r"decoder\.proj_out\.weight", gain(1.0)),
        (r"encoder\.conv_out\.weight", gain(1.5)),
    )
    recipe = Recipe(marks, widths, rules)
    yield kind("minimax", f"{package}.MiniMaxH3VideoVAE", 24, 16, recipe, frames=minimax_frames, cells=7)


GROUPS = (stable_diffusion, hunyuan, wan, ltx_video, other_videos, tiny, other_pictures, with_own_tiling)
AUTOENCODERS: dict[str, Autoencoder] = {found.name: found for group in GROUPS for found in group() if found}
# Whether this host has LTX-Video's newer layers, by which it is cut along frames.
LTX_IS_CUT = _exists("comfy.ldm.lightricks.vae.causal_conv3d.CausalConv3d._empty_output")
