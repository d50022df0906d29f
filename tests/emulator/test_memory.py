"""The card's memory: counted as a card's is, with a cap, and worthless once it was given back."""

import gc

import pytest
import torch
from torch.nn import functional

from headroom.memory.blocks import uncut_bytes

from .conftest import Card

MB = 2**20
GRAIN = 512  # of PyTorch's caching allocator


def rounded(size: int) -> int:
    return -(-size // GRAIN) * GRAIN


def on_card(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, device="cuda")


def test_bytes_are_counted_in_the_allocators_grains(card: Card) -> None:
    before, sizes = card.allocated, (1, 512, 513, 10**6)
    kept = [torch.empty(size, device="cuda", dtype=torch.uint8) for size in sizes]
    assert card.allocated - before == sum(map(rounded, sizes))
    kept.clear()
    assert card.allocated == before


@pytest.mark.parametrize(
    "sizes",
    [
        [9 * MB, 3 * MB, 3 * MB, 2 * MB + 1, 700_000, 5],
        [11 * MB + 1, 10 * MB + 512, 12 * MB + 3 * MB // 2, 1 * MB, 1 * MB + 1],
        [*[9 * MB // 2] * 9, *[9 * MB // 4] * 5, *[9 * MB // 8] * 11, 512 * 7 + 3],
        [35 * MB // 2, 18 * MB, 19 * MB - 1, 20 * MB, 3, 600, 1500],
    ],
)
def test_what_the_allocator_leaves_uncut_is_foretold(card: Card, sizes: list[int]) -> None:
    torch.cuda.empty_cache()
    before = card.allocated
    kept = [torch.empty(size, device="cuda", dtype=torch.uint8) for size in sizes]
    assert card.allocated - before == sum(sizes) + uncut_bytes(sizes)
    assert len(kept) == len(sizes)


def test_the_peak_counts_what_lives_at_a_time(card: Card) -> None:
    before = card.allocated
    first = on_card(1024, 1024)
    card.reset()
    second = first + first
    view = second.view(-1)[5:]
    del first
    assert card.allocated - before == 4 * MB
    assert card.peak - before == 8 * MB
    del second
    assert card.allocated - before == 4 * MB, "a view keeps its memory"
    del view
    assert card.allocated == before


def test_what_a_kernel_takes_for_itself_is_counted(card: Card) -> None:
    map_ = on_card(1, 8, 64, 64)
    before = card.allocated
    card.reset()
    result = torch.linalg.inv(torch.eye(64, device="cuda") + 0 * map_[0, 0])
    assert card.peak - before > result.nbytes


def test_attention_takes_its_result_alone_and_joins_heads_without_a_copy(card: Card) -> None:
    query = torch.ones(1, 4, 64, 32, device="cuda")
    before = card.allocated
    card.reset()
    with torch.inference_mode():
        attended = functional.scaled_dot_product_attention(query, query, query)
        joined = attended.transpose(1, 2).reshape(1, 64, 128)
    assert card.peak - before <= rounded(attended.nbytes) + 2 * GRAIN  # sums that only a backward reads
    assert joined.data_ptr() == attended.data_ptr()


def test_scratch_of_the_cpus_convolutions_is_not(card: Card) -> None:
    map_, weight = on_card(1, 8, 64, 64), on_card(8, 8, 3, 3)
    before = card.allocated
    card.reset()
    result = functional.conv2d(map_, weight, padding=1)
    assert card.peak - before == rounded(result.nbytes)


def test_a_convolution_holds_what_it_is_told_to_while_it_runs(card: Card) -> None:
    map_, weight = on_card(1, 8, 64, 64), on_card(8, 8, 3, 3)
    card.set(workspace=1.5)
    before = card.allocated
    card.reset()
    result = functional.conv2d(map_, weight, padding=1)
    held = int(1.5 * (map_.nbytes + weight.nbytes + result.nbytes))
    assert card.peak - before == rounded(result.nbytes) + rounded(held)
    assert card.allocated - before == rounded(result.nbytes)
    card.reset()
    result = result + 1
    assert card.peak - before == 2 * rounded(result.nbytes)


def test_segments_come_in_the_cards_pages(card: Card) -> None:
    torch.cuda.empty_cache()
    before = card.stats["used"]
    small = torch.empty(1, device="cuda")
    assert card.stats["used"] - before == 2 * MB
    del small
    torch.cuda.empty_cache()
    assert card.stats["used"] == before


class TestCap:
    def test_an_error_that_can_be_caught_and_leaves_nothing(self, card: Card) -> None:
        torch.cuda.empty_cache()
        before = card.allocated
        free, total = torch.cuda.mem_get_info()
        card.set(vram_mb=512 + -(-(total - free) // MB))  # beside what earlier tests and libraries keep for good
        kept = [torch.empty(64 * MB, dtype=torch.uint8, device="cuda") for _ in range(8)]
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            torch.empty(64 * MB, dtype=torch.uint8, device="cuda")
        assert card.stats["refused"] >= 1
        kept.clear()
        gc.collect()
        assert card.allocated == before
        assert on_card(16).sum() == 16

    def test_within_a_kernel(self, card: Card) -> None:
        card.set(vram_mb=512)
        half = torch.ones(256 * MB, dtype=torch.uint8, device="cuda")
        before = card.allocated
        with pytest.raises(torch.OutOfMemoryError):
            half.float()
        with pytest.raises(torch.OutOfMemoryError):
            half * 1.5
        assert card.allocated == before

    def test_the_host_is_told_what_is_free(self, card: Card) -> None:
        card.set(vram_mb=512)
        free, total = torch.cuda.mem_get_info()
        kept = torch.empty(64 * MB, dtype=torch.uint8, device="cuda")
        assert total == 512 * MB
        assert free - torch.cuda.mem_get_info()[0] == kept.nbytes


def test_memory_that_was_given_back_is_poison(card: Card) -> None:
    first = on_card(1 << 20)
    address = first.data_ptr()
    del first
    second = torch.empty(1 << 20, device="cuda")
    assert second.data_ptr() == address
    assert second.isnan().all()
