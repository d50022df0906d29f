"""Equal blocks are followed once: for a transformer of forty equal blocks, a prediction runs one of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..speed.kernels import KernelCosts
from .live_bytes import LiveBytes

Simple = (bool, int, float, str, type(None))
NUMBER = re.compile(r"(^|_)(id|idx|index)$")  # names of attributes that hold a block's place in its list


@dataclass
class Repeats:
    """What the blocks of a module that has no data did the first time.

    Attributes:
        tracker: follows the run; without one, blocks run plainly.
        allowed: whether nothing in the run, such as a patch of one block, tells equal blocks apart.
        questions: how often free memory was asked for: a block that asks may choose otherwise the next time.
        kernels: attention calls by kernel; those of a block that is not run again are counted too.
        known: what is known of a block's run, by what it is made of and what it was called with.
    """

    tracker: LiveBytes | None = None
    allowed: bool = True
    questions: int = 0
    kernels: Counter[str] = field(default_factory=Counter)
    known: dict[Any, _Course | _NotReusable] = field(default_factory=dict)

    def install(self, module: nn.Module) -> None:
        """Replaces the forward of every block that has an equal one in its list. For modules that nobody else uses."""
        for blocks in _alike(module):
            for block, likeness in blocks:
                block.forward = _Repeated(block.forward, likeness, self)


@dataclass(frozen=True)
class _Course:
    """What a run did: its peak above where it began, its kernels, and what it returned."""

    above: int
    work: KernelCosts
    operator: str
    module: str
    results: tuple[_Result | Any, ...]
    structure: Any
    kernels: Counter[str]


class _NotReusable:
    """The state of a run that does not tell what the next one takes: it has not ended, it asked for free memory, or it
    left behind other bytes than those it returned."""


NOT_REUSABLE = _NotReusable()


@dataclass(frozen=True)
class _Result:
    """A returned tensor.

    Attributes:
        offset: in values, from the start of the storage.
        of: number of the tensor among the arguments whose storage it shares; None: the storage is new.
        storage: identity of the storage within the run.
        bytes: of the storage.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    of: int | None
    storage: int
    bytes: int


@dataclass(frozen=True)
class _Repeated:
    """The forward of a block, which runs once for each way of calling it; further calls do what that one did."""

    forward: Callable[..., Any]
    likeness: Any
    repeats: Repeats

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        repeats, tracker = self.repeats, self.repeats.tracker
        if tracker is None or not repeats.allowed:
            return self.forward(*args, **kwargs)
        leaves, structure = tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        key = (self.likeness, tuple(_describe(leaf) for leaf in leaves), str(structure))
        if key not in repeats.known:
            repeats.known[key] = NOT_REUSABLE  # until the run has ended
            out, repeats.known[key] = self._followed(args, kwargs, tensors, tracker)
            return out
        course = repeats.known[key]
        if isinstance(course, _NotReusable):
            return self.forward(*args, **kwargs)
        return _again(course, tensors, tracker, repeats.kernels)

    def _followed(
        self, args: Any, kwargs: Any, tensors: list[Tensor], tracker: LiveBytes
    ) -> tuple[Any, _Course | _NotReusable]:
        """Runs the block: what it returns, and what its run tells of the next one."""
        repeats = self.repeats
        before, work, questions, kernels = tracker.live, tracker.work.copy(), repeats.questions, repeats.kernels.copy()
        peak = tracker.begin_stretch()
        try:
            out = self.forward(*args, **kwargs)
            highest, operator, module = tracker.peak, tracker.peak_operator, tracker.peak_module
        finally:
            tracker.end_stretch(peak)
        results, structure, fresh = _results(out, tensors)
        if questions != repeats.questions or tracker.live != before + _rounded(fresh, tracker):
            return out, NOT_REUSABLE
        counted = repeats.kernels - kernels
        return out, _Course(highest - before, tracker.work - work, operator, module, results, structure, counted)


def _again(course: _Course, tensors: list[Tensor], tracker: LiveBytes, kernels: Counter[str]) -> Any:
    """Counts what the course did, and returns tensors like those that it returned."""
    tracker.reach(tracker.live + course.above, course.operator, course.module)
    tracker.work.update(course.work)
    kernels.update(course.kernels)
    made: dict[int, Tensor] = {}
    leaves = []
    for result in course.results:
        if not isinstance(result, _Result):
            leaves.append(result)
            continue
        if result.of is not None:
            base = tensors[result.of]
        else:
            if result.storage not in made:
                count = result.bytes // result.dtype.itemsize
                made[result.storage] = torch.empty(count, dtype=result.dtype, device=result.device)
            base = made[result.storage]
        same = base.shape == result.shape and base.stride() == result.stride
        leaves.append(base if same else torch.as_strided(base, result.shape, result.stride, result.offset))
    return tree_unflatten(leaves, course.structure)


def _results(out: Any, tensors: list[Tensor]) -> tuple[tuple[Any, ...], Any, list[int]]:
    """Descriptions of what was returned, its structure, and the bytes of each storage that is new."""
    given = {tensor.untyped_storage()._cdata: number for number, tensor in enumerate(tensors)}
    leaves, structure = tree_flatten(out)
    new: dict[int, int] = {}
    described: list[Any] = []
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            described.append(leaf)
            continue
        storage = leaf.untyped_storage()
        of = given.get(storage._cdata)
        if of is None:
            new.setdefault(storage._cdata, storage.nbytes())
        described.append(
            _Result(
                tuple(leaf.shape), leaf.stride(), int(leaf.storage_offset()), leaf.dtype, leaf.device, of,
                storage._cdata, storage.nbytes(),
            )
        )  # fmt: skip
    return tuple(described), structure, list(new.values())


def _rounded(sizes: list[int], tracker: LiveBytes) -> int:
    return sum(-(-size // tracker.granularity) * tracker.granularity for size in sizes)


def _describe(leaf: Any) -> Any:
    """What of an argument can change the memory that a block takes. Other objects of one type are taken to be alike."""
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device
    return type(leaf)


def _alike(module: nn.Module) -> Iterator[list[tuple[nn.Module, Any]]]:
    """Blocks of each list that have an equal one beside them, with what makes them equal."""
    for part in module.modules():
        if not isinstance(part, nn.ModuleList):
            continue
        likenesses = [(block, _likeness(block)) for block in part]
        counts = Counter(likeness for _, likeness in likenesses)
        alike = [(block, likeness) for block, likeness in likenesses if counts[likeness] > 1]
        if alike:
            yield alike


def _likeness(block: nn.Module) -> Any:
    """Classes, shapes and plain settings of a block and its parts."""
    parts = []
    for path, part in block.named_modules():
        shapes = tuple(
            (name, tuple(value.shape), value.dtype, type(value))
            for name, value in [*part._parameters.items(), *part._buffers.items()]
            if value is not None
        )
        settings = tuple(
            sorted((n, repr(v)) for n, v in vars(part).items() if isinstance(v, Simple) and not NUMBER.search(n))
        )
        parts.append((path, type(part), shapes, settings))
    return tuple(parts)
