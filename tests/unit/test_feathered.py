"""Feathered tiling: windows, alignment in time, and the blend against an untiled run, in float64 where possible."""

import math
from itertools import pairwise

import pytest
import torch
from torch.nn import functional

from headroom.vae import FEATHERS, Axis, Direction, causal_frames, cover, feather_windows, feathered, pixels_per_cell


class TestCover:
    @pytest.mark.parametrize(
        ("length", "tile", "overlap"), [(10, 4, 1), (64, 16, 4), (33, 17, 16), (7, 3, 2), (9, 9, 2)]
    )
    def test_tiles_cover_evenly(self, length: int, tile: int, overlap: int) -> None:
        spans = cover(length, tile, overlap)
        assert spans[0].start == 0
        assert spans[-1].stop == length
        assert {span.stop - span.start for span in spans} == {tile}
        shared = [a.stop - b.start for a, b in pairwise(spans)]
        assert all(s >= overlap for s in shared)
        assert max(shared, default=0) - min(shared, default=0) <= 1

    def test_a_tile_that_holds_everything_is_one(self) -> None:
        assert cover(5, 8, 2) == (slice(0, 5),)

    def test_overlap_must_be_smaller(self) -> None:
        with pytest.raises(ValueError, match="overlap"):
            cover(10, 4, 4)


class TestWindows:
    @pytest.mark.parametrize("feather", FEATHERS)
    @pytest.mark.parametrize(("length", "tile", "overlap"), [(40, 16, 4), (100, 30, 20), (64, 33, 2), (50, 20, 0)])
    def test_weights_sum_to_one(self, feather: str, length: int, tile: int, overlap: int) -> None:
        spans = cover(length, tile, overlap)
        total = torch.zeros(length, dtype=torch.float64)
        for span, window in zip(spans, feather_windows(spans, feather)):
            assert (window > 0).all()
            total[span] += window.double()
        assert (total - 1).abs().max() < 2e-7

    @pytest.mark.parametrize("feather", FEATHERS)
    def test_a_lone_tile_and_the_outer_borders_count_fully(self, feather: str) -> None:
        assert (feather_windows([slice(0, 9)], feather)[0] == 1).all()
        first, *_, last = feather_windows(cover(40, 16, 4), feather)
        assert (first[:12] == 1).all()
        assert (last[-12:] == 1).all()

    def test_causal_tiles_are_joined_where_the_earlier_one_ends(self) -> None:
        spans = [slice(0, 10), slice(4, 14), slice(8, 18)]
        owner = torch.zeros(18)
        for i, (span, window) in enumerate(zip(spans, feather_windows(spans, "cosine", causal=True))):
            assert set(window.tolist()) == {0.0, 1.0} or i == 0
            owner[span] += window * (i + 1)
        assert owner.tolist() == [1] * 10 + [2] * 4 + [3] * 4

    def test_cosine_is_the_raised_cosine(self) -> None:
        window = feather_windows([slice(0, 10), slice(6, 16)], "cosine")[1]
        expected = [0.5 - 0.5 * math.cos(math.pi * (i + 0.5) / 4) for i in range(4)]
        assert window[:4].tolist() == pytest.approx(expected, abs=1e-7)


def upsample_and_blur(x: torch.Tensor) -> torch.Tensor:
    """A purely local decoder: 2 cells of reach, 4 pixels per cell."""
    kernel = torch.arange(1.0, 26.0, dtype=x.dtype).view(1, 1, 5, 5) / 325
    blurred = functional.conv2d(x.flatten(0, 1)[:, None], kernel, padding=2).view_as(x)
    return blurred.repeat_interleave(4, -1).repeat_interleave(4, -2)


def axes_of(height: int, width: int, tile: int, overlap: int, ratio: int = 4) -> list[Axis]:
    return [Axis(cover(size, tile, overlap), pixels_per_cell(ratio)) for size in (height, width)]


class TestBlend:
    @pytest.mark.parametrize("feather", FEATHERS)
    @pytest.mark.parametrize(("height", "width"), [(32, 32), (13, 41), (20, 7)])
    def test_interior_of_a_local_decoder_is_exact(self, feather: str, height: int, width: int) -> None:
        """Only cells within the decoder's reach of a tile's border differ from the untiled decode."""
        x = torch.randn(2, 3, height, width, dtype=torch.float64)
        axes = axes_of(height, width, tile=12, overlap=6)
        out = feathered(x, upsample_and_blur, axes, Direction.DECODE, feather)
        expected = upsample_and_blur(x)
        near_seam = [torch.zeros(size * 4, dtype=torch.bool) for size in (height, width)]
        for axis, near, size in zip(axes, near_seam, (height, width)):
            for edge in {edge for cells in axis.cells for edge in (cells.start, cells.stop)} - {0, size}:
                near[max(0, (edge - 2) * 4) : (edge + 2) * 4] = True
        interior = ~near_seam[0][:, None] & ~near_seam[1][None, :]
        error = (out - expected).abs().amax((0, 1))
        assert out.shape == expected.shape
        assert interior.any()
        assert error[interior].max() < 1e-6
        assert error.max() > 1e-3, "the seams of this decoder must show, or the test compares nothing"

    def test_one_tile_is_the_untiled_result_bit_for_bit(self) -> None:
        x = torch.randn(2, 3, 9, 11)
        out = feathered(x, upsample_and_blur, axes_of(9, 11, 16, 4), Direction.DECODE)
        assert torch.equal(out, upsample_and_blur(x))

    def test_a_pointwise_autoencoder_is_exact_both_ways(self) -> None:
        x = torch.randn(1, 2, 24, 20, dtype=torch.float64)
        decode = lambda t: t.repeat_interleave(4, -1).repeat_interleave(4, -2)  # noqa: E731
        encode = lambda t: functional.avg_pool2d(t, 4)  # noqa: E731
        axes = axes_of(24, 20, 8, 3)
        pixels = feathered(x, decode, axes, Direction.DECODE)
        torch.testing.assert_close(pixels.double(), decode(x), atol=1e-6, rtol=0)
        cells = feathered(decode(x), encode, axes, Direction.ENCODE)
        torch.testing.assert_close(cells.double(), x, atol=1e-6, rtol=0)

    def test_every_tile_runs_once_and_is_announced(self) -> None:
        runs: list[torch.Size] = []
        seen: list[torch.Size] = []

        def decode(tile: torch.Tensor) -> torch.Tensor:
            runs.append(tile.shape)
            return upsample_and_blur(tile)

        axes = axes_of(20, 30, 10, 2)
        feathered(
            torch.zeros(1, 1, 20, 30),
            decode,
            axes,
            Direction.DECODE,
            on_tile=lambda blended: seen.append(blended.shape),
        )
        assert len(runs) == len(seen) == len(axes[0].cells) * len(axes[1].cells)
        assert set(seen) == {torch.Size((1, 1, 80, 120))}


class TestTime:
    """A causal video decoder: k frames per cell, but one for the first cell it sees."""

    @staticmethod
    def decode(cells: torch.Tensor, ratio: int = 4) -> torch.Tensor:
        frames = cells.repeat_interleave(ratio, 2)
        return frames[:, :, ratio - 1 :]

    @staticmethod
    def encode(frames: torch.Tensor, ratio: int = 4) -> torch.Tensor:
        return frames[:, :, ::ratio]

    @pytest.mark.parametrize(("length", "tile", "overlap"), [(9, 4, 1), (16, 6, 3), (5, 2, 1)])
    def test_tiles_in_time_line_up(self, length: int, tile: int, overlap: int) -> None:
        x = torch.arange(length, dtype=torch.float64).view(1, 1, -1, 1, 1).expand(1, 1, length, 2, 2)
        axes = [Axis(cover(length, tile, overlap), causal_frames(4)), *axes_of(2, 2, 2, 0, ratio=1)]
        frames = feathered(x, self.decode, axes, Direction.DECODE)
        assert frames.shape[2] == 4 * length - 3
        torch.testing.assert_close(frames.double(), self.decode(x), atol=1e-5, rtol=0)
        cells = feathered(self.decode(x), self.encode, axes, Direction.ENCODE)
        torch.testing.assert_close(cells.double(), x, atol=1e-5, rtol=0)
