"""`check` on a card: what it measures there by the device's own events and allocator, and that running out of memory
ends nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from headroom.cli.checks import attention, offload, parts, prediction, sizes, vae
from headroom.cli.checks.bench import Bench
from headroom.cli.checks.machine import describe
from headroom.cli.checks.rows import Check, CheckOutcome, CheckRow, Found

pytestmark = pytest.mark.usefixtures("one_thread")
FREE = 4096.0  # MB


@pytest.fixture
def bench(card: Any) -> Bench:
    """The smallest models; the VAE in float32, which this CPU computes a hundred times as fast as 16 bits."""
    card.set(vram_mb=FREE)
    found = Bench(3600.0)
    found.__dict__["sizes"] = sizes.Sizes(sizes.ModelSize(256, 2, 4, 128), sizes.VAESize(32, 128))
    found.__dict__["vae"] = found.__dict__["vae32"] = vae.generated.vae(found.vae_state, torch.float32)
    return found


def looked_at(name: str, bench: Bench) -> dict[str, CheckRow]:
    (part,) = (part for part in parts.PARTS if part.name == name)
    return {row.name: row for row in parts.rows(part, bench)}


def test_the_machine_is_the_card(bench: Bench) -> None:
    machine = describe(bench.device)
    assert machine["device_type"] == "cuda"
    assert "(emulated)" in machine["device"]
    assert machine["device_bytes"] == FREE * 2**20


def test_backends_in_16_bits_are_as_near_as_their_rounding(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "BACKEND_CHOICES", ("auto", "host", "sdpa_math", "sliced", "online"))
    rows = looked_at("attention", bench)
    rounding = rows.pop("rounding to bfloat16")
    assert 30 < rounding.numbers["db"] < 60
    assert all(row.outcome is CheckOutcome.HELD for row in rows.values()), rows
    assert "sdpa" in rows["auto"].numbers["calls"]


class TestBytes:
    def test_a_decode_in_strips_takes_what_the_allocator_counts(self, bench: Bench) -> None:
        first, *_, budget = vae.decode_checks(bench)
        assert first.look()[0] is CheckOutcome.HELD
        outcome, text, numbers = budget.look()
        assert outcome is CheckOutcome.HELD, text
        assert numbers["taken"] > bench.vae.patcher.model_size()
        assert numbers["taken"] <= numbers["budget"]
        assert numbers["budget"] < numbers["untiled"]

    def test_the_budget_of_block_offload(self, bench: Bench) -> None:
        rows = looked_at("offload", bench)
        assert rows["the same latents"].outcome is CheckOutcome.HELD
        budget = rows["the budget"].numbers
        assert 0.5 * budget["budget"] < budget["taken"] < 1.1 * budget["budget"]

    def test_a_prediction_is_a_range(self, bench: Bench) -> None:
        outcome, text, numbers = prediction._step(bench)
        assert outcome in (CheckOutcome.HELD, CheckOutcome.BROKEN), text
        assert numbers["measured"] > 0
        assert numbers["predicted"] == pytest.approx(numbers["measured"], rel=0.3)


class TestTime:
    def test_steps_are_timed_by_the_card_and_are_the_same_each_time(self, bench: Bench) -> None:
        bench.sample(bench.model)
        one, other = (bench.step_seconds(bench.model, 3) for _ in range(2))
        assert len(one) == 2
        assert one == pytest.approx(other, rel=0.02)
        assert 0 < one[0] < 0.1

    def test_copies_are_set_against_the_computation(self, bench: Bench, card: Any) -> None:
        streaming = offload.Streaming(bench)
        found = {check.name: check.look for check in offload.prefetch_checks(bench)}
        assert set(found) == {"copies overlap", "beside the host"}
        streaming.seconds  # noqa: B018  # runs them
        numbers = streaming.overlap()[2]
        assert numbers["copies"] == pytest.approx(numbers["streamed"] / streaming.speed)
        assert numbers["step"] >= 0.99 * max(numbers["compute"], numbers["copies"])
        assert numbers["step"] <= 1.5 * (numbers["compute"] + numbers["copies"])
        beside = streaming.beside_the_host()[2]
        assert beside["resident"] <= beside["host"]


def test_out_of_memory_is_a_row_and_the_next_has_room(bench: Bench, card: Any) -> None:
    kept: list[torch.Tensor] = []
    card.set(vram_mb=512)

    def too_much() -> Found:
        local = [torch.ones(2**26, dtype=torch.uint8, device=bench.device) for _ in range(20)]
        kept.extend(local)
        return CheckOutcome.HELD, "it fitted", {}

    def after() -> Found:
        return CheckOutcome.HELD, str(bench.allocated()), {}

    before = bench.allocated()
    part = replace(parts.PARTS[0], checks=lambda bench: iter([Check("one", too_much), Check("two", after)]))
    first, second = parts.rows(part, bench)
    assert (first.outcome, first.text) == (CheckOutcome.FAILED, "out of memory")
    assert int(second.text) <= before
    assert not kept
