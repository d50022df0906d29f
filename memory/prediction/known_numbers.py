"""Numbers that are known without data: a text's tokens and its mask are made of lists, and code asks about them.

A text encoder asks "is all of the mask set?" and cuts its result by the mask's sum; one that looks at pictures makes
lists of where their patches lie. A tensor without data cannot answer; here the numbers go along with it, through every
operator that has nothing but known numbers. They begin with lists and counts, or are given, as those of a mask of the
noise. Some models ask whether a text was set to zeros, which whoever set it says by :func:`state_zeros`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    unset_fake_temporarily,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from ..speed.kernels import tensors_of
from .by_shape import by_shape

MOST = 2**16  # numbers of a tensor that goes along
MOST_GIVEN = 2**28  # of one that was given, or that comes of it
COUNTED = 2**18  # of a tensor that goes along while modules are made
MADE_OF_DATA = torch.ops.aten.lift_fresh.default  # what torch.tensor calls with what it made
# bool(tensor), tensor.item(); under inference mode both arrive whole.
ASKS = (
    torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default, torch.ops.aten.is_nonzero.default,
)  # fmt: skip
# Operators that make numbers of no tensor.
COUNTS = (
    torch.ops.aten.arange, torch.ops.aten.linspace, torch.ops.aten.full, torch.ops.aten.zeros, torch.ops.aten.ones,
)  # fmt: skip
EQUALS = torch.ops.aten.equal.default
COUNTS_OTHERS = torch.ops.aten.count_nonzero
# What is said of one fraction that is not known, and of a given number: a scale of weights is hardly ever exactly 1.
SURELY = {torch.ops.aten.ne.Scalar: True, torch.ops.aten.eq.Scalar: False}
ZEROS = "headroom_zeros"  # an attribute of a tensor without data: whoever made it knows that it is all zeros
NUMBERS = "headroom_numbers"  # and one that holds them, from one prediction to the next


def state_zeros(tensor: Tensor) -> None:
    """Says of a tensor without data that it holds nothing but zeros; what is computed of it is not known to."""
    setattr(tensor, ZEROS, True)


def has_stated_zeros(tensor: Tensor) -> bool:
    """Whether :func:`state_zeros` was said of a tensor."""
    return getattr(tensor, ZEROS, False) is True


def hand_on_numbers(tensor: Tensor, stand_in: Tensor) -> None:
    """Gives whole numbers, as a text's tokens, to what stands without data for the tensor that has them.

    Args:
        tensor: with data, or one that has been given some.
        stand_in: of its shape.
    """
    numbers = getattr(tensor, NUMBERS, None) if isinstance(tensor, FakeTensor) else tensor
    if isinstance(numbers, Tensor) and _is_whole(numbers) and numbers.numel() <= MOST:
        with _without_modes():
            setattr(stand_in, NUMBERS, numbers.detach().to("cpu", copy=True))


class KnownNumbers:
    """The numbers of tensors without data, as long as those live.

    Args:
        most: numbers of a tensor that goes along.
    """

    def __init__(self, most: int = MOST) -> None:
        self._numbers: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._given: WeakIdKeyDictionary = WeakIdKeyDictionary()  # and what comes of them
        self._most = most

    def know(self, tensor: Tensor, numbers: Tensor) -> None:
        """Gives the numbers of a tensor without data; both of one shape."""
        self._numbers[tensor], self._given[tensor] = numbers, True

    def hand_on(self, results: Any) -> None:
        """Leaves the whole numbers that are known with the tensors of a result, for what is predicted after it."""
        for one in tree_iter(results):
            if isinstance(one, FakeTensor) and _is_whole(one) and self._of(one) is not None:
                setattr(one, NUMBERS, self._of(one))

    def _of(self, tensor: Any) -> Tensor | None:
        """The numbers of a tensor; None if they are not known."""
        if tensor not in self._numbers and hasattr(tensor, NUMBERS):
            with _without_modes():
                self._numbers[tensor] = getattr(tensor, NUMBERS).clone()  # which may be written into
        known: Tensor | None = self._numbers.get(tensor)
        return known

    def answer(self, func: Any, args: tuple[Any, ...]) -> float | bool | None:
        """What an operator that asks for a number gets; None if it is not known, or it does not ask."""
        if func is EQUALS:
            return self._equal(args[0], args[1])
        if func not in ASKS:
            return None
        known = self._of(args[0])
        if known is None:
            return None
        with _without_modes():
            return bool(known) if func is torch.ops.aten.is_nonzero.default else known.item()

    def _equal(self, one: Tensor, other: Tensor) -> bool | None:
        if one is other:
            return True
        if one.shape != other.shape:
            return False
        numbers, others = self._of(one), self._of(other)
        if numbers is None or others is None:
            return None
        with _without_modes():
            return torch.equal(numbers, others)

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Takes note of an operator's result, if its numbers are known."""
        if func._schema.is_mutable:
            self._write(func, args, kwargs)
            return
        results = result if isinstance(result, (list, tuple)) else (result,)
        given = self._comes_of_given(args, kwargs)
        most = MOST_GIVEN if given else self._most
        if not all(isinstance(one, FakeTensor) and one.numel() <= most for one in results):
            return
        if func.overloadpacket is COUNTS_OTHERS and self._of(args[0]) is None:
            with _without_modes():  # what a model computed is taken to have no zero
                self._numbers[result] = torch.tensor(0 if has_stated_zeros(args[0]) else args[0].numel())
            return
        numbers = _data(args[0]) if func is MADE_OF_DATA else self._computed(func, args, kwargs)
        if numbers is None and func in SURELY and _is_one_fraction(args[0]):
            with _without_modes():
                numbers = torch.tensor(SURELY[func])
        for one, known in zip(results, numbers if isinstance(numbers, (list, tuple)) else (numbers,)):
            if isinstance(known, Tensor) and known.shape == one.shape:
                self._numbers[one] = known
                if given:
                    self._given[one] = True

    def _comes_of_given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return len(self._given) > 0 and any(one in self._given for one in tensors_of(args, kwargs))

    def made(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operator whose shape depends on numbers, such as ``x[mask]``; None if they are not known.
        Call it in a fake mode."""
        numbers = self._computed(func, args, kwargs)
        several = isinstance(numbers, (list, tuple))
        if not all(isinstance(one, Tensor) for one in (numbers if several else (numbers,))):
            return None
        device = next(one.device for one in tensors_of(args, kwargs))
        given = self._comes_of_given(args, kwargs)

        def fake(known: Tensor) -> Tensor:
            result = torch.empty(known.shape, dtype=known.dtype, device=device)
            self._numbers[result] = known
            if given:
                self._given[result] = True
            return result

        return tree_map(fake, numbers)

    def places(self, indices: Sequence[Any]) -> list[Any]:
        """The indices of ``x[...]`` with the places that a mask sets instead of the mask, if they are known. Call it
        where its operators are to be followed: torch looks for the places, too."""
        found: list[Any] = []
        for index in indices:
            mask = isinstance(index, Tensor) and index.dtype == torch.bool and self._of(index) is not None
            found.extend(index.nonzero().unbind(1) if mask else [index])
        return found

    def _computed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = list(tensors_of(args, kwargs))
        if any(self._of(one) is None for one in given) or not (given or func.overloadpacket in COUNTS):
            return None
        if torch.Tag.nondeterministic_seeded in func.tags or "empty" in func.name():
            return None

        def known(one: Any) -> Any:
            return self._of(one) if isinstance(one, Tensor) else one

        here = {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory")}
        try:
            with _without_modes():
                return func(*tree_map(known, args), **tree_map(known, here))
        except RuntimeError:  # what a CPU does not compute is not known
            return None

    def _write(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Writes into the numbers, too, whose views are views of each other as well; what is written and not known is
        forgotten with all its views."""
        written = (self._of(one) for one in _written(func, args, kwargs))
        changed = [numbers.untyped_storage().data_ptr() for numbers in written if numbers is not None]
        if changed and self._computed(func, args, kwargs) is None:
            for tensor, numbers in list(self._numbers.items()):
                if numbers is not None and numbers.untyped_storage().data_ptr() in changed:
                    self._numbers[tensor] = None


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The tensors among its arguments that an operator changes."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[place] if place < len(args) else kwargs.get(argument.name)
            yield from tensors_of(given)


class ListsOfTensors(TorchFunctionMode):
    """Makes a tensor of a list of tensors without data: torch would look for their data past every mode."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.tensor and isinstance(args[0], (list, tuple)):
            args = (tree_map(lambda one: one.item() if isinstance(one, FakeTensor) else one, args[0]), *args[1:])
        return func(*args, **(kwargs or {}))


class CountingModules(TorchDispatchMode):
    """Around modules that are made without data: what a constructor counts by tensors of its own is known to it, such
    as the size of a table of codes or a share for each layer. Within a fake mode."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = KnownNumbers(COUNTED)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        answer = self._numbers.answer(func, args)
        if answer is not None:
            return answer
        try:
            result = by_shape(func, args, kwargs)
            if result is NotImplemented:
                result = func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            result = self._numbers.made(func, args, kwargs)
            if result is None:
                raise
        self._numbers.follow(func, args, kwargs, result)
        return result


def _is_whole(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.int32, torch.int64)


def _is_one_fraction(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 0 and value.is_floating_point()


def _data(tensor: Tensor) -> Tensor | None:
    """What a tensor was made of, on the CPU, where all is computed: on a machine with the card it may be there."""
    numbers = tensor.constant if isinstance(tensor, FakeTensor) else tensor
    if numbers is None or numbers.device.type == "cpu":
        return numbers
    with _without_modes():
        return numbers.cpu()


@contextmanager
def _without_modes() -> Iterator[None]:
    """Within it, operators compute with what they get, whatever watches them or takes their data."""
    with unset_fake_temporarily(), torch._C._DisableTorchDispatch():
        yield
