"""An encode or decode by the host's own module calls: in one piece, or in feathered tiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from torch import Tensor

from ...memory import Row
from ...memory.units import format_bytes
from ...vae import TilePlan, TileRequest, feathered, pixels_per_cell, plan_tiles
from ..core.compat import is_out_of_memory
from ..measure.runs import notice
from .geometry import Geometry
from .preview import Watch
from .room import Room, free_others, give_back

SMALLEST_TILE_PIXELS = 128


class TileCoder:
    """Encodes or decodes a batch in tiles of the size that was asked for, or that the host's estimate has room for.

    Args:
        geometry: the direction.
        room: on the VAE's device.
    """

    def __init__(self, geometry: Geometry, room: Room) -> None:
        self.geometry, self.room, self.vae = geometry, room, geometry.vae

    def run_whole(self, x: Tensor, whole: TilePlan, row: Row) -> Tensor | None:
        """A prepared input in one piece, once more without the host's other models if memory runs out.

        Returns:
            The gathered result; None where memory ran out again.
        """
        alone = False
        while True:
            try:
                return self._planned(x, whole)
            except Exception as error:  # anything but a failure to allocate goes on
                if not is_out_of_memory(error):
                    raise
            # Outside the handler: the exception held every tensor of the failed run.
            give_back()
            if alone or not free_others(self.vae.patcher):
                notice(row, "out of memory in one piece: tried in strips")
                return None
            alone = True
            notice(row, "out of memory in one piece: tried again without the other models on the device")

    def run(self, x: Tensor, row: Row) -> tuple[Tensor, TilePlan]:
        """A prepared input in tiles, smaller ones if memory runs out; the gathered result, and the tiles it is of."""
        least_tiles = 1
        while True:
            plan = self.plan(x, least_tiles)
            try:
                return self._planned(x, plan), plan
            except Exception as error:  # anything but a failure to allocate goes on
                if not is_out_of_memory(error) or self.plan(x, plan.tiles + 1).tiles == plan.tiles:
                    raise
            # Retried outside the handler: the exception held every tensor of the failed tile.
            least_tiles = plan.tiles + 1
            give_back()
            notice(row, f"out of memory with {plan.tiles} tiles: tried smaller ones")

    def _planned(self, x: Tensor, plan: TilePlan) -> Tensor:
        """All slices of the batch; asks the host for the memory of one tile."""
        geometry = self.geometry
        self.room.make(plan.bytes, whole=getattr(self.vae, "disable_offload", False))
        preview = geometry.watch(plan.tiles * geometry.slices(x))
        return geometry.by_slices(x, lambda part: self._slice(part, plan, preview))

    def _slice(self, x: Tensor, plan: TilePlan, preview: Watch) -> Tensor:
        geometry = self.geometry
        if plan.tiles == 1:
            out = geometry.tile(x)
            preview.on_tile(out)
            return out
        x = geometry.whole_cells(x)
        return feathered(x, geometry.tile, plan.axes, geometry.direction, geometry.settings.feather, preview.on_tile)

    # ---------------------------------------------------------------- which tiles

    def plan_whole(self, x: Tensor) -> TilePlan:
        """A prepared input in one piece, and whether that fits by the host's estimate."""
        requests = [replace(request, tile=request.length) for request in self._requests(self.geometry.cells(x))]
        return plan_tiles(requests, self._tile_bytes(x), self.room.for_work())

    def plan(self, x: Tensor, least_tiles: int = 1) -> TilePlan:
        """Tiles for a prepared input, at least ``least_tiles``: of the size asked for, unless memory ran out with it.

        Space is split before time, which is split only if the smallest tile over all frames does not fit.
        """
        budget, estimate = self.room.for_work(), self._tile_bytes(x)

        def plan_with(requests: Sequence[TileRequest]) -> TilePlan:
            return plan_tiles(requests, estimate, budget, least_tiles)

        lengths = self.geometry.cells(x)
        requests = self._requests(lengths)
        if least_tiles > 1:
            requests = [replace(request, tile=0) for request in requests]
        if len(requests) == 3 and not requests[0].tile:
            plan = plan_with([replace(requests[0], tile=lengths[0]), *requests[1:]])
            if plan.fits and plan.tiles >= least_tiles:
                return plan
        return plan_with(requests)

    def _tile_bytes(self, x: Tensor) -> Callable[[Sequence[int]], float]:
        """The host's estimate for the tiles of a slice of the batch."""
        geometry = self.geometry
        images = min(geometry.slice_step(x), x.shape[0])
        return lambda cells: images * geometry.estimate(geometry.tile_shape(x, cells), self.vae.vae_dtype)

    def _requests(self, lengths: Sequence[int]) -> list[TileRequest]:
        """What the settings ask of each axis, in cells."""
        wanted, spatial = self.geometry.settings, self.geometry.spatial
        overlap = math.ceil(wanted.overlap / spatial)
        tile = max(wanted.tile_size // spatial, overlap + 1) if wanted.tile_size else 0
        smallest = max(4, SMALLEST_TILE_PIXELS // spatial)
        pixels = pixels_per_cell(spatial)
        in_space = [TileRequest(length, tile, overlap, pixels, smallest) for length in lengths[-2:]]
        return ([self._request_in_time(lengths[0])] if len(lengths) == 3 else []) + in_space

    def _request_in_time(self, length: int) -> TileRequest:
        geometry, wanted = self.geometry, self.geometry.settings
        first = geometry.frames(1)
        per_cell = max(1, geometry.frames(2) - first)
        if any(geometry.frames(cells) != first + (cells - 1) * per_cell for cells in range(1, length + 1)):
            # MiniMax H3's tiny one gives frames of five cells together: a tile between them would give others.
            return TileRequest(length, 0, 0, geometry.frames, smallest=length)
        overlap = math.ceil(wanted.temporal_overlap / per_cell)
        size = wanted.temporal_size
        # As many cells as hold the frames that were asked for: the first cell is one frame, not per_cell.
        tile = max(math.ceil((size - first) / per_cell) + 1, overlap + 1) if size else 0
        return TileRequest(length, tile, overlap, geometry.frames, smallest=2, causal=geometry.causal)

    # ---------------------------------------------------------------- for the report

    def describe(self, plan: TilePlan) -> Iterator[str]:
        """What ran, against the budget."""
        what = "the whole" if plan.tiles == 1 else "one tile"
        yield (
            f"budget {format_bytes(self.room.budget())}, weights {format_bytes(self.room.weights())}, the host's"
            f" estimate for {what} {format_bytes(plan.bytes)}"
        )
        if plan.tiles == 1:
            yield "in one piece: the same result as the host's own, untiled"
        else:
            yield f"feathered (approximate): {self._describe_tiles(plan)}"

    def _describe_tiles(self, plan: TilePlan) -> str:
        """Their number and size, and what neighbours really share: even spacing may make it more than was asked."""
        feather = self.geometry.settings.feather
        size = " x ".join(str(axis.pixels(n)) for axis, n in zip(plan.axes, plan.tile_cells))
        parts = [f"{plan.tiles} tiles of {size} {'frames x px' if len(plan.axes) == 3 else 'px'}"]
        shared = [a.stop - b.start for axis in plan.axes[-2:] for a, b in pairwise(axis.cells)]
        if shared:
            parts.append(f"overlap {min(shared) * self.geometry.spatial} px, {feather}")
        if len(plan.axes) == 3 and len(plan.axes[0].cells) > 1:
            joined = "joined" if plan.axes[0].causal else feather
            parts.append(f"{len(plan.axes[0].cells)} in time, {joined}")
        return ", ".join(parts)
