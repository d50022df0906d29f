"""What a server has loaded with its node packs is left out when Python looks for what nobody holds."""

from __future__ import annotations

import gc


def set_aside() -> None:
    """Leaves all that there is out of Python's collections from now on: a host's modules, functions and classes, half a
    million objects that stay to the end. What one of them comes to hold is freed as ever once it is let go.

    ComfyUI has everything collected when models go and between prompts, and no thread of the server goes on meanwhile:
    not the one that answers others either. Call it while custom nodes load: no prompt has run then, and nothing of one
    can be among what stays.
    """
    gc.collect()  # nothing that nobody holds is to stay
    gc.freeze()
