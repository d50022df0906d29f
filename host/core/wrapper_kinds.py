"""The places where the host lets wrappers in, by its own keys.

A place that a host does not have goes by a name of ours: a wrapper can be put there all the same, and nothing calls it.
"""

from __future__ import annotations

from .internals import find


def _key(name: str) -> str:
    return str(find(f"comfy.patcher_extension:WrappersMP.{name}") or f"headroom_{name.lower()}")


OUTER_SAMPLE = _key("OUTER_SAMPLE")
PREPARE_SAMPLING = _key("PREPARE_SAMPLING")
PREDICT_NOISE = _key("PREDICT_NOISE")
CALC_COND_BATCH = _key("CALC_COND_BATCH")
APPLY_MODEL = _key("APPLY_MODEL")
DIFFUSION_MODEL = _key("DIFFUSION_MODEL")
