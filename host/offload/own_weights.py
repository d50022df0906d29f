"""Dynamic VRAM's layers while they hold weights of their own instead of a page of the host's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

PAGE = "_v"  # Host: a layer's place in dynamic VRAM; its parameters stay in RAM
# Host: what is called with a weight that is brought, and what the page's weights alone go through before: the patches
# that were loaded, as a LoRA's.
FUNCTIONS = {"weight_function": "weight_lowvram_function", "bias_function": "bias_lowvram_function"}


def without_page(layer: nn.Module) -> Callable[[], None]:
    """Has a layer of dynamic VRAM compute with the parameters that it holds; gives what undoes it.

    The host patches what it reads from the page, and nothing else: the patches come with the parameters here, in the
    same place, before what is trained. From 0.30.0 on it leaves the page aside by itself where the parameters are on
    the device; older ones do not.
    """
    own = vars(layer)
    if PAGE not in own:
        return _nothing
    before: dict[str, Any] = {name: own[name] for name in (PAGE, *FUNCTIONS) if name in own}
    for name, patch in FUNCTIONS.items():
        if getattr(layer, patch, None) is not None:
            own[name] = [getattr(layer, patch), *getattr(layer, name)]
    del own[PAGE]

    def undo() -> None:
        for name in FUNCTIONS:
            own.pop(name, None)
        own.update(before)

    return undo


def _nothing() -> None:
    pass
