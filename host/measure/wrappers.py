"""Measures every sampling of a MODEL that went through a Headroom node, into the run log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from ...memory import Row
from ..core.wrapper_kinds import APPLY_MODEL, OUTER_SAMPLE, PREDICT_NOISE, PREPARE_SAMPLING
from .questions import sampling_question
from .runs import Following, measured
from .step_times import TIMES, StepTimes, time_step

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

WRAPPER_KEY = "headroom_sampling"
# Our entries in the host's transformer_options.
ROW, FOLLOWING = "headroom_row", "headroom_following"
OPTIMIZER, ACCUMULATES = "headroom_optimizer", "headroom_accumulates"
# Of a training: how many pictures it has, as a number, since the host cuts tensors to the batch; and how many of them
# go through the model one by one before one backward.
PICTURES, TOGETHER = "headroom_pictures", "headroom_together"
SAMPLER = 2  # among the arguments of the host's sampling; a training goes through it as well, with an optimizer
COMPILED = "torch.compile"  # the host's key of its wrapper
TRAINED = "headroom_training"  # ours of the one that lays checkpoints around blocks
OURS = "headroom"  # prefix of what our nodes attach to a model, and of the keys of their wrappers


def measure_sampling(model: ModelPatcher) -> None:
    """Has a model's samplings measured, however many of our nodes it goes through. First of our wrappers."""
    wrap(model, OUTER_SAMPLE, WRAPPER_KEY, SamplingMeter())
    wrap(model, PREPARE_SAMPLING, WRAPPER_KEY, follow_when_loaded)
    wrap(model, PREDICT_NOISE, WRAPPER_KEY, time_step)


def wrap(model: ModelPatcher, kind: str, key: str, wrapper: Callable[..., Any]) -> None:
    """Adds a wrapper, or puts it in the place of the one with its key."""
    wrappers = model.wrappers.setdefault(kind, {})
    wrappers[key] = [wrapper]


def settings_of(model: ModelPatcher) -> list[str]:
    """One line per node that changed how a model is stored."""
    return [
        attachment.summary()
        for name, attachment in model.attachments.items()
        if name.startswith(OURS) and hasattr(attachment, "summary")
    ]


class SamplingMeter:
    """An outer-sample wrapper that measures the sampling into a new row of the run log."""

    def __call__(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        guider = executor.class_obj
        device = guider.model_patcher.load_device
        sampler = args[SAMPLER] if len(args) > SAMPLER else kwargs.get("sampler")
        optimizer = getattr(sampler, "optimizer", None)
        work = "sampling" if optimizer is None else "training"
        with measured(work, device) as row, Following(row, device) as following:
            row.lines = settings_of(guider.model_patcher)
            row.question = sampling_question(guider, *args, **kwargs) if optimizer is None else None
            # The guider works on a clone of its options while it samples, so this ends with the run.
            options = guider.model_options.setdefault("transformer_options", {})
            times = StepTimes(device)
            options |= {ROW: row, OPTIMIZER: optimizer, ACCUMULATES: _accumulates(sampler), TIMES: times}
            if optimizer is not None:
                pictures = len(args[0] if args else kwargs["noise"])
                options |= {PICTURES: pictures, TOGETHER: _together(sampler, pictures)}
            if COMPILED not in options.get("wrappers", {}).get(APPLY_MODEL, {}):
                # Within torch's modes a compiler would not compile.
                options[FOLLOWING] = partial(_follow, following, guider.model_patcher.model, args[:2], optimizer)
            result = executor(*args, **kwargs)
            # A tracker that follows every tensor takes time of its own.
            row.steps, row.step_seconds = times.calls, None if following.tracks else times.seconds()
            return result


def _accumulates(sampler: Any) -> bool:
    """Whether a training has gradients of steps before when one begins; true where nobody says. Pictures of several
    sizes go through the host's model one by one."""
    return bool(getattr(sampler, "grad_acc", 2) > 1 or getattr(sampler, "real_dataset", None) is not None)


def _together(sampler: Any, pictures: int) -> int:
    """How many forwards of a training come before one backward: of a batch, where its pictures have several sizes."""
    several_sizes = getattr(sampler, "real_dataset", None) is not None
    return min(getattr(sampler, "batch_size", 1), pictures) if several_sizes else 1


def follow_when_loaded(
    executor: Any, model: ModelPatcher, shape: Any, conds: Any, model_options: Any = None, **kwargs: Any
) -> Any:
    """A wrapper of the host's loading: what comes after it is the work."""
    prepared = executor(model, shape, conds, model_options=model_options, **kwargs)
    begin = ((model_options or {}).get("transformer_options") or {}).get(FOLLOWING)
    if begin is not None:
        begin([conds, *_held_beside(conds, prepared[2])])
    return prepared


def _held_beside(conds: Mapping[str, Any], patchers: Iterable[Any]) -> Iterator[Any]:
    """Tensors that the host and its nodes hold for a sampling beside the model and the texts: weights of the networks
    that are loaded with it, and the hints of ControlNets."""
    for patcher in patchers:
        if isinstance(network := getattr(patcher, "model", None), nn.Module):
            yield [*network.parameters(), *network.buffers()]
    for control in (one.get("control") for conditioning in conds.values() for one in conditioning):
        while control is not None:
            yield list(getattr(control, "__dict__", {}).values())
            control = getattr(control, "previous_controlnet", None)


def _follow(following: Following, model: nn.Module, latents: Any, optimizer: Any, conds: Any) -> None:
    """What is trained is among the weights."""
    trained = [] if optimizer is None else [group["params"] for group in optimizer.param_groups]
    following.begin(model, given=(conds, trained), held=latents)


def current_row(options: dict[str, Any]) -> Row:
    """The row of the running sampling."""
    row: Row = options[ROW]
    return row
