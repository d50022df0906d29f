"""Runs work without data and says what memory it would take."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._pytree import tree_leaves

from ..speed.kernels import KernelCosts, count, flops_of
from .assumed import assumed
from .by_shape import by_shape, gives_a_view
from .card import Card
from .deep_calls import with_room
from .fused_attention import FusedAttention
from .known_numbers import KnownNumbers, ListsOfTensors
from .live_bytes import LiveBytes
from .repeats import Repeats
from .workspace import DOCUMENTED, Workspaces

TIMELINE_POINTS = 200


BY_INDEX = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default)


@dataclass(frozen=True)
class Prediction:
    """Bytes of one stretch of work on a card.

    Attributes:
        weights: on the device before it starts.
        activations: at the peak, above the weights; what kernels allocate while they run included.
        live: the same of tensors alone.
        constant: what libraries keep throughout, such as cuBLAS's workspace.
        operator, module: what runs at the peak.
        timeline: live bytes above the weights, evenly spread over the operators.
        operators: how many ran.
        kernels: attention calls by torch's kernel, on a CUDA card.
        work: what each kernel does, of all of them.
        calls: of the model in a step, more than one for guidance that is not computed together.
        seconds: that the prediction took.
        bound: whether the work stays within these bytes by a plan, and was not followed to the byte.
    """

    weights: int
    activations: int
    live: int = 0
    constant: int = 0
    operator: str = ""
    module: str = ""
    timeline: tuple[int, ...] = ()
    operators: int = 0
    kernels: dict[str, int] = field(default_factory=dict)
    work: KernelCosts = field(default_factory=KernelCosts, repr=False)
    calls: int = 1
    seconds: float = field(default=0.0, compare=False)
    bound: bool = False

    @classmethod
    def of_plan(cls, weights: int, peak: int, operator: str) -> Prediction:
        """Of work that keeps within a planned ``peak`` of bytes above the weights."""
        return cls(weights, peak, peak, operator=operator, timeline=(peak,), bound=True)

    @property
    def peak(self) -> int:
        """Bytes at most."""
        return self.weights + self.activations + self.constant

    @property
    def flops(self) -> int:
        """Floating point operations of products, convolutions and attention."""
        return flops_of(self.work)


class CannotPredict(Exception):
    """The work depends on its data, or fails without them; the message names the operator and the module."""


def predict(
    mode: FakeTensorMode,
    card: Card,
    weights: Iterable[Any],
    work: Callable[[LiveBytes], Any],
    workspaces: Workspaces = DOCUMENTED,
    repeats: Repeats | None = None,
    given: Any = (),
    assumptions: list[str] | None = None,
) -> Prediction:
    """Follows ``work`` through its operators.

    Args:
        mode: in which the tensors were faked.
        card: where the work would run; its tensors claim to be on a device of that type.
        weights: tensors that are on the card before it starts.
        work: called once; what it returns counts until it is done. It gets the tracker, whose ``live`` tells how much
            memory would be taken at that moment.
        workspaces: bytes that kernels allocate while they run.
        repeats: of the module that the work runs.
        given: tensors that the work gets from its caller, who keeps them; they are not counted.
        assumptions: takes note of the operators that look at data, of which the most is assumed (:mod:`.assumed`);
            None: nothing is assumed.

    Raises:
        CannotPredict: an operator whose result or shape depends on data, or code that fails without them.
    """
    start = time.perf_counter()
    tracker = _WithoutData(card.device.type, card.granularity, workspaces.hidden(card), card.opens)
    tracker.assumptions = assumptions
    repeats = repeats or Repeats()
    repeats.tracker = tracker
    fused = FusedAttention(card, repeats.kernels)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mode)
        stack.enter_context(torch.no_grad())
        stack.enter_context(ListsOfTensors())
        tracker.leave_out(tree_leaves(given))
        tracker.add(tree_leaves(list(weights)))
        held = tracker.peak = tracker.live
        if card.is_cuda:  # elsewhere this machine's torch chooses the same kernel by itself
            stack.enter_context(fused)
        stack.enter_context(tracker)
        with explained(lambda: _where(tracker)):
            with_room(partial(work, tracker))
    return Prediction(
        weights=held,
        activations=tracker.peak - held,
        live=max(0, tracker.live_peak - held),
        constant=workspaces.constant(card),
        operator=tracker.peak_operator,
        module=tracker.peak_module,
        timeline=_thinned(tracker.timeline, held),
        operators=tracker.operators,
        kernels=dict(Counter(fused.taken)),
        work=tracker.work,
        seconds=time.perf_counter() - start,
    )


@contextlib.contextmanager
def explained(where: Callable[[], str] = str) -> Iterator[None]:
    """Around work without data: what goes wrong there is told as one error.

    Args:
        where: it did, as " in a.module"; or nothing.

    Raises:
        CannotPredict: an operator whose result or shape depends on data, or code that fails without them.
    """
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise CannotPredict(f"{error.func} depends on data{where()}") from error
    except (RuntimeError, TypeError, NotImplementedError, AttributeError, LookupError) as error:
        # The code cannot handle tensors without data, or the inputs are wrong with data too.
        said = str(error).strip().partition("\n")[0]
        raise CannotPredict(f"{type(error).__name__}{where()}: {said}") from error


def _where(tracker: LiveBytes) -> str:
    return f" in {tracker.modules[-1]}" if tracker.modules else ""


class _WithoutData(LiveBytes):
    """Counts kernels, and corrects where torch (2.11) treats tensors without data differently from real ones."""

    has_data = False

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self._numbers = KnownNumbers()
        self.assumptions: list[str] | None = None

    def know(self, tensor: Tensor, numbers: Tensor) -> None:
        """Gives the numbers of a tensor, for code that asks about them."""
        self._numbers.know(tensor, numbers)

    def hand_on(self, results: Any) -> None:
        """Leaves the whole numbers that are known with the tensors of a result."""
        self._numbers.hand_on(results)

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        answer = self._numbers.answer(func, args)
        if answer is not None:
            return answer
        if func in BY_INDEX:
            with self:
                args = (args[0], self._numbers.places(args[1]), *args[2:])
        try:
            result = by_shape(func, args, kwargs)
            short = result is not NotImplemented
            if not short:
                result = super().run(func, args, kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            result = self._numbers.made(func, args, kwargs)
            if result is None and self.assumptions is not None:
                with self:
                    result = assumed(func, args)
                self.assumptions.append(str(func))
            if result is None:
                raise
        self._numbers.follow(func, args, kwargs, result)
        if not (short and gives_a_view(func)):
            count(self.work, func, args, kwargs, result)
        if func is torch.ops.aten.native_group_norm.default and args[0].stride() != result[0].stride():
            # One picture with its channels last comes out with strides that later operators do not recognise.
            return (torch.empty_like(args[0]), *result[1:])
        return result


def _thinned(timeline: Iterable[int], held: int) -> tuple[int, ...]:
    """The highest point of each of up to :data:`TIMELINE_POINTS` equal stretches, above ``held``."""
    points = list(timeline)
    step = max(1, -(-len(points) // TIMELINE_POINTS))
    return tuple(max(points[at : at + step]) - held for at in range(0, len(points), step))
