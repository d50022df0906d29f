"""The inputs that say where and when a node applies, the same on every node that has them."""

from __future__ import annotations

from comfy_api.latest import io

UNNAMED = (
    " Some models do not say which block calls (SD3, LTX-Video, AuraFlow, HiDream-I1, Cosmos and others): only all"
    " reaches them."
)


def blocks_input(hint: str = UNNAMED) -> io.String.Input:
    """``blocks``.

    Args:
        hint: what to know besides what it means.
    """
    return io.String.Input(
        "blocks",
        default="all",
        tooltip="all; inner (without the first and last block); or a list such as double:0-18, single:*, input:1,2,"
        " middle, output:3-8. UNets have input, middle and output blocks, transformers double and single ones." + hint,
    )


def step_inputs(start_hint: str = "") -> list[io.Input]:
    """``start_percent`` and ``end_percent``.

    Args:
        start_hint: what to know of the first, besides what it means.
    """
    return [
        _share("start_percent", 0.0, "Applies from this part of sampling on: 0 is the noisy start." + start_hint),
        _share("end_percent", 1.0, "Applies up to this part of sampling: 1 is the clean end."),
    ]


def _share(name: str, default: float, tooltip: str) -> io.Float.Input:
    return io.Float.Input(name, default=default, min=0.0, max=1.0, step=0.001, tooltip=tooltip)
