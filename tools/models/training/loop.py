"""Training by steps, until their number or the time is reached, that goes on where an interrupted one was."""

from __future__ import annotations

import argparse
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...setup.environment import PACK, Environment
from ..from_host import enter_host

WARM_UP, REPORT_SECONDS = 100, 60.0


class Training(ABC):
    """Everything that goes on from one step to the next.

    ``average`` follows ``model`` slowly, ``ema`` a step, and is what is written. The rate rises to ``options.rate`` in
    the first steps, then falls as a cosine.
    """

    snapshot_seconds = 240.0

    def __init__(
        self, options: argparse.Namespace, rng: torch.Generator, model: nn.Module, average: nn.Module, ema: float
    ) -> None:
        self.options, self.rng, self.model, self.average, self.ema = options, rng, model, average, ema
        self.average.load_state_dict(self.model.state_dict())
        self.optimizers = self.optimized()
        self.parts: dict[str, Any] = {"model": self.model, "average": self.average, **self.optimizers}
        self.steps, self.seconds = 0, 0.0
        self.losses: list[float] = []
        if options.state.is_file():
            state = torch.load(options.state)
            self.steps, self.seconds = state["steps"], state["seconds"]
            self.rng.set_state(state["rng"])
            for name, part in self.parts.items():
                part.load_state_dict(state[name])

    def optimized(self) -> dict[str, torch.optim.Optimizer]:
        """What moves the weights of the model, by the names of their states."""
        return {"optimizer": adamw(self.model.parameters())}

    @abstractmethod
    def loss(self) -> Tensor:
        """Of the next batch."""

    @abstractmethod
    def write(self) -> str:
        """Write the averaged weights, and say how good they are."""

    def progress(self) -> float:
        """By steps, which can be repeated, unless the time is up before."""
        return min(1.0, max(self.steps / self.options.steps, self.seconds / (60 * self.options.minutes)))

    def run(self) -> None:
        """To the end; the weights so far are written every few minutes."""
        tick = saved = told = time.monotonic()
        while self.progress() < 1:
            self.step()
            now = time.monotonic()
            self.seconds, tick = self.seconds + now - tick, now
            if now - told > REPORT_SECONDS:
                print(self.so_far(), flush=True)
                told = now
            if now - saved > self.snapshot_seconds:
                self.snapshot()
                tick = saved = time.monotonic()
        self.snapshot()

    def step(self) -> None:
        falling = 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * self.progress()))
        loss = self.loss()
        self.model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers.values():
            optimizer.param_groups[0]["lr"] = self.options.rate * min(1.0, (self.steps + 1) / WARM_UP) * falling
            optimizer.step()
        new = 1 - min(self.ema, (self.steps + 1) / (self.steps + 10))
        with torch.no_grad():
            for mean, parameter in zip(self.average.parameters(), self.model.parameters()):
                mean.lerp_(parameter, new)
        self.losses.append(loss.item())
        self.steps += 1

    def snapshot(self) -> None:
        state = {name: part.state_dict() for name, part in self.parts.items()}
        state |= {"steps": self.steps, "seconds": self.seconds, "rng": self.rng.get_state()}
        partial = self.options.state.with_name(self.options.state.name + ".partial")
        torch.save(state, partial)
        partial.replace(self.options.state)
        print(f"{self.so_far()}, {self.write()}", flush=True)

    def so_far(self) -> str:
        loss = np.mean(self.losses[-100:]) if self.losses else math.nan
        return f"{self.steps} steps, {self.seconds / 60:.1f} min, loss {loss:.4f}"


def adamw(weights: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(weights, betas=(0.9, 0.99), weight_decay=1e-4)


def parse(
    name: str, summary: str, out: Path, steps: int, rate: float, add: Callable[[argparse.ArgumentParser], object] = id
) -> argparse.Namespace:
    """The options that every training has, and those that are added; then the host can be imported, and the folders
    are there."""
    parser = argparse.ArgumentParser(prog=f"python3 -m tools {name}", description=summary)
    parser.add_argument("--out", type=Path, default=out)
    state = PACK / "output" / f"{name.replace('-', '_')}.pt"
    parser.add_argument("--state", type=Path, default=state, help="to go on from")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--minutes", type=float, default=math.inf, help="end earlier, the rate lowered in time")
    parser.add_argument("--rate", type=float, default=rate)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16, where the processor is built for it")
    add(parser)
    options = parser.parse_args()
    enter_host(Environment.from_variables().comfyui)
    torch.set_num_threads(options.threads)
    for target in (options.out, options.state):
        target.parent.mkdir(parents=True, exist_ok=True)
    return options
