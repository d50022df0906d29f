"""The table and the chart of compared strategies."""

import math

import numpy as np
import pytest
from PIL import ImageColor

from headroom.memory.render.chart import MEMORY_GROWTH, TIME
from headroom.memory.render.comparison import Comparison, Measured, Outcome, render_comparison, size_text
from headroom.memory.render.comparison_chart import ROW, draw_comparison

MB = 2**20
REFERENCE = Outcome("as it is", Measured(40 * MB, 0.5, 100 * MB, 0.0))
HALF = Outcome("half", Measured(20 * MB, 1.0, 50 * MB, 1e-4), "all of it")
MISSING = Outcome("a kernel with a long name", None, "not here: it is not installed")


def compared(*outcomes: Outcome) -> Comparison:
    return Comparison(["head"], outcomes)


class TestMeasured:
    def test_relative_error_and_signal_to_noise(self) -> None:
        measured = Measured(1, 1.0, 1, 1e-4)
        assert measured.error == pytest.approx(0.01)
        assert measured.db == pytest.approx(40.0)

    def test_equal_results_have_no_noise(self) -> None:
        assert Measured(1, 1.0, 1, 0.0).db == math.inf


class TestTable:
    def test_columns(self) -> None:
        head, empty, header, first, half, missing = render_comparison(compared(REFERENCE, HALF, MISSING)).split("\n")
        assert (head, empty) == ("head", "")
        assert " ".join(first.split()) == "as it is 40.0 MB 1.00x 500.0 ms 1.00x 100.0 MB reference"
        assert " ".join(half.split()) == "half 20.0 MB 0.50x 1.00 s 2.00x 50.0 MB 1.0e-02 40.0 dB all of it"
        assert missing == "a kernel with a long name  not here: it is not installed"
        for column in ("peak", "time", "weights"):  # numbers end below the end of their header
            end = header.index(column) + len(column)
            assert all(line[end - 1].isalpha() and line[end] == " " for line in (first, half))

    def test_what_can_be_said_of_an_error(self) -> None:
        same = Outcome("same", Measured(1, 1.0, 1, 0.0))
        broken = Outcome("broken", Measured(1, 1.0, 1, math.nan))
        comparison = compared(REFERENCE, same, broken)
        assert comparison.error_text(same) == ("none", "")
        assert comparison.error_text(broken) == ("not finite", "")

    def test_without_a_reference_there_are_no_ratios(self) -> None:
        text = render_comparison(compared(Outcome("as it is", None, "failed: out of memory"), HALF))
        assert "as it is  failed: out of memory" in text
        assert "0x" not in text
        assert "unknown" in text

    @pytest.mark.parametrize(
        ("count", "text"), [(2**19, "0.50 MB"), (12.34 * MB, "12.3 MB"), (2**30 * 1.5, "1.50 GB"), (0, "0.00 MB")]
    )
    def test_sizes(self, count: float, text: str) -> None:
        assert size_text(count) == text


class TestChart:
    def test_bars_are_as_long_as_their_values(self) -> None:
        pixels = np.asarray(draw_comparison(compared(REFERENCE, HALF)))
        memory, time = (self.lengths(pixels, colour) for colour in (MEMORY_GROWTH, TIME))
        assert memory[0] == pytest.approx(2 * memory[1], rel=0.02)
        assert time[1] == pytest.approx(2 * time[0], rel=0.02)

    def test_a_row_each(self) -> None:
        one, three = (draw_comparison(compared(*rows)) for rows in ([REFERENCE], [REFERENCE, HALF, MISSING]))
        assert three.height - one.height == 2 * ROW

    def test_long_reasons_stay_on_the_picture(self) -> None:
        long = Outcome("name " * 40, None, "reason " * 200)
        pixels = np.asarray(draw_comparison(compared(REFERENCE, long)))
        row = pixels[-ROW - 32 : -32]
        assert (row.max(axis=2)[:, :-32] > 100).any()
        assert (row.max(axis=2)[:, -32:] < 100).all()

    @staticmethod
    def lengths(pixels: np.ndarray, colour: str) -> list[int]:
        """Of the bars of a colour, from the top."""
        count = (pixels == ImageColor.getrgb(colour)).all(axis=2).sum(axis=1)
        starts = np.flatnonzero((count > 0) & (np.roll(count, 1) == 0))
        return [int(count[start]) for start in starts]
