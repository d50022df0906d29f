"""A copy of a module tree that shares every byte of its weights."""

from __future__ import annotations

from collections.abc import Collection
from types import MethodType
from typing import Any

from torch import nn

from .whole import is_whole

_REGISTERED = ("_parameters", "_buffers", "_modules")


def copy_structure(root: nn.Module, forget: Collection[str] = ()) -> nn.Module:
    """Modules and parameters of its own, on the storages of ``root``.

    Exchanging a layer or a parameter of the copy leaves ``root`` as it was, and so does moving the copy to another
    device, which writes to parameters. Weights, buffers and other attributes stay shared. Lists, dictionaries and
    sets among the attributes are copied one level deep; where they or a bound method refer to a module of the tree,
    the copy's refer to its copy.

    Args:
        root: a module tree, shared modules and tied parameters included.
        forget: names of attributes that belong to one copy only and are left out.
    """
    return _Copier(frozenset(forget)).module(root)


class _Copier:
    def __init__(self, forget: frozenset[str]) -> None:
        self._forget = forget
        self._modules: dict[int, nn.Module] = {}
        self._parameters: dict[int, nn.Parameter] = {}

    def module(self, root: nn.Module) -> nn.Module:
        copies = [(original, self._blank(original)) for original in root.modules()]
        for original, copy in copies:
            copy.__dict__.update({name: self._attribute(value) for name, value in self._kept(original)})
            copy.__dict__["_parameters"] = {name: self._parameter(p) for name, p in original._parameters.items()}
            copy.__dict__["_buffers"] = dict(original._buffers)
            copy.__dict__["_modules"] = {name: self._attribute(m) for name, m in original._modules.items()}
        return self._modules[id(root)]

    def _blank(self, original: nn.Module) -> nn.Module:
        copy = original.__class__.__new__(original.__class__)
        self._modules[id(original)] = copy
        return copy

    def _kept(self, original: nn.Module) -> list[tuple[str, Any]]:
        left_out = {*_REGISTERED, *self._forget}
        return [(name, value) for name, value in original.__dict__.items() if name not in left_out]

    def _parameter(self, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None:
            return None
        if id(parameter) not in self._parameters:
            copy = nn.Parameter(parameter.data, requires_grad=parameter.requires_grad)
            if not is_whole(parameter):  # the rest of it are attributes, which its data does not have
                kept = {name: value for name, value in vars(parameter).items() if name not in self._forget}
                vars(copy).update({name: self._attribute(value) for name, value in kept.items()})
            self._parameters[id(parameter)] = copy
        return self._parameters[id(parameter)]

    def _attribute(self, value: Any) -> Any:
        if isinstance(value, nn.Module):
            return self._modules.get(id(value), value)
        if isinstance(value, nn.Parameter):
            return self._parameter(value)
        if type(value) in (list, tuple, set):
            return type(value)(self._attribute(item) for item in value)
        if isinstance(value, dict):
            copy = value.copy()
            copy.update({key: self._attribute(item) for key, item in value.items()})
            return copy
        if isinstance(value, MethodType) and id(value.__self__) in self._modules:
            return MethodType(value.__func__, self._modules[id(value.__self__)])
        return value
