"""What the VAE nodes ask for."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

METHOD_CHOICES = ("auto", "exact", "feathered")
STORE_CHOICES = ("same", "float16")


@dataclass(frozen=True)
class VAESettings:
    """What the VAE nodes ask for. Sizes are in pixels and frames of the picture; 0 leaves a choice to the budget.

    Attributes:
        method: auto = in one piece if that fits, else exact in strips; exact = in strips; feathered = in tiles.
        vram_budget_gb: what the weights and the work may need; 0 = the device's total minus the host's reserve.
        tile_size: height of a strip, side of a feathered tile.
        overlap: shared by neighbouring feathered tiles, at least.
        feather: cosine, linear or gaussian.
        temporal_size: frames of a feathered tile; 0 = all, unless even the smallest tile does not fit.
        temporal_overlap: frames shared by neighbouring feathered tiles in time.
        batch_slice: images computed together; 0 = one.
        store: dtype of the maps that strips leave for later; same, or float16 (near-exact).
        frames_on_disk: the decoded picture lies in a file of the host's temp folder instead of in memory.
        workers: who computes bands of it, by the name that the server's owner gave them, or this machine's devices;
            empty = the VAE's device alone.
        budget_name: what people set the budget by, for sentences.
    """

    method: str = "auto"
    vram_budget_gb: float = 0.0
    tile_size: int = 0
    overlap: int = 64
    feather: str = "cosine"
    temporal_size: int = 0
    temporal_overlap: int = 16
    batch_slice: int = 0
    store: str = "same"
    frames_on_disk: bool = False
    workers: str = ""
    budget_name: str = field(default="vram_budget_gb", compare=False)

    def check(self) -> None:
        """Raises ValueError, with the input to change, for settings that contradict each other."""
        if self.method != "feathered":
            return
        if self.workers:
            raise ValueError(
                "workers: feathered tiles stay on one device; set method to auto or exact, or empty workers"
            )
        for size, overlap, name, shared in (
            (self.tile_size, self.overlap, "tile_size", "overlap"),
            (self.temporal_size, self.temporal_overlap, "temporal_size", "temporal_overlap"),
        ):
            if size and overlap >= size:
                raise ValueError(
                    f"{shared} ({overlap}) must be smaller than {name} ({size}): lower {shared} or raise {name}"
                )

    def explicit(self) -> dict[str, Any]:
        """What is not left at its default."""
        values = ((one.name, getattr(self, one.name), one.default) for one in fields(self) if one.compare)
        return {name: value for name, value, default in values if value != default}
