"""The files: what each holds, and where it lies below the output folder."""

from __future__ import annotations

import importlib.util
import json
import shutil
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from .drawing import Weights, generator
from .image_vae import image_vae
from .networks import clip_l, flux, flux2, flux_lora, ltxv, sd3, sd15_unet, sdxl_unet, wan21
from .painter.dit import painter_flux, painter_vae_flux, trained_dit
from .painter.moving import star_in_flight
from .painter.networks import painter_text, painter_unet
from .painter.scenes import Scene, Thing, draw
from .sd_vae import vae_sd
from .video_vae import LTX_CONFIG, ltx_vae, wan_vae

SIDE, FILM_FRAMES, FILM_FPS = 256, 17, 16


class File(NamedTuple):
    """One thing to write: where to, relative to the output folder, and how."""

    path: str
    write: Callable[[Path], int]  # returns the number of parameters


def weights_file(name: str, build: Callable[[], Weights], metadata: dict[str, str] | None = None) -> File:
    """A safetensors file below ``models/``, built only when it is written."""

    def write(target: Path) -> int:
        weights = build()
        save_file(weights, target, metadata=metadata)
        return sum(tensor.numel() for tensor in weights.values())

    return File(f"models/{name}.safetensors", write)


def conditioning(name: str, tokens: int, width: int, pooled: int = 0, mask: bool = False) -> list[File]:
    """A data set for LoadTrainingDataset: what a text encoder too big to write here would have said."""

    def write_shard(target: Path) -> int:
        rng = generator(name)
        context = torch.randn(1, tokens, width, generator=rng) * 0.5
        extra: Weights = {"pooled_output": torch.randn(1, pooled, generator=rng) * 0.5} if pooled else {}
        extra |= {"attention_mask": torch.ones(1, tokens, dtype=torch.long)} if mask else {}
        latents = [{"samples": torch.zeros(1, 4, 8, 8)}]  # a data set must have some; nobody looks at them
        torch.save({"latents": latents, "conditioning": [[[context, extra]]]}, target)
        return context.numel()

    def write_metadata(target: Path) -> int:
        target.write_text(json.dumps({"num_samples": 1}))
        return 0

    return [
        File(f"datasets/{name}/shard_0000.pkl", write_shard),
        File(f"datasets/{name}/metadata.json", write_metadata),
    ]


def photograph(name: str) -> File:
    """A picture that comes inside scikit-image's package (found without importing it)."""

    def write(target: Path) -> int:
        package = importlib.util.find_spec("skimage")
        if package is None or not package.submodule_search_locations:
            raise FileNotFoundError("scikit-image is not installed: its pictures serve as photographs")
        shutil.copyfile(Path(package.submodule_search_locations[0]) / "data" / name, target)
        return 0

    return File(f"input/{name}", write)


def drawn(name: str, draw_frames: Callable[[], Tensor]) -> File:
    """A picture, or a film as an animated WebP, of frames (n, rows, columns, 3) from 0 to 1, without loss."""

    def write(target: Path) -> int:
        frames = [Image.fromarray(frame) for frame in (draw_frames() * 255).round().byte().numpy()]
        more: dict[str, Any] = {"save_all": True, "append_images": frames[1:], "duration": 1000 // FILM_FPS}
        frames[0].save(target, Path(name).suffix[1:], lossless=True, **(more if len(frames) > 1 else {}))
        return 0

    return File(f"input/{name}", write)


def scene() -> Tensor:
    """A red circle over a blue square."""
    told = Scene(Thing("red", "circle"), "over", Thing("blue", "square"))
    return draw([told], SIDE, generator("scene")).movedim(1, -1)


def checkpoint(unet: Weights, text: Weights) -> Weights:
    """A whole Stable Diffusion: its networks under a checkpoint's names."""
    parts = {
        "model.diffusion_model.": unet,
        "first_stage_model.": vae_sd(),
        "cond_stage_model.transformer.": text,
    }
    return {prefix + key: tensor for prefix, part in parts.items() for key, tensor in part.items()}


MODELS = (
    weights_file("checkpoints/tiny_sd15", lambda: checkpoint(sd15_unet(), clip_l())),
    weights_file("checkpoints/painter_sd15", lambda: checkpoint(painter_unet(), painter_text(clip_l()))),
    weights_file("diffusion_models/painter_flux", lambda: painter_flux(trained_dit()[0])),
    weights_file("diffusion_models/tiny_sd15_unet", sd15_unet),
    weights_file("diffusion_models/tiny_sdxl_unet", sdxl_unet),
    weights_file("diffusion_models/tiny_sd3", sd3),
    weights_file("diffusion_models/tiny_flux", flux),
    weights_file("diffusion_models/tiny_flux2", flux2),
    weights_file("diffusion_models/tiny_wan21", wan21),
    weights_file("diffusion_models/tiny_ltxv", ltxv),
    weights_file("loras/tiny_flux_lora", flux_lora),
    weights_file("text_encoders/painter_clip_l", lambda: painter_text(clip_l())),
    weights_file("text_encoders/tiny_clip_l", clip_l),
    weights_file("vae/painter_vae_flux", lambda: painter_vae_flux(trained_dit()[1])),
    weights_file("vae/tiny_vae_sd", vae_sd),
    weights_file("vae/tiny_vae_flux", lambda: image_vae("Flux", 16, quantised=False)),
    weights_file("vae/tiny_vae_flux2", lambda: image_vae("Flux2", 32, quantised=True, patched=True)),
    weights_file("vae/tiny_vae_wan21", wan_vae),
    weights_file("vae/tiny_vae_ltx", ltx_vae, {"config": json.dumps({"vae": LTX_CONFIG})}),
)
FILES: dict[str, list[File]] = {Path(model.path).stem: [model] for model in MODELS} | {
    "cond_sdxl": conditioning("cond_sdxl", tokens=77, width=2048, pooled=1280),
    "cond_t5": conditioning("cond_t5", tokens=32, width=4096),
    "cond_ltx": conditioning("cond_ltx", tokens=32, width=4096, mask=True),
    "astronaut": [photograph("astronaut.png")],
    "coffee": [photograph("coffee.png")],
    "scene": [drawn("scene.png", scene)],
    "star_in_flight": [drawn("star_in_flight.webp", partial(star_in_flight, FILM_FRAMES, SIDE))],
}
LARGE = {
    "painter_sd15", "painter_clip_l", "painter_vae_flux", "tiny_sd15", "tiny_sd15_unet", "tiny_sdxl_unet",
    "tiny_clip_l", "tiny_vae_flux", "tiny_vae_flux2",
}  # fmt: skip
GROUPS = {"all": list(FILES), "small": [name for name in FILES if name not in LARGE]}


def expand(names: Iterable[str]) -> list[str]:
    """Groups replaced by their members, each file once."""
    return list(dict.fromkeys(member for name in names for member in GROUPS.get(name, [name])))


def write(file: File, folder: Path) -> None:
    """Write under another name first: a file that is there is whole."""
    started = time.perf_counter()
    target = folder / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    parameters = file.write(partial)
    partial.replace(target)
    size, seconds = target.stat().st_size / 1e6, time.perf_counter() - started
    print(f"{file.path:52s} {parameters / 1e6:8.2f} M {size:8.1f} MB {seconds:6.1f} s", flush=True)
