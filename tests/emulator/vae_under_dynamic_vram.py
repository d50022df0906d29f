"""The exact VAE under the host's dynamic VRAM, which takes its pages away while strips are computed.

Not collected by itself: `test_dynamic_vram_vae.py` starts it, as `under_dynamic_vram.py` is started.
"""

import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import comfy.memory_management
import comfy.model_management as model_management
import pytest
import torch
from comfy.cli_args import args as host_arguments
from torch import Tensor, nn

from headroom.host.bands import devices
from headroom.host.bands.devices import DeviceCrew
from headroom.host.bands.named import DEVICES
from headroom.host.bands.sent import SentModule, packed, put_together, taken_apart, unpacked
from headroom.host.core.device import GB
from headroom.host.measure.runs import LOG
from headroom.host.offload.own_weights import PAGE, copied, is_kept_by_host
from headroom.host.vae import coding
from headroom.host.vae.settings import VAESettings
from headroom.host.vae.wrapper import low_memory_vae
from headroom.vae.exact import ExactRun

from ..host.autoencoders import AUTOENCODERS
from ..unit.test_exact_vae import error_of
from .conftest import Card
from .under_dynamic_vram import dynamic_vram

pytestmark = pytest.mark.usefixtures("one_thread")
CELLS = {"sd": (1, 16), "wan21": (3, 12)}  # in time, where each is a chunk of its own, and on a side
WITHIN = 2e-5  # of the range of values
LEFT = 1 << 18  # bytes: of a strip
LATE = 150  # the strip before which a run ends: maps are stored by then
LESS = 0.9  # of what was planned
CPU = torch.device("cpu")


def built(name: str) -> Any:
    """A small VAE whose weights the host pages."""
    with pytest.MonkeyPatch.context() as patch:
        # Begun, layers have no weights until they are read from a file, and these are drawn.
        patch.setattr(comfy.memory_management, "aimdo_enabled", False)
        vae = AUTOENCODERS[name].build()
    assert vae.patcher.is_dynamic()
    return vae


def paged(vae: Any) -> list[nn.Module]:
    return [layer for layer in vae.first_stage_model.modules() if PAGE in vars(layer)]


def take_pages(vae: Any) -> None:
    """The host gives the VAE's pages to somebody else."""
    vae.patcher.model.dynamic_vbars[vae.device].free_memory(1 << 40)


@dataclass
class Strips:
    """What is done before each strip, and what was seen there."""

    do: Callable[[], None]
    number: int = 0
    resident: int = 0


@contextmanager
def strips_of(vae: Any, do: Callable[[], None]) -> Iterator[Strips]:
    seen, tell = Strips(do), ExactRun._tell

    def telling(run: ExactRun, share: float, out: Tensor | None) -> None:
        tell(run, share, out)
        seen.number += 1
        seen.resident = max(seen.resident, vae.patcher.model.dynamic_vbars[vae.device].loaded_size())
        seen.do()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExactRun, "_tell", telling)
        yield seen


def coded(vae: Any, way: str, x: Tensor) -> Tensor:
    torch.manual_seed(5)
    return (vae.decode if way == "decode" else vae.encode)(x).clone()


def given(name: str, way: str) -> Tensor:
    kind, (cells, side) = AUTOENCODERS[name], CELLS[name]
    if way == "decode":
        return kind.latent(side, side, cells_in_time=cells)
    return kind.pixels(side * kind.shrink, side * kind.shrink, frames=kind.frames(cells))


def settled(card: Card) -> int:
    gc.collect()
    torch.cuda.empty_cache()
    return card.allocated


def compare(card: Card, name: str, way: str) -> None:
    """The same picture within the budget, though the pages go at every strip; and the host's own as before."""
    vae, x = built(name), given(name, way)
    before = coded(vae, way, x)
    layers = paged(vae)
    weights = sum(weight.nbytes for layer in layers for weight in layer.parameters())
    budget = 0  # as much as there is, and then less than that took
    for _ in range(2):
        low, start = low_memory_vae(vae, VAESettings("exact", vram_budget_gb=budget / GB)), settled(card)
        with strips_of(vae, lambda: take_pages(vae)) as seen:
            ours = coded(low, way, x)
        row = LOG.rows("", "")[-1]
        assert row.live is not None
        error, taken = error_of(ours, before), vae.patcher.model_size() + row.live
        print(
            f"{name} {way}: {taken / 2**20:.1f} MiB of {budget / 2**20:.1f}, {weights / 2**20:.1f} of them in"
            f" {len(layers)} pages; error {error:.1e}, {seen.number} strips; {row.lines}", file=sys.__stdout__,
        )  # fmt: skip
        assert seen.number > 1
        assert error < WITHIN
        assert seen.resident == 0, "no page beside the copies"
        assert not budget or taken <= budget
        assert all(PAGE in vars(layer) and layer.weight.device.type == "cpu" for layer in layers)
        del ours
        assert settled(card) <= start
        assert row.predicted is not None
        budget = int(vae.patcher.model_size() + LESS * row.predicted.activations)
    assert layers
    assert torch.equal(coded(vae, way, x), before)


def cancel(card: Card) -> None:
    """A prompt that is interrupted, and one that fails, leave layers and memory as they were."""
    vae, x = built("sd"), AUTOENCODERS["sd"].latent(32, 32)
    before, layers = coded(vae, "decode", x), paged(vae)

    def interrupt() -> None:
        raise model_management.InterruptProcessingException

    def fail() -> None:
        raise RuntimeError("on purpose")

    for end, kind in ((interrupt, model_management.InterruptProcessingException), (fail, RuntimeError)):
        numbers = count(1)

        def do(end: Callable[[], None] = end, numbers: Iterator[int] = numbers) -> None:
            if next(numbers) == LATE:
                end()

        start = settled(card)
        gc.disable()
        with strips_of(vae, do) as seen, pytest.raises(kind) as error:
            coded(low_memory_vae(vae, VAESettings("exact", tile_size=16)), "decode", x)
        del error
        left = card.allocated - start
        gc.enable()
        assert all(PAGE in vars(layer) and layer.weight.device.type == "cpu" for layer in layers)
        assert left < LEFT
        assert seen.number == LATE
        assert torch.equal(coded(vae, "decode", x), before)


def share(card: Card, name: str, way: str) -> None:
    """Two workers, one with a copy of the weights: no page is read, and none is given back by whoever has a copy."""
    vae, x = built(name), given(name, way)
    before, layers, start = coded(vae, way, x), paged(vae), settled(card)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "_on", lambda model, device, at: copied(model, device))
        patch.setattr(coding, "crew_for", lambda *asked: DeviceCrew([vae.device] * 2, [1e9] * 2, asked[-1]))
        with strips_of(vae, lambda: take_pages(vae)) as seen:
            ours = coded(low_memory_vae(vae, VAESettings("exact", workers=DEVICES)), way, x)
    print(f"{name} {way} by two: error {error_of(ours, before):.1e}, {LOG.rows('', '')[-1].lines}", file=sys.__stdout__)
    assert error_of(ours, before) < WITHIN
    assert seen.number > 1
    assert seen.resident == 0, "no page beside the copies"
    del ours
    assert settled(card) <= start
    assert all(PAGE in vars(layer) and layer.weight.device.type == "cpu" for layer in layers)
    assert torch.equal(coded(vae, way, x), before)


def send(name: str) -> None:
    """What goes to another process has nothing of the host's, and computes the same."""
    vae, x = built(name), given(name, "decode")
    before = coded(vae, "decode", x)
    sent = taken_apart(vae.first_stage_model)
    arrived = put_together(SentModule(sent.structure, unpacked(packed(sent.tensors), CPU)), CPU)
    assert not [attribute for layer in arrived.modules() for attribute in vars(layer) if is_kept_by_host(attribute)]
    found = arrived.decode(x.to(vae.vae_dtype))
    found = vae.process_output(found.float()).movedim(1, -1)
    assert error_of(found, before) < WITHIN
    del arrived, sent
    gc.collect()
    assert torch.equal(coded(vae, "decode", x), before)


def test_pages_that_go(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_arguments, "fp32_vae", True)
    card.set()
    try:
        with dynamic_vram():
            for name in CELLS:
                for way in ("decode", "encode"):
                    compare(card, name, way)
                    share(card, name, way)
                send(name)
            cancel(card)
    except BaseException:
        traceback.print_exc(file=sys.__stdout__)
        sys.__stdout__.flush()
        os._exit(1)
    sys.__stdout__.flush()
    os._exit(0)
