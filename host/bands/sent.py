"""What goes to another process: tensors as plain arrays of bytes, which Ray's object store hands on without a copy; a
module as its structure, pickled, with its weights beside it."""

from __future__ import annotations

import io
import operator
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ...vae.exact.bands.talk import HOST
from ..attention.in_vae import AttentionInStrips
from ..offload.own_weights import is_kept_by_host, without_host
from .work import BandWork

TENSOR = "tensor"
PROTOCOL = 5  # of pickle


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
            super().__init__(out, protocol=PROTOCOL)
            self.tensors, self.numbers, self.held = tensors, dict[int, int](), list[Tensor]()

        def persistent_id(self, thing: Any) -> Any:
            if not isinstance(thing, Tensor):
                return None
            if id(thing) not in self.numbers:
                self.numbers[id(thing)] = len(self.tensors)
                self.held.append(thing)  # so that no other tensor gets its id
                self.tensors.append(torch.zeros_like(thing, device=HOST) if thing.is_meta else thing.detach().cpu())
            return (self.numbers[id(thing)], isinstance(thing, nn.Parameter))

        def reducer_override(self, thing: Any) -> Any:
            # The pack has another name there: the host's own function goes, and is followed there anew.
            if isinstance(thing, AttentionInStrips):
                return operator.getitem, ([thing.original], 0)
            own = getattr(thing, "__dict__", {})  # of a layer: what of it is the host's stays here
            if not isinstance(thing, (type, ModuleType)) and any(map(is_kept_by_host, own)):
                make, given, state, *rest = thing.__reduce_ex__(PROTOCOL)
                return make, given, without_host(state), *rest
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


def packed(things: Sequence[Any]) -> list[Any]:
    """Tensors as (mark, bytes, dtype, shape); anything else as it is."""
    return [_bytes_of(thing) if isinstance(thing, Tensor) else thing for thing in things]


def unpacked(things: Sequence[Any], device: torch.device) -> list[Any]:
    """The same tensors on a device."""
    return [_tensor_of(thing, device) if _is_tensor(thing) else thing for thing in things]


def plain(work: BandWork) -> dict[str, Any]:
    """A worker's part in plain values."""
    fields = {**vars(work), "dtype": str(work.dtype).removeprefix("torch.")}
    fields["band"] = packed([work.band])[0]
    fields["options"] = dict(zip(work.options, packed(list(work.options.values()))))
    fields["state"] = {name: (packed([entry])[0], height) for name, (entry, height) in work.state.items()}
    return fields


def work_of(fields: dict[str, Any]) -> BandWork:
    """The same part, in another process."""
    made = BandWork(**{**fields, "dtype": getattr(torch, fields["dtype"])})
    (made.band,) = unpacked([fields["band"]], HOST)
    made.options = dict(zip(fields["options"], unpacked(list(fields["options"].values()), HOST)))
    made.state = {name: (unpacked([entry], HOST)[0], height) for name, (entry, height) in fields["state"].items()}
    return made


def bytes_of(things: Sequence[Any]) -> int:
    """Bytes of what is packed."""
    return sum(thing[1].nbytes for thing in things if _is_tensor(thing))


def _is_tensor(thing: Any) -> bool:
    return isinstance(thing, tuple) and len(thing) == 4 and thing[0] == TENSOR


def _bytes_of(tensor: Tensor) -> tuple[str, Any, str, tuple[int, ...]]:
    there = tensor.detach().cpu().contiguous()
    array = there.reshape(-1).view(torch.uint8).numpy()
    return TENSOR, array, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def _tensor_of(thing: tuple[str, Any, str, tuple[int, ...]], device: torch.device) -> Tensor:
    _, array, dtype, shape = thing
    flat = torch.empty(array.nbytes, dtype=torch.uint8)
    flat.numpy()[:] = array  # what Ray hands over may not be written to
    return flat.view(getattr(torch, dtype)).view(shape).to(device)
