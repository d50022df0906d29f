"""Which groups of layers to leave uncast, measured on this model: one step on a small latent per group."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import comfy.model_management
import comfy.utils
import folder_paths
import numpy as np
import torch
from torch import Tensor, nn

from ...memory.json_file import read_json, write_json
from ...memory.render import Bar, draw_bars
from ...offload import CastReport, GroupCost, Layer, fingerprint, keep_for_error, keep_for_size, output_db, ranked
from ..core.compat import OVERRIDE
from ..core.wrapper_kinds import APPLY_MODEL, OUTER_SAMPLE, PREDICT_NOISE
from ..sampling.one_step import VelocityRecorder, call_once, relative_noise, sample_one_step
from .cast import DIFFUSION_MODEL, CastSettings, cast_model
from .independent import independent
from .quantised import exchange

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

SIDE = 32  # latent cells: 256 px for most models
BARS = 32
FOLDER = "headroom"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Goal:
    """What the kept groups are to achieve: one of the two.

    Attributes:
        target_db: signal to noise of the model's output.
        size_limit: share of the model's size before.
    """

    target_db: float | None = None
    size_limit: float | None = None


def cast_by_sensitivity(
    model: ModelPatcher, settings: CastSettings, goal: Goal, positive: Any
) -> tuple[ModelPatcher, CastReport, Tensor]:
    """Like :func:`.cast.cast_model`, but the groups of layers that add most error stay as they are.

    Args:
        positive: the conditioning to measure with.

    Returns:
        The MODEL, the report, and a chart as an IMAGE (1, H, W, 3).

    Raises:
        ValueError: no conditioning, a goal out of reach, or what :func:`.cast.cast_model` refuses.
    """
    if positive is None:
        raise ValueError("positive: sensitivity runs the model, so connect the prompt's conditioning, or turn it off")
    settings.check()  # the cache file too, which only the last cast writes
    everything, report = cast_model(model, replace(settings, cache_file=""))
    if not report.cast:
        return everything, report, _chart([], frozenset(), "nothing was cast")
    probe = Probe(model, everything, report, positive)
    costs = probe.costs(settings)
    keep = _keep(costs, goal, report, probe)
    del probe, everything  # weights that the final cast does not share
    result, final = cast_model(model, replace(settings, keep=keep))
    predicted = output_db(cost for cost in costs if cost.group not in keep)
    line = f"sensitivity: {len(keep)} of {len(costs)} groups kept; predicted output {predicted:.1f} dB"
    final.notes.append(line)
    return result, final, _chart(costs, keep, line)


def _keep(costs: Sequence[GroupCost], goal: Goal, report: CastReport, probe: Probe) -> frozenset[str]:
    if goal.size_limit is not None:
        smallest = report.bytes_after / report.bytes_before
        if goal.size_limit < smallest:
            raise ValueError(
                f"sensitivity.size_limit: {goal.size_limit:g} is less than {smallest:.3f}, the size with every layer"
                " cast; raise it, or choose a smaller storage"
            )
        return keep_for_size(costs, report.bytes_after, int(goal.size_limit * report.bytes_before))
    assert goal.target_db is not None
    keep = keep_for_error(costs, goal.target_db, probe.output_db)
    if len(keep) == len(costs):
        best = -10 * math.log10(min(cost.noise for cost in costs))
        raise ValueError(
            f"sensitivity.target_db: {goal.target_db:g} dB is out of reach; one group alone costs more (the least:"
            f" {best:.1f} dB); lower it, or choose int8_convrot"
        )
    return keep


class Probe:
    """Runs one step of a model with chosen groups cast, on a copy of its structure.

    LoRAs are left out: what is asked is what casting does.
    """

    def __init__(self, model: ModelPatcher, cast: ModelPatcher, report: CastReport, positive: Any) -> None:
        self._model = independent(model)
        self._model.patches = {}
        for kind in (OUTER_SAMPLE, PREDICT_NOISE):  # these steps are no samplings to report
            self._model.wrappers.pop(kind, None)
        self._model.model_options["transformer_options"].pop(OVERRIDE, None)
        self._network = DIFFUSION_MODEL.network(self._model.model)
        self._cast = DIFFUSION_MODEL.network(cast.model)
        self._groups = _by_group(done.layer for done in report.cast)
        self._saved = {
            group: sum(done.bytes_before - done.bytes_after for done in report.cast if done.layer.group == group)
            for group in self._groups
        }
        self._positive = positive
        self._velocity = VelocityRecorder()
        self._model.add_wrapper_with_key(APPLY_MODEL, "headroom_sensitivity", self._velocity)
        self._reference = self._step()

    def costs(self, settings: CastSettings) -> list[GroupCost]:
        """The error that casting each group adds and the bytes it saves; kept per set of weights and settings."""
        path = _result_path(self._network, settings)
        noise = _read(path, self._groups)
        if noise is None:
            noise = self._measure()
            try:
                write_json(path, noise)
            except OSError as error:
                log.warning("Headroom: %s cannot be written, so this is measured again next time: %s", path, error)
        return [GroupCost(group, noise[group], self._saved[group]) for group in self._groups]

    def output_db(self, keep: frozenset[str]) -> float:
        """Signal to noise of the model's output in dB, with all groups cast but ``keep``; runs one step."""
        return output_db([GroupCost("", self._noise(group for group in self._groups if group not in keep), 0)])

    def _measure(self) -> dict[str, float]:
        progress = comfy.utils.ProgressBar(len(self._groups))
        noise = {}
        for group in self._groups:
            comfy.model_management.throw_exception_if_processing_interrupted()
            noise[group] = self._noise([group])
            if not math.isfinite(noise[group]):
                raise ValueError(
                    "positive: with this conditioning the model's output is not a number, so that no error can be"
                    " measured; connect another, or turn sensitivity off"
                )
            progress.update(1)
        return noise

    def _noise(self, groups: Iterable[str]) -> float:
        with self._exchanged(layer for group in groups for layer in self._groups[group]):
            return relative_noise(self._step(), self._reference)

    @contextmanager
    def _exchanged(self, layers: Iterable[Layer]) -> Iterator[None]:
        names = [layer.name for layer in layers]
        originals = [self._network.get_submodule(name) for name in names]
        for name in names:
            exchange(self._network, name, self._cast.get_submodule(name))
        try:
            yield
        finally:
            for name, module in zip(names, originals):
                exchange(self._network, name, module)

    def _step(self) -> Tensor:
        """The model's velocity at one noise level in the middle of sampling: (elements,), float64."""
        form = self._model.get_model_object("latent_format")
        shape = (1, form.latent_channels, *(1,) * (form.latent_dimensions - 2), SIDE, SIDE)
        sample_one_step(self._model, call_once, torch.zeros(shape), self._positive, self._positive, cfg=1.0)
        return self._velocity.take()


def _by_group(layers: Iterable[Layer]) -> dict[str, list[Layer]]:
    groups: defaultdict[str, list[Layer]] = defaultdict(list)
    for layer in layers:
        groups[layer.group].append(layer)
    return dict(groups)


def _result_path(network: nn.Module, settings: CastSettings) -> Path:
    mark = fingerprint(network.state_dict().items(), settings.storage, settings.compute, settings.skip)
    return Path(folder_paths.get_user_directory()) / FOLDER / f"sensitivity.{mark[:16]}.json"


def _read(path: Path, groups: Mapping[str, object]) -> dict[str, float] | None:
    """Noise by group from an earlier measurement; None where there is none of exactly these groups."""
    noise = read_json(path)
    if noise is None:
        return None
    if isinstance(noise, dict) and set(noise) == set(groups) and all(map(_is_noise, noise.values())):
        return noise
    log.warning("Headroom: %s does not hold the errors of this model's layers: they are measured anew", path)
    return None


def _is_noise(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def _chart(costs: Sequence[GroupCost], keep: frozenset[str], subtitle: str) -> Tensor:
    most = ranked(costs)[:BARS]
    bars = [Bar(cost.group, cost.noise, f"{output_db([cost]):.1f} dB", cost.group in keep) for cost in most]
    image = draw_bars("Error of the output with one group cast", f"{subtitle} (orange: kept)", bars)
    return torch.from_numpy(np.asarray(image, dtype=np.float32) / 255.0)[None]
