"""A model's layers as the host loads them: what each takes, which can be streamed, and the least that all need."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import comfy.model_management
from torch import nn

from ...offload.costs import LayerCost
from ...offload.schedule import least_budget, ring_bytes
from ...offload.staging import flat_bytes
from ...offload.whole import holds_whole
from ...offload.work import layer_work
from .host_internals import layers_by_path

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

NETWORK = "diffusion_model."
NOTHING_STREAMS = "ComfyUI was started with --highvram or --gpu-only: it streams no weights"
ALL_STREAMS = "ComfyUI was started with --novram: it streams all weights that it can"
# Of the model's bytes: the smallest layers, such as norms, that together take no more are not worth a copy each.
SMALL_SHARE = 0.002


class Layers:
    """The layers of a model of any kind, each looked at once: of one in 8 bits the host takes a state of every layer
    to know its size, and has to do so for all of them to list them.

    Args:
        model: of which nothing is changed while this is asked.
    """

    def __init__(self, model: ModelPatcher) -> None:
        self.model = model
        self._sizes: dict[str, int] = {}

    @cached_property
    def all(self) -> dict[str, nn.Module]:
        """Modules that the host loads one by one, by their paths.

        Raises:
            HostChangedError: the host has another loader.
        """
        return layers_by_path(self.model)

    @cached_property
    def bytes(self) -> dict[str, int]:
        """Of each module's own weights on a device."""
        return {path: module_bytes(module) for path, module in self.all.items()}

    @cached_property
    def costs(self) -> dict[str, LayerCost]:
        """Bytes and relative compute of each layer that can be streamed, in order of registration.

        They are all that the host can stream in the network, without the smallest ones.
        """
        found = {path: self.bytes[path] for path, module in self.all.items() if _can_stream(path, module)}
        spared = SMALL_SHARE * sum(found.values())
        for path in sorted(found, key=lambda path: found[path]):
            spared -= found[path]
            if spared < 0:
                break
            del found[path]
        work = layer_work(self.model.model.diffusion_model) if found else {}
        return {path: LayerCost(size, work.get(path.removeprefix(NETWORK), 0.0)) for path, size in found.items()}

    @property
    def fixed(self) -> int:
        """Bytes of what is not streamed layer by layer."""
        return sum(size for path, size in self.bytes.items() if path not in self.costs)

    def size(self, path: str) -> int:
        """Bytes of a module, as the host counts."""
        if path not in self._sizes:
            self._sizes[path] = int(comfy.model_management.module_size(self.all[path]))
        return self._sizes[path]

    def least(self, ahead: int) -> int:
        """Bytes without which the model cannot run: what is never offloaded, and room for its largest layer.

        Args:
            ahead: blocks that may be copied ahead; 0, as for a text encoder: the host's own streaming.
        """
        if ahead and self.costs:
            return self.fixed + least_budget(list(self.costs.values()))
        can = {path for path, module in self.all.items() if hasattr(module, "comfy_cast_weights")}
        kept = sum(self.size(path) for path in self.all if path not in can)
        return kept + max(map(self.size, can), default=0)

    @property
    def usual_staging(self) -> int | None:
        """Bytes of a ring that hides copies in most models; None where fewer than two layers can be streamed."""
        sizes = sorted((cost.bytes for cost in self.costs.values()), reverse=True)
        return ring_bytes(sizes[0] + 2 * sizes[1]) if len(sizes) > 1 else None


def least_weights(model: ModelPatcher, ahead: int) -> int:
    """:meth:`Layers.least` of a model."""
    return Layers(model).least(ahead)


def least_on_card(model: ModelPatcher) -> int:
    """Bytes of weights without which the host cannot run a model on a card: all of them where it streams none."""
    return int(model.model_size()) if streams_nothing() else least_weights(model, 0)


def streams_nothing() -> bool:
    """Whether the host was started to have all weights on the card, with ``--highvram`` or ``--gpu-only``."""
    return comfy.model_management.vram_state is comfy.model_management.VRAMState.HIGH_VRAM


def streams_everything() -> bool:
    """Whether the host was started to keep no weights on the card that it can stream, with ``--novram``."""
    return comfy.model_management.vram_state is comfy.model_management.VRAMState.NO_VRAM


def said_of_streaming() -> Sequence[str]:
    """What people are told where the host was started to stream nothing, or everything."""
    return (NOTHING_STREAMS,) * streams_nothing() + (ALL_STREAMS,) * streams_everything()


def module_bytes(module: nn.Module) -> int:
    """Bytes of a module's own weights on a device."""
    return sum(flat_bytes(tensor) for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)))


def _can_stream(path: str, module: nn.Module) -> bool:
    # Host: layers that it can stream have `comfy_cast_weights`.
    streams = path.startswith(NETWORK) and hasattr(module, "comfy_cast_weights") and bool(module._parameters)
    return streams and holds_whole(module)
