"""What a row of the run log keeps of its work, so that a report can have it predicted: shapes, and no data.

The model and the VAE are held weakly: a log must not keep what the host has dropped. Answered in
``host/planning/rows.py``.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...memory.prediction import fake_mode, fake_tree
from ..core.internals import find

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher


@dataclass(frozen=True)
class AskedSampling:
    """A step of a sampling.

    Attributes:
        model: the MODEL that the guider held.
        latent: of the sampling, in the model's channels; without data.
        mask: the noise mask, without data.
        positive, negative: CONDITIONING without data; no negative: guidance was left out.
        cfg: of the guider.
        partly: some of it counts in a part of the steps alone, so that they do not take equally long.
    """

    model: weakref.ref[ModelPatcher]
    latent: Tensor
    mask: Tensor | None
    positive: list[Any]
    negative: list[Any] | None
    cfg: float
    partly: bool = False


@dataclass(frozen=True)
class AskedCoding:
    """An encode or a decode by a VAE's settings.

    A node that makes a low-memory VAE for its own use lets it go with its work; what it was made of is the loader's.

    Attributes:
        bare: the VAE without its module and its patcher.
        module: the first-stage model.
        patches: the patcher's object patches.
        devices: the patcher's load device and offload device.
        x: what was coded, without data.
        encodes: a picture, not a latent.
    """

    bare: Any
    module: weakref.ref[nn.Module]
    patches: Mapping[str, Any]
    devices: tuple[torch.device, torch.device]
    x: Tensor
    encodes: bool


Asked = AskedSampling | AskedCoding
# Of CONDITIONING: what brings a network of its own, or changes the weights, which a row must not keep.
BRINGS = ("control", "gligen", "hooks")
RANGE = ("start_percent", "end_percent")  # and in which steps it counts
USUAL = "comfy.samplers:CFGGuider.predict_noise"  # how the host guides; others call the model in other ways


def sampling_question(
    guider: Any, noise: Tensor, latent: Tensor, sampler: Any, sigmas: Tensor, mask: Tensor | None = None,
    *args: Any, latent_shapes: Any = None, **kwargs: Any,
) -> AskedSampling | None:  # fmt: skip
    """A sampling that begins, by the arguments of the host's outer sample; None where its step cannot be predicted:
    a guider with a way of its own, as one of two models; conditionings of other names or with more than texts; several
    latents in one."""
    conds = guider.conds
    if getattr(type(guider), "predict_noise", None) is not find(USUAL):
        return None
    if "positive" not in conds or set(conds) - {"positive", "negative"} or len(latent_shapes or [0]) > 1:
        return None
    every = [one for conditioning in conds.values() for one in conditioning]
    if any(name in one for one in every for name in BRINGS):
        return None
    with fake_mode():
        faked = fake_tree({"x": latent, "mask": mask, **{name: _conditioning(one) for name, one in conds.items()}})
    cfg = float(getattr(guider, "cfg", 1.0))
    held, partly = weakref.ref(guider.model_patcher), any(name in one for one in every for name in RANGE)
    return AskedSampling(held, faked["x"], faked["mask"], faked["positive"], faked.get("negative"), cfg, partly)


def coding_question(vae: Any, x: Tensor, encodes: bool) -> AskedCoding:
    """An encode or decode that begins. ``x`` as the host's VAE takes it."""
    with fake_mode():
        faked = fake_tree(x)
    bare, patcher = copy.copy(vae), vae.patcher
    bare.first_stage_model = bare.patcher = None
    devices = patcher.load_device, patcher.offload_device
    return AskedCoding(bare, weakref.ref(vae.first_stage_model), dict(patcher.object_patches), devices, faked, encodes)


def _conditioning(conds: list[dict[str, Any]]) -> list[Any]:
    """From the form in which a guider holds it back to a node's."""
    left_out = ("cross_attn", "model_conds", "uuid")
    return [
        [one.get("cross_attn"), tree_map(_without_data, {key: one[key] for key in one if key not in left_out})]
        for one in conds
    ]


def _without_data(value: Any) -> Any:
    """What nodes hand on tensors in, as what a CLIP_VISION saw of a picture, with none of their data."""
    held = {} if isinstance(value, (Tensor, nn.Module)) else getattr(value, "__dict__", {})
    if not any(isinstance(one, Tensor) for one in held.values()):
        return value
    stand_in = copy.copy(value)
    stand_in.__dict__.update(fake_tree(dict(held)))
    return stand_in
