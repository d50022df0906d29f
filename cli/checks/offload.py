"""Block Offload: the same latents bit for bit, within the budget, with copies that run beside the computation."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch

from ...host.core.device import GB
from ...host.offload.block_offload import DEFAULT_AHEAD, apply_offload, cannot_prefetch
from ...host.offload.budget import Budget, budget_of
from ...host.offload.layers import Layers, least_weights
from ...memory.link import link_speed
from .bench import Bench, said_bytes
from .rows import Check, CheckOutcome, Found, held

MB = 2**20
ROUNDS = 3
SHARE = 0.5  # of the way from the least budget to the whole model
OVERLAPPED = 0.8  # of the time that would do, if copies cost none
NO_SLOWER = 1.05  # than the host's own streaming
SLACK = 1.01  # blocks of the allocator


@dataclass
class Streaming:
    """The model resident, streamed by the host, and streamed ahead, within one budget."""

    bench: Bench

    @cached_property
    def least(self) -> int:
        return least_weights(self.bench.model, DEFAULT_AHEAD if self.refusal is None else 0)

    @cached_property
    def refusal(self) -> str | None:
        """Why nothing is prefetched here."""
        return cannot_prefetch(Layers(self.bench.model))

    @cached_property
    def size(self) -> int:
        return int(self.bench.model.model_size())

    @cached_property
    def budget(self) -> int:
        """Bytes."""
        return int(self.least + SHARE * (self.size - self.least)) + MB

    def within(self, budget: int, granularity: str = "auto") -> Any:
        """The model with a budget in bytes."""
        return apply_offload(self.bench.model, budget / GB, granularity)[0]

    # ------------------------------------------------------------------------------------- exactness and budget

    def exact(self) -> Found:
        bench = self.bench
        bench.say("block offload against everything loaded")
        stock = bench.sample(bench.model)
        ours = bench.sample(self.within(self.budget))
        again = bench.sample(bench.model)
        same, undone = torch.equal(ours, stock), torch.equal(again, stock)
        text = "bit for bit" if same else "they differ"
        text += f", with {said_bytes(self.budget)} for {said_bytes(self.size)} of weights"
        if not undone:
            text += "; without the budget the model gives others than before"
        return held(same and undone), text, {"budget": self.budget, "weights": self.size}

    def kept(self) -> Found:
        """Above what a sampling takes besides, measured with everything loaded."""
        bench = self.bench
        bench.say("the budget of block offload")
        ours = self.within(self.budget)
        budget = budget_of(ours)
        if budget is None:
            return CheckOutcome.NOT_HERE, "; ".join(ours.attachments["headroom_offload"].notes), {}
        taken = self._weights_taken(ours, budget)
        text = f"weights and staging took {said_bytes(taken)} of the {said_bytes(self.budget)} allowed"
        return held(taken <= SLACK * self.budget), text, {"budget": self.budget, "taken": taken}

    def _weights_taken(self, ours: Any, budget: Budget) -> int:
        bench = self.bench
        if not bench.counts_bytes:
            bench.sample(ours)
            return int(ours.loaded_size()) + budget.staging
        peaks = []
        for model in (bench.model, ours):
            bench.empty()
            before = bench.allocated()
            peaks.append(bench.peak(partial(bench.sample, model)) - before)
        return peaks[1] - (peaks[0] - self.size)

    # ---------------------------------------------------------------------------------------------------- time

    @cached_property
    def speed(self) -> float:
        """Bytes per second to the device."""
        found = link_speed(self.bench.device)
        if found is None:
            raise RuntimeError(f"nothing tells how fast weights get to {self.bench.device.type}")
        return found

    @cached_property
    def timed_budget(self) -> int:
        """Bytes, with which copies take about as long as the computation, as far as a budget can do that."""
        streamed = self.bench.median_step(self.bench.model) * self.speed
        return int(min(max(self.size - streamed, self.least + MB), self.size - (self.size - self.least) / 4))

    @cached_property
    def seconds(self) -> dict[str, list[float]]:
        """Of the steps of each way, by turns."""
        bench = self.bench
        ways = {
            "resident": bench.model,
            "host": self.within(self.timed_budget, "leaf"),
            "blocks": self.within(self.timed_budget),
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(ROUNDS + 1):
            if number > 1 and bench.is_over:
                break
            for name, model in ways.items():
                bench.say(f"streaming, round {number} of {ROUNDS}: {name}")
                steps = bench.step_seconds(model)
                if number:  # the first warms up
                    found[name] += steps
                if name == "blocks":
                    self.streamed = self.size - int(model.loaded_size())
        return found

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def overlap(self) -> Found:
        compute, ours = self.median("resident"), self.median("blocks")
        copies = self.streamed / self.speed
        share = max(compute, copies) / ours
        text = (
            f"a step {ms(ours)}: all loaded {ms(compute)}, its copies alone {ms(copies)}"
            f" ({said_bytes(self.streamed)} at {self.speed / 1e9:.1f} GB/s); overlapped {share:.0%}"
        )
        numbers = {
            "step": ours, "compute": compute, "copies": copies, "streamed": self.streamed,
            "bytes_per_second": self.speed, "runs": len(self.seconds["blocks"]),
        }  # fmt: skip
        return held(share >= OVERLAPPED), text, numbers

    def beside_the_host(self) -> Found:
        ours, host = self.median("blocks"), self.median("host")
        text = (
            f"{ms(ours)} a step, ComfyUI's own streaming within the same {said_bytes(self.timed_budget)}"
            f" {ms(host)}: {ours / host:.2f}x; all loaded {ms(self.median('resident'))}"
        )
        numbers = {name: self.median(name) for name in self.seconds} | {"runs": len(self.seconds["blocks"])}
        return held(ours <= NO_SLOWER * host), text, numbers | {"budget": self.timed_budget}


def checks(bench: Bench) -> Iterator[Check]:
    """Latents and bytes."""
    streaming = Streaming(bench)
    yield Check("the same latents", streaming.exact)
    yield Check("the budget", streaming.kept)


def prefetch_checks(bench: Bench) -> Iterator[Check]:
    """Time, where copies run beside the computation."""
    streaming = Streaming(bench)
    refusal = streaming.refusal
    for name, look in (("copies overlap", streaming.overlap), ("beside the host", streaming.beside_the_host)):
        yield Check(name, look if refusal is None else partial(_refused, refusal))


def _refused(reason: str) -> Found:
    return CheckOutcome.NOT_HERE, reason, {}


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
