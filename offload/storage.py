"""Storage formats of weights, as data."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Storage:
    """How a weight is kept between uses.

    Attributes:
        name: as the node spells it.
        bits: per weight, scales included, for a large matrix.
        plain: the torch dtype of a cast without scales; None for the scaled formats.
        needs: names of torch dtypes without which the format cannot be held.
        about: what to expect of it, for tooltips and reports.
    """

    name: str
    bits: float
    plain: str | None
    needs: tuple[str, ...]
    about: str

    @property
    def scaled(self) -> bool:
        return self.plain is None

    @property
    def packed(self) -> bool:
        """Whether several weights share a byte, so that a stored matrix has another shape."""
        return self.bits < 8

    @property
    def plain_dtype(self) -> torch.dtype:
        """Of the plain formats."""
        if self.plain is None:
            raise ValueError(f"{self.name} has scales")
        dtype: torch.dtype = getattr(torch, self.plain)
        return dtype

    @property
    def plain_dtypes(self) -> tuple[torch.dtype, ...]:
        """What a layer that cannot have scales is kept in, whichever is nearer: the host has no scaled convolutions.

        Below a standard deviation of 0.01, e5m2 with its wider range is nearer than e4m3 with its finer steps.
        """
        return (self.plain_dtype,) if self.plain else (torch.float8_e4m3fn, torch.float8_e5m2)


STORAGES = {
    storage.name: storage
    for storage in (
        Storage("float8_e4m3fn_scaled", 8, None, ("float8_e4m3fn",), "8 bits, one scale per tensor: 31.5 dB"),
        Storage("int8_convrot", 8, None, ("float8_e4m3fn",), "8 bits, one scale per row, rotated: 42 dB"),
        Storage("mxfp8", 8.25, None, ("float8_e4m3fn", "float8_e8m0fnu"), "8 bits, one scale per 32 weights: 31.5 dB"),
        Storage("nvfp4", 4.5, None, ("float8_e4m3fn",), "4 bits, lossy, one scale per 16 weights: 20 dB"),
        Storage(
            "float8_e4m3fn_unscaled", 8, "float8_e4m3fn", ("float8_e4m3fn",), "8 bits without a scale: 11 to 31 dB"
        ),
        Storage("float8_e5m2_unscaled", 8, "float8_e5m2", ("float8_e5m2",), "8 bits without a scale: 25.5 dB"),
        Storage("bfloat16", 16, "bfloat16", (), "16 bits, the range of float32"),
        Storage("float16", 16, "float16", (), "16 bits, more digits than bfloat16 and less range"),
    )
}


def missing_in_torch(storage: Storage) -> str | None:
    """Why this torch build cannot hold a format, and what to do about it; None if it can."""
    missing = [name for name in storage.needs if not hasattr(torch, name)]
    if not missing:
        return None
    return (
        f"storage: {storage.name} needs torch.{missing[0]}, which torch {torch.__version__} lacks; choose"
        f" {_alternative(storage)}, or update torch"
    )


def _alternative(storage: Storage) -> str:
    """The first other format that this torch build can hold."""
    return next(
        other.name
        for other in STORAGES.values()
        if other is not storage and all(hasattr(torch, name) for name in other.needs)
    )
