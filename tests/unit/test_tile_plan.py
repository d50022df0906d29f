"""Tiles from a byte budget."""

from collections.abc import Sequence

import pytest

from headroom.vae import TileRequest, pixels_per_cell, plan_tiles


def request(length: int, tile: int = 0, overlap: int = 4, smallest: int = 8) -> TileRequest:
    return TileRequest(length, tile, overlap, pixels_per_cell(8), smallest)


def area(cells: Sequence[int]) -> float:
    product = 1.0
    for n in cells:
        product *= n
    return product


def test_the_whole_if_it_fits() -> None:
    plan = plan_tiles([request(64), request(64)], area, 4096)
    assert (plan.tiles, plan.bytes, plan.fits) == (1, 4096, True)


@pytest.mark.parametrize(("height", "width", "budget"), [(64, 64, 2000), (128, 32, 1500), (65, 97, 900)])
def test_the_largest_tiles_within_the_budget(height: int, width: int, budget: int) -> None:
    plan = plan_tiles([request(height), request(width)], area, budget)
    assert plan.fits
    assert area(plan.tile_cells) <= budget
    assert area(plan.tile_cells) > budget / 3, "far smaller tiles than needed"
    assert max(plan.tile_cells) <= 3 * min(plan.tile_cells)


def test_named_sizes_are_kept() -> None:
    plan = plan_tiles([request(64, tile=16), request(64, tile=20)], area, 1)
    assert plan.tile_cells == (16, 20)
    assert not plan.fits


def test_nothing_fits_gives_the_smallest_tiles_and_says_so() -> None:
    plan = plan_tiles([request(64), request(64)], area, 1)
    assert not plan.fits
    assert max(plan.tile_cells) <= 10


def test_more_tiles_after_a_failure() -> None:
    requests = [request(64), request(64)]
    plan = plan_tiles(requests, area, 1e9)
    for _ in range(4):
        smaller = plan_tiles(requests, area, 1e9, least_tiles=plan.tiles + 1)
        assert smaller.tiles > plan.tiles
        plan = smaller


def test_a_short_axis_is_left_whole() -> None:
    plan = plan_tiles([request(6), request(200)], area, 6 * 40)
    assert plan.tile_cells[0] == 6
