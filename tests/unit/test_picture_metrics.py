"""The benchmarks' measures of pictures, on errors of which is known what is wrong with them."""

import math

import pytest
import torch
from torch import Tensor

from headroom.benchmarks._pictures import (
    colour_shift,
    flicker_ratio,
    max_error,
    psnr,
    seam_ratio,
    tile_borders,
)


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class TestSizeOfAnError:
    @pytest.mark.parametrize("deviation", [1e-1, 1e-3, 1e-5])
    def test_psnr_of_known_noise(self, deviation: float) -> None:
        reference = torch.rand(1, 3, 200, 200, generator=torch.Generator().manual_seed(2)).double()
        result = reference + deviation * noise(1, 3, 200, 200)
        assert psnr(result, reference, 1.0) == pytest.approx(-20 * math.log10(deviation), abs=0.1)
        assert psnr(result, reference, 10.0) == pytest.approx(20 - 20 * math.log10(deviation), abs=0.1)

    def test_the_range_of_the_reference_is_the_peak(self) -> None:
        reference = torch.tensor([[-2.0, 2.0], [0.0, 1.0]])
        assert psnr(reference + 0.04, reference) == pytest.approx(40.0, abs=1e-4)

    def test_equal_pictures_are_infinitely_alike(self) -> None:
        assert psnr(noise(4, 4), noise(4, 4)) == math.inf

    def test_differences_are_taken_in_double_precision(self) -> None:
        assert max_error(torch.ones(2, 2), torch.full((2, 2), 1 + 1e-12, dtype=torch.float64)) == pytest.approx(
            1e-12, rel=1e-3
        )

    def test_colour_shift(self) -> None:
        reference = noise(2, 3, 64, 64)
        shift = torch.tensor([0.1, 0.0, -0.2])
        assert colour_shift(reference + shift.view(3, 1, 1), reference) == pytest.approx(shift.tolist(), abs=1e-6)
        last = colour_shift(reference.movedim(1, -1) + shift, reference.movedim(1, -1), dim=-1)
        assert last == pytest.approx(shift.tolist(), abs=1e-6)


class TestSeams:
    ROWS, COLUMNS = (64, 128, 192), (96,)

    def test_none(self) -> None:
        assert seam_ratio(noise(1, 3, 256, 256), self.ROWS, self.COLUMNS) == pytest.approx(1, abs=0.05)

    @pytest.mark.parametrize("dim", [-2, -1])
    def test_pieces_with_an_offset_of_their_own(self, dim: int) -> None:
        error = noise(1, 3, 256, 256)
        offset = torch.zeros(256)
        offset[64:128] = 4.0
        error += offset.view(-1, 1) if dim == -2 else offset
        where = {"rows": (64, 128)} if dim == -2 else {"columns": (64, 128)}
        assert seam_ratio(error, **where) > 3
        elsewhere = {"rows": (32, 160)} if dim == -2 else {"columns": (32, 160)}
        assert seam_ratio(error, **elsewhere) < 1.05

    def test_no_error_has_no_seams(self) -> None:
        assert seam_ratio(torch.zeros(3, 64, 64), (32,)) == 1

    def test_an_error_at_the_seam_alone(self) -> None:
        error = torch.zeros(3, 64, 64)
        error[:, 32:] = 1
        assert seam_ratio(error, (32,)) == math.inf

    def test_one_piece_has_no_seams(self) -> None:
        assert seam_ratio(noise(3, 64, 64)) == 1
        assert seam_ratio(noise(3, 64, 64), (0, 64)) == 1


class TestFlicker:
    def test_none(self) -> None:
        assert flicker_ratio(noise(17, 3, 32, 32), (1, 5, 9, 13)) == pytest.approx(1, abs=0.05)

    def test_every_piece_is_brighter_by_itself(self) -> None:
        error = noise(17, 3, 32, 32)
        error[5:9] += 3
        assert flicker_ratio(error, (5, 9)) > 1.5
        assert flicker_ratio(error.movedim(0, 1), (5, 9), dim=1) > 1.5

    def test_one_frame(self) -> None:
        assert flicker_ratio(noise(1, 3, 8, 8), ()) == 1


class TestTileBorders:
    def test_one_tile(self) -> None:
        assert tile_borders(64, 64, 8) == set()

    def test_tiles_begin_and_end(self) -> None:
        assert tile_borders(100, 40, 10) == {30, 40, 60, 70}
