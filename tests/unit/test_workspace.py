"""What a card's convolutions hold while they run, as plans of strips count it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headroom.vae.exact import DoesNotFit, ExactRun, PlannedRun, Schedule
from headroom.vae.exact.operations.convolution import SlabConvolution
from headroom.vae.exact.planning.device import ACCELERATOR, CPU, Figures
from headroom.vae.exact.planning.workspace import BY_RULE, ConvolutionWorkspace

from ..nightly import some_of
from .test_exact_vae import decoder, encoder, noise, seeded

META = torch.device("meta")
MB = 2**20
# Of nine channels sixteen are counted.
SINGLE = SlabConvolution(torch.float32, (1, 9, 256, 256), (24, 9, 3, 3), (1, 1), (0, 1), (1, 1))


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def on_card(workspace: ConvolutionWorkspace | None) -> Figures:
    return replace(ACCELERATOR, workspace=workspace)


def planned(
    module: nn.Module, shape: tuple[int, ...], figures: Figures, budget: float = math.inf, **options: Any
) -> Schedule:
    dtype = options.pop("dtype", torch.float32)
    module = module.to(META, dtype)
    run = PlannedRun(budget, figures=figures, owned=module.parameters(), **options)
    run.run(module, torch.empty(shape, device=META, dtype=dtype))
    return run.report.schedules[-1]


class TestOneCall:
    def test_bytes_of_input_weight_and_result(self) -> None:
        assert SINGLE.out == (1, 24, 254, 256)
        elements = 16 * 256 * 256 + 24 * 16 * 9 + 24 * 254 * 256
        assert SINGLE.bytes == 4 * elements

    @pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1.35), (torch.bfloat16, 1.08), (torch.float16, 1.08)])
    def test_the_rule_of_a_dtype(self, dtype: torch.dtype, most: float) -> None:
        call = SINGLE._replace(dtype=dtype)
        assert BY_RULE.of(call) == int(most * call.bytes)
        assert ConvolutionWorkspace(2.0, 0.0).of(call) == int(2 * most * call.bytes)

    def test_kernels_of_one_pixel_have_a_multiple_of_their_own(self) -> None:
        pointwise = SINGLE._replace(weight=(24, 9, 1, 1), padding=(0, 0))
        workspace = ConvolutionWorkspace(0.0, 1.0)
        assert workspace.of(SINGLE) == 0
        assert workspace.of(pointwise) == int(1.35 * pointwise.bytes)

    def test_what_was_measured_comes_first(self) -> None:
        workspace = ConvolutionWorkspace(measured={SINGLE: 7})
        assert workspace.of(SINGLE) == 7
        assert workspace.of(SINGLE._replace(padding=(1, 1))) > 7


class TestPlans:
    SHAPE = (1, 9, 256, 256)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_the_peak_has_it_beside_input_and_result(self, dtype: torch.dtype) -> None:
        without, counted = (
            planned(nn.Conv2d(9, 24, 3, padding=(0, 1)), self.SHAPE, on_card(one), dtype=dtype).peak
            for one in (None, BY_RULE)
        )
        held = BY_RULE.of(SINGLE._replace(dtype=dtype))
        assert held > 2 * MB
        assert counted - without == pytest.approx(held, abs=MB + 0.01 * held)  # in a block of the allocator

    @pytest.mark.parametrize("none", [ConvolutionWorkspace(0.0, 0.0), ConvolutionWorkspace(measured={SINGLE: 0})])
    def test_where_none_is_held_none_is_counted(self, none: ConvolutionWorkspace) -> None:
        plans = (planned(nn.Conv2d(9, 24, 3, padding=(0, 1)), self.SHAPE, on_card(one)) for one in (None, none))
        assert len({plan.peak for plan in plans}) == 1

    @pytest.mark.parametrize("dtype", some_of([torch.float32, torch.bfloat16], 2))
    def test_strips_get_lower_as_more_is_held(self, dtype: torch.dtype) -> None:
        """Within one budget, which each plan keeps to with what it counts."""
        shape = (1, 4, 96, 96)
        budget = 1.5 * 2 * 24 * 384 * 384 * dtype.itemsize
        found = [
            planned(decoder(24), shape, on_card(ConvolutionWorkspace(factor, factor)), budget, dtype=dtype)
            for factor in (0.0, 1.0, 3.0)
        ]
        assert all(plan.peak <= budget for plan in found)
        strips = [plan.strips for plan in found]
        assert strips == sorted(strips)
        assert strips[0] < strips[-1]

    def test_the_least_possible_has_it_too(self) -> None:
        least = []
        for workspace in (None, BY_RULE, ConvolutionWorkspace(3.0, 3.0)):
            with pytest.raises(DoesNotFit) as error:
                planned(decoder(24), (1, 4, 32, 32), on_card(workspace), 1.0)
            least.append(error.value.least)
        assert least == sorted(set(least))

    def test_a_plan_is_not_taken_for_one_of_another_workspace(self) -> None:
        module, x = decoder().to(META), torch.empty(1, 4, 32, 32, device=META)
        plans: dict[Any, Any] = {}
        for workspace in (None, BY_RULE, ConvolutionWorkspace(measured={SINGLE: 7})):
            PlannedRun(1e12, figures=on_card(workspace), owned=module.parameters(), plans=plans).run(module, x)
        assert len(plans) == 3


@dataclass(frozen=True)
class Noting(ConvolutionWorkspace):
    """Notes the calls that it is asked about."""

    asked: set[SlabConvolution] = field(default_factory=set, compare=False)

    def of(self, call: SlabConvolution) -> int:
        self.asked.add(call)
        return super().of(call)


@pytest.mark.parametrize("rows", [3, 8, 999])
@pytest.mark.parametrize(("make", "shape"), [(decoder, (2, 4, 14, 9)), (encoder, (1, 3, 42, 31))])
def test_plans_ask_about_the_calls_that_are_made(
    monkeypatch: pytest.MonkeyPatch, make: Any, shape: tuple[int, ...], rows: int
) -> None:
    """To the row: what was measured is found by its shapes."""
    convolution = functional.conv2d
    made: set[SlabConvolution] = set()

    def seen(
        x: Tensor,
        weight: Tensor,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        if type(x) is Tensor:
            pair = ((one, one) if isinstance(one, int) else tuple(one) for one in (stride, padding, dilation))
            made.add(SlabConvolution(x.dtype, tuple(x.shape), tuple(weight.shape), *pair, groups))
        return convolution(x, weight, bias, stride, padding, dilation, groups)

    workspace = Noting()
    module = seeded(make)
    run = ExactRun(rows=rows, figures=replace(CPU, workspace=workspace))
    with monkeypatch.context() as patch:
        patch.setattr(functional, "conv2d", seen)
        run.run(module, noise(*shape))
    assert len(made) > 4
    assert made <= workspace.asked
