"""One model step under several strategies, each measured: peak memory, time, and the error of its result."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import comfy.model_management
import comfy.utils
import numpy as np
import torch
from torch import Tensor

from ...attention import BACKENDS
from ...memory import Row
from ...memory.accelerator import counts_peaks
from ...memory.prediction import CannotPredict
from ...memory.render.comparison import Comparison, Measured, Outcome, render_comparison
from ...memory.render.comparison_chart import draw_comparison
from ..core.compat import interruptions, is_out_of_memory, latent_for, unload_with_clones
from ..core.device import describe_machine
from ..core.given import check_latent
from ..core.latents import is_nested
from ..core.wrapper_kinds import OUTER_SAMPLE
from ..measure.speeds import note_run, steps_as_predicted
from ..measure.wrappers import ROW, WRAPPER_KEY, wrap
from ..prediction.stages import Question, own_card, sampling_stage
from ..sampling.one_step import middle_sigma, relative_noise, sample_one_step
from .step_meter import StepMeter
from .strategies import REFERENCE, NotHere, Strategy, Switches, compute_dtype, strategies

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher


@dataclass(frozen=True)
class Work:
    """What is compared: one step of sampling with these inputs.

    Attributes:
        model: the MODEL, which is not changed.
        samples: the LATENT.
        positive, negative: CONDITIONING.
        cfg: at 1 the negative is not computed.
    """

    model: ModelPatcher
    samples: dict[str, Any]
    positive: Any
    negative: Any
    cfg: float


def compare(work: Work, switches: Switches) -> tuple[str, Tensor]:
    """Runs the step under each strategy.

    Returns:
        The table, and a chart as an IMAGE (1, H, W, 3).

    Raises:
        ValueError: an input that does not make sense, named with what to write instead.
    """
    comparison = run(work, [REFERENCE, *strategies(work.model, switches)])
    chart = np.asarray(draw_comparison(comparison), dtype=np.float32) / 255.0
    return render_comparison(comparison), torch.from_numpy(chart)[None]


def run(work: Work, ways: list[Strategy]) -> Comparison:
    """Runs the step under each strategy, the first of which is the reference.

    A strategy that fails becomes an outcome with its reason. A cancelled prompt stops between two of them.

    Raises:
        ValueError: a latent that cannot be compared.
        RuntimeError: none of the strategies ran.
    """
    latent = _latent(work)
    progress = comfy.utils.ProgressBar(len(ways))
    reference: Tensor | None = None
    outcomes = []
    for number, way in enumerate(ways):
        comfy.model_management.throw_exception_if_processing_interrupted()
        outcome, velocity = _outcome(work, way, latent, reference)
        outcomes.append(outcome)
        reference = velocity if number == 0 else reference
        progress.update_absolute(number + 1, len(ways))  # casting has moved the bar meanwhile
    if all(outcome.measured is None for outcome in outcomes):
        raise RuntimeError(f"no strategy ran; {REFERENCE.name}: {outcomes[0].remark}")
    return Comparison(_head(work, latent), outcomes)


def _latent(work: Work) -> Tensor:
    """The latent in the channels and the size that the model wants, as in the host's samplers; float32.

    Raises:
        ValueError: several latents in one, or a latent that this model does not sample.
    """
    latent = work.samples["samples"]
    if is_nested(latent):
        raise ValueError(
            "samples: a latent of video and sound together cannot be compared; connect one of a picture or a video"
        )
    check_latent(work.samples, work.model)
    return latent_for(work.model, work.samples)


def _head(work: Work, latent: Tensor) -> list[str]:
    model, shape = work.model, "x".join(map(str, latent.shape))
    how = "allocated by torch" if counts_peaks(model.load_device) else "counted tensor by tensor"
    return [
        f"Headroom comparison of one step · {describe_machine(model.load_device)}",
        f"{type(model.model).__name__} computing in {_name(compute_dtype(model))} · latent {shape} · cfg {work.cfg:g}"
        f" · noise level {middle_sigma(model):.3g}, the middle of sampling",
        f"peak: above the weights, {how} · error: relative,"
        " of what the model takes away from its input · x: times the first row's",
    ]


def _outcome(work: Work, way: Strategy, latent: Tensor, reference: Tensor | None) -> tuple[Outcome, Tensor | None]:
    """Measures one strategy: its outcome, and the velocity that later ones are compared with; None where it failed."""
    model = None
    try:
        model = way.make(work.model)
        row, step = Row("comparison"), StepMeter(model)
        wrap(model, OUTER_SAMPLE, WRAPPER_KEY, CollectAttention(row))
        sample_one_step(model, step, latent, work.positive, work.negative, work.cfg)
        remark = _what_ran(row, way.backend)
        velocity = step.velocity
        noise = 0.0 if reference is None else relative_noise(velocity, reference)
        predicted = _predicted(work, model, latent, step.seconds if reference is None else 0.0)
        measured = Measured(step.peak, step.seconds, int(model.model_size()), noise, predicted)
        return Outcome(way.name, measured, remark), velocity
    except interruptions():
        raise
    except NotHere as reason:
        return Outcome(way.name, None, f"not here: {reason}"), None
    except Exception as error:  # of any kind: other packs' wrappers run in here too
        return Outcome(way.name, None, f"failed: {_said(error)}"), None
    finally:
        if model is not None and way.reloads:
            unload_with_clones(model)
        del model
        if way.reloads:
            gc.collect()  # a loaded model and its patcher hold each other
            comfy.model_management.soft_empty_cache()


def _predicted(work: Work, model: ModelPatcher, latent: Tensor, seconds: float) -> float | None:
    """Seconds of the step by prediction, in which those that it took are not counted yet; None where there is none.

    Args:
        seconds: that it took, to be kept for later predictions; 0: they are not kept.
    """
    if streams(model):  # copies come on top
        return None
    question = Question(model, {"samples": latent}, positive=work.positive, negative=work.negative, cfg=work.cfg)
    try:
        card, stage = own_card(model.load_device), sampling_stage(question, own_card(model.load_device))
    except (CannotPredict, ValueError, RuntimeError):
        return None
    if stage.doubt:
        return None
    found = card.speed.seconds(stage.prediction.work, stage.kind)
    if seconds and steps_as_predicted(model):
        note_run(card, stage.kind, stage.prediction.work, seconds)
    return found


def streams(model: ModelPatcher) -> bool:
    """Whether some weights are not on the device now."""
    return any(one.device.type != model.load_device.type for one in model.model.parameters())


def _said(error: Exception) -> str:
    if is_out_of_memory(error):
        return "out of memory"
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _what_ran(row: Row, backend: str) -> str:
    """Which attention ran, where that is not what the name says.

    Raises:
        NotHere: none of the calls by the backend that was asked for.
    """
    if not backend:
        return ""
    calls: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    for key, count in row.attention.snapshot().items() if row.attention is not None else ():
        calls[key.backend] += count
        reasons[key.backend] = key.reason
    if not calls:
        raise NotHere("this model computes attention outside ComfyUI's hook")
    if backend not in BACKENDS:
        return ", ".join(calls)
    if not calls[backend]:
        raise NotHere(next(iter(reasons.values())))
    others = [f"{count} of {calls.total()} calls by {name}: {reasons[name]}" for name, count in calls.items()]
    return "" if len(calls) == 1 else "; ".join(line for name, line in zip(calls, others) if name != backend)


@dataclass(frozen=True)
class CollectAttention:
    """An outer-sample wrapper in place of the one that logs: attention calls are counted, but no run is reported."""

    row: Row

    def __call__(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        executor.class_obj.model_options.setdefault("transformer_options", {})[ROW] = self.row
        return executor(*args, **kwargs)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
