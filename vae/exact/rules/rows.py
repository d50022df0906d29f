"""Functions that keep the rows apart: each row of the result comes from the same row of the arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..operations.add import Add
from ..operations.graph import Node
from ..recording.probe import row_by_row
from ..recording.record import Recorded, Recorder, tensors_in
from .alignment import aligned, joined, same_rows
from .registry import Rule, before_others, rule

#: Functions of single elements.
ELEMENTWISE = frozenset(
    [
        "add",
        "sub",
        "subtract",
        "mul",
        "multiply",
        "div",
        "true_divide",
        "divide",
        "neg",
        "negative",
        "abs",
        "pow",
        "square",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "exp",
        "log",
        "sin",
        "cos",
        "tanh",
        "sigmoid",
        "silu",
        "gelu",
        "relu",
        "relu6",
        "leaky_relu",
        "elu",
        "selu",
        "mish",
        "softplus",
        "hardtanh",
        "hardswish",
        "hardsigmoid",
        "logsigmoid",
        "clamp",
        "clip",
        "clamp_min",
        "clamp_max",
        "minimum",
        "maximum",
        "where",
        "lerp",
        "addcmul",
        "addcdiv",
        "threshold",
        "to",
        "float",
        "half",
        "bfloat16",
        "double",
        "type",
        "type_as",
        "nan_to_num",
        "sign",
        "floor",
        "ceil",
        "round",
        "rsub",
        "__add__",
        "__radd__",
        "__sub__",
        "__rsub__",
        "__mul__",
        "__rmul__",
        "__div__",
        "__rdiv__",
        "__truediv__",
        "__rtruediv__",
        "__pow__",
        "__neg__",
        "__abs__",
    ]
)

#: Sums, norms and the like along dims: they keep rows apart where these dims are not the rows'.
ALONG = frozenset(
    [
        "mean",
        "sum",
        "var",
        "std",
        "norm",
        "vector_norm",
        "amax",
        "amin",
        "prod",
        "normalize",
        "softmax",
        "log_softmax",
        "cumsum",
    ]
)


#: Functions of each item of a batch by itself: where the rows are the batch, or part of it, they keep rows apart.
BATCHWISE = frozenset(
    [
        "conv1d",
        "conv2d",
        "conv3d",
        "avg_pool1d",
        "max_pool1d",
        "avg_pool2d",
        "max_pool2d",
        "linear",
        "layer_norm",
        "group_norm",
        "scaled_dot_product_attention",
    ]
)


#: The same functions in place.
OVERWRITE: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": lambda x: functional.silu(x, inplace=True),
    "relu": torch.relu_,
    "tanh": torch.tanh_,
    "sigmoid": torch.sigmoid_,
}


@before_others
def _batchwise(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """Functions of each item of a batch by itself, where the rows are the batch or part of it."""
    if name not in BATCHWISE or not args or not isinstance(args[0], Recorded) or args[0].node.rows.dim != 0:
        return NotImplemented
    return row_by_row_rule(recorder, function, args, kwargs)


@rule(*sorted(ELEMENTWISE))
def elementwise(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """Functions of single elements, of maps with the same rows and of tensors that are constant along them."""
    if not isinstance(args[0], Recorded) and name in ("to", "type_as"):
        # A plain tensor that becomes like a map needs only the map's dtype and device.
        return args[0].to(args[1].device, args[1].dtype)
    args = aligned(recorder, joined(recorder, args))
    if not same_rows(args, kwargs):
        return NotImplemented
    if name in ("add", "__add__", "__radd__") and not kwargs and len(args) == 2:
        nodes = [item.node for item in args if isinstance(item, Recorded)]
        if len(nodes) == 2 and nodes[0].shape == nodes[1].shape and nodes[0].dtype == nodes[1].dtype:
            first = nodes[0]
            return Recorded(Node(Add(), nodes, first.shape, first.dtype, first.device, first.rows), recorder)
    if name in ("to", "type", "float", "half", "bfloat16", "double") and _is_no_op(function, args, kwargs):
        return args[0]
    if name == "to":
        kwargs = {key: value for key, value in kwargs.items() if key not in ("copy", "non_blocking")}
    options = {"overwrite": OVERWRITE[name]} if name in OVERWRITE else {}
    node = row_by_row(function, args, kwargs, **options)
    return NotImplemented if node is None else Recorded(node, recorder)


def _is_no_op(function: Rule, args: Any, kwargs: dict[str, Any]) -> bool:
    """A cast to what the map already is."""
    node = args[0].node
    wanted = [kwargs.get("dtype"), kwargs.get("device"), *args[1:]]
    wanted += {"float": [torch.float32], "half": [torch.float16], "bfloat16": [torch.bfloat16]}.get(
        function.__name__, []
    )
    for item in wanted:
        if isinstance(item, Tensor) and (item.dtype, item.device) != (node.dtype, node.device):
            return False
        if isinstance(item, torch.dtype) and item != node.dtype:
            return False
        if isinstance(item, (str, torch.device)) and torch.device(item) != node.device:
            return False
    return not (function.__name__ == "type" and any(isinstance(item, str) for item in args[1:]))


@rule("cpu", "cuda")
def _moved(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    device = args[1] if len(args) > 1 else kwargs.get("device", name)
    return elementwise(recorder, Tensor.to, "to", (args[0], torch.device(device)), {})


@rule("__eq__", "__ne__")
def _compared(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """Comparison with something that is no number, as with markers that some modules put into a list of maps."""
    if isinstance(args[1], (Tensor, int, float)):
        return NotImplemented
    return name == "__ne__"


@rule("dropout", "dropout2d", "dropout3d")
def _dropout(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    training = kwargs.get("training", args[2] if len(args) > 2 else True)
    share = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    return NotImplemented if training and share else args[0]


@rule("contiguous", "clone", "detach", "alias")
def _same(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """A copy has the same value, and later writes to either do not reach the other."""
    if name in ("detach", "alias") or (name == "contiguous" and args[0].value.base is None):
        return args[0]
    return Recorded(args[0].node, recorder)


@rule("batch_norm")
def _batch_norm(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    training = kwargs.get("training", args[5] if len(args) > 5 else False)
    if training or args[0].node.rows.dim < 2:
        return NotImplemented
    node = row_by_row(function, args, kwargs)
    return NotImplemented if node is None else Recorded(node, recorder)


@rule(*sorted(ALONG))
def _along(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """Sums, norms and the like, along dims that are not the rows'."""
    node = args[0].node
    # normalize(x, p, dim) and norm(x, p, dim) have a number before the dims.
    place = 2 if name in ("normalize", "norm", "vector_norm") else 1
    dims = kwargs.get("dim", args[place] if len(args) > place else (1 if name == "normalize" else None))
    if dims is None or isinstance(dims, bool):
        return NotImplemented
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    if node.rows.dim in (dim % len(node.shape) for dim in dims) or len(list(tensors_in(args))) > 1:
        return NotImplemented
    made = row_by_row(function, args, kwargs)
    return NotImplemented if made is None else Recorded(made, recorder)


@rule("layer_norm", "rms_norm")
def _layer_norm(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    node = args[0].node
    dims = len(kwargs.get("normalized_shape", args[1] if len(args) > 1 else ()))
    if node.rows.dim >= len(node.shape) - dims:
        return NotImplemented
    made = row_by_row(function, args, kwargs)
    return NotImplemented if made is None else Recorded(made, recorder)


@rule("linear")
def _linear(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    if args[0].node.rows.dim == len(args[0].shape) - 1:
        return NotImplemented
    made = row_by_row(function, args, kwargs)
    return NotImplemented if made is None else Recorded(made, recorder)


def row_by_row_rule(recorder: Recorder, function: Rule, args: Any, kwargs: dict[str, Any]) -> Any:
    """Records a function that keeps rows apart; NotImplemented where the shapes say that it does not."""
    made = row_by_row(function, args, kwargs)
    return NotImplemented if made is None else Recorded(made, recorder)
