"""Which backend runs a call, what is refused, and which blocks a selection holds."""

import logging
import runpy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from headroom.attention import AttentionCall, BlockPlace, backends, choose, compute, parse_blocks, products, sdpa
from headroom.attention.backends import BACKENDS, Abilities, Backend
from headroom.attention.libraries import _aligned_bias
from headroom.attention.products import onednn_linear


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

    def test_what_a_refused_backend_falls_to_holds_no_whole_matrix_either(self) -> None:
        narrow = call_of(torch.randn(1, 2, 8, 4), torch.randn(1, 2, 8, 4), torch.randn(1, 2, 8, 6))
        for call, ran in ((narrow, "online"), (call_of(torch.randn(1, 2, 8, 4)), "sdpa")):
            assert choose("sage", call).backend.name == ran

    def test_gradients_go_to_a_backend_that_has_them(self) -> None:
        for name, ran in (("sliced", "sdpa"), ("online", "online"), ("sdpa_math", "sdpa_math")):
            q = torch.randn(1, 2, 8, 4, requires_grad=True)
            out, decision = compute(name, call_of(q))
            out.sum().backward()
            assert decision.backend.name == ran
            assert q.grad is not None

    def test_slice_rows_reach_only_sliced(self) -> None:
        call = call_of(torch.randn(1, 2, 40, 4))
        for name in ("sliced", "online", "sdpa"):
            torch.testing.assert_close(compute(name, call, slice_rows=7)[0], compute("sdpa", call)[0])

    def test_an_unknown_name_lists_the_known_ones(self) -> None:
        with pytest.raises(ValueError, match="backend 'warp' is unknown; choose one of auto, sdpa, sdpa_flash"):
            choose("warp", call_of(torch.randn(1, 2, 8, 4)))

    def test_auto_never_quantises_and_never_holds_the_matrix(self) -> None:
        for tokens in (8, 1500):
            chosen = choose("auto", call_of(torch.randn(1, 2, tokens, 4))).backend
            assert chosen.exact
            assert chosen.name in ("sdpa", "online")


class TestAbilities:
    @pytest.mark.parametrize(
        ("can", "reason"),
        [
            (Abilities(devices=("cuda",)), "it does not run on cpu"),
            (Abilities(dtypes=(torch.float16,)), "it does not take float32"),
            (Abilities(channels=8), "12 channels per head are too many"),
            (Abilities(multiple=8), "12 channels per head are no multiple of 8"),
            (Abilities(mask=False), "it takes no mask"),
            (Abilities(grouped=False), "it takes no grouped heads"),
            (Abilities(gradient=False), "it has no gradient"),
            (Abilities(mask_gradient=False), "it has no gradient for the mask"),
            (Abilities(other_values=False), "values have another number of channels than keys"),
            (Abilities(contiguous=True), "channels are not contiguous"),
            (Abilities(full_precision=False), "the model asks for full precision here"),
            (Abilities(further=lambda call: "of its own"), "of its own"),
        ],
    )
    def test_each_refuses_with_its_reason(self, can: Abilities, reason: str) -> None:
        """One call that asks for everything at once."""
        q = torch.randn(1, 4, 8, 12, requires_grad=True)
        k, v = torch.randn(1, 2, 9, 12), torch.randn(1, 2, 9, 20)[..., ::2]
        mask = torch.zeros(8, 9, requires_grad=True)
        call = call_of(q, k, v, mask=mask, low_precision_attention=False)
        assert can.refusal(call) == reason
        assert Abilities().refusal(call) is None

    @pytest.mark.parametrize(
        "name", ["sdpa_efficient", "sdpa_cudnn", "xformers", "flash_attn", "sage", "comfy_kitchen"]
    )
    def test_kernels_of_accelerators_refuse_a_cpu_and_the_call_is_right(self, name: str) -> None:
        call = call_of(torch.randn(1, 2, 8, 16))
        out, decision = compute(name, call)
        assert decision.backend.name == "sdpa"
        assert decision.reason.startswith(f"{name} refused: ")
        torch.testing.assert_close(out, compute("sdpa_math", call)[0])

    @pytest.mark.parametrize("kernel", ["flash", "math"])
    def test_a_named_kernel_of_torch_is_the_one_that_runs(self, kernel: str) -> None:
        """And torch's own choice is as it was afterwards."""
        operator = {"flash": "flash_attention_for_cpu", "math": "attention_math"}[kernel]
        call = call_of(torch.randn(1, 2, 64, 16))
        enabled = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            compute(f"sdpa_{kernel}", call)
        assert any(operator in event.key for event in recorded.key_averages())
        assert (torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()) == enabled

    def test_threads_that_name_kernels_leave_torch_as_it_was(self) -> None:
        """The host samples with one thread per GPU, and torch keeps the enabled kernels in flags of the process."""
        call = call_of(torch.randn(1, 2, 64, 16))
        expected = compute("sdpa", call)[0]
        enabled = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()

        def work(name: str) -> bool:
            return all(torch.allclose(compute(name, call)[0], expected, atol=1e-5) for _ in range(100))

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, ["sdpa_flash", "sdpa_math"] * 4))
        assert (torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()) == enabled

    @pytest.mark.parametrize("kernel", ["flash", "math"])
    def test_no_kernel_is_switched_on_where_other_threads_compute(
        self, kernel: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They would take it, and put back what they found when it was on."""

        def switched(*kernels: Any) -> None:
            raise AssertionError("switched for all threads")

        monkeypatch.setattr(sdpa, "sdpa_kernel", switched)
        call = replace(call_of(torch.randn(1, 2, 8, 16)), others_compute=True)
        out, decision = compute(f"sdpa_{kernel}", call)
        assert decision.backend.name == "sdpa"
        assert decision.reason.startswith(f"sdpa_{kernel} refused: torch switches kernels for the whole process")
        torch.testing.assert_close(out, compute("online", call)[0])

    def test_grouped_heads_that_only_the_formula_takes_get_a_key_head_each(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As on a GPU with a mask: the formula would hold all scores."""
        q, k = torch.randn(1, 6, 8, 16), torch.randn(1, 2, 8, 16)
        call = call_of(q, k, mask=torch.randn(8, 8))
        expected = compute("sdpa", call)[0]
        asked, seen = [], []

        def choice(*operands: Any, **options: Any) -> int:
            asked.append(options.get("enable_gqa", False))
            return int((sdpa.KERNELS["math"] if asked[-1] else sdpa.KERNELS["flash"]).value)

        def spied(*operands: Any, **options: Any) -> torch.Tensor:
            seen.append((operands[1].shape[1], options.get("enable_gqa", False)))
            return fused(*operands, **options)

        fused = torch.nn.functional.scaled_dot_product_attention
        sdpa._chosen.cache_clear()
        monkeypatch.setattr(torch, "_fused_sdp_choice", choice)
        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spied)
        for name in ("sdpa", "sdpa_flash"):  # the second holds the lock while it asks
            sdpa._chosen.cache_clear()
            torch.testing.assert_close(compute(name, call)[0], expected)
        sdpa._chosen.cache_clear()
        assert True in asked
        assert seen == [(6, False), (6, False)]

    @pytest.mark.parametrize("masked", [0, 1, 7])
    def test_more_sequences_than_a_kernel_takes_go_in_parts(self, masked: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Attention over time has a sequence for every cell of a video."""
        call = call_of(torch.randn(7, 2, 8, 4), mask=torch.randn(masked, 1, 8, 8) if masked else None)
        expected = compute("sdpa", call)[0]
        monkeypatch.setattr(sdpa, "MOST_SEQUENCES", 3)
        seen = []

        def spied(*operands: Any, **options: Any) -> torch.Tensor:
            seen.append(len(operands[0]))
            return fused(*operands, **options)

        fused = torch.nn.functional.scaled_dot_product_attention
        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spied)
        torch.testing.assert_close(compute("sdpa", call)[0], expected)
        assert seen == [3, 3, 1]

    def test_a_kernel_that_fails_is_replaced_and_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A package may refuse what it was said to take: no picture is lost to that."""

        def broken(*operands: torch.Tensor) -> torch.Tensor:
            raise NotImplementedError("no kernel image for this GPU")

        monkeypatch.setitem(BACKENDS, "xformers", Backend("xformers", "", broken, foreign=True))
        call = call_of(torch.randn(1, 2, 8, 16))
        out, decision = compute("xformers", call)
        assert decision.backend.name == "sdpa"
        assert decision.reason == "xformers refused: it failed: no kernel image for this GPU"
        torch.testing.assert_close(out, compute("sdpa", call)[0])

    def test_running_out_of_memory_is_not_a_refusal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def greedy(*operands: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("none left")

        monkeypatch.setitem(BACKENDS, "xformers", Backend("xformers", "", greedy, foreign=True))
        with pytest.raises(torch.OutOfMemoryError):
            compute("xformers", call_of(torch.randn(1, 2, 8, 16)))

    def test_a_refusal_is_logged_once(self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(backends, "_said", set())
        call = call_of(torch.randn(1, 2, 8, 17), torch.randn(1, 2, 8, 17).half())
        with caplog.at_level(logging.INFO, logger="headroom.attention.backends"):
            for _ in range(3):
                compute("sdpa_math", call)
        assert len(caplog.records) == 1

    def test_what_is_remembered_of_refusals_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A kernel's own error names sizes: without a bound a server would keep a line for each of them."""
        monkeypatch.setattr(backends, "_said", set())
        call = call_of(torch.randn(1, 1, 2, 4))
        for number in range(1000):
            backends._instead("sdpa", f"it failed: {number}", call)
        assert 0 < len(backends._said) < 1000

    def test_an_import_computes_nothing(self) -> None:
        """oneDNN's product is tried before it is used, at the first call."""
        seen = []

        class Watching(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                seen.append(func)
                return func(*args, **(kwargs or {}))

        with Watching():
            found = runpy.run_path(products.__file__)["onednn_linear"]()
        assert not seen, "nor is what a prediction without data looks at part of the trial"
        assert found is onednn_linear()

    def test_biases_for_xformers_are_aligned(self) -> None:
        """Its kernel reads rows that start at multiples of eight elements; broadcast dims take no memory."""
        mask = torch.rand(1, 1, 6, 13) > 0.5
        bias = _aligned_bias(mask, (2, 4, 6, 13), torch.float16)
        assert bias.shape == (2, 4, 6, 13)
        assert bias.stride()[:3] == (0, 0, 16)
        assert torch.equal(bias[0, 0] == 0, mask[0, 0])
        assert torch.equal(bias[0, 0] == -torch.inf, ~mask[0, 0])


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
        ends = (BlockPlace("double", 0), BlockPlace("single", 37))
        inner = parse_blocks("inner")
        assert inner.holds(BlockPlace("double", 1), ends)
        assert inner.holds(BlockPlace("single", 0), ends)
        assert not inner.holds(BlockPlace("double", 0), ends)
        assert not inner.holds(BlockPlace("single", 37), ends)
        assert not inner.holds(BlockPlace("single", 3), None), "unknown ends: nothing is known to be inner"

    @pytest.mark.parametrize("text", ["", "3", "double:", "double:a", "double 3", "outer", "double:1,,2", "single:-1"])
    def test_what_does_not_parse_is_named(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"^blocks: cannot read '.*'; write all, inner, or blocks of"):
            parse_blocks(text)

    def test_backward_spans(self) -> None:
        with pytest.raises(ValueError, match="'double:5-2' ends before it begins"):
            parse_blocks("double:5-2")


def place(name: str) -> BlockPlace:
    kind, index = name.split(":")
    return BlockPlace(kind, int(index))
