"""Prefetched layers on plain torch, weights outside their window poisoned."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest
import torch
from torch import Tensor, nn

from headroom.offload.prefetch import LayerPrefetch, Learned
from headroom.offload.ring import Ring, waits
from headroom.offload.staging import Staging, flat_bytes

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


def linear_layers(network: nn.Module) -> dict[str, nn.Module]:
    return {name: layer for name, layer in network.named_modules() if isinstance(layer, nn.Linear)}


LARGEST = flat_bytes(torch.empty(2 * WIDTH, WIDTH)) + flat_bytes(torch.empty(2 * WIDTH))


def engine(
    network: Network, rings: float, resident: tuple[int, ...] = (), learned: Learned | None = None
) -> LayerPrefetch:
    """A ring for so many of the largest layers."""
    kept = tuple(f"blocks.{index}." for index in resident)
    streamed = {name: layer for name, layer in linear_layers(network).items() if not name.startswith(kept or "-")}
    return LayerPrefetch(streamed, CPU, int(rings * LARGEST), learned, poison)


X = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1))


class TestPrefetch:
    @pytest.mark.parametrize("rings", [1, 1.5, 2, 3, 40])
    @pytest.mark.parametrize("resident", [(), (0,), (1, 3), (0, 1, 2, 3, 4)])
    def test_the_same_bits_and_each_layer_copied_once_per_call(self, rings: float, resident: tuple[int, ...]) -> None:
        network = Network()
        expected = network(X)
        prefetch = engine(network, rings, resident)
        for _ in range(4):
            with prefetch.installed():
                assert torch.equal(network(X), expected)
        assert torch.equal(network(X), expected)
        traffic = prefetch.traffic
        ahead = set(prefetch._staged)  # for a call that never came
        assert set(traffic.copies) == set(prefetch.streamed)
        assert all(copies == 4 + (name in ahead) for name, copies in traffic.copies.items())
        assert traffic.steps == 4
        assert traffic.staged <= prefetch.staging_bytes == int(rings * LARGEST)
        assert traffic.late == len(prefetch.streamed) or rings < 2  # the first call, in which the order is not known

    def test_a_known_order_is_followed_from_the_first_call_on(self) -> None:
        network = Network()
        first = engine(network, 2)
        with first.installed():
            network(X)
        again = engine(network, 2, learned=first.learned)
        for _ in range(2):
            with again.installed():
                network(X)
        assert again.traffic.late <= 1

    def test_nothing_is_left_on_the_network(self) -> None:
        network = Network()
        parameters = list(network.parameters())
        handle = network.blocks[2].inner.register_forward_pre_hook(lambda module, args: {}["x"])
        with pytest.raises(KeyError), engine(network, 2).installed():
            network(X)
        handle.remove()
        assert all(a is b for a, b in zip(network.parameters(), parameters))
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())

    def test_a_layer_has_its_weights_while_it_runs_and_no_longer(self) -> None:
        """Its bytes of the ring are another layer's then: who reads them late must not find numbers that seem right."""
        network = Network()
        network.blocks[1].register_forward_pre_hook(
            lambda module, args: seen.append(network.blocks[0].outer.weight.isnan().all().item())
        )
        for rings in (1, 3, 40):
            seen: list[bool] = []
            prefetch = engine(network, rings)
            for _ in range(2):
                with prefetch.installed():
                    network(X)
            assert seen == [True, True]

    @pytest.mark.parametrize("rings", [1, 2, 5])
    def test_it_goes_on_after_an_error(self, rings: float) -> None:
        network = Network()
        expected = network(X)
        prefetch = engine(network, rings)
        for _ in range(3):
            with pytest.raises(RuntimeError), prefetch.installed():
                network(X[:, :3])
            with prefetch.installed():
                assert torch.equal(network(X), expected)

    @pytest.mark.parametrize("order", [(5, 0, 3), (2, 2, 2), (0, 2, 4, 5), (5, 4, 3, 2, 1, 0)])
    @pytest.mark.parametrize("rings", [1, 1.5, 2, 3, 8])
    def test_whatever_order(self, rings: float, order: tuple[int, ...]) -> None:
        """The order of the call before, then another one, by turns."""
        network = Network()
        prefetch = engine(network, rings)
        for turn in range(5):
            chosen = order if turn % 2 else None
            expected = Network()(X, chosen)
            with prefetch.installed():
                assert torch.equal(network(X, chosen), expected)

    def test_a_layer_larger_than_the_ring_is_left_alone(self) -> None:
        network = Network()
        expected = network(X)
        small = flat_bytes(network.blocks[0].outer.weight)
        prefetch = LayerPrefetch(linear_layers(network), CPU, small, hide=poison)
        with prefetch.installed():
            assert torch.equal(network(X), expected)
        assert set(prefetch.left) == {f"blocks.{i}.inner" for i in range(6)}

    def test_exchanged_parameters_are_noticed(self) -> None:
        network = Network()
        prefetch = engine(network, 2)
        assert prefetch.is_current()
        network.blocks[3].inner.weight = nn.Parameter(torch.zeros(2 * WIDTH, WIDTH))
        assert not prefetch.is_current()

    def test_weights_written_between_calls_count_after_forget(self) -> None:
        network = Network()
        prefetch = engine(network, 2)
        for _ in range(2):
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
        with engine(network, 2).installed():
            assert nn.functional.linear(X, network.blocks[4].inner.weight).isnan().any()


class TestStaging:
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
        staging = Staging(CPU, flat_bytes(other) + flat_bytes(source))
        staged = staging.copy([other, source])
        assert staged is not None
        _, copy = staged.weights
        assert copy.dtype == source.dtype
        assert torch.equal(copy.float(), source.float())
        if source.stride() != (8, 2):  # that one has gaps
            assert copy.stride() == source.stride()

    def test_bytes_in_use_are_not_given_out(self) -> None:
        staging = Staging(CPU, 2 * 512)
        first, second = staging.copy([torch.ones(3)]), staging.copy([torch.zeros(3)])
        assert first is not None
        assert second is not None
        assert staging.copy([torch.zeros(3)]) is None
        staging.release(first)
        assert staging.copy([torch.zeros(3)]) is not None
        assert staging.copy([torch.zeros(3)]) is None


class TestRing:
    def test_by_hand(self) -> None:
        """10 bytes: 4, 4, then 4 again at the start, which waits for the first."""
        ring: Ring[str] = Ring(10)
        (first, _), (second, _) = ring.take(4), ring.take(4)
        assert (first.start, second.start) == (0, 4)
        assert ring.take(4) is None
        ring.give_back(first, "first")
        third, tokens = ring.take(4)
        assert (third.start, tokens) == (0, ["first"])
        ring.give_back(second, "second")
        fourth, tokens = ring.take(6)
        assert (fourth.start, tokens) == (4, ["second"])

    def test_bytes_covered_in_part_are_waited_for_again(self) -> None:
        ring: Ring[str] = Ring(10)
        region, _ = ring.take(10)
        ring.give_back(region, "all")
        assert ring.take(3)[1] == ["all"]
        assert ring.take(7)[1] == ["all"]

    def test_a_dropped_region_is_the_next_one_again(self) -> None:
        ring: Ring[str] = Ring(10)
        ring.take(4)
        region, _ = ring.take(6)
        ring.drop(region)
        assert ring.take(5)[0].start == 4

    def test_nothing_larger_than_the_ring(self) -> None:
        assert Ring(10).take(11) is None
        with pytest.raises(ValueError, match="a region of 11 bytes in a ring of 10"):
            waits([3, 11], 10)

    def test_what_waits_for_what_is_the_same_on_paper(self) -> None:
        """A ring that is used in order, against the row of waits that the virtual clock goes by."""
        rng = random.Random(0)
        for _ in range(300):
            size = rng.randint(10, 60)
            sizes = [rng.randint(1, size) for _ in range(40)]
            ring: Ring[int] = Ring(size)
            held: list[tuple[int, object]] = []
            found = []
            for index, wanted in enumerate(sizes):
                latest = -1
                while (taken := ring.take(wanted)) is None:
                    latest, region = held.pop(0)
                    ring.give_back(region, latest)
                held.append((index, taken[0]))
                found.append(max([latest, *taken[1]]))
            # Regions end in order: who waits for one has waited for all before it.
            assert list(accumulate(found, max)) == list(accumulate(waits(sizes, size), max))
