"""Staged weights and the memory they stand in: who may write it when, on an emulated card that executes late.

Lazy execution does work as late as the order of streams permits, so memory that is given away too early is written by
the wrong one in the end; the race detector names accesses that nothing orders even where the values come out right.
"""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor, nn

from headroom.offload.prefetch import BlockPrefetch

from .conftest import Card

WIDTH = 512
BLOCK = 2 * (WIDTH * WIDTH + WIDTH)  # weights of a block
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


def engine(network: Network, slots: int = 2) -> BlockPrefetch:
    return BlockPrefetch(list(network.blocks), CUDA, slots, lambda layer: isinstance(layer, nn.Linear))


def neighbours(count: int) -> list[Tensor]:
    """Tensors as large as a staged block, full of ones: they are given the memory of dropped staging."""
    return [torch.ones(BLOCK, device=CUDA) for _ in range(count)]


def intact(tensors: list[Tensor]) -> bool:
    return all(bool((tensor == 1).all()) for tensor in tensors)


@pytest.fixture
def x(card: Card) -> Tensor:
    card.set(lazy=True, races=True)
    return torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(1)).to(CUDA)


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_memory_of_a_dropped_engine_is_not_written_any_more(card: Card, x: Tensor, slots: int) -> None:
    """After a call, copies for the next one are under way: it never comes, and others get the memory."""
    network = Network(4)
    prefetch = engine(network, slots)
    with torch.inference_mode(), prefetch.installed():
        network(x)
    del prefetch
    gc.collect()
    others = neighbours(slots)
    torch.cuda.synchronize()
    assert intact(others)
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
    others = neighbours(2)
    torch.cuda.synchronize()
    assert intact(others)
    assert card.races == []


def test_memory_that_is_still_in_use_is_not_taken_for_staging(card: Card, x: Tensor) -> None:
    """Tensors given back while the compute stream has yet to fill and read them; staging gets their memory."""
    network = Network(4)
    expected = Network(4).to(CUDA)(x)
    ones = torch.ones(BLOCK).pin_memory()
    late = [ones.to(CUDA, non_blocking=True) for _ in range(2)]
    del late
    prefetch = engine(network)
    with torch.inference_mode(), prefetch.installed():
        copied_early(prefetch)
        result = network(x)
    assert torch.equal(result, expected)
    assert card.races == []


def test_memory_that_is_still_read_is_not_taken_for_staging(card: Card, x: Tensor) -> None:
    held = neighbours(2)
    sums = [each.sum() for each in held]
    del held
    prefetch = engine(Network(4))
    with torch.inference_mode(), prefetch.installed():
        copied_early(prefetch)
    assert [total.item() for total in sums] == [BLOCK, BLOCK]
    assert card.races == []


def copied_early(prefetch: BlockPrefetch) -> None:
    """Waits for the copies alone, as a link that is ahead of the computation."""
    for stream in {slot._stream for slot in prefetch._staging.slots}:
        stream.synchronize()


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_the_values_are_right_call_after_call(card: Card, x: Tensor, slots: int) -> None:
    network = Network(4)
    plain = Network(4).to(CUDA)
    prefetch = engine(network, slots)
    with torch.inference_mode():
        expected = plain(x)
        for _ in range(3):
            with prefetch.installed():
                result = network(x)
        assert torch.equal(result, expected)
    assert card.races == []
