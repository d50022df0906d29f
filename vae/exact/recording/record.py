"""Recording: the host's own forward runs once on tensors that note what is done to them.

A :class:`Recorded` has shape, dtype and device but no data. Functions that :mod:`..rules` knows add a node to the
computation; any other function gets real tensors, computed at that moment, and recording goes on with its result.
In-place functions and writes into views are recorded as new values ("functionalised"), as PyTorch's compiler does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..operations.graph import Node, Rows
from ..operations.leaves import Filled, Held
from .queries import METADATA, METHODS, QUERIES, WITHOUT_READING
from .value import CannotRecord, Value

# Smaller tensors are made at once; larger ones of one value need not exist.
SMALLEST_FILLED = 1 << 16
STAY = frozenset(["cpu"])  # where weights are not brought to: they lie in no buffer


class Recorded(Tensor):
    """A map of the computation that passes for a tensor: it has a shape, a dtype and a device, but no data."""

    recorder: Recorder
    value: Value

    @staticmethod
    def __new__(cls, value: Value | Node, *args: Any, **kwargs: Any) -> Recorded:
        node = value if isinstance(value, Node) else value.node
        return torch.Tensor._make_wrapper_subclass(
            cls, node.shape, dtype=node.dtype, device=node.device, requires_grad=False
        )

    def __init__(self, value: Value | Node, recorder: Recorder) -> None:
        self.value = Value(value) if isinstance(value, Node) else value
        self.recorder = recorder
        recorder.live.add(self)

    @property
    def node(self) -> Node:
        """The present value."""
        return self.value.node

    def assign(self, node: Node) -> None:
        """A write to the whole of this map."""
        live = self.recorder.live
        self.value.assign(
            node, lambda: any(other is not self and other.value.root is self.value.root for other in list(live))
        )

    __hash__ = object.__hash__

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Recorded{tuple(self.shape)}"

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        recorder = next(item for item in tensors_in((args, kwargs or {})) if isinstance(item, Recorded)).recorder
        return recorder.call(function, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # Only code that bypasses torch's functions gets here: give it real tensors.
        recorder = next(item for item in tensors_in((args, kwargs or {})) if isinstance(item, Recorded)).recorder
        return recorder.call_with_data(function, args, kwargs or {})


class Recorder(TorchFunctionMode):
    """Records while it is entered.

    Args:
        materialise: computes a node's map.
        write_into: computes several nodes' maps, each into a given tensor.
        rules: records a call, see :mod:`..rules`.
        attend: (query, key, value, scale) -> Tensor, for attention over the whole map.
        owned: weights that stay where they are while the recording lives.
        place: of the rows among a map's dims, counted from the last one, which is 0: 1 for the rows of a picture, 2 for
            the frames of a video.

    Attributes:
        materialised: names of the functions that were given real tensors, for the report.
        live: recorded tensors that the module may still refer to.
        made: bytes of each tensor that a recording keeps beside maps: copies of weights, small paddings.
        draws: whether random numbers are drawn: not for a plan, whose run is to get those that come next.
    """

    draws = True

    def __init__(
        self,
        materialise: Callable[[Node], Tensor],
        write_into: Callable[[Sequence[tuple[Node, Tensor]]], None],
        rules: Callable[..., Any],
        attend: Callable[..., Tensor],
        owned: Iterable[Tensor] = (),
        place: int = 1,
    ) -> None:
        super().__init__()
        self.rules, self.place = rules, place
        # The storages, and not their addresses alone: another tensor's would pass for one that went.
        self.owned = {_storage(tensor): tensor.untyped_storage() for tensor in owned}
        self.made: list[int] = []
        self.materialise, self.write_into, self.attend = materialise, write_into, attend
        self.live: WeakSet[Recorded] = WeakSet()
        self.materialised: list[str] = []
        self.pending: list[tuple[Node, Tensor]] = []

    def leaf(self, tensor: Tensor, dim: int | None = None) -> Recorded:
        """A tensor that exists, as the start of a recording. Rows lie in ``dim``; None: where :attr:`place` says."""
        dim = tensor.ndim - 1 - self.place if dim is None else dim % tensor.ndim
        rows = Rows(dim, tensor.shape[dim])
        return Recorded(Node(Held(tensor, dim), (), tensor.shape, tensor.dtype, tensor.device, rows), self)

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name in ("zeros", "ones", "full"):
            return self.filled(function, name, args, kwargs)
        if name in ("rand", "randn"):
            return self.random(name, *args, **kwargs)
        if self.pending and not self._waits(name, args) and self.touches_pending((args, kwargs)):
            self.flush()
        return function(*args, **kwargs)

    def random(self, name: str, *shape: Any, **options: Any) -> Tensor:
        """Random numbers, or what has their shape."""
        if self.draws:
            return getattr(torch, name)(*shape, **options)
        return torch.empty(*shape, **{key: value for key, value in options.items() if key != "generator"})

    @staticmethod
    def _waits(name: str, args: Any) -> bool:
        """Whether a function neither reads what was deferred nor writes where it is going to be written: a copy of a
        map is deferred too, and comes after it."""
        return name in WITHOUT_READING or (name == "copy_" and len(args) > 1 and isinstance(args[1], Recorded))

    def filled(self, function: Callable[..., Tensor], name: str, args: Any, kwargs: dict[str, Any]) -> Tensor:
        """A tensor of one value: one as large as a map, as some modules pad with, is recorded instead of made."""
        likeness = function(*args, **{**kwargs, "device": "meta"})
        if likeness.ndim < 3 + self.place or likeness.numel() < SMALLEST_FILLED or not likeness.is_floating_point():
            made = function(*args, **kwargs)
            self.made.append(made.nbytes)
            return made
        value = {"zeros": 0.0, "ones": 1.0}.get(name)
        if value is None:
            value = float(kwargs["fill_value"] if "fill_value" in kwargs else args[1])
        device = torch.device(kwargs.get("device") or torch.get_default_device())
        dim = likeness.ndim - 1 - self.place
        leaf = Filled(tuple(likeness.shape), value, likeness.dtype, device, dim)
        return Recorded(Node(leaf, (), likeness.shape, likeness.dtype, device, Rows(dim, likeness.shape[dim])), self)

    def call(self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """What a function of a map returns: recorded where a rule knows it, else computed now."""
        name = getattr(function, "__name__", "")
        if name == "__get__":
            name = getattr(getattr(function, "__self__", None), "__name__", "")
            if name in METADATA:
                with torch._C.DisableTorchFunctionSubclass():
                    return function(*args, **kwargs)
            if name not in METHODS:
                return self.call_with_data(function, args, kwargs)
            name, more = METHODS[name]
            function, args = getattr(Tensor, name), (*args, *more)
        if name in QUERIES and not (name == "type" and len(args) + len(kwargs) > 1):
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs)
        result = self.rules(self, function, name, args, kwargs)
        if result is NotImplemented:
            return self.call_with_data(function, args, kwargs)
        if isinstance(result, Recorded) and 0 in result.shape:
            return torch.empty(result.shape, dtype=result.dtype, device=result.device)
        return result

    def call_with_data(self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Calls a function that is not recorded on real tensors; large results are recorded on."""
        name = getattr(function, "__name__", str(function))
        if (
            args
            and isinstance(args[0], Recorded)
            and ((name.endswith("_") and name[-2:] != "__") or name == "__setitem__")
        ):
            raise CannotRecord(f"'{name}' changes a map in place in a way that is not known")
        self.materialised.append(name)
        result = function(*self.with_data(args), **self.with_data(kwargs))
        if isinstance(result, (list, tuple)):
            return type(result)(self.rejoin(item) for item in result)
        return self.rejoin(result)

    def with_data(self, tree: Any) -> Any:
        """Arguments with every recorded map computed."""
        if isinstance(tree, Recorded):
            return self.data(tree)
        if isinstance(tree, (list, tuple)):
            return type(tree)(self.with_data(item) for item in tree)
        if isinstance(tree, dict):
            return {name: self.with_data(item) for name, item in tree.items()}
        return tree

    def data(self, recorded: Recorded) -> Tensor:
        """The whole map, computed now unless it is there."""
        node = recorded.node
        whole = node.op.whole(node)
        return self.materialise(node) if whole is None else whole

    def rejoin(self, item: Any) -> Any:
        """A result that is as large as a map, as the start of a further recording."""
        if (
            is_plain(item)
            and item.ndim >= 3 + self.place
            and item.is_floating_point()
            and item.numel() >= SMALLEST_FILLED
        ):
            return self.leaf(item)
        return item

    def defer(self, node: Node, target: Tensor) -> None:
        """A map that the module copies into a tensor of its own: written when that tensor is next looked at."""
        self.pending.append((node, target))

    def touches_pending(self, tree: Any) -> bool:
        """Whether arguments look into a tensor whose writing was deferred."""
        storages = {_storage(target) for _, target in self.pending}
        return any(is_plain(item) and _storage(item) in storages for item in tensors_in(tree))

    def flush(self) -> None:
        """Writes what was deferred."""
        pending, self.pending = self.pending, []
        if pending:
            self.write_into(pending)

    def keep(self, weight: Tensor) -> Tensor:
        """A weight for later: a copy, since the host casts some into buffers that the next layer overwrites, and keeps
        others in pages that it takes away."""
        if weight.device.type in STAY or _storage(weight) in self.owned:
            return weight
        self.made.append(weight.nbytes)
        return weight.clone()

    def nodes_alive(self) -> list[Node]:
        """Maps that the module may still use."""
        return [recorded.node for recorded in list(self.live)] + [node for node, _ in self.pending]


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """All tensors among arguments."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from tensors_in(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from tensors_in(item)


def is_plain(item: Any) -> bool:
    """A tensor of the module's own making, with data or without; neither recorded nor a weight."""
    return isinstance(item, Tensor) and not isinstance(item, (Recorded, torch.nn.Parameter))


def _storage(tensor: Tensor) -> int:
    """What views of the same memory have in common, also where there is no data."""
    return int(tensor.untyped_storage()._cdata)
