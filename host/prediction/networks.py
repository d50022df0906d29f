"""Networks without data: a model's, and those that a sampler runs beside it.

Beside it run ControlNets, which stand in the CONDITIONING, and patches of a model that have a network of their own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from comfy import model_patcher, sd
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ...memory.prediction import fake_copy, fake_tree

VIDEO_SIZES = 3  # of a video: frames, rows, columns
CONTROL = "control"  # among the options of a CONDITIONING
OF_THE_HOST = "comfy.controlnet"  # other packs' have ways of their own
PATCHES, REPLACING = "patches", "patches_replace"  # in a model's transformer_options: lists by name, and by block
# Attributes that the host gives a layer for its own streaming and patching. They hold real tensors.
HOST_LISTS = ("weight_function", "bias_function")
KEEPS: Any = type(lru_cache(max))  # functions that keep what they gave


def network_without_data(
    network: nn.Module, mode: FakeTensorMode, device: torch.device, memo: dict[int, Any] | None = None
) -> Any:
    """A copy of one of the host's networks without data, and without what belongs to one loaded copy.

    Args:
        network: only read.
        mode: in which the copy is faked; not entered yet.
        device: where the copy says it is.
        memo: as for :func:`copy.deepcopy`.
    """
    memo = dict(memo or {})
    for layer in network.modules():
        memo |= {id(vars(layer)[name]): [] for name in HOST_LISTS if vars(layer).get(name)}
        if "_v" in vars(layer):  # dynamic VRAM's page; without it a layer casts as under the legacy manager
            memo[id(vars(layer)["_v"])] = None
    copied = fake_copy(network, mode, device, memo)
    for layer in copied.modules():
        vars(layer).pop("_v", None)
        # What is kept for all models must not become a tensor without data.
        vars(layer).update({name: one.__wrapped__ for name, one in vars(layer).items() if isinstance(one, KEEPS)})
    return copied


def model_without_data(base: Any, mode: FakeTensorMode, device: torch.device) -> Any:
    """As :func:`network_without_data`, of the host's BaseModel."""
    # Shared as they are: settings that are only read, and that do not let themselves be copied.
    memo: dict[int, Any] = {id(shared): shared for shared in (base.model_config, base.latent_format)}
    memo[id(base.current_patcher)] = None
    return network_without_data(base, mode, device, memo)


# --------------------------------------------------------------------------------------------------- beside a model


def every_control(*conditionings: Sequence[Any]) -> Iterator[Any]:
    """The ControlNets of some CONDITIONING, each once, those before others too."""
    seen: set[int] = set()
    for _, options in (pair for conditioning in conditionings for pair in conditioning):
        control = options.get(CONTROL)
        while control is not None:
            if id(control) not in seen:
                seen.add(id(control))
                yield control
            control = getattr(control, "previous_controlnet", None)


def controls_of(*conditionings: Sequence[Any]) -> Iterator[Any]:
    """Those of them that are the host's own."""
    return filter(is_followed, every_control(*conditionings))


def is_followed(control: Any) -> bool:
    """Whether a ControlNet is the host's own."""
    return type(control).__module__ == OF_THE_HOST


def networks_beside(model: model_patcher.ModelPatcher, *conditionings: Sequence[Any]) -> list[Any]:
    """What the host loads together with a model for a sampling, each once."""
    found = list(model.model_patches_models())
    for control in controls_of(*conditionings):
        found += control.get_models()
    return list({id(one.model): one for one in found}.values())


def hints_encoded(shape: Sequence[int], *conditionings: Sequence[Any]) -> Iterator[tuple[Any, Tensor]]:
    """What ControlNets encode in the first step of a sampling, each with its VAE: pixels (B, H, W, C) without data.

    Args:
        shape: of the latent in the model.
        conditionings: CONDITIONING with ControlNets.
    """
    for control in controls_of(*conditionings):
        if control.vae is not None:
            vae = control.vae.vae if isinstance(control.vae, ShapesOfVAE) else control.vae
            reach = control.compression_ratio * vae.spacial_compression_encode()
            batch, colours = control.cond_hint_original.shape[:2]
            pixels = torch.zeros(()).expand(batch, shape[-2] * reach, shape[-1] * reach, colours)
            yield vae, pixels


class Beside:
    """Copies without data of what a sampler runs beside a model. A network that several share is copied once.

    Args:
        mode: in which they are faked; networks are copied outside of it.
        device: of the card.
    """

    def __init__(self, mode: FakeTensorMode, device: torch.device) -> None:
        self._mode, self._device = mode, device
        self._copies: dict[int, Any] = {}
        self.networks: list[nn.Module] = []
        self.given: list[Any] = []  # tensors that nodes hold

    @property
    def weights(self) -> Iterable[Tensor]:
        """Of all of them."""
        return [one for network in self.networks for one in (*network.parameters(), *network.buffers())]

    def prepare(self, *conditionings: Sequence[Any]) -> None:
        """Copies the ControlNets of some CONDITIONING. Call it before the mode is entered."""
        for control in controls_of(*conditionings):
            self.control(control)

    def control(self, control: Any) -> Any:
        """A ControlNet, at work at every noise level; None for another pack's."""
        if control is None or not is_followed(control):
            return None
        if id(control) not in self._copies:
            copied = self._copies[id(control)] = self._like(control)
            copied.multigpu_clones, copied.cond_hint = {}, None
            copied.previous_controlnet = self.control(control.previous_controlnet)

            def pre_run(model: Any, _: Any) -> None:
                type(copied).pre_run(copied, model, lambda percent: percent)
                copied.timestep_range = None

            copied.pre_run = pre_run
        return self._copies[id(control)]

    def patches(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The patches of a model's ``transformer_options``, their networks without data."""
        return _each_patch(options, self._patch)

    def _patch(self, patch: Any) -> Any:
        if not hasattr(patch, "models"):
            return patch
        if id(patch) not in self._copies:
            self._copies[id(patch)] = self._like(patch)
        return self._copies[id(patch)]

    def _like(self, owner: Any) -> Any:
        """An object whose networks, tensors and VAE have no data."""
        copied = copy.copy(owner)
        for name, value in vars(owner).items():
            setattr(copied, name, self._without_data(value))
        return copied

    def _without_data(self, value: Any) -> Any:
        if isinstance(value, nn.Module):
            if id(value) not in self._copies:
                self._copies[id(value)] = network_without_data(value, self._mode, self._device)
                self.networks.append(self._copies[id(value)])
            return self._copies[id(value)]
        if isinstance(value, model_patcher.ModelPatcher):
            patcher = value.clone()
            patcher.model, patcher.load_device = self._without_data(value.model), self._device
            return patcher
        if isinstance(value, (sd.VAE, ShapesOfVAE)):
            return ShapesOfVAE(getattr(value, "vae", value))
        if isinstance(value, (Tensor, list, tuple)):
            with self._mode:
                self.given.append(fake_tree(value))
            return self.given[-1]
        return value


def on_card(options: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The patches of a model's ``transformer_options``, what they hold brought to a card, as the host does."""
    return _each_patch(options, lambda patch: patch.to(device) if hasattr(patch, "models") else patch)


def _each_patch(options: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if options.get(PATCHES):
        found[PATCHES] = {name: [change(one) for one in some] for name, some in options[PATCHES].items()}
    if options.get(REPLACING):
        found[REPLACING] = {
            name: {key: change(one) for key, one in some.items()} for name, some in options[REPLACING].items()
        }
    return found


class ShapesOfVAE:
    """A VAE that gives latents without data.

    Args:
        vae: whose shapes they have; for all else it is asked.
    """

    def __init__(self, vae: Any) -> None:
        self.vae = vae

    def __getattr__(self, name: str) -> Any:
        return getattr(self.vae, name)

    def encode(self, pixel_samples: Tensor) -> Tensor:
        """As the VAE's."""
        return latent_like(self.vae, pixel_samples)


# ------------------------------------------------------------------------- shapes, by a VAE's own ratios


def pixels_like(vae: Any, latent: Tensor) -> Tensor:
    """What a latent (B, C, [T,] h, w) decodes to: (B, H, W, C), frames in a row."""
    reach = vae.spacial_compression_decode()
    frames = 1
    if latent.ndim == 5:
        ratio = vae.upscale_ratio
        in_time = ratio[0] if isinstance(ratio, (tuple, list)) else 1
        frames = int(in_time(latent.shape[2]) if callable(in_time) else latent.shape[2] * in_time)
    height, width = (side * reach for side in latent.shape[-2:])
    return torch.empty(latent.shape[0] * frames, height, width, vae.output_channels)


def shape_of_pixels(vae: Any, pixels: Tensor) -> tuple[int, ...]:
    """For which the host estimates an encode of pixels (B, [T,] H, W, C): channels come first, and third the frames of
    a video, which a batch is to a VAE for videos."""
    batch, *sizes, channels = pixels.shape
    if vae.latent_dim == VIDEO_SIZES and len(sizes) < VIDEO_SIZES:
        return (batch, channels, 1, *sizes) if getattr(vae, "not_video", False) else (1, channels, batch, *sizes)
    return (batch, channels, *sizes)


def latent_like(vae: Any, pixels: Tensor) -> Tensor:
    """What pixels encode to: (B, H, W, C) to (B, C, h, w), by a VAE for video to (1, C, T, h, w); (B, T, H, W, C) to
    (B, C, T, h, w)."""
    reach = vae.spacial_compression_encode()
    height, width = (side // reach for side in pixels.shape[-3:-1])
    if vae.latent_dim == 2:
        return torch.empty(pixels.shape[0], vae.latent_channels, height, width)
    ratio = vae.downscale_ratio
    in_time = ratio[0] if isinstance(ratio, (tuple, list)) else 1
    batch, frames = pixels.shape[:2] if pixels.ndim == 5 else (1, pixels.shape[0])
    cells = int(in_time(frames) if callable(in_time) else max(1, frames // in_time))
    return torch.empty(batch, vae.latent_channels, cells, height, width)
