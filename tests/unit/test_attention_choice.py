"""Which backend runs a call, what is refused, and which blocks a selection holds."""

import pytest
import torch

from headroom.attention import AttentionCall, Place, choose, compute, parse_blocks


def call_of(q: torch.Tensor, k: torch.Tensor | None = None, v: torch.Tensor | None = None, **options) -> AttentionCall:
    k = q if k is None else k
    return AttentionCall.bind(q, k, k if v is None else v, q.shape[1], skip_reshape=True, **options)


class TestChoice:
    def test_auto_takes_the_fused_kernel(self) -> None:
        assert choose("auto", call_of(torch.randn(1, 2, 8, 4))).backend.name == "sdpa"

    @pytest.mark.parametrize(
        ("operands", "reason"),
        [
            ((torch.randn(1, 2, 8, 4), torch.randn(1, 2, 8, 4), torch.randn(1, 2, 8, 6)), "values of 6 channels"),
            ((torch.randn(1, 2, 8, 8)[..., ::2],), "not contiguous"),
            ((torch.randn(1, 2, 8, 4), torch.randn(1, 2, 8, 4).half()), "dtypes differ"),
        ],
    )
    def test_auto_avoids_the_math_kernel(self, operands: tuple[torch.Tensor, ...], reason: str) -> None:
        decision = choose("auto", call_of(*operands))
        assert decision.backend.name == "online"
        assert reason in decision.reason

    def test_a_refused_backend_falls_to_an_exact_one_and_says_why(self) -> None:
        mixed = call_of(torch.randn(1, 2, 8, 4), torch.randn(1, 2, 8, 4).half())
        out, decision = compute("sdpa", mixed)
        assert decision.backend.name == "online"
        assert decision.reason == "sdpa refused: query, key and value dtypes differ"
        assert out.isfinite().all()

    def test_gradients_go_to_a_backend_that_has_them(self) -> None:
        q = torch.randn(1, 2, 8, 4, requires_grad=True)
        out, decision = compute("online", call_of(q))
        out.sum().backward()
        assert decision.backend.name == "sdpa"
        assert q.grad is not None

    def test_slice_rows_reach_only_sliced(self) -> None:
        call = call_of(torch.randn(1, 2, 40, 4))
        for name in ("sliced", "online", "sdpa"):
            torch.testing.assert_close(compute(name, call, slice_rows=7)[0], compute("sdpa", call)[0])

    def test_an_unknown_name_lists_the_known_ones(self) -> None:
        with pytest.raises(ValueError, match="backend 'warp' is unknown; choose one of auto, sdpa, sliced, online"):
            choose("warp", call_of(torch.randn(1, 2, 8, 4)))


class TestCall:
    @pytest.mark.parametrize(
        ("shapes", "heads"),
        [
            (((1, 8, 12), (1, 8, 12), (1, 8, 12)), 5),  # 12 channels do not divide into 5 heads
            (((2, 8, 12), (3, 8, 12), (3, 8, 12)), 3),  # batches
            (((1, 8, 12), (1, 8, 12), (1, 9, 12)), 3),  # keys and values
            (((1, 8, 16), (1, 8, 12), (1, 8, 12)), 4),  # 3 key heads for 4 query heads
        ],
    )
    def test_shapes_that_do_not_fit(self, shapes: tuple[tuple[int, ...], ...], heads: int) -> None:
        with pytest.raises(ValueError, match="heads"):
            AttentionCall.bind(*(torch.randn(shape) for shape in shapes), heads)

    @pytest.mark.parametrize("mask", [torch.zeros(1, 3), torch.zeros(5), torch.zeros(8, 8, dtype=torch.int)])
    def test_masks_that_do_not_fit(self, mask: torch.Tensor) -> None:
        with pytest.raises(ValueError, match="attention mask of shape"):
            call_of(torch.randn(1, 2, 8, 4), mask=mask)


class TestBlocks:
    @pytest.mark.parametrize(
        ("text", "inside", "outside"),
        [
            ("double:0-2, single:*", ["double:0", "double:2", "single:37"], ["double:3", "input:1"]),
            ("input:1,2, middle, output:3-8", ["input:1", "input:2", "middle:0", "output:8"], ["input:0", "output:2"]),
            ("double", ["double:0", "double:99"], ["single:0"]),
            (" Double : 4 - 6 ", ["double:5"], ["double:3"]),
        ],
    )
    def test_selection(self, text: str, inside: list[str], outside: list[str]) -> None:
        selection = parse_blocks(text)
        assert all(selection.holds(place(name)) for name in inside)
        assert not any(selection.holds(place(name)) for name in outside)
        assert not selection.holds(None), "a call that does not say where it is"

    def test_all_holds_calls_from_nowhere(self) -> None:
        assert parse_blocks("all").holds(None)

    def test_inner_leaves_out_the_ends(self) -> None:
        ends = (Place("double", 0), Place("single", 37))
        inner = parse_blocks("inner")
        assert inner.holds(Place("double", 1), ends)
        assert inner.holds(Place("single", 0), ends)
        assert not inner.holds(Place("double", 0), ends)
        assert not inner.holds(Place("single", 37), ends)
        assert not inner.holds(Place("single", 3), None), "unknown ends: nothing is known to be inner"

    @pytest.mark.parametrize("text", ["", "3", "double:", "double:a", "double 3", "outer", "double:1,,2", "single:-1"])
    def test_what_does_not_parse_is_named(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"^blocks: cannot read '.*'; write all, inner, or blocks of"):
            parse_blocks(text)

    def test_backward_spans(self) -> None:
        with pytest.raises(ValueError, match="'double:5-2' ends before it begins"):
            parse_blocks("double:5-2")


def place(name: str) -> Place:
    kind, index = name.split(":")
    return Place(kind, int(index))
