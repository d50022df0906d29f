"""Block prefetch on plain torch, weights outside their window poisoned."""

import pytest
import torch
from torch import Tensor, nn

from headroom.offload.prefetch import BlockPrefetch
from headroom.offload.staging import Slot, flat_bytes

WIDTH = 16
CPU = torch.device("cpu")


class Block(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(self.inner(self.norm(x)).relu())


class Network(nn.Module):
    def __init__(self, blocks: int = 6) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.requires_grad_(False)

    def forward(self, x: Tensor, order: tuple[int, ...] | None = None) -> Tensor:
        for index in order or range(len(self.blocks)):
            x = self.blocks[index](x)
        return x


def poison(weight: Tensor) -> Tensor:
    return torch.full_like(weight, torch.nan)


def engine(network: Network, slots: int, resident: tuple[int, ...] = ()) -> BlockPrefetch:
    kept = {id(layer) for index in resident for layer in network.blocks[index].modules()}
    streams = lambda layer: isinstance(layer, nn.Linear) and id(layer) not in kept  # noqa: E731
    return BlockPrefetch(list(network.blocks), CPU, slots, streams, poison)


X = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1))


class TestPrefetch:
    @pytest.mark.parametrize("slots", [1, 2, 3, 9])
    @pytest.mark.parametrize("resident", [(), (0,), (1, 3), (0, 1, 2, 3, 4)])
    def test_the_same_bits_and_each_block_copied_once_per_call(self, slots: int, resident: tuple[int, ...]) -> None:
        network = Network()
        expected = network(X)
        prefetch = engine(network, slots, resident)
        streamed = 6 - len(resident)
        for _ in range(4):
            with prefetch.installed():
                assert torch.equal(network(X), expected)
        assert torch.equal(network(X), expected)
        copied_ahead = min(slots, streamed)
        assert sum(prefetch.traffic.copies.values()) == 4 * streamed + copied_ahead
        assert prefetch.traffic.misses == 0
        assert prefetch.traffic.steps == 4
        assert prefetch.traffic.staged <= prefetch.staging_bytes
        assert prefetch.staging_bytes == min(slots, streamed) * flat_bytes_of(network.blocks[5])

    def test_nothing_is_left_on_the_network(self) -> None:
        network = Network()
        parameters = list(network.parameters())
        handle = network.blocks[2].inner.register_forward_pre_hook(lambda module, args: {}["x"])
        with pytest.raises(KeyError), engine(network, 2).installed():
            network(X)
        handle.remove()
        assert all(a is b for a, b in zip(network.parameters(), parameters))
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())

    def test_it_goes_on_after_an_error(self) -> None:
        network = Network()
        expected = network(X)
        prefetch = engine(network, 2)
        with pytest.raises(RuntimeError), prefetch.installed():
            network(X[:, :3])
        with prefetch.installed():
            assert torch.equal(network(X), expected)

    @pytest.mark.parametrize("order", [(5, 0, 3), (2, 2, 2), (0, 2, 4, 5), (5, 4, 3, 2, 1, 0)])
    @pytest.mark.parametrize("slots", [1, 2, 3])
    def test_blocks_out_of_order(self, slots: int, order: tuple[int, ...]) -> None:
        network = Network()
        expected = network(X, order)
        prefetch = engine(network, slots)
        for _ in range(3):
            with prefetch.installed():
                assert torch.equal(network(X, order), expected)

    def test_exchanged_parameters_are_noticed(self) -> None:
        network = Network()
        prefetch = engine(network, 2)
        assert prefetch.is_current()
        network.blocks[3].inner.weight = nn.Parameter(torch.zeros(2 * WIDTH, WIDTH))
        assert not prefetch.is_current()

    def test_weights_written_between_calls_count_after_forget(self) -> None:
        network = Network()
        prefetch = engine(network, 2)
        with prefetch.installed():
            network(X)
        for parameter in network.parameters():
            parameter.data *= 1.5
        prefetch.forget()
        expected = network(X)
        with prefetch.installed():
            assert torch.equal(network(X), expected)

    def test_poison_would_be_seen(self) -> None:
        network = Network()
        prefetch = engine(network, 2)
        with prefetch.installed():
            assert network.blocks[4].inner(X).isnan().any()


def flat_bytes_of(block: nn.Module) -> int:
    layers = [layer for layer in block.modules() if isinstance(layer, nn.Linear)]
    return sum(flat_bytes(parameter.data) for layer in layers for parameter in layer.parameters())


class TestSlot:
    @pytest.mark.parametrize(
        "source",
        [
            torch.randn(5, 3),
            torch.randn(8, 4, 3, 3).to(memory_format=torch.channels_last),
            torch.randn(4, 6).t(),
            torch.randn(6, 8)[:, ::2],
            torch.tensor(3.5),
            torch.arange(7, dtype=torch.int8),
            torch.randn(3, 5).bfloat16(),
            torch.randn(3, 5).to(torch.float8_e4m3fn),
        ],
        ids=["matrix", "channels_last", "transposed", "strided", "scalar", "int8", "bfloat16", "float8"],
    )
    def test_a_copy_has_the_same_values_and_order(self, source: Tensor) -> None:
        other = torch.ones(3)
        slot = Slot(CPU, flat_bytes(other) + flat_bytes(source), None)
        _, copy = slot.copy([other, source])
        assert copy.dtype == source.dtype
        assert torch.equal(copy.float(), source.float())
        if source.stride() != (8, 2):  # that one has gaps
            assert copy.stride() == source.stride()
