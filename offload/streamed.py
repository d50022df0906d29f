"""A layer whose weights are not on the device, and what was copied for such layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor, nn

from .staging import flat_bytes, is_pinned


@dataclass
class Streamed:
    """A layer whose weights are not on the device.

    Attributes:
        layer: a module with parameters of its own.
        weights: those parameters by name; the layer's place for them may hold something else meanwhile.
    """

    layer: nn.Module
    weights: dict[str, nn.Parameter]

    @classmethod
    def of(cls, layer: nn.Module) -> Streamed:
        """With the parameters that the layer has now."""
        return cls(layer, {name: parameter for name, parameter in layer._parameters.items() if parameter is not None})

    @cached_property
    def bytes(self) -> int:
        """Of staging memory that the weights take."""
        return sum(flat_bytes(parameter.data) for parameter in self.weights.values())

    @property
    def sources(self) -> list[Tensor]:
        """What is to be copied."""
        return [parameter.data for parameter in self.weights.values()]

    @property
    def pinned(self) -> bool:
        """Whether the device can read the weights by itself."""
        return all(map(is_pinned, self.sources))

    def is_current(self) -> bool:
        """Whether the layer's parameters are still the ones that were found."""
        return all(self.layer._parameters.get(name) is parameter for name, parameter in self.weights.items())

    def put_in(self, copies: Sequence[Tensor]) -> None:
        """The layer computes with these from now on; in the order of :attr:`sources`."""
        for name, copy in zip(self.weights, copies):
            self.layer._parameters[name] = nn.Parameter(copy, requires_grad=False)

    def put_back(self, hide: Callable[[Tensor], Tensor] | None = None) -> None:
        """The layer has its own parameters again, or what ``hide`` makes of each of them."""
        for name, parameter in self.weights.items():
            shown = parameter if hide is None else nn.Parameter(hide(parameter.data), requires_grad=False)
            self.layer._parameters[name] = shown


@dataclass
class Traffic:
    """What was copied.

    Attributes:
        steps: calls of the network.
        copies: of each layer, by its name.
        bytes: of all copies.
        late: copies that began when their layer's turn came, not before.
        staged: largest number of bytes staged at a time.
    """

    steps: int = 0
    copies: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    late: int = 0
    staged: int = 0
