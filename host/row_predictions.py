"""What a row of the run log keeps of its work, so that a report can have it predicted: shapes, and no data.

The model and the VAE are held weakly: a log must not keep what the host has dropped.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

from comfy.model_patcher import ModelPatcher
from torch import Tensor

from ..memory.prediction import Prediction, fake_mode, fake_tree

Predict = Callable[[], Prediction | None]


def sampling_question(
    guider: Any, noise: Tensor, latent: Tensor, sampler: Any, sigmas: Tensor, mask: Tensor | None = None,
    *args: Any, latent_shapes: Any = None, **kwargs: Any,
) -> Predict | None:  # fmt: skip
    """Predicts the step of a sampling that begins, by the arguments of the host's outer sample."""
    conds = guider.conds
    if "positive" not in conds or set(conds) - {"positive", "negative"} or len(latent_shapes or [0]) > 1:
        return None
    with fake_mode():
        faked = fake_tree({"x": latent, "mask": mask, **{name: _conditioning(one) for name, one in conds.items()}})
    model, cfg = weakref.ref(guider.model_patcher), float(getattr(guider, "cfg", 1.0))

    def predict() -> Prediction | None:
        from .estimate import Question, own_card, sampling_stage

        patcher = model()
        if patcher is None:
            return None
        positive = faked["positive"]
        picture = {"samples": faked["x"], **({} if faked["mask"] is None else {"noise_mask": faked["mask"]})}
        question = Question(
            patcher, picture, positive=positive, negative=faked.get("negative", positive),
            cfg=cfg if "negative" in faked else 1.0,
        )  # fmt: skip
        stage = sampling_stage(question, own_card(patcher.load_device), [])
        return None if stage.doubt else stage.prediction

    return predict


def coding_question(vae: Any, x: Tensor, encodes: bool) -> Predict:
    """Predicts an encode or decode by a VAE's settings.

    A node that makes a low-memory VAE for its own use lets it go with its work; what it was made of is the loader's.
    """
    with fake_mode():
        faked = fake_tree(x)
    bare, patches = copy.copy(vae), dict(vae.patcher.object_patches)
    devices = vae.patcher.load_device, vae.patcher.offload_device
    bare.first_stage_model = bare.patcher = None
    held = weakref.ref(vae.first_stage_model)

    def predict() -> Prediction | None:
        from .estimate import coding_stage, own_card
        from .predicted_vae import Coding

        model = held()
        if model is None:
            return None
        found = copy.copy(bare)
        found.first_stage_model, found.patcher = model, ModelPatcher(model, *devices)
        found.patcher.object_patches.update(patches)
        stage = coding_stage(Coding(found, faked, encodes, follow=True), own_card(found.device))
        return None if stage.doubt else stage.prediction

    return predict


def _conditioning(conds: list[dict[str, Any]]) -> list[Any]:
    """From the form in which a guider holds it back to a node's."""
    left_out = ("cross_attn", "model_conds", "uuid", "control", "gligen", "hooks")
    return [[one.get("cross_attn"), {key: value for key, value in one.items() if key not in left_out}] for one in conds]
