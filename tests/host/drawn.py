"""Models of a family's own file with every matrix drawn anew from one normal distribution, and with more blocks.

The small checkpoints are mostly embedders; here the blocks dominate, as they do in the real models.
"""

from __future__ import annotations

import math
import re
from typing import Any

import comfy.sample
import comfy.samplers
import comfy.sd
import folder_paths
import torch
from comfy.patcher_extension import WrappersMP
from safetensors.torch import load_file
from torch import Tensor

from headroom.host.sampling.one_step import VelocityRecorder

from .families import FAMILIES, Family

# Lists whose second entries can be repeated. SD3 has as many blocks as its width has 64s; UNets say theirs elsewhere.
BLOCKS = {
    "flux": ("double_blocks", "single_blocks"), "flux2": ("double_blocks", "single_blocks"), "wan21": ("blocks",),
    "ltxv": ("transformer_blocks",), "sd3": ("joint_blocks",), "sd15": (), "sdxl": (),
}  # fmt: skip
SD3_UNIT = 64


def drawn(name: str, std: float, depth: int = 8, **options: Any) -> Any:
    """A MODEL in bfloat16 as the host's loader makes it from such a file.

    Args:
        name: of the family.
        std: of every matrix and kernel; norms are ones, other vectors have 0.01.
        depth: blocks of each list.
        options: for the host's loader, such as ``dtype``.
    """
    path = folder_paths.get_full_path("diffusion_models", f"{FAMILIES[name].file}.safetensors")
    shapes = {key: list(value.shape) for key, value in load_file(path).items()}
    if name == "sd3":
        shapes = _wider(shapes, depth)
    for path in BLOCKS[name]:
        shapes = _deeper(shapes, path, depth)
    generator = torch.Generator().manual_seed(0)
    state = {key: _draw(key, shape, std, generator).bfloat16() for key, shape in shapes.items()}
    return comfy.sd.load_diffusion_model_state_dict(state, model_options={"dtype": torch.bfloat16} | options)


def _wider(shapes: dict[str, list[int]], depth: int) -> dict[str, list[int]]:
    old = shapes["x_embedder.proj.weight"][0]
    new = SD3_UNIT * depth
    return {key: [d // old * new if d % old == 0 else d for d in shape] for key, shape in shapes.items()}


def _deeper(shapes: dict[str, list[int]], path: str, depth: int) -> dict[str, list[int]]:
    """The last block, which may differ, stays the last; the first is repeated before it."""
    here = re.compile(rf"{path}\.(\d+)\.(.*)")
    blocks: dict[int, dict[str, list[int]]] = {}
    for key, shape in shapes.items():
        if match := here.match(key):
            blocks.setdefault(int(match[1]), {})[match[2]] = shape
    chosen = [blocks[0]] * (depth - 1) + [blocks[max(blocks)]]
    rest = {key: shape for key, shape in shapes.items() if not here.match(key)}
    return rest | {f"{path}.{i}.{key}": shape for i, block in enumerate(chosen) for key, shape in block.items()}


def _draw(key: str, shape: list[int], std: float, generator: torch.Generator) -> Tensor:
    if len(shape) < 2:
        return (
            torch.ones(shape) if "norm" in key and "bias" not in key else torch.randn(shape, generator=generator) / 100
        )
    return torch.randn(shape, generator=generator) * std


def velocity(model: Any, family: Family, seed: int = 1) -> Tensor:
    """What a model says of a noisy latent in the middle of sampling, through the host's sampler."""
    clone, seen = model.clone(), VelocityRecorder()
    clone.add_wrapper_with_key(WrappersMP.APPLY_MODEL, "test", seen)
    latent = family.latent()
    noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(seed))
    sigma = float(clone.get_model_object("model_sampling").percent_to_sigma(0.5))
    text = family.conditioning(seed)
    comfy.sample.sample_custom(
        clone, noise, 1.0, comfy.samplers.sampler_object("euler"), torch.tensor([sigma, 0.0]), text, text, latent,
        disable_pbar=True, seed=seed,
    )  # fmt: skip
    return seen.take()


def signal_db(result: Tensor, reference: Tensor) -> float:
    """Signal to noise in dB."""
    noise = (result.double() - reference.double()).square().sum().item()
    return math.inf if noise == 0 else 10 * math.log10(reference.double().square().sum().item() / noise)
