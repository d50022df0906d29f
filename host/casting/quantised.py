"""The host's own quantised weights: which formats it has, a weight in one of them, and a linear layer that holds it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import comfy.ops
import torch
from comfy import quant_ops
from torch import Tensor, nn

from ...offload import LayerKind, Layout, NoiseMeter, Storage, missing_in_torch, row_parts, torch_kind
from ..core.internals import TESTED, find

# Without one of these the host has no scaled weights as we know them.
SCALED = ("comfy.quant_ops:QuantizedTensor", "comfy.quant_ops:QUANT_ALGOS", "comfy.ops:mixed_precision_ops")
# Regular Hadamard matrices exist for powers of four; the largest that divides a row spreads outliers best.
ROTATION_SIZES = (256, 64, 16)
# Of comfy-kitchen's kernels for CUDA those that round to these take 16 bits alone, whatever its table of them says
# ("only FP16/BF16 supported"; 0.2.26 on an H100). Of those that read them it is supposed.
OF_16_BITS = ("mxfp8", "nvfp4")
# Host: from 0.33 on some feed-forwards multiply weights of this layout, which they know by its name, in 8 bits, their
# input too, and go past the layer.
BY_NAME, PAST_THE_LAYER = "TensorWiseINT8Layout", "comfy.ops:linear_input_act"
LAYOUTS = ("comfy.quant_ops:register_layout_class", "comfy.quant_ops:get_layout_class")
OF_THE_MATRIX = ("codebook",)  # parameters that are tensors and hold for all rows
OWN_ENTRIES = ("weight_scale", "weight_s_", "weight_codebook", "comfy_quant")  # of a quantised layer's state dict
HOOKED = (
    "ComfyUI cannot hook a LoRA onto quantised weights: load it with LoraLoaderModelOnly, or cast with a storage"
    " without scales (float8_e4m3fn_unscaled, bfloat16)"
)


def why_not(storage: Storage) -> str | None:
    """Why this machine cannot hold weights in a storage, and what to do; None if it can."""
    lacking = missing_in_torch(storage)
    if lacking is not None or storage.layout is None:
        return lacking
    if any(find(path) is None for path in SCALED):
        return f"storage: {storage.name} needs the scaled weights of a tested ComfyUI; {TESTED}"
    if not hasattr(quant_ops.QuantizedTensor, "from_float"):
        return f"storage: {storage.name} needs comfy-kitchen; install what ComfyUI's requirements.txt lists"
    algorithm = storage.layout.algorithm
    if algorithm not in quant_ops.QUANT_ALGOS:
        return (
            f"storage: {storage.name} needs {algorithm} weights, which this ComfyUI lacks; choose"
            f" float8_e4m3fn_scaled, or update ComfyUI"
        )
    return None


def is_quantised(weight: Tensor) -> bool:
    """Whether a weight is in one of the host's quantised layouts."""
    return isinstance(weight, getattr(quant_ops, "QuantizedTensor", ()))


def host_kind(module: nn.Module) -> LayerKind | None:
    """What the host can cast: its own layers, whose forward brings a weight to the input's dtype and device."""
    if not hasattr(module, "comfy_cast_weights"):
        return None
    # Its quantised linear layers are none of torch's.
    return LayerKind.LINEAR if hasattr(module, "in_features") else torch_kind(module)


def can_quantise(module: nn.Module, storage: Storage) -> bool:
    """Whether a layer is the host's plain linear layer, which its quantised one can stand in for, with rows that the
    storage's layout can hold."""
    if not isinstance(module, nn.Linear) or type(module).__module__ != comfy.ops.__name__:
        return False
    return module.in_features % _layout_of(storage).columns == 0


def quantise(weight: Tensor, storage: Storage, compute: torch.dtype) -> tuple[Tensor, float]:
    """A matrix in one of the host's layouts, rounded to nearest, some rows at a time.

    Args:
        weight: (out, in), any floating-point dtype; its device does the work.
        storage: a scaled one that :func:`why_not` has nothing against.
        compute: the dtype that it reads as.

    Returns:
        The host's QuantizedTensor on the same device, and its signal to noise in dB.
    """
    layout = _host_layout(storage)
    options = _options(weight, _layout_of(storage))
    parts, meter = [], NoiseMeter()
    for rows in row_parts(weight):
        # From float32: the scale of a float16 weight would be clamped to what float16 can hold.
        exact = weight[rows].float()
        with _kernels_of(_layout_of(storage).algorithm, exact.dtype):
            parts.append(quant_ops.QuantizedTensor.from_float(exact, layout, **options))
            meter.add(exact, parts[-1].dequantize())
        options |= _decided(parts[-1])
    return _joined(parts, layout, tuple(weight.shape)).to(dtype=compute), meter.db


def _layout_of(storage: Storage) -> Layout:
    assert storage.layout is not None, f"{storage.name} has no scales"
    return storage.layout


def _kernels_of(algorithm: str, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Within it, comfy-kitchen rounds to and reads from a format by kernels that know the dtype: written in torch's
    operators where its own do not."""
    if algorithm not in OF_16_BITS or dtype != torch.float32:
        return nullcontext()  # first of all: each layer asks at each step
    use: Any = find("comfy_kitchen:use_backend")
    return nullcontext() if use is None else use("eager")


def _host_layout(storage: Storage) -> str:
    """The name of a storage's layout, as our weights have it."""
    return _own_name(quant_ops.QUANT_ALGOS[_layout_of(storage).algorithm]["comfy_tensor_layout"])


@cache
def _own_name(layout: str) -> str:
    """A layout of the host's, or the same by another name where the host would multiply by it in fewer bits."""
    register, layout_of = map(find, LAYOUTS)
    if layout != BY_NAME or None in (find(PAST_THE_LAYER), register, layout_of):
        return layout
    own = f"Headroom{layout}"
    register(own, type(own, (layout_of(layout),), {}))
    return own


def _options(weight: Tensor, layout: Layout) -> dict[str, Any]:
    """Of the layout's quantiser, the same for all rows."""
    if layout.largest is not None:
        return {"scale": torch.stack(torch.aminmax(weight)).abs().amax().float() / layout.largest}
    if not layout.rotated:
        return {}
    size = next((size for size in ROTATION_SIZES if weight.shape[1] % size == 0), None)
    if layout.codebook:
        return {"convrot_groupsize": size}
    return {"per_channel": True} | ({} if size is None else {"convrot": True, "convrot_groupsize": size})


def _decided(part: Any) -> dict[str, Any]:
    """What the quantiser chose by the first rows, and all the others have to follow: the table of values."""
    table = getattr(part._params, "codebook", None)
    return {} if table is None else {"codebook_tensor": table}


def _joined(parts: list[Any], layout: str, shape: tuple[int, ...]) -> Any:
    """Joins the row parts of one matrix; parameters that hold for the whole matrix are taken from the first part."""
    first = parts[0]._params
    fields = {field.name: [getattr(part._params, field.name) for part in parts] for field in dataclasses.fields(first)}
    joined = {
        name: torch.cat(values) for name, values in fields.items() if name not in OF_THE_MATRIX and _by_row(values[0])
    }
    params = dataclasses.replace(first, orig_shape=shape, **joined)
    return quant_ops.QuantizedTensor(torch.cat([part._qdata for part in parts]), layout, params)


def _by_row(value: object) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


def quantised_linear(layer: nn.Module, weight: Tensor, storage: Storage, compute: torch.dtype | None) -> nn.Module:
    """The host's quantised linear layer with this weight, in the place of ``layer`` and with its bias.

    Args:
        compute: dtype of the product; None: that of the input.
    """
    linear: Any = _linear_class(weight.dtype)(
        layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta"
    )
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if layer.bias is not None:
        linear.bias = layer.bias
        linear.bias_comfy_model_dtype = getattr(layer, "bias_comfy_model_dtype", layer.bias.dtype)
    linear.weight_comfy_model_dtype = weight.dtype
    linear.quant_format = _layout_of(storage).algorithm
    linear.layout_type = _host_layout(storage)
    # Written into a saved file, so that a loader multiplies in full precision too.
    linear._full_precision_mm_config = True
    linear.headroom_compute = compute
    linear.train(layer.training)
    done: nn.Module = linear
    return done


def read_quantised(layer: nn.Module, state: Mapping[str, Tensor], prefix: str, compute: torch.dtype) -> Tensor:
    """A weight as the host's own loader reads it from a file; it shares the memory of the tensors in ``state``.

    Args:
        layer: whose sizes it has.
        state: of a saved model; ``prefix`` + "comfy_quant" names the format.
        compute: the dtype that it reads as.
    """
    reader: Any = _linear_class(compute)(layer.in_features, layer.out_features, bias=False, device="cpu")
    entries = {key: value for key, value in state.items() if key.startswith(prefix) and not key.endswith(".bias")}
    reader._load_from_state_dict(entries, prefix, {}, False, [], [], [])
    read: Any = reader.weight.data
    weight: Tensor = quant_ops.QuantizedTensor(read._qdata, _own_name(read._layout_cls), read._params)
    return weight


def exchange(network: nn.Module, name: str, module: nn.Module) -> None:
    """Replaces the submodule ``name`` of ``network`` by ``module``."""
    parent, _, leaf = name.rpartition(".")
    setattr(network.get_submodule(parent), leaf, module)


def set_plain(module: nn.Module, weight: Tensor) -> None:
    """A weight in another dtype than the layer computes in, with what the host must know of it.

    Dynamic VRAM sizes its place by the dtype that was noted at loading; without the new one nothing would be saved.
    """
    module.weight = nn.Parameter(weight, requires_grad=False)
    module.comfy_cast_weights = True  # type: ignore[assignment]
    module.weight_comfy_model_dtype = weight.dtype  # type: ignore[assignment]


def stored_bytes(weight: Tensor) -> int:
    """Bytes of a quantised weight, scales included."""
    quantised: Any = weight
    return sum(part.nbytes for part in quantised.state_dict("").values())


@cache
def _linear_class(dtype: torch.dtype) -> type[Any]:
    base = comfy.ops.mixed_precision_ops({}, compute_dtype=dtype, full_precision_mm=True).Linear

    class CastLinear(base):  # type: ignore[misc, valid-type]
        """The host's, but the product is always of full precision: its int8 layout would round the input too."""

        headroom_compute: torch.dtype | None = None

        def __getattr__(self, name: str) -> Any:
            # The host's hooks read every entry of the state dict as an attribute, its own scales included.
            if name.startswith(OWN_ENTRIES):
                return self.state_dict()[name]
            return super().__getattr__(name)

        def set_weight(self, weight: Tensor, inplace_update: bool = False, **options: Any) -> Tensor | None:
            if inplace_update:  # only hooks ask for it; the host could not undo it for its own quantised layers either
                raise RuntimeError(HOOKED)
            result: Tensor | None = super().set_weight(weight, **options)
            return result

        def _forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            if isinstance(weight, quant_ops.QuantizedTensor):
                with _kernels_of(self.quant_format, weight.dtype):
                    weight = weight.dequantize()
            compute = self.headroom_compute
            if compute is None or compute == input.dtype:
                return nn.functional.linear(input, weight, bias)
            bias = None if bias is None else bias.to(compute)
            return nn.functional.linear(input.to(compute), weight.to(compute), bias).to(input.dtype)

    return CastLinear
