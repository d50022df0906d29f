"""What the approximate ways do to the pictures of a model that was trained: likeness, and sentences still obeyed.

Each section is written to ``painting.md`` as soon as it is done; ``--only`` measures some of them anew.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from _harness import ROOT, enter_host, load_package
from _pictures import psnr
from _sections import Report, Section
from safetensors import safe_open
from torch import Tensor

load_package()

from headroom.offload import STORAGES  # noqa: E402
from headroom.tools.models.painter.dit import CHANNELS as FLUX_CHANNELS  # noqa: E402
from headroom.tools.models.painter.dit import TRAINED as TRAINED_FLUX  # noqa: E402
from headroom.tools.models.painter.dit import painter_flux, trained_dit  # noqa: E402
from headroom.tools.models.painter.judge import obeys  # noqa: E402
from headroom.tools.models.painter.networks import (  # noqa: E402
    CHANNELS,
    HOST_WIDTH,
    TRAINED,
    UNET_SHAPE,
    WIDTH,
    trained_text,
    trained_unet,
)
from headroom.tools.models.painter.scenes import PAIRS, Scene  # noqa: E402
from headroom.tools.models.painter.words import Words  # noqa: E402

BATCH, STEPS, GUIDANCE, SIDE = 24, 20, 3.0, 256
CASTS = tuple(name for name, storage in STORAGES.items() if name not in ("bfloat16", "float16"))
# Radii that leave something out: at 256 px the model's maps have 16 x 16 and 8 x 8 tokens.
PATTERNS: Mapping[str, Mapping[str, Any]] = {
    "kv_pool": {"factor": 2},
    "strided": {"stride": 2},
    "window": {"radius": 3, "block": 4, "frames": 0},
    "local_pool": {"radius": 3, "block": 4, "frames": 0, "pool": 4},
    "block_sparse": {"block": 4, "keep": 0.25},
}
ANY_ERROR = 1e9
Sampled = Callable[[Any, Sequence[Scene]], Tensor]
TITLES = {
    "casting": "Casting", "local": "Local attention", "vae": "Decoding", "flux": "Casting of the small Flux",
    "flux_local": "Local attention in the small Flux",
}  # fmt: skip
INTRODUCTION = """# Pictures of a trained model: likeness, and sentences still obeyed

The small Stable Diffusion that `tools/models/painter` holds paints scenes such as "a red circle over a blue square"; a
judge finds the objects of a picture, and says whether the sentence is obeyed. Sentences are pairs that training never
showed, each with a seed of its own: 20 steps of DPM++ 2M (Karras), a guidance of 3, 256 x 256 px, in the host's own
sampler and model classes, as narrow as the model was trained (64 channels; written wide it computes the same). The
small Flux is told by the same text model: 20 steps of Euler, no second prompt, its file as ComfyUI loads it.
Of 500 such sentences the first obeys {stable_diffusion:.1%} and the second {flux:.1%}, counted when their trainings
ended. dB is the PSNR of a picture to that of the same seed without the setting, the median of all; the lowest tenth
is below the second figure. A few million weights and pictures of plain shapes are not Flux and a photograph: what
breaks here is broken, what holds here may still be seen there."""


@dataclass(frozen=True)
class Plan:
    """What the command line asks for: how many scenes are painted, and where to write."""

    scenes: int
    folder: Path


@dataclass(frozen=True)
class Painted:
    """Pictures (scenes, rows, columns, 3) from 0 to 1, and how many of them are as told."""

    pictures: Tensor
    obeyed: int


def scenes(count: int) -> list[Scene]:
    held_out = [scene for scene in PAIRS if scene.held_out]
    return held_out[:: max(1, len(held_out) // count)][:count]


# ------------------------------------------------------------------------------------------------------- models


def load(dtype: torch.dtype = torch.float32) -> Any:
    """The MODEL as the host's loader makes it; its detection, which goes by real widths, is told what it is."""
    settings = {
        "image_size": 32, "in_channels": 4, "out_channels": 4, "model_channels": CHANNELS, "context_dim": WIDTH,
        "use_spatial_transformer": True, "legacy": False, "adm_in_channels": None, "use_temporal_attention": False,
        "use_linear_in_transformer": False, **UNET_SHAPE,
    }  # fmt: skip
    configuration = importlib.import_module("comfy.supported_models").SD15(settings)
    detection = importlib.import_module("comfy.model_detection")
    weights = {key: tensor.float() for key, tensor in trained_unet().items()}
    with mock.patch.object(detection, "model_config_from_unet", return_value=configuration):
        return importlib.import_module("comfy.sd").load_diffusion_model_state_dict(weights, {"dtype": dtype})


def load_flux(dtype: torch.dtype = torch.float32) -> Any:
    weights = {key: tensor.float() for key, tensor in painter_flux(trained_dit()[0]).items()}
    return importlib.import_module("comfy.sd").load_diffusion_model_state_dict(weights, {"dtype": dtype})


@cache
def text() -> Callable[[Sequence[str]], Tensor]:
    model, known = trained_text()
    words = Words(known)
    return lambda sentences: model(words(sentences))


@cache
def decoder() -> Callable[[Tensor], Tensor]:
    from headroom.tools.models.training.train_decoder import decode, trained_decoder

    module = trained_decoder()
    return lambda latents: decode(module, latents).clamp(-1, 1).add(1).div(2).movedim(1, -1)


def sample(model: Any, chosen: Sequence[Scene]) -> Tensor:
    """Latents of the scenes, (scenes, 4, 32, 32), each from its own noise."""
    comfy_sample, parts = importlib.import_module("comfy.sample"), []
    for batch, noise in _noise(chosen, 4):
        told, untold = (text()(sentences) for sentences in ([str(scene) for scene in batch], [""] * len(batch)))
        found = comfy_sample.sample(
            model, noise, STEPS, GUIDANCE, "dpmpp_2m", "karras", [[told, {}]], [[untold, {}]], torch.zeros_like(noise),
            disable_pbar=True, seed=1,
        )  # fmt: skip
        parts.append(found)
    return torch.cat(parts)


def sample_flux(model: Any, chosen: Sequence[Scene]) -> Tensor:
    """The same of the small Flux, in the small autoencoder's own channels."""
    from headroom.tools.models.training.train_decoder import LATENT_FACTOR

    comfy_sample, parts = importlib.import_module("comfy.sample"), []
    for batch, noise in _noise(chosen, FLUX_CHANNELS):
        told = [[text()([str(scene) for scene in batch]).repeat_interleave(HOST_WIDTH // WIDTH, -1), {}]]
        parts.append(
            comfy_sample.sample(
                model, noise, STEPS, 1.0, "euler", "simple", told, told, torch.zeros_like(noise), disable_pbar=True,
                seed=1,
            )
        )  # fmt: skip
    latents = model.model.process_latent_in(torch.cat(parts))
    small = torch.einsum("io,nohw->nihw", torch.linalg.pinv(trained_dit()[1]), latents)
    return small / LATENT_FACTOR


def _noise(chosen: Sequence[Scene], channels: int) -> Iterator[tuple[Sequence[Scene], Tensor]]:
    for start in range(0, len(chosen), BATCH):
        batch = chosen[start : start + BATCH]
        seeds = (torch.Generator().manual_seed(start + number) for number in range(len(batch)))
        yield batch, torch.stack([torch.randn(channels, SIDE // 8, SIDE // 8, generator=seed) for seed in seeds])


def judged(pictures: Tensor, chosen: Sequence[Scene]) -> Painted:
    return Painted(pictures, sum(obeys(picture.numpy(), scene) for picture, scene in zip(pictures, chosen)))


def paint(model: Any, chosen: Sequence[Scene], sampled: Sampled = sample) -> Painted:
    latents = sampled(model, chosen)
    return judged(torch.cat([decoder()(part) for part in latents.split(4)]), chosen)


@cache
def untouched(count: int) -> Painted:
    return paint(load(), scenes(count))


def row(name: str, found: Painted, reference: Painted, *more: object) -> tuple[object, ...]:
    likeness = [psnr(one, other, 1.0) for one, other in zip(found.pictures, reference.pictures)]
    middle, low = statistics.median(likeness), sorted(likeness)[len(likeness) // 10]
    figures = ["identical" if math.isinf(value) else f"{value:.1f}" for value in (middle, low)]
    return name, *figures, f"{found.obeyed} of {len(found.pictures)}", *more


# ------------------------------------------------------------------------------------------------------ sections


def casting_section(plan: Plan) -> Section:
    """Every 8- and 4-bit storage of the node, and the loader's fp8."""
    return _casting(load, sample, scenes(plan.scenes), untouched(plan.scenes))


def flux_section(plan: Plan) -> Section:
    """The same of the small Flux."""
    chosen = scenes(plan.scenes)
    return _casting(load_flux, sample_flux, chosen, paint(load_flux(), chosen, sample_flux))


def _casting(loaded: Callable[..., Any], sampled: Sampled, chosen: Sequence[Scene], reference: Painted) -> Section:
    from headroom.host.casting.cast import CastSettings, cast_model

    rows = [row("untouched, float32", reference, reference)]
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        name = str(dtype).removeprefix("torch.float8_")
        rows.append(row(f"the loader's fp8_{name}", paint(loaded(dtype), chosen, sampled), reference))
    for storage in CASTS:
        try:
            model, _ = cast_model(loaded(), CastSettings(storage))
        except ValueError:
            rows.append((storage, "this ComfyUI lacks it", "", ""))
            continue
        rows.append(row(storage, paint(model, chosen, sampled), reference))
    section = Section()
    section.table(("weights", "dB, median", "dB, lowest tenth", "obeyed"), rows)
    return section


def local_section(plan: Plan) -> Section:
    """The patterns, and core's own approximation."""
    section, chosen, reference = Section(), scenes(plan.scenes), untouched(plan.scenes)
    rows = list(_local(load, sample, chosen, reference))
    tiles = importlib.import_module("comfy_extras.nodes_hypertile").HyperTile
    (tiled,) = tiles.execute(load(), tile_size=64, swap_size=2, max_depth=1, scale_depth=False)
    rows.append(row("core's HyperTile, tiles of 64 px", paint(tiled, chosen), reference))
    section.table(("pattern", "dB, median", "dB, lowest tenth", "obeyed"), rows)
    section.parts.append(
        "Core's ToMe merges tokens of maps as large as the latent alone, where this model has no attention."
    )
    return section


def flux_local_section(plan: Plan) -> Section:
    """The patterns in the small Flux, whose texts are tokens beside those of the picture."""
    section, chosen = Section(), scenes(plan.scenes)
    rows = _local(load_flux, sample_flux, chosen, paint(load_flux(), chosen, sample_flux))
    section.table(("pattern", "dB, median", "dB, lowest tenth", "obeyed"), list(rows))
    return section


def _local(
    loaded: Callable[..., Any], sampled: Sampled, chosen: Sequence[Scene], reference: Painted
) -> Iterator[tuple[object, ...]]:
    """From the first step and from 30 % on, with the node's limit of error and without."""
    from headroom.host.attention.local import apply_local_attention, make_pattern

    yield row("dense", reference, reference)
    for name, parameters in PATTERNS.items():
        for begin, most in ((0.0, ANY_ERROR), (0.3, ANY_ERROR), (0.0, 0.1)):
            model = apply_local_attention(
                loaded(), make_pattern(name, **parameters), max_error=most, start_percent=begin, min_tokens=0
            )
            limit = "`max_error` 0.1" if most < ANY_ERROR else "no limit of error"
            yield row(f"{name} from {begin:.0%}, {limit}", paint(model, chosen, sampled), reference)


def vae_section(plan: Plan) -> Section:
    """The same latents by every decode, in the autoencoder as wide as the host has it."""
    import nodes
    from headroom.host.vae.settings import VAESettings
    from headroom.host.vae.wrapper import low_memory_vae
    from headroom.tools.models.sd_vae import vae_sd

    chosen = scenes(max(4, plan.scenes // 8))
    latents = sample(load(), chosen)
    vae = importlib.import_module("comfy.sd").VAE(sd=vae_sd())
    reference = judged(vae.decode(latents), chosen)
    ways: dict[str, Callable[[], Tensor]] = {
        "exact": lambda: low_memory_vae(vae, VAESettings("exact", tile_size=64)).decode(latents),
        "exact, store float16": lambda: low_memory_vae(vae, VAESettings("exact", tile_size=64, store="float16")).decode(
            latents
        ),
        "feathered tiles of 128 px": lambda: low_memory_vae(
            vae, VAESettings("feathered", tile_size=128, overlap=32)
        ).decode(latents),
        "core's tiles of 128 px": lambda: nodes.VAEDecodeTiled().decode(
            vae, {"samples": latents}, tile_size=128, overlap=32
        )[0],
    }
    rows = [row("untiled", reference, reference)]
    rows += [row(name, judged(way(), chosen), reference) for name, way in ways.items()]
    section = Section()
    section.table(("decode", "dB, median", "dB, lowest tenth", "obeyed"), rows)
    return section


SECTIONS: Mapping[str, Callable[[Plan], Section]] = {
    "casting": casting_section,
    "local": local_section,
    "vae": vae_section,
    "flux": flux_section,
    "flux_local": flux_local_section,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scenes", type=int, default=96, help="how many are painted by each way (default 96)")
    parser.add_argument("--only", metavar="NAME,...", help=f"of {', '.join(SECTIONS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="few scenes, into output/: to see whether it runs")
    options = parser.parse_args()
    options.only = options.only.split(",") if options.only else list(SECTIONS)
    if unknown := [name for name in options.only if name not in SECTIONS]:
        parser.error(f"unknown section: {', '.join(unknown)}")
    return options


def obeyed_of_500(file: Path) -> float:
    """What the end of a training wrote beside its weights."""
    with safe_open(file, "pt") as opened:
        return float(opened.metadata()["obeyed"])


def main() -> None:
    options = arguments()
    logging.disable(logging.WARNING)
    enter_host("--cpu")
    here = Path(__file__).resolve().parent
    plan = Plan(4, ROOT / "output" / "bench") if options.quick else Plan(options.scenes, here)
    plan.folder.mkdir(parents=True, exist_ok=True)
    introduction = INTRODUCTION.format(stable_diffusion=obeyed_of_500(TRAINED), flux=obeyed_of_500(TRAINED_FLUX))
    report = Report(plan.folder / "painting.md", introduction, TITLES)
    with torch.no_grad():
        for name in options.only:
            report.measure(name, partial(SECTIONS[name], plan), 1)


if __name__ == "__main__":
    main()
