"""What an encode or decode would take, by whatever method the VAE or the node before it uses, without data."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import comfy.utils
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from ...memory import Row
from ...memory.prediction import (
    DOCUMENTED,
    CannotPredict,
    Card,
    LiveBytes,
    Prediction,
    Workspaces,
    fake_copy,
    fake_mode,
    fake_tensor,
    name_modules,
    predict,
    repeated,
)
from ...memory.speed.kernels import flops_of, scaled
from ...vae import TilePlan
from ...vae.exact.planning.remembered import share_plans
from ..core.internals import find
from ..measure.calibrated import as_planned, workspaces_for
from ..vae.coding import Coder
from ..vae.directions import Decode, Encode
from ..vae.wrapper import PLANNED_BY_WORKERS, LowMemoryVAE, works_in_less
from ..video.along import hand_on, is_chunked
from .host_answers import answering, attending, card_answers, corner, free_memory_answer, one_of_each_tile

VOLUME = "geo_decoder"  # of an autoencoder of shapes, which asks it about a few thousand points at a time
FEW = FRAMES = 3  # calls of it that are followed; frames of a video's latent that are, for the kernels of all


@dataclass(frozen=True)
class Coding:
    """An encode or decode to predict.

    Attributes:
        vae: the VAE; a low-memory one by its settings.
        x: latents (B, C, [T,] h, w) to decode, or pixels (B, H, W, C) to encode (``encodes``).
        tiles: how the host's tiled nodes call the VAE; None: untiled.
        follow: the strips that matter, if few, are followed to the byte; else their plan stands, which is a bound.
        file_budget_gb, file_format: of the node that decodes it straight to a file, or encodes it straight from one, 0
            = the whole card; None: by none.
        options: of an autoencoder's own, which the host hands on to its decode.
    """

    vae: Any
    x: Tensor
    encodes: bool = False
    tiles: dict[str, Any] | None = None
    follow: bool = False
    file_budget_gb: float | None = None
    file_format: str = ""
    options: dict[str, Any] | None = None

    @property
    def work(self) -> str:
        """As a row of the run log names it."""
        return "encode" if self.encodes else "decode"


@dataclass(frozen=True)
class CodingPrediction:
    """A prediction, and the method."""

    prediction: Prediction
    method: str


def predict_coding(coding: Coding, card: Card, workspaces: Workspaces = DOCUMENTED) -> CodingPrediction:
    """Predicts an encode or decode.

    Raises:
        CannotPredict: the autoencoder looks at its data.
        ValueError: a budget that is too small, from the VAE's own settings.
    """
    mode = fake_mode()
    with answering(card_answers(card)):
        stand_in = _StandIn.of(coding.vae, mode, card, workspaces)
        with mode:
            x = fake_tensor(coding.x, stand_in.vae.output_device)
            way = stand_in.work(coding, x)
        weights = [*stand_in.vae.first_stage_model.parameters(), *stand_in.vae.first_stage_model.buffers()]
        planned, run = way.planned, way.run
        held = workspaces if planned is None else as_planned(workspaces, stand_in.vae.vae_dtype)
        with attending(card):
            found = predict(mode, card, weights, run, held, given=x)
            if way.whole is not None:
                work = predict(mode, card, weights, way.whole, given=x).work
                again = max(1.0, planned.flops / max(1, flops_of(work))) if planned is not None else 1.0
                found = replace(found, work=scaled(work, again))
    if planned is not None and not planned.seen_by(found):
        peak = planned.peak
        found = replace(
            found, activations=peak, live=peak, operator="strips, as planned", module="", timeline=(peak,),
            bound=True,
        )  # fmt: skip
    return CodingPrediction(found, way.method)


def predict_work(vae: Any, x: Tensor, card: Card, work: Callable[[Any, Tensor], Any]) -> Prediction:
    """Predicts any other work with a VAE, also while a work is followed, which does not see it.

    Args:
        x: what it takes, as it lies on the card.
        work: (module without data, x without data); what it returns counts until it is done.

    Raises:
        CannotPredict: the autoencoder looks at its data.
    """
    mode, workspaces = fake_mode(), workspaces_for(card)
    with _disable_current_modes(), answering(card_answers(card)):
        stand_in = _StandIn.of(vae, mode, card, workspaces)
        module = stand_in.vae.first_stage_model
        with mode:
            x = fake_tensor(x, card.device).to(vae.vae_dtype)
        weights = [*module.parameters(), *module.buffers()]
        return predict(mode, card, weights, stand_in.followed(lambda: work(module, x)), workspaces, given=x)


@dataclass
class _StandIn:
    """A copy of a VAE without data."""

    vae: Any
    card: Card
    workspaces: Workspaces
    running: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, vae: Any, mode: FakeTensorMode, card: Card, workspaces: Workspaces) -> _StandIn:
        copied = copy.copy(vae)
        copied.first_stage_model = fake_copy(vae.first_stage_model, mode, card.device)
        share_plans(copied.first_stage_model, vae.first_stage_model)
        if card.device != vae.device:
            for part in copied.first_stage_model.modules():
                if hasattr(part, "optimized_attention"):
                    part.optimized_attention = find("comfy.ldm.modules.diffusionmodules.model:vae_attention")()
        for path, patch in vae.patcher.object_patches.items():
            comfy.utils.set_attr(copied.first_stage_model, path, patch)
        copied.patcher = vae.patcher.clone()
        copied.patcher.model = copied.first_stage_model
        copied.device = copied.patcher.load_device = card.device
        if isinstance(copied, LowMemoryVAE):  # a file would be a true one, with data
            copied.headroom_settings = replace(copied.headroom_settings, frames_on_disk=False)
        stand_in = cls(copied, card, workspaces)
        name_modules(copied.first_stage_model, stand_in.running)
        if (volume := getattr(copied.first_stage_model, VOLUME, None)) is not None:
            volume.forward = _a_few_of(volume.forward)
        return stand_in

    def work(self, coding: Coding, x: Tensor) -> _Way:
        """How it would be done, the work to follow, and what is planned already."""
        if not works_in_less(self.vae):
            if coding.tiles is None:
                options = {} if coding.options is None else {"vae_options": coding.options}
                return _Way("in one piece", self._call(coding.work, x, **options))
            return _Way(f"core's tiles, {coding.tiles}", self._call(f"{coding.work}_tiled", x, **coding.tiles))
        coder = Coder(Encode(self.vae) if coding.encodes else Decode(self.vae, {}), self.workspaces)
        foretold = _Foretold(coder, self.followed, coding.follow, coding.file_budget_gb is not None)
        return coder.by_method(coder.geometry.prepare(x), Row(coding.work), foretold)

    def _call(self, name: str, x: Tensor, **options: Any) -> Callable[[LiveBytes], Any]:
        return self.followed(lambda: getattr(self.vae, name)(x, **options))

    def followed(self, call: Callable[[], Any]) -> Callable[[LiveBytes], Any]:
        """A call of the stand-in as a function of the tracker that follows it."""

        def run(tracker: LiveBytes) -> Any:
            tracker.modules = self.running
            free = free_memory_answer(self.card, tracker)
            self.vae.patcher.get_free_memory = free
            with answering({"get_free_memory": free}), one_of_each_tile():
                return call()

        return run


@dataclass
class _Planned:
    """Strips as planned: bytes that they stay within, the highest planned peak of the passes that were not followed
    (None: none was), and operations of all slices (0: of chunks, which compute little again)."""

    peak: int
    left: int | None = None
    flops: float = 0.0

    def seen_by(self, found: Prediction) -> bool:
        """Whether what was followed holds the peak."""
        return self.left is not None and found.live >= self.left


@dataclass(frozen=True)
class _Way:
    """How an encode or decode would be done: the work to follow, what is planned already, and, where ``run`` is not all
    of it, other work that has the same kernels (``whole``)."""

    method: str
    run: Callable[[LiveBytes], Any]
    planned: _Planned | None = None
    whole: Callable[[LiveBytes], Any] | None = None


@dataclass(frozen=True)
class _Foretold:
    """The ways of a low-memory VAE without data, of which ``followed`` makes functions of the tracker; ``to_file``:
    frames are handed on, in the host's chunks where it has some."""

    coder: Coder
    followed: Callable[[Callable[[], Any]], Callable[[LiveBytes], Any]]
    follow: bool
    to_file: bool = False

    def in_one_piece(self, x: Tensor, whole: TilePlan, row: Row) -> _Way:
        """The module itself on the first slice."""
        return _Way("in one piece", self.followed(lambda: self._slices(x)))

    def _slices(self, x: Tensor) -> Tensor:
        """The first slice, whose kernels count for all."""
        geometry = self.coder.geometry
        with repeated(geometry.slices(x)):
            return geometry.tile(x[: geometry.slice_step(x)])

    def _few_frames(self, x: Tensor) -> None:
        """The module itself on a video's first frames: strips have the same kernels, as often as there are frames."""
        geometry = self.coder.geometry
        first = x[: geometry.slice_step(x)]
        few = first[:, :, :FRAMES] if first.ndim == 5 else first
        with repeated(geometry.slices(x) * geometry.output_bytes(first) / geometry.output_bytes(few)):
            geometry.tile(few)

    def in_strips(self, x: Tensor, row: Row) -> _Way:
        """The plan for the first slice, and where that is asked for and tells more, the passes that matter."""
        geometry, strips = self.coder.geometry, self.coder.strips
        if geometry.settings.workers:
            raise CannotPredict(PLANNED_BY_WORKERS)
        first = x[: geometry.slice_step(x)]
        exact, whole = strips.exact_pass(x, row), self.followed(lambda: self._few_frames(x))
        if self.to_file and exact.chunks is not None:
            exact.along, exact.hold, exact.handed_on = "chunks", geometry.hold, True
            peak = exact.plan(lambda run: hand_on(run, geometry.vae, x, geometry.direction))
            return _Way("exact, in strips", lambda tracker: None, _Planned(peak), whole)
        planned = _Planned(exact.plan(lambda run: geometry.recorded(run, first)) + strips.gathered_bytes(x))
        planned.flops = 0.0 if is_chunked(exact.along) else exact.flops * geometry.slices(x)
        # A narrower store looks at its data; beside several slices there is what they gather.
        if not self.follow or exact.store is not None or first.shape[0] < x.shape[0]:
            return _Way("exact, in strips", lambda tracker: None, planned, whole)

        def passes() -> None:
            planned.left = exact.follow(lambda run: geometry.recorded(run, first))

        return _Way("exact, in strips", self.followed(passes), planned, whole)

    def in_tiles(self, x: Tensor, row: Row) -> _Way:
        """The largest tile of the first slice, beside the picture that tiles are blended into."""
        geometry, plan = self.coder.geometry, self.coder.tiles.plan(x)
        first = x[: geometry.slice_step(x)]
        if plan.tiles == 1:
            return _Way("feathered, 1 tiles", self.followed(lambda: self._slices(x)))
        part = corner(first, geometry.tile_shape(first, plan.tile_cells)[2:])

        def one_tile() -> Any:
            picture = torch.empty(geometry.output_bytes(x) // 4, device=geometry.vae.output_device)  # blended into
            with repeated(geometry.slices(x) * plan.tiles):
                return picture, geometry.tile(part)

        return _Way(f"feathered, {plan.tiles} tiles", self.followed(one_tile))


def _a_few_of(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A decoder of points that computes the first calls, and only makes room for the results of all others."""
    first, again = list[Tensor](), list[Callable[[], None]]()

    def decoded(*args: Any, queries: Tensor, **kwargs: Any) -> Tensor:
        if len(first) < FEW:
            with repeated() as once_more:
                first.append(forward(*args, queries=queries, **kwargs))
            again.append(once_more)
            return first[-1]
        again[-1]()
        shape = (*queries.shape[:2], *first[0].shape[2:])
        return torch.empty(shape, dtype=first[0].dtype, device=first[0].device)

    return decoded
