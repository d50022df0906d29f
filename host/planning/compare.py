"""One model step under several strategies, each measured: peak memory, time, and how far the result is from the first.

The step is the sampler's own: the host's guider prepares the model and the conditioning and calls, in the place of a
sampler, a function that runs the model at one noise level in the middle of sampling.
"""

from __future__ import annotations

import gc
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import comfy.model_management
import comfy.sample
import comfy.samplers
import comfy.utils
import numpy as np
import torch
from comfy.model_patcher import ModelPatcher
from comfy.patcher_extension import WrappersMP
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ...attention import BACKENDS, AttentionCall
from ...memory import PeakMeter, Row
from ...memory.accelerator import counts_peaks, synchronise
from ...memory.prediction import DOCUMENTED, THIS_MACHINE, LiveBytes
from ...memory.render.comparison import Comparison, Measured, Outcome, render_comparison
from ...memory.render.comparison_chart import draw_comparison
from ...offload import STORAGES
from ..attention.backend import BACKEND_CHOICES, apply_attention
from ..casting.cast import CastSettings, cast_model
from ..casting.quantised import why_not
from ..core.compat import is_out_of_memory, latent_for, unload_with_clones
from ..core.device import describe_machine
from ..measure.wrappers import ROW, WRAPPER_KEY, wrap
from ..prediction.stages import chosen_card

PART_OF_SAMPLING = 0.5
SEED = 1
DTYPES = ("float32", "float16", "bfloat16")
CASTS = ("float8_e4m3fn_scaled", "int8_convrot", "mxfp8", "nvfp4")
AS_IT_IS = "as it is"
# One whole number above 0, or several with commas between them; or nothing.
SIZES = re.compile(r"\s*(0*[1-9][0-9]{0,8}\s*(,\s*0*[1-9][0-9]{0,8}\s*)*)?")
# A step is timed again, and the shortest counts, until these seconds are spent or it has run this often.
TIMED_SECONDS, MOST_TIMED = 1.0, 5
# Of a call that stands for a model's, to ask a backend whether it runs here.
TOKENS, CHANNELS = 1024, 64


@dataclass(frozen=True)
class Work:
    """The step.

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


@dataclass(frozen=True)
class Switches:
    """Which strategies to compare with the model as it is.

    Attributes:
        dtypes: computing in each of :data:`DTYPES`.
        slice_sizes: query rows of sliced attention, such as "512, 2048".
        backends: every attention backend.
        casting: weights in each of :data:`CASTS`.
    """

    dtypes: bool = True
    slice_sizes: str = ""
    backends: bool = True
    casting: bool = False


class NotHere(Exception):
    """A strategy that this machine or this model cannot do; the message says why."""


@dataclass(frozen=True)
class Strategy:
    """A way to run the model.

    Attributes:
        name: in the table.
        make: a MODEL that runs so, from the one to compare; it raises NotHere.
        backend: the attention that is to run; empty: whichever does.
        reloads: weights are kept or read in another way, so that they leave the device afterwards.
    """

    name: str
    make: Callable[[ModelPatcher], ModelPatcher]
    backend: str = ""
    reloads: bool = False


REFERENCE = Strategy(AS_IT_IS, ModelPatcher.clone)


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


# -------------------------------------------------------------------------------------------------- the strategies


def strategies(model: ModelPatcher, switches: Switches) -> Iterator[Strategy]:
    """All but the first, in the order of the table."""
    sizes = slice_rows(switches.slice_sizes)
    if switches.dtypes:
        for name in DTYPES:
            if getattr(torch, name) != compute_dtype(model):
                yield Strategy(name, partial(_in_dtype, name=name), reloads=True)
    for rows in sizes:
        yield Strategy(f"sliced, {rows} rows", partial(_attention, backend="sliced", rows=rows), "sliced")
    if switches.backends:
        for name in BACKEND_CHOICES:
            yield Strategy(f"attention {name}", partial(_attention, backend=name), name)
    if switches.casting:
        for name in CASTS:
            yield Strategy(name, partial(_cast, storage=name), reloads=True)


def slice_rows(text: str) -> list[int]:
    """Whole numbers above 0 with commas between them, each once.

    Raises:
        ValueError: anything else.
    """
    if SIZES.fullmatch(text) is None:
        raise ValueError(
            f"slice_sizes: '{text}' is not a list of whole numbers above 0 with commas between them; write it like"
            " 512, 2048, or leave it empty"
        )
    return list(dict.fromkeys(int(part) for part in text.split(",") if part.strip()))


def compute_dtype(model: ModelPatcher) -> torch.dtype:
    """What a model computes in."""
    manual: torch.dtype | None = model.get_model_object("manual_cast_dtype")
    return manual or model.model.get_dtype()


def _in_dtype(model: ModelPatcher, name: str) -> ModelPatcher:
    """Computes in a dtype, and stores in it what it makes smaller."""
    dtype: torch.dtype = getattr(torch, name)
    if name in STORAGES:
        result, report = cast_model(model, CastSettings(name, name, skip=""))
        if report.cast:
            return result
    result = model.clone()
    result.set_model_compute_dtype(dtype)
    return result


def _attention(model: ModelPatcher, backend: str, rows: int = 0) -> ModelPatcher:
    if backend in BACKENDS:
        like = torch.zeros(1, 1, TOKENS, CHANNELS, dtype=compute_dtype(model), device=model.load_device)
        refusal = BACKENDS[backend].refusal(AttentionCall(like, like, like, None, CHANNELS**-0.5))
        if refusal is not None:
            raise NotHere(refusal)
    return apply_attention(model, backend=backend, slice_rows=rows)


def _cast(model: ModelPatcher, storage: str) -> ModelPatcher:
    if (lacking := why_not(STORAGES[storage])) is not None:
        raise NotHere(lacking)
    result, report = cast_model(model, CastSettings(storage))
    if not report.cast:
        raise NotHere("there is nothing to cast: the model is stored in as few bits already")
    return result


# ----------------------------------------------------------------------------------------------------- running them


def run(work: Work, ways: list[Strategy]) -> Comparison:
    """Runs the step in each way, the first of which is the reference.

    A way that fails is an outcome with its reason. A cancelled prompt stops between two of them.

    Raises:
        ValueError: a latent that cannot be compared.
        RuntimeError: none of the ways ran.
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
        raise RuntimeError(f"no strategy ran; {AS_IT_IS}: {outcomes[0].remark}")
    return Comparison(_head(work, latent), outcomes)


def _latent(work: Work) -> Tensor:
    """Of the channels and the size that the model wants, as in the host's samplers; float32.

    Raises:
        ValueError: several latents in one.
    """
    latent = work.samples["samples"]
    if getattr(latent, "is_nested", False):
        raise ValueError(
            "samples: a latent of video and sound together cannot be compared; connect one of a picture or a video"
        )
    return latent_for(work.model, work.samples)


def _head(work: Work, latent: Tensor) -> list[str]:
    model, shape = work.model, "x".join(map(str, latent.shape))
    how = "allocated by torch" if counts_peaks(model.load_device) else "counted tensor by tensor"
    return [
        f"Headroom comparison of one step · {describe_machine(model.load_device)}",
        f"{type(model.model).__name__} computing in {_name(compute_dtype(model))} · latent {shape} · cfg {work.cfg:g}"
        f" · noise level {_sigma(model):.3g}, the middle of sampling",
        f"peak: above the weights, {how} · error: relative,"
        " of what the model takes away from its input · x: times the first row's",
    ]


def _outcome(work: Work, way: Strategy, latent: Tensor, reference: Tensor | None) -> tuple[Outcome, Tensor | None]:
    """What came of a strategy, and what the model took away from its input."""
    model = None
    try:
        model = way.make(work.model)
        row, step = Row("comparison"), Step(model)
        wrap(model, WrappersMP.OUTER_SAMPLE, WRAPPER_KEY, Unlogged(row))
        _sample(work, model, latent, step)
        remark = _what_ran(row, way.backend)
        velocity = step.velocity
        noise = 0.0 if reference is None else _noise(velocity, reference)
        measured = Measured(step.peak, step.seconds, int(model.model_size()), noise)
        return Outcome(way.name, measured, remark), velocity
    except comfy.model_management.InterruptProcessingException:
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


def _said(error: Exception) -> str:
    if is_out_of_memory(error):
        return "out of memory"
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _sample(work: Work, model: ModelPatcher, latent: Tensor, step: Step) -> None:
    """The step by the host's guider."""
    noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(SEED))
    comfy.sample.sample_custom(
        model, noise, work.cfg, comfy.samplers.KSAMPLER(step), torch.tensor([_sigma(model), 0.0]),
        work.positive, work.negative, latent, disable_pbar=True, seed=SEED,
    )  # fmt: skip


def _sigma(model: ModelPatcher) -> float:
    return float(model.get_model_object("model_sampling").percent_to_sigma(PART_OF_SAMPLING))


def _noise(velocity: Tensor, reference: Tensor) -> float:
    return float((velocity - reference).square().sum() / reference.square().sum())


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
class Unlogged:
    """An outer-sample wrapper in the place of the one that measures: a comparison is no sampling to report."""

    row: Row

    def __call__(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        executor.class_obj.model_options.setdefault("transformer_options", {})[ROW] = self.row
        return executor(*args, **kwargs)


# ---------------------------------------------------------------------------------------------------- measuring one


class Step:
    """What the host calls in the place of a sampler: the same model call several times, with different instruments.

    Attributes:
        peak: bytes above what was there before.
        seconds: the shortest of the timed calls; none of them is the first.
        velocity: what the model took away from its input, float64, on the CPU. This is the part that the weights make:
            of the estimate of the clean latent a good deal is the input, and errors would look smaller beside it.
    """

    def __init__(self, model: ModelPatcher) -> None:
        self._device = model.load_device
        self.peak, self.seconds, self.velocity = 0, 0.0, torch.empty(0)

    def __call__(
        self, model: Any, x: Tensor, sigmas: Tensor, extra_args: dict[str, Any], callback: Any, disable: Any
    ) -> Tensor:
        guider = model.inner_model
        call = partial(model, x, sigmas[0] * x.new_ones(x.shape[0]), **extra_args)
        if counts_peaks(self._device):
            call()  # libraries load and reserve their workspaces, and a model that streams is in its usual state
            with PeakMeter(self._device) as meter:
                denoised, first = self._timed(call)
            assert meter.peak is not None
            self.peak = meter.peak.growth
        else:
            self.peak = _counted(call, self._device, [x, sigmas, *_given(guider, model)])
            denoised, first = self._timed(call)
        self.seconds = self._shortest(call, first)
        self.velocity = (x.double() - denoised.double()).flatten().cpu()
        return denoised

    def _timed(self, call: Callable[[], Tensor]) -> tuple[Tensor, float]:
        comfy.model_management.throw_exception_if_processing_interrupted()
        synchronise(self._device)
        start = time.perf_counter()
        result = call()
        synchronise(self._device)
        return result, time.perf_counter() - start

    def _shortest(self, call: Callable[[], Tensor], first: float) -> float:
        times = [first]
        while sum(times) < TIMED_SECONDS and len(times) < MOST_TIMED:
            times.append(self._timed(call)[1])
        return min(times)


def _counted(call: Callable[[], Tensor], device: torch.device, given: list[Any]) -> int:
    """Bytes of the tensors that a call makes, at the most alive at once, and of what kernels hold inside."""
    card = chosen_card(THIS_MACHINE, 0.0, device)
    tracker = LiveBytes(device.type, hidden=DOCUMENTED.hidden(card))
    tracker.leave_out(given)
    with tracker:
        call()
    return tracker.peak


def _given(guider: Any, model: Any) -> Iterator[Any]:
    """Tensors that are there before the step."""
    yield from (model.noise, model.latent_image)
    network = guider.model_patcher.model
    yield from (*network.parameters(), *network.buffers())
    for conditioning in guider.conds.values():
        for one in conditioning or ():
            for condition in one.get("model_conds", {}).values():
                yield from tree_leaves(getattr(condition, "cond", None))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
