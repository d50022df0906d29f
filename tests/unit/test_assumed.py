"""What is assumed where code looks at data that are not there: as much as there can be."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headroom.memory.prediction import CannotPredict, LiveBytes, Prediction, fake_mode, named_card, predict

ROWS = 300
Work = Callable[[Tensor, Tensor], Tensor]


def shape_of(work: Work, assumptions: list[str] | None) -> tuple[int, ...]:
    shapes: list[tuple[int, ...]] = []
    prediction_of(work, assumptions, shapes)
    return shapes[0]


def prediction_of(work: Work, assumptions: list[str] | None, shapes: list[tuple[int, ...]]) -> Prediction:
    mode, card = fake_mode(), named_card("sm86", 8.0)

    def run(tracker: LiveBytes) -> object:
        x, scores = torch.empty(ROWS, 4, device="cuda"), torch.empty(ROWS, device="cuda")
        result = work(x, scores)
        shapes.append(tuple(result.shape))
        return result

    return predict(mode, card, [], run, assumptions=assumptions)


WORKS: dict[str, tuple[Work, tuple[int, ...]]] = {
    "by a mask": (lambda x, scores: x[scores > 0.5], (ROWS, 4)),
    "by a mask of all values": (lambda x, scores: x[x > 0.5], (ROWS * 4,)),
    "places": (lambda x, scores: (x > 0.5).nonzero(), (ROWS * 4, 2)),
    "selected": (lambda x, scores: torch.masked_select(x, scores[:, None] > 0.5), (ROWS * 4,)),
    "a condition": (lambda x, scores: x if bool((scores > 0.5).any()) else x[:1], (ROWS, 4)),
    "a number": (lambda x, scores: x[: int(scores.argmax())], (0, 4)),
}


@pytest.mark.parametrize("name", WORKS)
def test_the_most_is_assumed_and_told(name: str) -> None:
    work, shape = WORKS[name]
    assumptions: list[str] = []
    assert shape_of(work, assumptions) == shape
    assert assumptions


def test_nothing_is_assumed_unasked() -> None:
    with pytest.raises(CannotPredict, match="depends on data"):
        shape_of(WORKS["by a mask"][0], None)


def test_what_is_kept_counts() -> None:
    found = prediction_of(WORKS["by a mask"][0], [], [])
    # The two that are there, the mask, the places of what it keeps, and what is kept.
    assert found.activations >= 4 * ROWS * (4 + 1 + 4) + ROWS + 8 * ROWS
