"""Devices that torch's module for them lets do more or less; what stands in for such a module is made here."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from headroom.memory import PeakMeter
from headroom.memory.accelerator import (
    allocated_bytes,
    allocator_statistics,
    counts_peaks,
    device_name,
    has_own_memory,
    host_bytes,
    is_here,
    peak_bytes,
    seconds_of,
)
from headroom.memory.prediction.card import Card, named_card
from headroom.memory.units import format_gb

GB = 2**30
CPU, MPS, XPU = map(torch.device, ("cpu", "mps", "xpu"))
Make = Callable[..., list[int]]


@pytest.fixture
def xpu(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Gives torch another module for Intel's GPUs, with these functions; the list holds what is allocated, then the
    most that was."""

    def make(*names: str) -> list[int]:
        counted = [100, 100]
        functions = {
            "get_device_name": lambda device: "Arc B580",
            "memory_allocated": lambda device: counted[0],
            "max_memory_allocated": lambda device: counted[1],
            "reset_peak_memory_stats": lambda device: counted.__setitem__(1, counted[0]),
            "memory_stats": lambda device: {"num_ooms": 0},
            "is_available": lambda: True,
        }
        monkeypatch.setattr(torch, "xpu", SimpleNamespace(**{name: functions[name] for name in names}))
        return counted

    return make


PEAKS = ("get_device_name", "memory_allocated", "max_memory_allocated", "reset_peak_memory_stats", "memory_stats")


class TestMeter:
    def test_an_allocator_that_keeps_its_peak_is_asked(self, xpu: Make) -> None:
        counted = xpu(*PEAKS)
        counted[1] = 900
        with PeakMeter(XPU) as meter:
            counted[:] = [300, 700]
        assert meter.peak is not None
        assert (meter.peak.before, meter.peak.highest, meter.peak.source) == (100, 700, "allocated on Arc B580")

    def test_a_lap_starts_the_allocators_peaks_anew_and_loses_none(self, xpu: Make) -> None:
        counted = xpu(*PEAKS)
        with PeakMeter(XPU) as meter:
            counted[:] = [300, 700]
            meter.lap()
            assert peak_bytes(XPU) == 300
            counted[:] = [200, 400]
        assert meter.peak is not None
        assert (meter.peak.before, meter.peak.highest) == (100, 700)

    def test_one_within_another_loses_it_nothing(self, xpu: Make) -> None:
        """A VAE codes a ControlNet's picture in the middle of a sampling."""
        counted = xpu(*PEAKS)
        with PeakMeter(XPU) as outer:
            counted[:] = [200, 900]
            with PeakMeter(XPU) as inner:
                counted[:] = [300, 700]
                inner.lap()
            counted[:] = [200, 400]
        assert outer.peak is not None
        assert inner.peak is not None
        assert (outer.peak.highest, inner.peak.highest) == (900, 700)

    def test_one_that_says_only_what_is_allocated_is_sampled(self, xpu: Make) -> None:
        counted = xpu("get_device_name", "memory_allocated")
        assert not counts_peaks(XPU)
        assert peak_bytes(XPU) is None
        assert allocator_statistics(XPU) == {}
        with PeakMeter(XPU) as meter:
            counted[0] = 300
        assert meter.peak is not None
        assert (meter.peak.before, meter.peak.highest) == (100, 300)
        assert meter.peak.source == "allocated on Arc B580, sampled"
        assert not meter.peak.history

    def test_one_that_says_nothing_is_named_where_the_process_is_measured_instead(self, xpu: Make) -> None:
        xpu("get_device_name")
        with PeakMeter(XPU) as meter:
            pass
        assert meter.peak is not None
        assert meter.peak.before > 2**20
        assert meter.peak.source == "the whole process, sampled: Arc B580 does not say what is allocated on it"

    def test_mps_says_it_by_a_name_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch, "mps", SimpleNamespace(current_allocated_memory=lambda: 7))
        assert allocated_bytes(MPS) == 7
        assert not counts_peaks(MPS)
        with PeakMeter(MPS) as meter:
            pass
        assert meter.peak is not None
        assert (meter.peak.highest, meter.peak.source) == (7, "allocated on mps, sampled")


def test_what_is_here(xpu: Make) -> None:
    xpu("is_available")
    assert is_here(CPU)
    assert is_here(XPU)
    assert not is_here(torch.device("hpu"))  # torch has no module for it, and it is not the accelerator


def test_a_cpu_has_neither_a_memory_of_its_own_nor_an_allocator_to_ask() -> None:
    assert (has_own_memory(CPU), has_own_memory(MPS), has_own_memory(XPU)) == (False, False, True)
    assert allocated_bytes(CPU) is None
    assert not counts_peaks(CPU)
    assert device_name(CPU) == "CPU"
    assert seconds_of(CPU, lambda: torch.ones(10).sum()) > 0
    assert host_bytes(5).shape == (5,)


class TestCard:
    def test_the_name_comes_with_the_memory_and_a_cpus_is_ram(self) -> None:
        titles = [Card("CPU", CPU, GB // 3).title, Card("Arc B580", XPU, 12 * GB).title, named_card("sm86", 7.5).title]
        assert titles == ["CPU, 0.33 GB RAM", "Arc B580, 12 GB", "sm86, 7.5 GB"]

    def test_little_memory_is_told_more_finely(self) -> None:
        sizes = [0.01, 0.88, 7.99, 11.6, 23.6, 127.4]
        assert [format_gb(size * GB) for size in sizes] == ["0.01 GB", "0.88 GB", "8 GB", "11.6 GB", "24 GB", "127 GB"]

    def test_allocators_of_accelerators_round_up(self) -> None:
        assert [Card("", device, GB).granularity for device in (CPU, MPS, XPU, torch.device("cuda"))] == [
            1,
            1,
            512,
            512,
        ]
