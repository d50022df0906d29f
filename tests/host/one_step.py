"""One step of a sampling with data, by the host's own functions: what a prediction is compared with."""

from collections.abc import Callable
from typing import Any

import comfy.model_management
import comfy.sampler_helpers
import comfy.samplers
import torch

from headroom.host.prediction.step import SAMPLER_LATENTS

from .families import Family

CPU = torch.device("cpu")


def one_call(
    model: Any, family: Family, shape: tuple[int, ...], cfg: float = 3.0, mask: Any = None, **more: Any
) -> Callable[[], object]:
    """What a sampler does for a step, with data, in the host's own functions.

    Args:
        mask: of the noise, as a LATENT has it.
        more: CONDITIONING by its name, in the place of the family's or beside it.
    """
    comfy.model_management.load_models_gpu([model], memory_required=0, force_full_load=True)
    text: dict[str, Any] = {"positive": family.conditioning(1), "negative": family.conditioning(2), **more}
    base = model.model

    def call() -> object:
        base.current_patcher = model
        conds = {name: comfy.sampler_helpers.convert_cond(one) for name, one in text.items()}
        held = [torch.zeros(shape) for _ in range(SAMPLER_LATENTS)]
        x = torch.zeros(shape)
        whole = None if mask is None else comfy.sampler_helpers.prepare_mask(mask, shape, CPU).float()
        conds = comfy.samplers.process_conds(base, held[0], conds, CPU, held[1], whole, seed=0)
        options = dict(model.model_options)
        inner = dict(options.get("transformer_options", {}))
        options["transformer_options"] = inner | {"sample_sigmas": torch.tensor([1.0, 0.0])}
        others = (conds[name] for name in more if name not in ("positive", "negative"))
        asked = [conds["positive"], None if cfg == 1.0 else conds["negative"], *others]
        return comfy.samplers.calc_cond_batch(base, asked, x, torch.full(shape[:1], 0.9), options)

    return call
