"""Quantisation noise of whole weights."""

from __future__ import annotations

from torch import Tensor

from headroom.offload import NoiseMeter


def sqnr_db(exact: Tensor, stored: Tensor) -> float:
    """:attr:`NoiseMeter.db` of a whole weight beside what is stored of it, of the same shape."""
    meter = NoiseMeter()
    meter.add(exact, stored)
    return meter.db
