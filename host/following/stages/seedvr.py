"""SeedVR2's nodes: videos in parts that follow each other, and the colours of what they were made of."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ....memory.prediction import Stage
from ...core.latents import parts_of
from ...measure.calibrated import workspaces_for
from ...prediction.encoders import HeldNetwork, predict_network
from ...prediction.host_answers import answering, card_answers
from ..calling import Outputs, outputs
from ..findings import Findings, Follow
from ..inputs import Inputs, NotFollowed

# Beside a part of a latent: of how many latent frames it is a part, and how many parts there are, each sampled alone.
WHOLE, PARTS = "headroom_whole", "headroom_parts"
ONE_BY_ONE = "lab"  # the method that takes one frame after the other; others take as many as fit
FEW = 2


def cut_in_time(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """The first part of a latent, which no other part is longer than, and the overlap of the parts."""
    latent = inputs.latent("latent")
    with answering({**card_answers(found.card), "get_free_memory": lambda *_, **__: found.card.total}):
        parts, overlap = found.nodes.call(kind, inputs)
    if not isinstance(parts, list) or not parts:
        raise NotFollowed(f"{kind} gives no parts of a latent")
    frames = parts_of(latent["samples"])[0].shape[2]
    return ({**parts[0], WHOLE: frames, PARTS: len(parts)}, overlap)


def join_in_time(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """The latent that parts make, which stays where the host keeps latents."""
    latent = dict(inputs.latent("latents"))
    (part,) = parts_of(latent["samples"])
    frames = latent.pop(WHOLE, part.shape[2])
    for name in (PARTS, "noise_mask"):
        latent.pop(name, None)
    with found.mode:
        return ({**latent, "samples": part.new_empty(*part.shape[:2], frames, *part.shape[3:])},)


def match_colours(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """IMAGE in the colours of another. It is on the card frame by frame, or as many frames at a time as fit."""
    images, others = _frames(inputs, "images"), _frames(inputs, "original_resized_images")
    method = inputs["color_correction_method"]
    if method == "none":
        return found.nodes.call(kind, inputs)
    few = FEW if method == ONE_BY_ONE else len(images)
    run = found.nodes.prepared(
        kind, Inputs(kind, {**inputs, "images": images[:few], "original_resized_images": others[:few]})
    )
    prediction, (first, *_) = predict_network(
        HeldNetwork(nn.Module(), lambda nothing: nothing), found.card, lambda _: outputs(kind, run()), found.mode,
        workspaces_for(found.card), [images, others],
    )  # fmt: skip
    found.add(Stage("vision", prediction, 0, 0))
    with found.mode:
        return (first.new_empty(min(len(images), len(others)), *first.shape[1:]),)


def _frames(inputs: Inputs, name: str) -> Tensor:
    images: Any = inputs[name]
    if not isinstance(images, Tensor) or images.ndim != 4:
        raise NotFollowed(f"{inputs.kind}: {name} gets no pictures")
    return images


OF_SEEDVR: dict[str, Follow] = {
    "SeedVR2TemporalChunk": cut_in_time, "SeedVR2TemporalMerge": join_in_time, "SeedVR2PostProcessing": match_colours,
}  # fmt: skip
