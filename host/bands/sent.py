"""A module as it goes to another process: its structure pickled, its weights beside it as plain arrays."""

from __future__ import annotations

import io
import operator
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ..attention.in_vae import AttentionInStrips


@dataclass(frozen=True)
class SentModule:
    """What goes over.

    Attributes:
        structure: pickled, with numbers in the place of tensors. The host's classes go by their names, so that the
            other process needs the same ComfyUI.
        tensors: in host memory.
    """

    structure: bytes
    tensors: Sequence[Tensor]


def taken_apart(module: nn.Module) -> SentModule:
    """A module for another process; it is not changed."""
    tensors: list[Tensor] = []
    out = io.BytesIO()
    _pickler()(out, tensors).dump(module)
    return SentModule(out.getvalue(), tensors)


def put_together(sent: SentModule, device: torch.device) -> nn.Module:
    """The module of this process, on a device."""
    module: nn.Module = _Unpickler(io.BytesIO(sent.structure), sent.tensors, device).load()
    return module.eval()


@cache
def _pickler() -> Any:
    """Ray's own, which knows functions that stand in others, as some of the host's modules have."""
    from ray.cloudpickle import CloudPickler

    class Pickler(CloudPickler):
        def __init__(self, out: io.BytesIO, tensors: list[Tensor]) -> None:
            super().__init__(out, protocol=5)
            self.tensors, self.numbers, self.held = tensors, dict[int, int](), list[Tensor]()

        def persistent_id(self, thing: Any) -> Any:
            if not isinstance(thing, Tensor):
                return None
            if id(thing) not in self.numbers:
                self.numbers[id(thing)] = len(self.tensors)
                self.held.append(thing)  # so that no other tensor gets its id
                self.tensors.append(thing.detach().cpu())
            return (self.numbers[id(thing)], isinstance(thing, nn.Parameter))

        def reducer_override(self, thing: Any) -> Any:
            # The pack has another name there: the host's own function goes, and is followed there anew.
            if isinstance(thing, AttentionInStrips):
                return operator.getitem, ([thing.original], 0)
            return super().reducer_override(thing)

    return Pickler


class _Unpickler(pickle.Unpickler):
    def __init__(self, source: io.BytesIO, tensors: Sequence[Tensor], device: torch.device) -> None:
        super().__init__(source)
        self.device, self.tensors, self.made = device, tensors, dict[int, Tensor]()

    def persistent_load(self, number: Any) -> Tensor:
        index, is_parameter = number
        if index not in self.made:
            tensor = self.tensors[index].to(self.device)
            self.made[index] = nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor
        return self.made[index]
