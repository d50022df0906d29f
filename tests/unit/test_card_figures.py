"""From what drivers tell of cards to the figures that their makers document."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headroom.memory import blocks
from headroom.vae.exact.planning.card import LINK_STEP, figures_of, link_step, told
from headroom.vae.exact.planning.device import ACCELERATOR, CPU
from headroom.vae.exact.planning.workspace import BY_RULE, ConvolutionWorkspace
from headroom.vae.exact.running import allocator


def test_one_allocator_in_two_engines() -> None:
    """Engines do not import each other, and so each has its own constants of torch's allocator."""
    assert (allocator.GRAIN, allocator.CUT_FROM, allocator.EVEN_BYTES) == (blocks.GRAIN, blocks.SMALL, blocks.ALONE)


def properties(version: tuple[int, int], parts: int, mhz: int, memory_mhz: int, width: int, name: str = "") -> Any:
    """As torch gives them: clocks in kHz."""
    major, minor = version
    return SimpleNamespace(
        major=major, minor=minor, multi_processor_count=parts, clock_rate=mhz * 1000,
        memory_clock_rate=memory_mhz * 1000, memory_bus_width=width, gcnArchName=name,
    )  # fmt: skip


# Boost clocks and memory as drivers tell them; TFLOP/s and GB/s of the makers' data sheets.
NVIDIA = {
    "GTX 1080": ((6, 1), 20, 1733, 5005, 256, 8.87, 320),
    "T4": ((7, 5), 40, 1590, 5001, 256, 8.1, 320),
    "RTX 3060": ((8, 6), 28, 1777, 7501, 192, 12.7, 360),
    "RTX 4090": ((8, 9), 128, 2520, 10501, 384, 82.6, 1008),
    "A100": ((8, 0), 108, 1410, 1215, 5120, 19.5, 1555),
    "RTX 5090": ((12, 0), 170, 2407, 14001, 512, 104.8, 1792),
}


@pytest.mark.parametrize("name", NVIDIA)
def test_nvidia(name: str) -> None:
    *asked, tflops, gigabytes = NVIDIA[name]
    figures = told(properties(*asked))  # type: ignore[arg-type]
    assert figures.flops == pytest.approx(tflops * 1e12, rel=0.02)
    assert figures.bandwidth == pytest.approx(gigabytes * 1e9, rel=0.02)


def test_turing_has_no_bfloat16_and_fast_float16() -> None:
    figures = told(properties((7, 5), 40, 1590, 5001, 256))
    assert (figures.half, figures.bfloat) == (8.0, 1.0)
    ampere = told(properties((8, 6), 28, 1777, 7501, 192))
    assert (ampere.half, ampere.bfloat) == (2.0, 2.0)


def test_amd() -> None:
    """HIP counts pairs of compute units, and tells the command clock of the memory."""
    figures = told(properties((11, 0), 48, 2498, 1249, 384, "gfx1100"), amd=True)
    assert figures.flops == pytest.approx(61.4e12, rel=0.01)
    assert figures.bandwidth == pytest.approx(960e9, rel=0.01)


@pytest.mark.parametrize("missing", ["clock_rate", "memory_clock_rate", "memory_bus_width", "multi_processor_count"])
@pytest.mark.parametrize("value", [0, None])
def test_without_one_of_them_all_are_the_usual(missing: str, value: int | None) -> None:
    given = properties((8, 9), 128, 2520, 10501, 384)
    setattr(given, missing, value)
    assert told(given) == ACCELERATOR
    delattr(given, missing)
    assert told(given) == ACCELERATOR


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps", "meta"])
def test_a_plan_for_a_device_that_is_not_here(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(torch, kind):
        monkeypatch.setattr(getattr(torch, kind), "is_available", lambda: False)
    assert replace(figures_of(torch.device(kind)), workspace=None) == ACCELERATOR


@pytest.mark.parametrize("kind", ["cpu", "cuda", "xpu", "mps", "meta"])
def test_what_convolutions_hold_is_known_of_cuda_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(torch, kind):
        monkeypatch.setattr(getattr(torch, kind), "is_available", lambda: False)
    device, measured = torch.device(kind), ConvolutionWorkspace(0.0, 0.0)
    assert figures_of(device).workspace == (BY_RULE if kind == "cuda" else None)
    assert figures_of(device, workspace=measured).workspace == (measured if kind == "cuda" else None)


def test_a_device_that_tells_nothing() -> None:
    """Intel's and others' have no clocks, or none by these names."""
    assert told(None) == ACCELERATOR
    assert figures_of(torch.device("meta")) == ACCELERATOR
    assert figures_of(torch.device("meta"), 12e9).link == pytest.approx(12.6e9)
    assert figures_of(torch.device("cpu"), 12e9) == CPU


@pytest.mark.parametrize(
    ("measured", "step"), [(13.1e9, 12.6e9), (12.2e9, 12.6e9), (24.3e9, 25.2e9), (55e9, 50.4e9), (0.1e9, LINK_STEP)]
)
def test_links_have_steps(measured: float, step: float) -> None:
    """Two measurements a few per cent apart make the same plan."""
    assert link_step(measured) == pytest.approx(step)
