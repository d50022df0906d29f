"""Nodes that load one network and run it over pictures or sound: a stage each.

The node is the host's own, run with a copy of its network without data. Which of its inputs holds the network is said
in a table; what the host keeps networks in has one of three forms, which :func:`held_by` knows.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from comfy import clip_vision
from comfy.model_patcher import ModelPatcher
from torch import nn

from ....memory.prediction import CannotPredict, Card, Stage, fake_copy
from ...measure.calibrated import workspaces_for
from ...prediction.encoders import HeldNetwork, predict_network
from ...prediction.host_answers import replaced
from ...prediction.step import model_without_data
from ...prediction.vae import one_of_each_tile
from ..calling import Outputs, first_line, outputs
from ..findings import Findings, Follow
from ..inputs import Inputs, NotFollowed
from ..loading import load
from .coding import encodes_counted
from .encoders import encoder_stage


@dataclass(frozen=True)
class Runs:
    """How a node runs a network.

    Attributes:
        holder: the input that holds it.
        work: what the stage is called.
    """

    holder: str
    work: str = "vision"


def run_network(runs: Runs, found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """What the node gives, of a network that it runs; the network is a stage."""
    held, patcher = held_by(kind, runs.holder, inputs[runs.holder], found.card)
    with encodes_counted(found, inputs) as counted, one_of_each_tile():
        run = found.nodes.prepared(kind, counted)
        with _without_bars(run), _of_the_node(kind):
            prediction, results = predict_network(
                held,
                found.card,
                lambda holder: outputs(kind, run(**{runs.holder: holder})),
                found.mode,
                workspaces_for(found.card),
                list(_tensors_of(inputs)),
            )
    if patcher is not None:
        found.add(encoder_stage(runs.work, prediction, patcher, held.network))
    elif prediction.weights:  # else the host runs it beside the card, of which it takes nothing
        found.add(Stage(runs.work, prediction, prediction.weights, prediction.weights, model=id(held.network)))
    return results


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


@contextmanager
def _without_bars(run: Callable[..., Any]) -> Iterator[None]:
    """Within it, the node draws no bar in the terminal: nothing is computed."""
    module = sys.modules.get(getattr(run, "func", run).__module__)
    bar = getattr(module, "tqdm", None)
    if bar is None:
        yield
        return
    with replaced(module, "tqdm", lambda *args, **kwargs: bar(*args, **{**kwargs, "disable": True})):
        yield


# Nodes that load one network, and those that run it.
LOADERS = ("UpscaleModelLoader", "AudioEncoderLoader", "LoadBackgroundRemovalModel", "StyleModelLoader")
RUN = {
    "ImageUpscaleWithModel": Runs("upscale_model", "upscale"), "AudioEncoderEncode": Runs("audio_encoder", "sound"),
    "RemoveBackground": Runs("bg_removal_model"), "StyleModelApply": Runs("style_model"),
}  # fmt: skip
OF_NETWORKS: dict[str, Follow] = {
    **dict.fromkeys(LOADERS, load),
    **{kind: partial(run_network, runs) for kind, runs in RUN.items()},
}
