"""Follows every storage on a device from allocation to release: the bytes alive at once, and where they are most."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from ..speed.kernels import KernelCosts, inner_tensors, scaled, tensors_of
from .giving_up import require_wanted

IMPLICIT = torch._C.DispatchKey.CompositeImplicitAutograd
# Types of tensors that hold their bytes themselves: no more has to be asked of these.
PLAIN = (Tensor, nn.Parameter, FakeTensor)
MOST_POINTS = 2**16  # of a timeline
Hidden = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], int]


class _Peaks(NamedTuple):
    peak: int
    live_peak: int
    operator: str
    module: str


class _Operator(NamedTuple):
    """Of an operator: whether it is followed into those that it is made of, and the Python that it is written in."""

    is_made_of_others: bool
    function: Callable[..., Any] | None


class LiveBytes(TorchDispatchMode):
    """Counts bytes of the storages on one type of device, for real tensors and for those without data.

    Storages are followed by weak references, so that a tensor counts until the last view of it is gone. Operators that
    are made of others are decomposed: under inference mode they arrive whole, with their inner tensors unseen.

    Attributes:
        live: bytes alive now.
        peak: the most bytes at once, those that kernels allocate while they run included.
        live_peak: the most bytes at once of tensors alone.
        peak_operator: what ran at the peak.
        peak_module: the innermost module that ran at the peak, where :attr:`modules` says.
        timeline: live bytes after each operator; of a long work the most after so many, that no list grows with it.
        operators: how many ran.
        work: kernels so far, where they are counted.
        modules: paths of the modules that are running, outermost first; kept up to date by who runs them.
        has_data: whether the tensors that are followed have data. Then operators that give views are not followed into
            their formulas, which takes time; without data they are: torch would ask for a device that is not there.
    """

    has_data = True

    def __init__(
        self, device_type: str, granularity: int = 1, hidden: Hidden | None = None, opens: bool | None = None
    ) -> None:
        """
        Args:
            device_type: whose storages count.
            granularity: bytes a storage is rounded up to.
            hidden: bytes that a kernel holds only while it runs: (operator, args, kwargs, result) -> bytes.
            opens: whether custom operators that a library wrote in Python are followed into the operators that they
                call; None: on a CPU, where those are torch's.
        """
        super().__init__()
        self._opens = device_type == "cpu" if opens is None else opens
        self.device_type, self.granularity, self.hidden = device_type, granularity, hidden
        self.live = self.peak = self.live_peak = 0
        self.peak_operator = self.peak_module = ""
        self.timeline = array("q")
        self.operators = self._most = 0  # the most since the timeline's last point
        self._stride = 1  # operators to a point
        self.work = KernelCosts()
        self.modules: list[str] = []
        self._others: list[Any] = []
        self._known: dict[int, weakref.ref[Any]] = {}
        self._key = dispatch_key(device_type)
        self._operators: dict[int, _Operator] = {}

    def add(self, tensors: Iterable[Any]) -> None:
        """Counts the storages of these tensors, each once."""
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                self._add(tensor)

    def know(self, tensor: Tensor, numbers: Tensor) -> None:
        """Gives the numbers of a tensor that has no data, for code that asks about them; one with data has its own."""

    def hand_on(self, results: Any) -> None:
        """Leaves the whole numbers that are known with tensors without data, for what is predicted after them."""

    def leave_out(self, tensors: Iterable[Any]) -> None:
        """Does not count these tensors and their views, which belong to somebody else."""
        self._others = [
            inner.untyped_storage() for one in tensors if isinstance(one, Tensor) for inner in inner_tensors(one)
        ]
        self._known |= {storage._cdata: weakref.ref(storage) for storage in self._others}

    def _add(self, tensor: Tensor) -> None:
        for inner in (tensor,) if type(tensor) in PLAIN else inner_tensors(tensor):
            storage = inner.untyped_storage()
            key = storage._cdata
            if key in self._known or inner.device.type != self.device_type:
                continue
            size = -(-storage.nbytes() // self.granularity) * self.granularity
            if size and not (self.has_data and storage.filename):  # what lies in a file takes no memory
                self._known[key] = weakref.ref(storage, self._forget(key, size))
                self.live += size

    def _forget(self, key: int, size: int) -> Callable[[Any], None]:
        def forget(_: Any) -> None:
            if self._known.pop(key, None) is not None:
                self.live -= size

        return forget

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator that is not made of others; a custom one written in Python with its operators followed."""
        function = self._about(func).function
        if function is None:
            return func(*args, **kwargs)
        with self:
            return function(*args, **kwargs)

    def _about(self, func: Any) -> _Operator:
        # torch computes an operator's hash in Python, each time; operators are never freed.
        about = self._operators.get(id(func))
        if about is None:
            about = self._operators[id(func)] = _Operator(
                _is_made_of_others(func, self._key) and not (self.has_data and _gives_a_view(func)),
                _python_function(func) if self._opens else None,
            )
        return about

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace != "prim":  # those are asked where torch takes no error: it would end the process (2.11)
            require_wanted()
        kwargs = kwargs or {}
        if self._about(func).is_made_of_others:
            with self:
                result = _by_its_formula(func, args, kwargs)
            if result is not NotImplemented:
                return result
        result = self.run(func, args, kwargs)
        if type(result) in PLAIN:
            self._add(result)
        else:
            self.add(tensors_of(result))
        live = self.live
        inside = self.hidden(func, args, kwargs, result) if self.hidden is not None else 0
        if live > self.live_peak:
            self.live_peak = live
        self._note(live)
        if live + inside > self.peak:
            self.peak, self.peak_operator = live + inside, str(func)
            self.peak_module = self.modules[-1] if self.modules else ""
        return result

    def _note(self, live: int) -> None:
        """Goes on with the timeline, once it is long with twice as many operators to a point."""
        self.operators += 1
        self._most = max(self._most, live)
        if self.operators % self._stride:
            return
        self.timeline.append(self._most)
        self._most = 0
        if len(self.timeline) == MOST_POINTS:
            self.timeline = array("q", map(max, self.timeline[::2], self.timeline[1::2]))
            self._stride *= 2

    def begin_stretch(self) -> _Peaks:
        """From here on, peaks are those of a stretch of the work. Returns those so far, for :meth:`end_stretch`."""
        so_far = _Peaks(self.peak, self.live_peak, self.peak_operator, self.peak_module)
        self.peak = self.live_peak = self.live
        return so_far

    def end_stretch(self, so_far: _Peaks) -> None:
        """Peaks are those of the whole work again."""
        if so_far.peak >= self.peak:
            self.peak, self.peak_operator, self.peak_module = so_far.peak, so_far.operator, so_far.module
        self.live_peak = max(self.live_peak, so_far.live_peak)

    def reach(self, peak: int, operator: str, module: str) -> None:
        """Counts work that is not followed, since it is known to reach a peak."""
        self._note(peak)
        if peak > self.peak:
            self.peak, self.peak_operator, self.peak_module = peak, operator, module


@contextmanager
def repeated(times: float = 1.0) -> Iterator[Callable[[], None]]:
    """Counts the kernels of what is done within it so many times, for whoever follows it: of equal parts of a work one
    is enough to follow. Gives a function that counts them once more, for later."""
    following = [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, LiveBytes)]
    before, done = [tracker.work.copy() for tracker in following], list[KernelCosts]()

    def again() -> None:
        for tracker, work in zip(following, done):
            tracker.work.update(work)

    try:
        yield again
    finally:
        done += [tracker.work - work for tracker, work in zip(following, before)]
        for tracker, work in zip(following, done):
            tracker.work.update(scaled(work, times - 1))


def _python_function(func: Any) -> Callable[..., Any] | None:
    """The function of a custom operator that a library wrote in Python, such as unpacking quantised weights; None for
    other operators. On a CPU such a function calls torch's operators; on a GPU it may start kernels of its own."""
    try:
        from torch._library.custom_ops import OPDEFS
    except ImportError:  # torch keeps them elsewhere then: their inner tensors are not seen
        return None
    made = OPDEFS.get(func.name()) if func.namespace not in ("aten", "prims", "prim") else None
    function: Callable[..., Any] | None = getattr(made, "_init_fn", None)
    return function


def dispatch_key(device_type: str) -> str:
    """torch's dispatch key of a type of device; backends from outside torch, as "npu", share one."""
    renamed = torch._C._get_privateuse1_backend_name()
    return "PrivateUse1" if device_type == renamed else device_type.upper()


def _by_its_formula(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs the operators that an operator is made of when no mode watches. Under a mode torch takes other formulas,
    which are meant for compilers and never write in place."""
    if func is torch.ops.aten.linear.default and not kwargs and len(args) == 3 and args[2] is not None:
        x, weight, bias = args
        if x.ndim > 3 or (x.ndim == 3 and not x.is_contiguous()):
            return torch.matmul(x, weight.t()).add_(bias)
    if IMPLICIT in func.py_kernels and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), IMPLICIT):
        return func._op_dk(IMPLICIT, *args, **kwargs)
    return func.decompose(*args, **kwargs)


def _is_made_of_others(func: Any, key: str) -> bool:
    """Whether an operator has no kernel of its own for a device, only a formula of other operators."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    try:
        return has_kernel(func.name(), "CompositeImplicitAutograd") and not has_kernel(func.name(), key)
    except (AttributeError, RuntimeError):  # prim::device and the like
        return False


def _gives_a_view(func: Any) -> bool:
    """Whether all that an operator gives is its operand, a view of it, or at most one copy: nothing in between."""
    returns = func._schema.returns
    return bool(returns) and all(one.alias_info is not None and not one.alias_info.is_write for one in returns)
