"""LTX-Video's autoencoder, and LTX-2's, some frames at a time: by the module's own blocks, whose convolutions keep what
they need of the chunk before.

The host's decoder cuts its larger maps so by itself, but keeps the first ones of all frames; its encoder goes by what
the device has. Both are in ``comfy/ldm/lightricks/vae/causal_video_autoencoder.py``, the same in ComfyUI 0.30.0 and
0.33.0; where an older one has another, :meth:`LTXChunks.knows` is to tell. A decoder that adds noise to its
maps (0.9.1) draws it for whole ones, and is not run in chunks.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .chunks import Borders, Chunks, by_step, in_steps

AT_ONCE, FRAMES = 8, 8  # latent frames of a decode, frames of an encode
PIECE = 64  # frames that go on together from block to block of the decoder, at most
LARGEST = "get_max_chunk_size"  # bytes of a map that go on together, by the host's name for it
STATE, ENDED = "temporal_cache_state", "mark_conv3d_ended"  # as the host calls them
YES, NO, NONE = "yes", "no", "none"


class LTXChunks(Chunks):
    """The cache is what the layers keep for this thread: of each tensors and flags, by their order in the module."""

    by_module = "in chunks of frames, by the VAE's own layers, each going on where it was"
    states: dict[int, Any] = {}

    @classmethod
    def knows(cls, model: Any) -> bool:
        """Not a decoder that adds noise to its maps, nor one that does not look ahead."""
        part, own = getattr(model, cls.half), sys.modules[type(model).__module__]
        known = getattr(model, "comfy_has_chunked_io", False) and hasattr(own, ENDED) and hasattr(own, LARGEST)
        noisy = any(getattr(layer, "inject_noise", False) for layer in part.modules())
        return known and not noisy and hasattr(part.conv_in, "_empty_output") and not getattr(part, "causal", False)

    def kept(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for number, state in self.states.items():
            for place, entry in enumerate(state if isinstance(state, tuple) else (state,)):
                word = NONE if entry is None else entry if not isinstance(entry, bool) else YES if entry else NO
                found[f"{number}.{place}"] = word
        return found

    def keep(self, found: Mapping[str, Any]) -> None:
        words = {YES: True, NO: False, NONE: None}
        states: dict[int, list[Any]] = {}
        for path, entry in found.items():  # in the order in which they were given
            states.setdefault(int(path.split(".")[0]), []).append(words[entry] if isinstance(entry, str) else entry)
        self.states = {number: tuple(state) if len(state) > 1 else state[0] for number, state in states.items()}

    @property
    def is_last(self) -> bool:
        return self.done == len(self.borders) - 1

    def through(self, x: Tensor, ended: bool) -> Sequence[Tensor]:
        """The next chunk, with the layers' caches in place.

        Args:
            ended: it is the last.
        """
        raise NotImplementedError

    def compute(self, x: Tensor) -> Sequence[Tensor]:
        with self._lent():
            return self.through(x, self.is_last)

    def own(self, name: str) -> Callable[..., Any]:
        """A function of the module's own file."""
        found: Callable[..., Any] = getattr(sys.modules[type(self.part).__module__], name)
        return found

    @contextmanager
    def _lent(self) -> Iterator[None]:
        """The layers have what they kept of the chunk before; behind it they have nothing."""
        layers, thread = dict(enumerate(_remembering(self.part))), threading.get_ident()
        for number, state in self.states.items():
            getattr(layers[number], STATE)[thread] = state
        try:
            yield
        finally:
            found = {number: getattr(layer, STATE).pop(thread, None) for number, layer in layers.items()}
            kept = {} if self.is_last else found
            self.states = {number: state for number, state in kept.items() if state is not None}

    def block(self, block: Any, held: list[Tensor], ended: bool, **named: Any) -> Tensor | None:
        """A block, whose layers keep the end of what they are given: a copy, so that the rest is not kept with it.

        Args:
            held: the map alone, which is taken out: the caller is not to keep it.
            ended: there are no more frames.

        Returns:
            None where it has to see more frames first.
        """
        x = held.pop()
        if ended:
            self.own(ENDED)(block)
        for layer in getattr(block, "res_blocks", (block,)):
            x = layer(x, **named)
            _copied(layer)
        return None if x is None or not x.shape[2] else x


class LTXDecode(LTXChunks):
    """Eight latent frames at a time, of whose larger maps a piece goes on, as large as the host allows.

    Convolutions look ahead: each gives its last frame with the next chunk, so that the first chunks give fewer frames,
    and the last one more.
    """

    half, looks_ahead = "decoder", True

    @classmethod
    def knows(cls, model: Any) -> bool:
        return super().knows(model) and getattr(model, "timestep_conditioning", None) is cls.has_head

    def cut(self, frames: int) -> Borders:
        return in_steps(AT_ONCE, frames)

    def frames_of(self, frames: int) -> int:
        return int(self.model.decode_output_shape((1, 1, frames, 1, 1))[2])

    def given_by(self, chunks: int) -> int:
        frames = self.borders[chunks - 1][1]
        if chunks == len(self.borders):
            return self.frames_of(frames)
        for _, waits, times in self._stages:
            frames = max(0, (frames - waits) * times - (times - 1))
        return frames

    @cached_property
    def _stages(self) -> list[tuple[Any, int, int]]:
        """Blocks in their order, frames that each holds back, and how many times as many it gives."""
        found = [(self.part.conv_in, 1, 1)]
        for block in self.part.up_blocks:
            convolutions = sum(hasattr(layer, "time_kernel_size") for layer in block.modules())
            found.append((block, convolutions, block.stride[0] if hasattr(block, "stride") else 1))
        return [*found, (self.part.conv_out, 1, 1)]

    @property
    def reach(self) -> int:
        """Latent frames on each side that one of the result depends on."""
        frames = 1.0
        for _, waits, times in reversed(self._stages):
            frames = frames / times + waits
        return math.ceil(frames)

    def through(self, x: Tensor, ended: bool) -> Sequence[Tensor]:
        return list(self._begun(x, ended))

    def handed(self, *parts: Tensor) -> Iterator[Tensor]:
        with self._lent():
            yield from self._begun(parts[0], self.is_last)
        self.done += 1

    def _begun(self, x: Tensor, ended: bool) -> Iterator[Tensor]:
        return self._from(0, [self.model.per_channel_statistics.un_normalize(x)], ended)

    def _from(self, at: int, held: list[Tensor], ended: bool) -> Iterator[Tensor]:
        """The frames that a map gives from a block on.

        Args:
            at: number of the block.
            held: as of :meth:`block`.
        """
        part, block = self.part, self._stages[at][0]
        if block is part.conv_out:
            held = [part.conv_act(self.normed(held.pop()))]
            frames = self.block(block, held, ended, causal=part.causal)
            if frames is not None:
                yield self.own("unpatchify")(frames, patch_size_hw=part.patch_size, patch_size_t=1)
            return
        found = self.block(block, held, ended, causal=part.causal, **self.condition(block, held[0]))
        pieces: list[Tensor] = []
        if found is not None:
            most = self.own(LARGEST)(found.device) // (found[:, :, :1].numel() * found.itemsize)
            pieces += found.split(max(1, min(PIECE, most)), 2)
        del found
        while pieces:
            yield from self._from(at + 1, [pieces.pop(0)], ended and not pieces)

    def whole(self, x: Tensor, output_buffer: Any) -> None:
        """The module itself, of what :meth:`head` gave.

        Args:
            output_buffer: what it writes its frames to.
        """
        self.model.decode(x, output_buffer=output_buffer)

    def normed(self, x: Tensor) -> Tensor:
        """The last map, through its norm."""
        found: Tensor = self.part.conv_norm_out(x)
        return found

    def condition(self, block: Any, x: Tensor) -> dict[str, Tensor]:
        """What the layers of a block are given beside their map."""
        return {}


class LTXConditionedDecode(LTXDecode):
    """Of 0.9.5 to 0.9.8: as a last step of denoising, of a latent that some noise is added to; layers are told of that
    step. The noise is drawn at once for all of the latent, as the module draws it."""

    has_head = True

    def held(self, shape: Sequence[int]) -> list[tuple[int, ...]]:
        return [tuple(shape)]

    def head(self, x: Tensor) -> Sequence[Tensor]:
        return [x.lerp(torch.randn_like(x), self.model.decode_noise_scale)]

    def whole(self, x: Tensor, output_buffer: Any) -> None:
        plain = self.model.per_channel_statistics.un_normalize(x)
        self.part(plain, timestep=self.model.decode_timestep, output_buffer=output_buffer)

    def normed(self, x: Tensor) -> Tensor:
        embedded = self._embedded(self.part.last_time_embedder, x)
        table = self.part.last_scale_shift_table
        shift, scale = (table.to(x) + embedded.reshape(table.shape))[None, ..., None, None, None].unbind(1)
        return super().normed(x) * (1 + scale) + shift

    def condition(self, block: Any, x: Tensor) -> dict[str, Tensor]:
        if not hasattr(block, "time_embedder"):
            return {}
        return {"timestep": self._embedded(block.time_embedder, x).view(1, -1, 1, 1, 1)}

    def _embedded(self, embedder: Any, x: Tensor) -> Tensor:
        step = self.model.decode_timestep * self.part.timestep_scale_multiplier.to(x)
        sizes = {"resolution": None, "aspect_ratio": None}
        found: Tensor = embedder(timestep=step.flatten(), batch_size=1, hidden_dtype=x.dtype, **sizes)
        return found


class LTXEncode(LTXChunks):
    """One frame, then eight at a time, of 8 n + 1."""

    half = "encoder"

    def cut(self, frames: int) -> Borders:
        return by_step(FRAMES, 1 + (frames - 1) // 8 * 8)

    def frames_of(self, frames: int) -> int:
        return 1 + (frames - 1) // 8

    def through(self, x: Tensor, ended: bool) -> Sequence[Tensor]:
        part = self.part
        found: Tensor | None = self.own("patchify")(x, patch_size_hw=part.patch_size, patch_size_t=1)
        for block in (part.conv_in, *part.down_blocks):
            if found is None:
                return []
            held = [found]
            del found
            found = self.block(block, held, ended)
        if found is not None:
            found = self.block(part.conv_out, [part.conv_act(part.conv_norm_out(found))], ended)
        if found is None:
            return []
        return [self.model.per_channel_statistics.normalize(found[:, : part.latent_channels])]


def _remembering(part: Any) -> Iterator[Any]:
    return (layer for layer in part.modules() if hasattr(layer, STATE))


def _copied(block: Any) -> None:
    """What the layers of a block keep becomes theirs alone."""
    thread = threading.get_ident()
    for layer in _remembering(block):
        states = getattr(layer, STATE)
        state = states.get(thread)
        if isinstance(state, tuple):
            states[thread] = tuple(entry.clone() if isinstance(entry, Tensor) else entry for entry in state)
        elif isinstance(state, Tensor):
            states[thread] = state.clone()
