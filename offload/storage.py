"""Storage formats of weights, as data."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Layout:
    """Values with scales, as model files of others spell and keep them.

    Attributes:
        algorithm: its name in a file's metadata, and in the tables of what reads it.
        largest: what the largest weight of a matrix is scaled to; None: the layout finds its scales by row or block.
        rotated: rows are multiplied by a Hadamard matrix first, which spreads outliers, and have a scale each.
        codebook: values stand for entries of a table, one for the matrix.
        columns: a row's length has to be a multiple of; other matrices are kept without scales.
    """

    algorithm: str
    largest: float | None = None
    rotated: bool = False
    codebook: bool = False
    columns: int = 1


@dataclass(frozen=True)
class Storage:
    """How a weight is kept between uses. Either ``plain`` or ``layout`` is set.

    Attributes:
        name: as the node spells it.
        bits: per weight, scales included, for a large matrix.
        weight_db: signal to noise of normally distributed weights, in dB; None where it depends on their size.
        plain: the torch dtype of a cast without scales.
        layout: of a cast with scales.
        needs: names of torch dtypes without which the format cannot be held.
        remark: what the node's tooltip says behind the signal to noise.
        planned: Make It Fit may choose it.
    """

    name: str
    bits: float
    weight_db: float | None
    plain: str | None = None
    layout: Layout | None = None
    needs: tuple[str, ...] = ("float8_e4m3fn",)
    remark: str = ""
    planned: bool = False

    @property
    def scaled(self) -> bool:
        """Whether weights have scales: whether there is a layout."""
        return self.layout is not None

    @property
    def packed(self) -> bool:
        """Whether several weights share a byte, so that a stored matrix has another shape."""
        return self.bits < 8

    @property
    def plain_dtype(self) -> torch.dtype:
        """Of the plain formats.

        Raises:
            ValueError: a format with scales.
        """
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


E4M3_MAX, E2M1_MAX = 448.0, 6.0
E4M3 = "float8_e4m3fn"
# In the order of the node's combo. Whoever casts, compares, plans or explains takes what it needs from here.
STORAGES = {
    storage.name: storage
    for storage in (
        Storage("float8_e4m3fn_scaled", 8, 31.5, layout=Layout(E4M3, largest=E4M3_MAX), planned=True),
        Storage(
            "int8_convrot", 8, 42.0, layout=Layout("int8_tensorwise", rotated=True), remark="in the same 8 bits",
            planned=True,
        ),
        Storage("mxfp8", 8.25, 31.5, layout=Layout("mxfp8"), needs=(E4M3, "float8_e8m0fnu")),
        Storage(  # a scale of float8_e4m3fn times a weight of float4
            "nvfp4", 4.5, 20.0, layout=Layout("nvfp4", largest=E4M3_MAX * E2M1_MAX), remark="in 4.5 bits (lossy)",
            planned=True,
        ),
        Storage("float8_e4m3fn_unscaled", 8, None, plain=E4M3),
        Storage("float8_e5m2_unscaled", 8, 25.5, plain="float8_e5m2", needs=("float8_e5m2",)),
        Storage("bfloat16", 16, 55.0, plain="bfloat16", needs=()),
        Storage("float16", 16, 73.0, plain="float16", needs=()),
        Storage(
            "asym_w4a8_int8", 4.5, 22.5, layout=Layout("asym_w4a8_int8", rotated=True, codebook=True, columns=16),
            remark="in 4.5 bits, from ComfyUI 0.33 on (lossy)",
        ),
    )
}  # fmt: skip


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
