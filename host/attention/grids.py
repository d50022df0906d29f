"""How the tokens of an attention call lie on the picture, from what the host's models say. Never guessed.

Where the shapes do not add up to what a known model does, the answer is a reason, and the call is computed densely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ...attention import AttentionCall
from ...attention.local import TokenGrid
from ..core.families import TokenGridRule, Tokens, layout_of

SHAPES = "headroom_shapes"  # our entry in the host's transformer_options
# Conditioning that adds tokens of other pictures, or changes where the picture's lie.
OTHER_PICTURES = ("ref_latents", "ref_latent", "ref_contexts", "reference_latent", "time_dim_concat", "image_cond")


@dataclass(frozen=True)
class Shapes:
    """What a model call works on.

    Attributes:
        layout: of its sequences; None for a model that is not known here.
        network: the class of the model, for people.
        grid: (frames, rows, columns) of picture tokens; for a UNet those of the latent.
        text: tokens of the conditioning.
        extra: tokens that the model puts in front of everything.
        others: what adds tokens of other pictures, if anything does.
    """

    layout: TokenGridRule | None
    network: str
    grid: tuple[int, int, int]
    text: int
    extra: int = 0
    others: str | None = None

    @classmethod
    def of(cls, network: nn.Module, x: Tensor, context: Tensor | None, conditioning: dict[str, Any]) -> Shapes:
        """From a call of the host's ``apply_model``.

        Args:
            x: the latent, (B, C, [T,] H, W).
            context: (B, tokens, channels) of the text.
            conditioning: its other keyword arguments.
        """
        others = next((key for key in OTHER_PICTURES if conditioning.get(key) is not None), None)
        registers = getattr(network, "register_tokens", None)
        return cls(
            layout=layout_of(network),
            network=type(network).__name__,
            grid=_picture_tokens(network, x),
            text=0 if context is None or context.ndim < 3 else context.shape[1],
            extra=0 if registers is None else registers.shape[1],
            others=others,
        )

    @property
    def cells(self) -> int:
        """Number of picture tokens."""
        frames, rows, columns = self.grid
        return frames * rows * columns


def find_grid(call: AttentionCall, options: dict[str, Any]) -> TokenGrid | str:
    """The grid of a self-attention call, or the reason why there is none.

    Args:
        options: the host's ``transformer_options``, with our :data:`SHAPES` in it.
    """
    shapes: Shapes | None = options.get(SHAPES)
    tokens, keys = call.q.shape[2], call.k.shape[2]
    if shapes is None:
        return "the model does not say what it works on"
    if tokens != keys:
        return "cross attention"
    if call.mask is not None:
        return "it has a mask"
    if "activations_shape" in options:
        return _unet_grid(call, options["activations_shape"], shapes)
    if shapes.layout is None:
        return f"the sequences of {shapes.network} are not known"
    if shapes.others is not None:
        return f"{shapes.others} adds tokens of other pictures"
    ends = shapes.layout(Tokens(tokens, shapes.cells, shapes.text, shapes.extra))
    if ends is None:
        return f"{tokens} tokens are not {shapes.cells} of the picture and {shapes.text} of the text"
    frames, rows, columns = shapes.grid
    return TokenGrid(rows, columns, frames, *ends)


def _unet_grid(call: AttentionCall, activations: Any, shapes: Shapes) -> TokenGrid | str:
    """A UNet's blocks name the map that they work on."""
    if len(activations) != 4:
        return "its maps are not pictures"
    batch, _, rows, columns = activations
    if call.q.shape[2] != rows * columns or call.q.shape[0] != batch:
        return "its tokens are not those of the map"
    if shapes.text == rows * columns:
        return "text and map have as many tokens, so that self and cross attention look alike"
    return TokenGrid(rows, columns)


def _picture_tokens(network: nn.Module, x: Tensor) -> tuple[int, int, int]:
    """(frames, rows, columns) of a latent (B, C, [T,] H, W) in patches, incomplete ones counted."""
    frames = x.shape[2] if x.ndim == 5 else 1
    sizes = (frames, *x.shape[-2:]) if x.ndim >= 4 else (1, 1, x.shape[-1])
    patch = _patch_size(network)
    return tuple(-(-size // step) for size, step in zip(sizes, patch))


def _patch_size(network: nn.Module) -> tuple[int, int, int]:
    """(frames, rows, columns) of latent cells in a token."""
    spatial = getattr(network, "patch_spatial", None)
    if spatial is not None:
        return int(getattr(network, "patch_temporal", 1)), int(spatial), int(spatial)
    patch = getattr(network, "patch_size", 1)
    if isinstance(patch, int):
        return 1, patch, patch
    steps = [int(step) for step in patch]
    return (steps[0], steps[1], steps[2]) if len(steps) == 3 else (1, steps[0], steps[1])
