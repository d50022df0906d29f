"""Where in its model an attention call comes from, as the host tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from ...attention import BlockPlace

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

UNET_LISTS = (("input", "input_blocks"), ("output", "output_blocks"))


def current_place(options: dict[str, Any]) -> BlockPlace | None:
    """The block of the running call, from the host's ``transformer_options``.

    UNets write ``block`` = (list, index); transformers ``block_type`` and ``block_index``. None where the model
    says neither (SD3, LTX-Video and others) and in refiner blocks, which run before the first numbered one.
    """
    block = options.get("block")
    if block is not None:
        return BlockPlace(block[0], int(block[1]))
    kind, index = options.get("block_type"), options.get("block_index")
    return None if kind is None or index is None else BlockPlace(kind, int(index))


def model_ends(model: ModelPatcher) -> tuple[BlockPlace, BlockPlace] | None:
    """First and last block with attention, for models whose blocks stand in more than one list; else None."""
    network = model.get_model_object("diffusion_model")
    if hasattr(network, "input_blocks") and hasattr(network, "output_blocks"):
        places = [
            BlockPlace(kind, i)
            for kind, name in UNET_LISTS
            for i, block in enumerate(getattr(network, name))
            if _has_attention(block)
        ]
        return (places[0], places[-1]) if places else None
    double, single = getattr(network, "double_blocks", ()), getattr(network, "single_blocks", ())
    if len(double) and len(single):
        return BlockPlace("double", 0), BlockPlace("single", len(single) - 1)
    return None


def _has_attention(block: nn.Module) -> bool:
    """UNet attention lives in modules that hold ``transformer_blocks``, whatever their class is called."""
    return any(hasattr(module, "transformer_blocks") for module in block.modules())
