"""Staged weights and the memory they stand in: who may write it when, on an emulated card that executes late.

Lazy execution does work as late as the order of streams permits, so memory that is given away too early is written by
the wrong one in the end; the race detector names accesses that nothing orders even where the values come out right.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from headroom.offload.prefetch import LayerPrefetch

from .conftest import Card

WIDTH = 512
LAYER = WIDTH * WIDTH + WIDTH  # weights
CUDA = torch.device("cuda", 0)


class Network(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(2))) for _ in range(blocks))
        self.requires_grad_(False)
        for parameter in self.parameters():
            parameter.data = parameter.data.pin_memory()

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def engine(network: Network, layers: float = 2) -> LayerPrefetch:
    """With room for so many layers."""
    linear = {name: layer for name, layer in network.named_modules() if isinstance(layer, nn.Linear)}
    return LayerPrefetch(linear, CUDA, 4 * int(layers * LAYER))


def neighbour(layers: float) -> Tensor:
    """As large as a ring for so many layers, full of ones: it is given the memory of dropped staging."""
    return torch.ones(int(layers * LAYER), device=CUDA)


LAYERS = [1, 1.5, 2, 5, 8]


@pytest.fixture
def x(card: Card) -> Tensor:
    card.set(lazy=True, races=True)
    return torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(1)).to(CUDA)


@pytest.mark.parametrize("layers", LAYERS)
def test_memory_of_a_dropped_engine_is_not_written_any_more(card: Card, x: Tensor, layers: float) -> None:
    """After a call, copies for the next one are under way: it never comes, and others get the memory."""
    network = Network(4)
    prefetch = engine(network, layers)
    with torch.inference_mode(), prefetch.installed():
        network(x)
    del prefetch
    gc.collect()
    other = neighbour(layers)
    torch.cuda.synchronize()
    assert bool((other == 1).all())
    assert card.races == []


@pytest.mark.parametrize("block", range(4))
def test_nor_after_an_error_in_the_middle(card: Card, x: Tensor, block: int) -> None:
    network = Network(4)
    prefetch = engine(network)

    def fail(module: nn.Module, args: object) -> None:
        raise KeyError

    handle = network.blocks[block].register_forward_pre_hook(fail)
    with torch.inference_mode(), pytest.raises(KeyError), prefetch.installed():
        network(x)
    handle.remove()
    del prefetch
    gc.collect()  # the traceback's frames
    other = neighbour(2)
    torch.cuda.synchronize()
    assert bool((other == 1).all())
    assert card.races == []


def test_memory_that_is_still_filled_is_not_taken_for_staging(card: Card, x: Tensor) -> None:
    """A tensor given back while the compute stream has yet to fill it; staging gets its memory."""
    network = Network(4)
    expected = Network(4).to(CUDA)(x)
    late = torch.ones(2 * LAYER).pin_memory().to(CUDA, non_blocking=True)
    del late
    prefetch = engine(network)
    with torch.inference_mode(), prefetch.installed(), copied_early(network, prefetch):
        result = network(x)
    assert torch.equal(result, expected)
    assert card.races == []


def test_memory_that_is_still_read_is_not_taken_for_staging(card: Card, x: Tensor) -> None:
    held = neighbour(2)
    total = held.sum()
    del held
    network = Network(4)
    prefetch = engine(network)
    with torch.inference_mode(), prefetch.installed(), copied_early(network, prefetch):
        network(x)
    assert total.item() == 2 * LAYER
    assert card.races == []


@contextmanager
def copied_early(network: Network, prefetch: LayerPrefetch) -> Iterator[None]:
    """Within it the copies before the first layer end before anything is computed, as on a fast link."""
    stream = prefetch._staging._stream
    assert stream is not None
    handle = network.blocks[0][0].register_forward_pre_hook(lambda module, args: stream.synchronize())
    yield
    handle.remove()


@pytest.mark.parametrize("layers", LAYERS)
def test_the_values_are_right_call_after_call(card: Card, x: Tensor, layers: float) -> None:
    network = Network(4)
    plain = Network(4).to(CUDA)
    prefetch = engine(network, layers)
    with torch.inference_mode():
        expected = plain(x)
        for _ in range(3):
            with prefetch.installed():
                result = network(x)
        assert torch.equal(result, expected)
    assert card.races == []


@pytest.mark.parametrize("layers", LAYERS)
def test_nothing_stays_allocated(card: Card, x: Tensor, layers: float) -> None:
    before = card.allocated
    network = Network(4)
    prefetch = engine(network, layers)
    assert card.allocated - before == prefetch.staging_bytes
    with torch.inference_mode(), prefetch.installed():
        network(x)
    prefetch.close()
    assert card.allocated == before
    assert card.races == []


def test_layers_that_stay_where_the_link_is_the_limit(card: Card, x: Tensor) -> None:
    """In the memory of the ring, which other layers went through in the calls before."""
    card.set(lazy=True, races=True, h2d=0.1)
    network = Network(4)
    expected = Network(4).to(CUDA)(x)
    prefetch = engine(network, 5)
    with torch.inference_mode():
        for _ in range(5):
            with prefetch.installed():
                result = network(x)
            assert torch.equal(result, expected)
    kept = prefetch.learned.kept
    assert kept
    assert all(prefetch.traffic.copies[name] < 5 for name in kept)
    again = LayerPrefetch(
        {name: each.layer for name, each in prefetch.streamed.items()}, CUDA, 5 * 4 * LAYER, prefetch.learned
    )
    with torch.inference_mode():
        for _ in range(3):
            with again.installed():
                result = network(x)
            assert torch.equal(result, expected)
            again.forget()
    assert card.races == []
