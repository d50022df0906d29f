"""What an encode or decode would take, by whatever method the VAE or the node before it uses, without data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import comfy.utils
import torch
from comfy.ldm.modules.diffusionmodules.model import vae_attention
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from ...memory import Row
from ...memory.prediction import (
    DOCUMENTED,
    Card,
    LiveBytes,
    Prediction,
    Workspaces,
    fake_copy,
    fake_mode,
    fake_tensor,
    name_modules,
    predict,
)
from ...vae.exact import DoesNotFit
from ..vae.coding import Decode, Encode, VAEPass
from ..vae.strips import NotExact
from ..vae.wrapper import LowMemoryVAE, is_tileable
from .host_answers import answering, card_answers, free_memory_answer, replaced


@dataclass(frozen=True)
class Coding:
    """An encode or decode to predict.

    Attributes:
        vae: the VAE; a low-memory one by its settings.
        x: latents (B, C, [T,] h, w) to decode, or pixels (B, H, W, C) to encode.
        encodes: which of the two.
        tiles: how the host's tiled nodes call the VAE; None: untiled.
        follow: strips are followed to the byte where those that matter are few, in about a second; else their plan
            stands, which is a bound.
    """

    vae: Any
    x: Tensor
    encodes: bool = False
    tiles: dict[str, Any] | None = None
    follow: bool = False

    @property
    def work(self) -> str:
        return "encode" if self.encodes else "decode"


@dataclass(frozen=True)
class CodingPrediction:
    """A prediction, and by what method the work would be done."""

    prediction: Prediction
    method: str


def predict_coding(coding: Coding, card: Card, workspaces: Workspaces = DOCUMENTED) -> CodingPrediction:
    """Predicts an encode or decode.

    Raises:
        CannotPredict: the autoencoder looks at its data.
        ValueError: a budget that is too small, from the VAE's own settings.
    """
    mode = fake_mode()
    with answering({**card_answers(card), "load_models_gpu": lambda *_, **__: None}):
        stand_in = _StandIn.of(coding.vae, mode, card)
        with mode:
            x = fake_tensor(coding.x, stand_in.vae.output_device)
            method, run, planned = stand_in.work(coding, x)
        weights = [*stand_in.vae.first_stage_model.parameters(), *stand_in.vae.first_stage_model.buffers()]
        found = predict(mode, card, weights, run, workspaces, given=x)
    if planned is not None and not planned.seen_by(found):
        peak = planned.peak
        found = replace(
            found, activations=peak, live=peak, operator="strips, as planned", module="", timeline=(peak,),
            bound=True,
        )  # fmt: skip
    return CodingPrediction(found, method)


@dataclass
class _StandIn:
    """A copy of a VAE without data."""

    vae: Any
    card: Card
    running: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, vae: Any, mode: FakeTensorMode, card: Card) -> _StandIn:
        copied = copy.copy(vae)
        copied.first_stage_model = fake_copy(vae.first_stage_model, mode, card.device)
        if card.device != vae.device:
            for part in copied.first_stage_model.modules():
                if hasattr(part, "optimized_attention"):
                    part.optimized_attention = vae_attention()
        for path, patch in vae.patcher.object_patches.items():
            comfy.utils.set_attr(copied.first_stage_model, path, patch)
        copied.patcher = vae.patcher.clone()
        copied.patcher.model = copied.first_stage_model
        copied.device = copied.patcher.load_device = card.device
        stand_in = cls(copied, card)
        name_modules(copied.first_stage_model, stand_in.running)
        return stand_in

    def work(self, coding: Coding, x: Tensor) -> Way:
        """How it would be done, the work to follow, and what is planned already."""
        if not isinstance(self.vae, LowMemoryVAE) or not is_tileable(self.vae):
            if coding.tiles is None:
                return "in one piece", self._call(coding.work, x), None
            return f"core's tiles, {coding.tiles}", self._call(f"{coding.work}_tiled", x, **coding.tiles), None
        work: VAEPass = Encode(self.vae) if coding.encodes else Decode(self.vae, {})
        x = work.prepare(x)
        return self._by_method(work, x, coding.follow)

    def _by_method(self, work: VAEPass, x: Tensor, follow: bool) -> Way:
        """The choice of :meth:`VAEPass.by_method`, made beforehand."""
        method, first = work.settings.method, x[: work.slice_step(x)]
        if method == "auto" and work.plan_whole(x).fits:
            return "in one piece", self._run(lambda: work.tile(first)), None
        row = Row(work.direction.value)
        if method != "feathered":
            try:
                exact = work.exact_pass(x, row)
                planned = _Planned(exact.plan(lambda run: work.recorded(run, first)) + work.gathered_bytes(x))
                if not follow or exact.store is not None or first.shape[0] < x.shape[0]:  # a store looks at its data
                    return "exact, in strips", lambda tracker: None, planned

                def followed() -> None:
                    planned.left = exact.follow(lambda run: work.recorded(run, first))

                return "exact, in strips", self._run(followed), planned
            except NotExact as error:
                work.may_feather_unrecorded(row, error)
            except DoesNotFit as error:
                work.may_feather(x, row, error)
        tiles = work.plan(x)
        if tiles.tiles == 1:
            return "feathered, 1 tiles", self._run(lambda: work.tile(first)), None
        corner = _corner(first, work.tile_shape(first, tiles.tile_cells)[2:])
        return f"feathered, {tiles.tiles} tiles", self._run(lambda: (_blended(work, x), work.tile(corner))), None

    def _call(self, name: str, x: Tensor, **options: Any) -> Callable[[LiveBytes], Any]:
        return self._run(lambda: getattr(self.vae, name)(x, **options))

    def _run(self, call: Callable[[], Any]) -> Callable[[LiveBytes], Any]:
        def run(tracker: LiveBytes) -> Any:
            tracker.modules = self.running
            free = free_memory_answer(self.card, tracker)
            self.vae.patcher.get_free_memory = free
            with answering({"get_free_memory": free}), _one_of_each_tile():
                return call()

        return run


@dataclass
class _Planned:
    """Strips as planned.

    Attributes:
        peak: bytes that they stay within.
        left: the highest planned peak of the passes that were not followed; None: none was.
    """

    peak: int
    left: int | None = None

    def seen_by(self, found: Prediction) -> bool:
        """Whether what was followed holds the peak."""
        return self.left is not None and found.live >= self.left


Way = tuple[str, Callable[[LiveBytes], Any], _Planned | None]


def _corner(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """The first of each dim behind the channels."""
    for dim, size in enumerate(sizes):
        x = x.narrow(dim + 2, 0, size)
    return x


def _blended(work: VAEPass, x: Tensor) -> Tensor:
    """The picture that tiles are blended into."""
    return torch.empty(work.output_bytes(x) // 4, device=work.vae.output_device)


@contextmanager
def _one_of_each_tile() -> Iterator[None]:
    """Within it, the host's tiling computes one tile of each shape, beside what it gathers them in."""
    with replaced(comfy.utils, "tiled_scale_multidim", _tiled):
        yield


def _tiled(
    samples: Tensor,
    function: Callable[[Tensor], Tensor],
    tile: Sequence[int] = (64, 64),
    overlap: Any = 8,
    upscale_amount: Any = 4,
    out_channels: int = 3,
    output_device: Any = "cpu",
    downscale: bool = False,
    index_formulas: Any = None,
    pbar: Any = None,
) -> Tensor:
    """In the place of the host's ``tiled_scale_multidim``, with its arguments."""
    sizes = [min(length, side) for length, side in zip(samples.shape[2:], tile)]
    scales = upscale_amount if isinstance(upscale_amount, (tuple, list)) else [upscale_amount] * len(sizes)
    lengths = [_scaled(length, scale, downscale) for length, scale in zip(samples.shape[2:], scales)]
    result = torch.empty((samples.shape[0], out_channels, *lengths), device=output_device)
    part = _corner(samples[:1], sizes)
    if part.shape[2:] == samples.shape[2:]:
        function(part).to(output_device)
        return result
    shares = torch.empty((1, 1, *lengths), device=output_device)
    done = function(part).to(output_device)
    mask = torch.empty((1, 1, *done.shape[2:]), device=output_device)
    _ = done * mask
    del shares
    return result


def _scaled(length: int, scale: Any, downscale: bool) -> int:
    if callable(scale):
        return int(scale(length))
    return round(length / scale) if downscale and scale > 1 else round(length * scale)
