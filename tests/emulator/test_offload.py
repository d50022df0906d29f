"""Block Offload on an emulated card: as fast as the host's own streaming and faster, within its budget, and tidy.

Times are those of the virtual clock, the same on every machine. Nothing was measured on a GPU.
"""

from __future__ import annotations

import pytest
import torch
from comfy.model_management import InterruptProcessingException

from headroom.host.measure.runs import LOG
from headroom.host.offload.budget import budget_of
from headroom.host.offload.layers import least_weights
from headroom.memory.units import format_bytes

from .conftest import Card
from .streaming import Case, forgotten, model_of, ours, ran, ran_by_the_host, sampled, set_card, staging_of

FLUX, SD3, WAN = Case("flux", 2), Case("sd3", 4), Case("wan21", 6)
ROUNDING = 1 << 20  # bytes: what torch's allocator may leave of a block that is not worth splitting
ACTIVATIONS = 4 << 20  # bytes that a sampling of these models takes beside its weights, at most


def budget_between(case: Case, share: float) -> int:
    """From the least budget to all weights."""
    model = model_of(case)
    least = least_weights(model, 2)
    return int(least + share * (model.model_size() - least))


@pytest.mark.parametrize(
    ("case", "share", "ratio"),
    [(FLUX, 0.3, 2.0), (FLUX, 0.7, 0.7), (SD3, 0.2, 0.7), (SD3, 0.2, 2.0), (WAN, 0.5, 2.0)],
    ids=str,
)
def test_never_slower_than_the_hosts_own_streaming_in_the_same_memory(
    card: Card, case: Case, share: float, ratio: float
) -> None:
    """With the most that the host can keep on the card without allocating more than ours did."""
    set_card(card, case, ratio)
    mine = ran(card, case, ours(model_of(case), budget_between(case, share)))
    theirs = ran_by_the_host(card, case, mine.peak)
    assert theirs is not None
    assert theirs.peak <= mine.peak
    assert mine.step <= theirs.step
    assert torch.equal(mine.latents, theirs.latents)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 1.0, 1.2])
def test_the_budget_holds_and_what_is_staged_was_said_before(card: Card, share: float) -> None:
    case = FLUX
    set_card(card, case, 1.0, lazy=True, races=True)
    model, budget = model_of(case), budget_between(case, share)
    limited = ours(model, budget)
    forgotten()
    before = card.allocated
    result = sampled(case, limited, 2)
    assert card.peak - before <= budget + ACTIVATIONS
    assert card.races == []
    if share < 1:
        assert f"through {format_bytes(staging_of(limited))} of staging" in "\n".join(LOG.rows("", "")[-1].lines)
        assert limited.loaded_size() + staging_of(limited) <= budget
        assert limited.loaded_size() == budget_of(limited).loaded
        assert card.allocated - before <= limited.loaded_size() + ROUNDING  # the ring is given back
    forgotten()
    assert card.allocated <= before
    assert torch.equal(result, sampled(case, model, 2))


def test_two_models_by_turns(card: Card) -> None:
    set_card(card, FLUX, 1.0, lazy=True, races=True)
    turns = {case: ours(model_of(case), budget_between(case, 0.4)) for case in (FLUX, SD3)}
    first = {case: sampled(case, model, 2) for case, model in turns.items()}
    for _ in range(2):
        for case, model in turns.items():
            assert torch.equal(sampled(case, model, 2), first[case])
    forgotten()
    for case in turns:
        assert torch.equal(sampled(case, model_of(case), 2), first[case])
    assert card.races == []


@pytest.mark.parametrize("error", [InterruptProcessingException, RuntimeError])
def test_a_cancel_or_a_failure_in_the_middle_of_copies(card: Card, error: type[BaseException]) -> None:
    case = FLUX
    set_card(card, case, 1.0, lazy=True, races=True)
    model = model_of(case)
    stock = sampled(case, model, 2)
    forgotten()
    before = card.allocated
    limited = ours(model, budget_between(case, 0.3))
    turns = []

    def fail(module: torch.nn.Module, args: object) -> None:
        turns.append(1)
        if len(turns) == 2:
            raise error

    handle = model.model.diffusion_model.single_blocks[1].register_forward_pre_hook(fail)
    with pytest.raises(error):
        sampled(case, limited, 3)
    handle.remove()
    assert card.allocated - before <= limited.loaded_size() + ROUNDING
    forgotten()
    assert card.allocated <= before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.model.modules())
    assert all(parameter.device.type == "cpu" for parameter in model.model.parameters())
    assert torch.equal(sampled(case, limited, 2), stock)
    assert torch.equal(sampled(case, model, 2), stock)
    assert card.races == []
