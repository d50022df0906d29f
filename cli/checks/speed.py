"""Seconds and bytes of a decode: untiled, by core's tiles, in strips."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from torch import Tensor

from ...host.core.device import GB
from ...host.vae.settings import VAESettings
from ...host.vae.wrapper import low_memory_vae
from .bench import Bench, said_bytes
from .clock import by_turns, medians
from .offload import ms
from .rows import Check, CheckOutcome, Found, held
from .vae import GeneratedCoding, taken

ROUNDS = 3
SHARE = 0.25  # of the seconds; no further round begins after them
CORE_TILE = 512  # pixels, the default of the host's node
NO_SLOWER = 1.1  # than core's tiles
UNTILED, TILES, STRIPS, LEAN = "untiled", "core's tiles", "strips", "strips, as little"


@dataclass
class Decodes:
    """The same decode in several ways."""

    bench: Bench

    @cached_property
    def coding(self) -> GeneratedCoding:
        return GeneratedCoding.decode(self.bench)

    @cached_property
    def tile(self) -> int:
        """Pixels: two and more a side."""
        return min(CORE_TILE, self.coding.side // 2)

    @cached_property
    def tiles_bytes(self) -> int:
        """What core's tiles take, weights included."""
        return self.taken(self.core)

    def core(self) -> Tensor:
        return core_tiled(self.bench.vae, self.coding.x, self.tile)

    def taken(self, work: Callable[[], object]) -> int:
        return taken(self.bench, self.bench.vae, work)

    @cached_property
    def ways(self) -> dict[str, Callable[[], Tensor]]:
        bench, coding = self.bench, self.coding
        return {
            UNTILED: partial(coding.run, bench.vae),
            TILES: self.core,
            STRIPS: partial(coding.run, low_memory_vae(bench.vae, VAESettings(method="exact"))),
            LEAN: self.as_little,
        }

    def as_little(self) -> Tensor:
        """In strips, within what core's tiles take."""
        budget = max(self.tiles_bytes, self.coding.least()) / GB
        return self.coding.run(low_memory_vae(self.bench.vae, VAESettings(method="exact", vram_budget_gb=budget)))

    @cached_property
    def seconds(self) -> dict[str, list[float]]:
        return self.by_turns(UNTILED, TILES, STRIPS)

    @cached_property
    def lean_seconds(self) -> dict[str, list[float]]:
        """By themselves: so little memory may take so long that time is up."""
        return self.by_turns(TILES, LEAN)

    def by_turns(self, *names: str) -> dict[str, list[float]]:
        self.bench.say(f"decodes by turns: {', '.join(names)}")
        end = min(self.bench.elapsed + SHARE * self.bench.seconds, self.bench.seconds)
        ways = {name: self.ways[name] for name in names}
        return by_turns(self.bench.clock, ways, ROUNDS, lambda: self.bench.elapsed > end)

    def row(self, name: str) -> Found:
        seconds = self.lean_seconds if name == LEAN else self.seconds
        median, runs = medians(self.seconds) | medians(seconds), len(seconds[name])
        numbers: dict[str, Any] = {"seconds": median[name], "runs": runs, "taken": self.taken(self.ways[name])}
        text = f"{ms(median[name])}, {said_bytes(numbers['taken'])}"
        if name == TILES:
            text += f", tiles of {self.tile} px"
        if name in (UNTILED, TILES):
            return CheckOutcome.SEEN, text, numbers
        beside = median[name] / median[TILES]
        text += f": {median[name] / median[UNTILED]:.2f}x untiled, {beside:.2f}x core's tiles; {said_runs(runs)}"
        return held(beside <= NO_SLOWER), text, numbers


def said_runs(count: int) -> str:
    return f"medians of {count}" if count > 1 else "one run"


def core_tiled(vae: Any, latent: Tensor, tile: int) -> Tensor:
    """By the host's own node."""
    node = importlib.import_module("nodes").VAEDecodeTiled()
    result: Tensor = node.decode(vae, {"samples": latent}, tile_size=tile, overlap=max(16, tile // 8))[0]
    return result


def checks(bench: Bench) -> Iterator[Check]:
    """A row per way."""
    decodes = Decodes(bench)
    for name in (UNTILED, TILES, STRIPS, LEAN):
        yield Check(name, partial(decodes.row, name))
