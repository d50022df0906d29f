"""What code asks about numbers without data gets the answer that the numbers would give."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headroom.memory.prediction import (
    CannotPredict,
    CountingModules,
    LiveBytes,
    fake_mode,
    fake_tree,
    has_stated_zeros,
    named_card,
    predict,
    state_zeros,
)

MASK = [[1, 1, 1, 0, 0], [1, 1, 0, 0, 0]]
Question = Callable[[Tensor], object]


def filled(mask: Tensor) -> tuple[int, ...]:
    """As text encoders put what they saw of a picture among a text's words."""
    words = torch.ones(*mask.shape, 4, device=mask.device) * torch.rand((), device=mask.device)
    places = mask != 0
    words[places] = words[places] + torch.rand(4, device=mask.device)
    return tuple(words[places, :].shape)


def asked(question: Question, card: str) -> object:
    """The answer of a tensor without data on a card."""
    answers: list[object] = []
    chosen = named_card(card, 8.0)

    def work(_: object) -> None:
        answers.append(question(torch.tensor(MASK, device=chosen.device)))

    predict(fake_mode(), chosen, [], work)
    return answers[0]


@pytest.mark.parametrize(
    "question",
    [
        lambda mask: bool(mask.sum() == mask.numel()),
        lambda mask: mask[:, :2].sum().item(),
        lambda mask: torch.cat([mask, mask]).bool().any(dim=0).tolist(),
        lambda mask: mask[mask != 0].shape,
        lambda mask: torch.unique_consecutive(mask[0]).tolist(),
        lambda mask: [(row.cumsum(0) * 4)[-1].item() for row in mask],
        lambda mask: torch.arange(mask[0].sum().item()).reshape(-1, 1).shape,
        lambda mask: mask.nonzero().shape,
        lambda mask: (mask[:, 1:].add_(2), mask)[1].tolist(),
        lambda mask: (mask[0].copy_(mask[1].clone()), mask)[1].sum().item(),
        lambda mask: bool((mask.float() * 0.5).sum() > 1),
        lambda mask: (torch.linspace(0, 47, 8, device=mask.device).clip(max=30) - 1).tolist(),
        filled,
        lambda mask: bool((torch.as_tensor([0.5, 0.0], dtype=torch.bfloat16, device=mask.device) == 0).any()),
        lambda mask: torch.count_nonzero(mask).item(),
        lambda mask: torch.empty(3, 5, device=mask.device)[:, mask[0] != 0].shape,
        lambda mask: torch.equal(mask, mask.clone()),
        lambda mask: torch.equal(mask, 2 * mask),
        lambda mask: torch.equal(mask, torch.empty(3, device=mask.device)),
    ],
    ids=[
        "all",
        "sum",
        "any",
        "index",
        "unique",
        "rows",
        "arange",
        "nonzero",
        "a view is written",
        "a row is copied",
        "fractions",
        "evenly spaced",
        "a mask of what is not known",
        "settings",
        "count",
        "columns of others",
        "equal",
        "not equal",
        "of other shapes",
    ],
)
@pytest.mark.parametrize("card", ["sm86", "sm120"])
def test_it_is_what_the_numbers_give(question: Question, card: str) -> None:
    assert asked(question, card) == question(torch.tensor(MASK))


@pytest.mark.parametrize(
    "question",
    [
        lambda mask: bool(torch.randint(0, 2, (1,), device=mask.device)),
        lambda mask: torch.empty(5, device=mask.device)[torch.empty(5, device=mask.device) > 0],
        lambda mask: torch.equal(mask, torch.empty_like(mask)),
        lambda mask: bool(torch.empty(3, dtype=torch.int64, device=mask.device).sum()),
        lambda mask: bool(mask.random_(0, 2).sum() == 0),
        lambda mask: bool((mask[:, 1:].copy_(torch.empty_like(mask[:, 1:])), mask)[1].sum() == 0),
    ],
    ids=["chance", "cells by what is not known", "equal", "never written", "drawn anew", "a view is written to"],
)
def test_what_is_not_known_is_not_guessed(question: Question) -> None:
    with pytest.raises(CannotPredict, match="depends on data"):
        asked(question, "sm86")


class Codes(nn.Module):
    """Counts by tensors of its own, as ComfyUI's ACE-Step does."""

    def __init__(self) -> None:
        super().__init__()
        levels = torch.tensor([8, 5, 5], dtype=torch.int32)
        shares = [share.item() for share in torch.linspace(0, 0.5, 3)]
        steps = torch.linspace(0.0, 10.0, 300)
        steps[steps > 5] *= 2
        self.table = nn.Parameter(torch.empty(levels.prod().item(), len(shares), int(steps.max())))
        self.layers = nn.ModuleList(nn.Dropout(share) for share in shares)


@pytest.mark.parametrize("inference", [False, True])
def test_a_module_counts_while_it_is_made(inference: bool) -> None:
    with torch.inference_mode(inference):
        with fake_mode(), CountingModules():
            made = Codes()
        assert made.table.shape == Codes().table.shape == (200, 3, 20)
        assert [layer.p for layer in made.layers] == [0.0, 0.25, 0.5]
        with fake_mode(), pytest.raises(RuntimeError):
            Codes()


def test_a_text_of_zeros_is_known_for_what_it_is() -> None:
    counts: list[object] = []
    mode = fake_mode()
    card = named_card("sm86", 8.0)
    with mode:
        zeros, others = torch.zeros(1, 400, 1024), torch.zeros(1, 400, 1024)
    state_zeros(zeros)
    assert has_stated_zeros(zeros)
    assert not has_stated_zeros(others)
    assert not has_stated_zeros(zeros * 2)

    def work(_: object) -> None:
        counts.extend(bool(torch.count_nonzero(one) == 0) for one in (zeros, others))

    predict(mode, card, [], work, given=[zeros, others])
    assert counts == [True, False]


def test_of_numbers_that_are_given_more_go_along() -> None:
    card, numbers = named_card("sm86", 8.0), torch.arange(2**17).float()[None]
    answers: list[object] = []

    def work(tracker: LiveBytes) -> None:
        mask = torch.empty(1, 2**17, device=card.device)
        tracker.know(mask, numbers)
        answers.append((mask.half().float()[0, -1].item(), (mask < 2**16).sum().item()))

    predict(fake_mode(), card, [], work)
    assert answers == [(float("inf"), 2**16)]


def between(first: Callable[[], Any], second: Callable[[Any], object]) -> object:
    """What a second prediction asks of the first one's result, on another device."""
    mode, card = fake_mode(), named_card("sm86", 8.0)
    made: list[Any] = []
    answers: list[object] = []

    def encode(tracker: LiveBytes) -> None:
        made.append(first())
        tracker.hand_on(made[0])

    predict(mode, card, [], encode)
    with mode:
        given = fake_tree(made[0], torch.device("cpu"))
    predict(mode, card, [], lambda _: answers.append(second(given)))
    return answers[0]


class TestFromOnePredictionToTheNext:
    def test_tokens_are_known(self) -> None:
        text = between(lambda: {"tokens": torch.tensor([[5, 7, 7]])}, lambda text: text["tokens"][0].tolist())
        assert text == [5, 7, 7]

    def test_of_a_tensor_with_data_too(self) -> None:
        tokens = torch.tensor([[3, 4]], dtype=torch.int32)
        mode, card = fake_mode(), named_card("sm86", 8.0)
        with mode:
            given = fake_tree([tokens], card.device)
        answers: list[object] = []
        predict(mode, card, [], lambda _: answers.append(int((given[0] == 4).nonzero()[0, 1])))
        assert answers == [1]

    def test_what_is_computed_is_not(self) -> None:
        with pytest.raises(CannotPredict, match="depends on data"):
            between(lambda: torch.tensor([[0.5, 0.25]]), lambda text: text.sum().item())

    def test_writing_leaves_them_to_others(self) -> None:
        """Two guidances share a text; one writes into its tokens."""
        tokens, mode, card = torch.tensor([1, 2]), fake_mode(), named_card("sm86", 8.0)
        with mode:
            given = fake_tree(tokens, card.device)
        answers: list[object] = []
        for _ in range(2):
            predict(mode, card, [], lambda _: answers.append(given.add_(1).tolist()))
        assert answers == [[2, 3], [2, 3]]

    def test_what_is_written_and_not_known_is_forgotten(self) -> None:
        with pytest.raises(CannotPredict, match="depends on data"):
            between(
                lambda: torch.tensor([1, 2]),
                lambda text: text.copy_(torch.empty(2, dtype=torch.int64, device=text.device)).sum().item(),
            )


@pytest.mark.parametrize("mode", [torch.tensor, torch.stack])
def test_a_tensor_of_a_list_of_tensors(mode: Any) -> None:
    """``torch.tensor`` asks each of them for its number."""
    question: Question = lambda mask: mode([mask[0].sum(), mask[1].sum()]).tolist()  # noqa: E731
    assert asked(question, "sm86") == [3, 2]
