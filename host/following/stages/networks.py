"""Nodes that load one network and run it over pictures or sound: a stage each.

The node is the host's own, run with a copy of its network without data. Which of its inputs holds the network is said
in a table; what the host keeps networks in has one of three forms, which :func:`held_by` knows.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType
from typing import Any

import torch
from comfy import clip_vision
from comfy.model_patcher import ModelPatcher
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from ....memory.prediction import CannotPredict, Card, Stage, fake_copy, repeated
from ...core.internals import find
from ...core.latents import first_part
from ...measure.calibrated import workspaces_for
from ...prediction.encoders import HeldNetwork, predict_network
from ...prediction.host_answers import answering, modules_with, one_of_each_tile, replaced
from ...prediction.networks import model_without_data
from ...prediction.vae import Coding
from ..calling import Outputs, first_line, outputs
from ..findings import NOTHING, Findings, Follow
from ..inputs import Inputs, NotFollowed
from ..loading import load
from . import found_in_pictures as pictured
from .coding import encodes_counted
from .encoders import encoder_stage

FEW = 3  # pictures of many: the first, the next with what is left of the one before, and one more

Gives = Callable[[Inputs, Outputs], Outputs]


@dataclass(frozen=True)
class Runs:
    """How a node runs a network.

    Attributes:
        holder: the input that holds it.
        work: what the stage is called.
        one_by_one: the input with pictures that the node takes one after the other, leaving nothing of them on the
            card.
        few: of those, as many as matter.
        gives: gets the node's inputs and what it gave, without data; what it gives where that depends on data or on
            pictures that were left out. None: what it gave.
        ends_at_numbers: whether all that it computes on the card is done where it asks for the first number.
        keeps: bytes that each picture but the last leaves on the card, from the node's inputs and what it gave.
        instead: functions of the host's that look at data, by "module:name", ":name" for one of the node's own module,
            and what stands in the place of each, which gets the host's own.
    """

    holder: str
    work: str = "vision"
    one_by_one: str = ""
    few: int = FEW
    gives: Gives | None = None
    ends_at_numbers: bool = False
    keeps: Callable[[Inputs, Outputs], int] | None = None
    instead: Mapping[str, Callable[[Any], Callable[..., Any]]] = field(default_factory=dict)


class _Left(Exception):
    """A node hands its tensors to numpy: what comes after is no work of the card's."""


def run_network(runs: Runs, found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """What the node gives, of a network that it runs; the network is a stage."""
    held, patcher = held_by(kind, runs.holder, inputs[runs.holder], found.card)
    assumptions: list[str] = []
    with encodes_counted(found, inputs) as counted, answering({}), one_of_each_tile():
        few = _a_few(runs, counted, found.card)
        run = found.nodes.prepared(kind, few)

        def work(holder: Any) -> Outputs:
            try:
                with repeated(_pictures(runs, counted) / _pictures(runs, few)):
                    return outputs(kind, run(**{runs.holder: holder}))
            except _Left as error:
                if runs.gives is None:
                    raise NotFollowed(f"{kind} hands its results to numpy") from error
                return ()

        with _without_bars(run), _of_the_node(kind), _instead(runs, run):
            prediction, results = predict_network(
                held,
                found.card,
                work,
                found.mode,
                workspaces_for(found.card),
                list(_tensors_of(inputs)),
                assumptions,
            )
    if runs.keeps is not None:
        kept = runs.keeps(inputs, results) * (len(inputs[runs.one_by_one]) - len(few[runs.one_by_one]))
        prediction = replace(prediction, activations=prediction.activations + kept, live=prediction.live + kept)
    if patcher is not None:
        found.add(encoder_stage(runs.work, prediction, found.card, patcher, held.network))
    elif prediction.weights:  # else the host runs it beside the card, of which it takes nothing
        found.add(Stage(runs.work, prediction, prediction.weights, prediction.weights, model=id(held.network)))
    if assumptions:
        found.notes.append(f"what {kind} finds is not known: it is taken to keep all that it looks at")
    if runs.gives is None:
        return results
    with found.mode:
        return runs.gives(inputs, results)


def _a_few(runs: Runs, inputs: Inputs, card: Card) -> Inputs:
    """The inputs with as many pictures as matter; on a CPU all that is gathered of them takes the same memory."""
    images = inputs.get(runs.one_by_one)
    if not card.has_own_memory or not isinstance(images, Tensor):
        return inputs
    return Inputs(inputs.kind, {**inputs, runs.one_by_one: images[: runs.few]})


def _pictures(runs: Runs, inputs: Inputs) -> int:
    """How many the network gets, where it gets one after the other."""
    images = inputs.get(runs.one_by_one)
    return max(1, len(images)) if isinstance(images, Tensor) else 1


@contextmanager
def _instead(runs: Runs, run: Callable[..., Any]) -> Iterator[None]:
    """Within it, others stand in the place of some of the host's functions, and nothing without data comes to numpy."""

    def left(*_: Any, **__: Any) -> Any:
        raise _Left

    with ExitStack() as stack:
        for name in ("numpy", "__float__") if runs.ends_at_numbers else ("numpy",):
            stack.enter_context(replaced(FakeTensor, name, left))
        for path, function in runs.instead.items():
            where, _, name = path.partition(":")
            own = _module_of(run)
            true = find(path) if where else getattr(own, name, None)
            for module in modules_with(name, true) if where else [own] * (true is not None):
                stack.enter_context(replaced(module, name, function(true)))
        yield


def held_by(kind: str, name: str, holder: Any, card: Card) -> tuple[HeldNetwork, Any]:
    """The network in what a loader gave, and the patcher that loads it; None: it stays where it is.

    Raises:
        NotFollowed: it is nothing that holds a network.
    """
    if isinstance(holder, ModelPatcher):
        copied = model_without_data if hasattr(holder.model, "model_config") else fake_copy
        return HeldNetwork(holder.model, partial(_patcher_with, holder, card), copied=copied), holder
    network, patcher = getattr(holder, "model", None), getattr(holder, "patcher", None)
    if not isinstance(network, nn.Module):
        raise NotFollowed(f"{kind}: {name} gets no network")

    def with_network(stand_in: Any) -> Any:
        result = copy.copy(holder)
        result.__dict__["model"] = stand_in
        if patcher is not None:
            result.patcher = _patcher_with(patcher, card, stand_in)
        if hasattr(holder, "load_device"):
            result.load_device = card.device
        return result

    device = None if patcher is not None else next((one.device for one in network.parameters()), torch.device("cpu"))
    return HeldNetwork(network, with_network, device), patcher


def _patcher_with(patcher: Any, card: Card, stand_in: Any) -> Any:
    result = patcher.clone()
    result.model, result.load_device = stand_in, card.device
    if hasattr(stand_in, "current_patcher"):
        stand_in.current_patcher = result
    return result


def _tensors_of(inputs: Inputs) -> Iterator[Any]:
    """What is there before the node runs, also in what looking at a picture gave."""
    for value in inputs.values():
        yield vars(value) if isinstance(value, clip_vision.Output) else value


@contextmanager
def _of_the_node(kind: str) -> Iterator[None]:
    """Around the host's code, on tensors without data and inputs that nobody has checked: it may raise anything."""
    try:
        yield
    except (CannotPredict, NotFollowed):
        raise
    except Exception as error:
        raise NotFollowed(f"{kind}: {first_line(error)}") from error


def _module_of(run: Callable[..., Any]) -> ModuleType | None:
    """The module of a node's function: the host has those of its extra nodes under names of its own."""
    return sys.modules.get(getattr(run, "func", run).__module__)


@contextmanager
def _without_bars(run: Callable[..., Any]) -> Iterator[None]:
    """Within it, the node draws no bar in the terminal: nothing is computed."""
    module = _module_of(run)
    bar = getattr(module, "tqdm", None)
    if bar is None:
        yield
        return
    with replaced(module, "tqdm", lambda *args, **kwargs: bar(*args, **{**kwargs, "disable": True})):
        yield


def _focal_and_shift(_: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    """In the place of MoGe's, which solves for two numbers a picture on the CPU."""

    def found(points: Tensor, mask: Any = None, focal: Any = None, **_: Any) -> tuple[Tensor, Tensor]:
        numbers = points.new_empty(points.shape[:-3])
        return numbers if focal is None else focal.reshape(numbers.shape), numbers

    return found


def _refined_whole(refine: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """In the place of SAM 3's, which cuts a thing out of the picture: what takes most is one as large as it."""

    def refined(model: Any, image: Tensor, mask: Tensor, box: Tensor, height: int, width: int, *more: Any) -> Tensor:
        return refine(model, image, mask, torch.tensor([0.0, 0.0, width, height]), height, width, *more)

    return refined


def decode_volume(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """A grid of a shape's inside and outside, which nothing but a mesh is made of."""
    names = ("num_chunks", "octree_resolution")
    options = {name: int(inputs.number(name)) for name in names if name in inputs}
    latent = first_part(inputs.latent("samples")["samples"])
    found.add_coding(Coding(inputs.vae(), latent, options=options))
    return NOTHING


# Nodes that load one network, and those that run it.
LOADERS = (
    "UpscaleModelLoader", "AudioEncoderLoader", "LoadBackgroundRemovalModel", "StyleModelLoader", "LoadMoGeModel",
    "LoadDA3Model", "FrameInterpolationModelLoader", "OpticalFlowLoader", "ImageOnlyCheckpointLoader",
)  # fmt: skip
RUN = {
    "ImageUpscaleWithModel": Runs("upscale_model", "upscale"),
    "AudioEncoderEncode": Runs("audio_encoder", "sound", gives=pictured.heard),
    "LTXVLatentUpsampler": Runs("upscale_model", "upscale"),
    "RemoveBackground": Runs("bg_removal_model"), "StyleModelApply": Runs("style_model"),
    "MoGeInference": Runs("moge_model", instead={"comfy.ldm.moge.model:recover_focal_shift": _focal_and_shift}),
    "MoGePanoramaInference": Runs("moge_model", gives=pictured.panorama),
    "DA3Inference": Runs("da3_model", one_by_one="image", gives=pictured.depth_of_all),
    "RTDETR_detect": Runs("model", one_by_one="image", few=32, gives=pictured.boxes, ends_at_numbers=True),
    "SAM3_Detect": Runs(
        "model", one_by_one="image", gives=pictured.segments, keeps=pictured.bytes_of_segments,
        instead={":_refine_mask": _refined_whole},
    ),
    "SDPoseKeypointExtractor": Runs("model", gives=pictured.key_points),
    "SVD_img2vid_Conditioning": Runs("clip_vision"),
    "FrameInterpolate": Runs("interp_model", one_by_one="images", gives=pictured.frames_between),
}  # fmt: skip
DRAWN: dict[str, Follow] = {
    "MoGeRender": pictured.draw_geometry, "DA3Render": pictured.draw_geometry,
    "SDPoseDrawKeypoints": pictured.draw_key_points, "MoGePointMapToMesh": pictured.make_mesh,
    "VoxelToMesh": pictured.make_mesh, "VoxelToMeshBasic": pictured.make_mesh,
    "ResizeImagesByLongerEdge": pictured.resize_by_longer_edge,
}  # fmt: skip
OF_NETWORKS: dict[str, Follow] = {
    **dict.fromkeys(LOADERS, load),
    **{kind: partial(run_network, runs) for kind, runs in RUN.items()},
    **DRAWN,
    "VAEDecodeHunyuan3D": decode_volume,
}
