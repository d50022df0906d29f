"""The tensors of a network by name: the host's own class, built without memory."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import comfy.ops
import torch
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ...memory.prediction import CountingModules, fake_mode

TensorShapes = dict[str, tuple[int, ...]]


class NoSuchNetwork(Exception):
    """This host has no class for a network, or another one than the catalogue was made with; the message says it."""


def build(name: str, networks: Mapping[str, Any]) -> TensorShapes:
    """The names and shapes of a network's tensors.

    Args:
        name: in the catalogue; ``:open_clip`` after it asks for OpenCLIP's names.
        networks: the catalogue's.

    Raises:
        NoSuchNetwork: the host has none like it.
    """
    plain, _, spelling = name.partition(":")
    path, given = _whole(plain, networks)
    shapes = _shapes(path, json.dumps(given, sort_keys=True))
    return SPELLINGS[spelling](shapes) if spelling else dict(shapes)


def settings(name: str, networks: Mapping[str, Any]) -> dict[str, Any]:
    """What a network of the catalogue is built with."""
    return _whole(name, networks)[1]


def _whole(name: str, networks: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A network's class and arguments, with those of the one that it is like."""
    entry = networks[name]
    path, given = _whole(entry["like"], networks) if "like" in entry else ("", {})
    return entry.get("class", path), {**given, **entry.get("config", {})}


@lru_cache(maxsize=64)
def _shapes(path: str, given: str) -> TensorShapes:
    module, _, name = path.rpartition(".")
    try:
        made = getattr(importlib.import_module(module), name)
        made, arguments = _arguments(made, json.loads(given))
        with unset_fake_temporarily():
            network = _without_memory(made, arguments)
    except (ImportError, AttributeError, TypeError, ValueError, KeyError, RuntimeError) as error:
        raise NoSuchNetwork(f"this ComfyUI has no {name} as the catalogue knows it ({error})") from error
    return {key: tuple(value.shape) for key, value in network.state_dict(keep_vars=True).items()}


def _without_memory(made: type, arguments: dict[str, Any]) -> Any:
    try:
        with torch.device("meta"):
            return made(**arguments)
    except RuntimeError:  # it asks for numbers that it made itself, which torch's meta device does not tell
        here = {name: "cpu" if name == "device" else value for name, value in arguments.items()}
        with fake_mode(), CountingModules():
            return made(**here)


def _arguments(made: type, given: dict[str, Any]) -> tuple[type, dict[str, Any]]:
    """The class, and what it is built with. A setting that it has for all its objects is one of a class of its own."""
    known = set(inspect.signature(made).parameters)
    if known <= {"image_model", "args", "kwargs"}:  # it hands all on to the class that it is made from
        known |= set(inspect.signature(made.__mro__[1]).parameters)
    own = {name: value for name, value in given.items() if name not in known and hasattr(made, name)}
    layers = _layers()
    blank = {
        "device": "meta", "dtype": torch.float16, "operations": layers, "ops": layers,
        "model_options": {"custom_operations": layers},
    }  # fmt: skip
    result = {name: value for name, value in blank.items() if name in known}
    for name, value in given.items():
        if name in own:
            continue
        result[name] = _read(value) if name == "config_dict" else value
        if name.endswith("_dtype"):
            result[name] = getattr(torch, value)
    return type(made.__name__, (made,), own) if own else made, result


def _layers() -> Any:
    """The host's layers as they are, without numbers in them."""
    plain = getattr(comfy.ops, "disable_weight_init", None)
    return None if plain is None else type("Layers", (plain,), {"MoEExperts": _Experts})


class _Experts(nn.Module):
    """Matrices of which there is one for each expert, as the host takes them from a file."""

    def __init__(self, num_experts: int, in_features: int, out_features: int, bias: bool = True, **more: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_experts, out_features, in_features, **more))
        self.bias = nn.Parameter(torch.empty(num_experts, out_features, **more)) if bias else None


def _read(named: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a text encoder: in a file of the host, or in its class."""
    if "file" not in named:
        return dict(named)
    found: dict[str, Any] = json.loads((Path(comfy.ops.__file__).parent / named["file"]).read_text(encoding="utf-8"))
    return found


def _open_clip(shapes: TensorShapes) -> TensorShapes:
    """CLIP under the names in SDXL's checkpoints: query, key and value are one matrix there."""
    names = {
        "self_attn.out_proj": "attn.out_proj", "layer_norm1": "ln_1", "layer_norm2": "ln_2", "mlp.fc1": "mlp.c_fc",
        "mlp.fc2": "mlp.c_proj", "text_model.encoder.layers": "transformer.resblocks",
        "text_model.embeddings.token_embedding": "token_embedding", "text_model.final_layer_norm": "ln_final",
        "text_model.embeddings.position_embedding.weight": "positional_embedding",
        "text_projection.weight": "text_projection", "self_attn.q_proj.weight": "attn.in_proj_weight",
        "self_attn.q_proj.bias": "attn.in_proj_bias",
    }  # fmt: skip
    result: TensorShapes = {}
    for key, shape in shapes.items():
        if "k_proj" in key or "v_proj" in key:
            continue
        for before, after in names.items():
            key = key.replace(before, after)
        result[key] = (3 * shape[0], *shape[1:]) if "in_proj" in key else shape
    return result


def _qwen3_vl(shapes: TensorShapes) -> TensorShapes:
    """Qwen3-VL under the names of its publishers, which the host's loaders take."""
    names = {"model.lm_head.": "lm_head.", "model.": "model.language_model.", "visual.": "model.visual."}
    result: TensorShapes = {}
    for key, shape in shapes.items():
        before = next(one for one in names if key.startswith(one))
        result[names[before] + key.removeprefix(before)] = shape
    return result


def _mage_flow(shapes: TensorShapes) -> TensorShapes:
    """Mage-Flow's VAE under the names of its training."""
    names = {"dconv_encoder.": "student.dconv_encoder.", "decoder_model.": "pipeline."}
    return {
        next(after + key.removeprefix(before) for before, after in names.items() if key.startswith(before)): shape
        for key, shape in shapes.items()
    }


def _pixeldit(shapes: TensorShapes) -> TensorShapes:
    """PixelDiT with its two modulations as one layer, and under the name of the part that is trained."""
    result: TensorShapes = {}
    for key, shape in shapes.items():
        if "adaLN_modulation_mlp" in key:
            continue
        if "adaLN_modulation_msa" in key:
            key, shape = key.replace("adaLN_modulation_msa", "adaLN_modulation.0"), (2 * shape[0], *shape[1:])
        result[key if key.startswith("lq_proj.") else f"core.{key}"] = shape
    return result


def _gpt_oss(shapes: TensorShapes) -> TensorShapes:
    """GPT-OSS without the host's encoder around it."""
    return {key.removeprefix("transformer."): shape for key, shape in shapes.items()}


def _decoder_alone(shapes: TensorShapes) -> TensorShapes:
    """An autoencoder of which a file has no encoder."""
    return {key: shape for key, shape in shapes.items() if not key.startswith("encoder.")}


SPELLINGS: dict[str, Callable[[TensorShapes], TensorShapes]] = {
    "open_clip": _open_clip, "qwen3_vl": _qwen3_vl, "mage_flow": _mage_flow,
    "pixeldit": _pixeldit, "gpt_oss": _gpt_oss, "decoder": _decoder_alone,
}  # fmt: skip
