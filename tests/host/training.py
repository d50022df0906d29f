"""The host's own training node, driven in process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from headroom.host.measure.wrappers import TRAINED

from . import diffusion_models
from .conftest import ENVIRONMENT
from .families import Family


def training_node() -> Any:
    """Skips the test where the host has none."""
    return pytest.importorskip("comfy_extras.nodes_train", reason="this ComfyUI has no training node").TrainLoraNode


# Its own node, twice, without ours, gives two adapters on an emulated card; beside the weights autograd refuses them,
# it scales no losses, and what it takes with streamed weights is not what is predicted (docs/hosts.md).
repeats_on_a_card = pytest.mark.skipif(
    ENVIRONMENT.version.startswith(("0.18.", "0.24.")),
    reason="this ComfyUI's own training does not repeat itself on a card",
)


def loadable(family: Family) -> Any:
    """A model that the host's node can load for itself once more."""
    model = family.load().clone()
    if model.cached_patcher_init is None:
        model.cached_patcher_init = (lambda disable_dynamic: diffusion_models.load.__wrapped__(family.file), ())
    return model


def defaults(node: Any) -> dict[str, Any]:
    return {i.id: i.default for i in node.GET_SCHEMA().inputs if getattr(i, "default", None) is not None}


def train(
    node: Any, model: Any, family: Family, latents: Tensor | Sequence[Tensor], dtype: str = "none", **changes: Any
) -> dict[str, Tensor]:
    """The LoRA after two steps, by plain gradient descent: Adam would turn rounding into steps of full size.

    Skips the test where the host's own training, without ours, ends in autograd's refusal of its weights: up to 0.24.1
    of some families, and beside the weights.

    Args:
        latents: the pictures; of several sizes a list.
        dtype: that the host computes in, as its node names it; "none" is bfloat16 where the model is float32.
        changes: other settings of the node.
    """
    chosen = {"steps": 2, "rank": 2, "optimizer": "SGD", "learning_rate": 0.1, "seed": 3, "training_dtype": dtype,
              "lora_dtype": "fp32", "loss_function": "MSE", "gradient_checkpointing": False, **changes}  # fmt: skip
    # The host calls a node's inputs lists here.
    settings = {name: [value] for name, value in (defaults(node) | chosen).items()}
    pictures = [{"samples": one} for one in ([latents] if isinstance(latents, Tensor) else latents)]
    torch.manual_seed(0)  # the LoRA's first weights are drawn from the global generator
    with torch.inference_mode():
        try:
            result = node.execute([model], pictures, [family.conditioning(1)], **settings).result
        except RuntimeError as error:
            if "Inference tensors cannot be saved" not in str(error) or TRAINED in model.attachments:
                raise
            pytest.skip("this ComfyUI trains no such model: autograd refuses weights that were loaded without it")
    return next(
        part for part in result if isinstance(part, dict) and all(isinstance(one, Tensor) for one in part.values())
    )
