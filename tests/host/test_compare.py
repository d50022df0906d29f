"""Compare Strategies around the host's own models and guider, in process."""

import copy
import gc
import math
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import comfy.model_management
import comfy.nested_tensor
import folder_paths
import pytest
import torch
from torch import Tensor

from headroom.attention import BACKENDS
from headroom.benchmarks._harness import peak_bytes
from headroom.host.attention.backend import apply_attention
from headroom.host.measure.runs import LOG
from headroom.host.planning import step_meter
from headroom.host.planning.compare import Work, compare, run
from headroom.host.planning.strategies import (
    CASTS,
    REFERENCE,
    NotHere,
    Strategy,
    Switches,
    compute_dtype,
    slice_rows,
    strategies,
)
from headroom.memory.render.comparison import Comparison, Outcome
from headroom.nodes.compare import HeadroomCompare

from ..nightly import some_of
from .drawn import drawn
from .families import FAMILIES, sample
from .test_casting import HELD

pytestmark = pytest.mark.usefixtures("one_thread")

NOTHING = Switches(dtypes=False, backends=False)
NOT_ON_A_CPU = {"sdpa_efficient", "sdpa_cudnn", "xformers", "flash_attn", "sage", "comfy_kitchen"}
EXACT = [name for name, backend in BACKENDS.items() if backend.exact and name not in NOT_ON_A_CPU]


@pytest.fixture(autouse=True)
def _timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test looks at how long a step takes."""
    monkeypatch.setattr(step_meter, "MOST_TIMED", 1)


def work(name: str, side: int = 64, model: Any = None, cfg: float = 3.0) -> Work:
    family = FAMILIES[name]
    latent = {"samples": family.latent(side, side)}
    return Work(model or family.load(), latent, family.conditioning(1), family.conditioning(2), cfg)


def compared(asked: Work, *names: str, switches: Switches = NOTHING) -> Comparison:
    """The reference beside these strategies of the switches, or all of them."""
    found = [way for way in strategies(asked.model, switches) if not names or way.name in names]
    return run(asked, [REFERENCE, *found])


def by_name(comparison: Comparison) -> dict[str, Outcome]:
    return {outcome.name: outcome for outcome in comparison.outcomes}


def weights(model: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.model.state_dict().items()}


@pytest.mark.parametrize("name", some_of(["flux", "sd15", "wan21"], 3))
class TestFamilies:
    def test_what_the_rows_say(self, name: str) -> None:
        rows = by_name(compared(work(name), switches=Switches(False, "64", True, True)))
        first = rows["as it is"].measured
        assert first is not None
        assert first.db == math.inf
        assert first.peak > 0
        assert first.seconds > 0
        for backend in EXACT:
            found = rows[f"attention {backend}"].measured
            assert found is not None
            assert found.db >= 80, backend
            assert found.weights == first.weights
        assert rows["sliced, 64 rows"].measured.db >= 80
        assert rows["attention host"].measured.noise == 0
        assert rows["attention host"].remark.startswith("host (")
        assert rows["attention auto"].remark in EXACT
        absent = {row.removeprefix("attention ") for row, found in rows.items() if found.remark.startswith("not here")}
        assert absent == NOT_ON_A_CPU | {storage for storage in CASTS if storage not in HELD}
        nearest_first = [
            one for one in ("int8_convrot", "float8_e4m3fn_scaled", "asym_w4a8_int8", "nvfp4") if one in HELD
        ]
        casts = [rows[storage].measured for storage in nearest_first]
        assert [cast.noise for cast in casts] == sorted({cast.noise for cast in casts})
        assert all(cast.weights < 0.6 * first.weights for cast in casts)

    def test_the_model_is_as_it_was(self, name: str) -> None:
        family = FAMILIES[name]
        model = family.load()
        before, kept = sample(model, family), weights(model)
        options, wrappers = copy.deepcopy(model.model_options), copy.deepcopy(model.wrappers)
        patches, dtype = dict(model.object_patches), model.model.manual_cast_dtype
        asked = ("sliced, 32 rows", "float8_e4m3fn_scaled", "attention online")
        compared(work(name), *asked, switches=Switches(False, "32", True, True))
        now = model.model.state_dict()
        assert now.keys() == kept.keys()
        assert all(torch.equal(now[key], value) for key, value in kept.items())
        assert (model.model_options, model.wrappers) == (options, wrappers)
        assert (model.object_patches, model.model.manual_cast_dtype) == (patches, dtype)
        assert torch.equal(sample(model, family), before)


class TestPeak:
    def test_sliced_is_below_the_formula_where_scores_dominate(self) -> None:
        """1024 tokens, 8 heads, two prompts: the scores are 64 MB, 64 rows of them 4 MB at the most."""
        asked = ("sliced, 64 rows", "attention sdpa_math")
        rows = by_name(compared(work("sd15", 256), *asked, switches=Switches(False, "64", True)))
        sliced, formula = (rows[name].measured for name in asked)
        assert sliced.peak < 0.8 * formula.peak

    def test_it_is_what_the_profiler_sees(self, monkeypatch: pytest.MonkeyPatch) -> None:
        counted, seen = step_meter._counted, []

        def both(call: Callable[[], Tensor], *rest: Any) -> int:
            call()  # what is made once and kept
            seen.append((counted(call, *rest), peak_bytes(call)))
            return seen[-1][0]

        monkeypatch.setattr(step_meter, "_counted", both)
        asked = ("sliced, 64 rows", "float8_e4m3fn_scaled", "nvfp4")
        compared(work("flux", 128), *asked, switches=Switches(False, "64", False, True))
        assert len(seen) == 4
        assert [ours for ours, _ in seen] == pytest.approx([theirs for _, theirs in seen], rel=0.01)

    def test_without_guidance_the_negative_is_not_computed(self) -> None:
        both, alone = (compared(work("flux", 128, cfg=cfg)).reference for cfg in (3.0, 1.0))
        assert alone.peak < 0.7 * both.peak


class TestDtypes:
    def test_a_model_of_float32_is_stored_in_half_too(self) -> None:
        rows = by_name(compared(work("flux"), switches=Switches(True, "", False)))
        assert list(rows) == ["as it is", "float16", "bfloat16"]
        half, brain = rows["float16"].measured, rows["bfloat16"].measured
        assert half.weights == pytest.approx(rows["as it is"].measured.weights / 2, rel=0.01)
        assert 0 < half.noise < brain.noise < 0.5

    def test_a_model_of_half_precision_computes_otherwise_and_again_as_before(self) -> None:
        family, model = FAMILIES["flux"], drawn("flux", 0.02, 2)
        before, dtype = sample(model, family), compute_dtype(model)
        assert dtype == torch.float32  # on a CPU
        rows = by_name(compared(work("flux", model=model), "bfloat16", switches=Switches(True, "", False)))
        assert rows["bfloat16"].measured.weights == rows["as it is"].measured.weights
        assert rows["bfloat16"].measured.noise > 0
        assert compute_dtype(model) == model.model.get_dtype_inference() == dtype
        assert torch.equal(sample(model, family), before)


class TestTrouble:
    @pytest.mark.parametrize("text", ["512; 2048", "0", "-1", "a", "1.5", "512,,2048", "512,", ",", "9999999999"])
    def test_sizes_that_cannot_be_read(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"slice_sizes: '.*' is not a list of whole numbers"):
            compare(work("wan21"), Switches(False, text, False))

    def test_sizes_that_can(self) -> None:
        assert slice_rows(" 512 , 2048,512") == [512, 2048]
        assert slice_rows("") == slice_rows("  ") == []

    @pytest.mark.parametrize(
        ("error", "remark"),
        [
            (RuntimeError("a reason\nand more"), "failed: a reason"),
            (torch.OutOfMemoryError("CUDA"), "failed: out of memory"),
            (KeyError(), "failed: KeyError"),
        ],
    )
    def test_a_failure_is_a_row(self, error: Exception, remark: str) -> None:
        outcomes = run(work("wan21"), [REFERENCE, Strategy("broken", partial(failing, error)), REFERENCE]).outcomes
        assert outcomes[1].remark == remark
        assert outcomes[1].measured is None
        assert outcomes[2].measured.noise == 0

    def test_a_compiled_model_is_not_cast_and_that_names_this_node(self) -> None:
        from comfy_api.torch_helpers import set_torch_compile_wrapper

        model = FAMILIES["flux"].load().clone()
        set_torch_compile_wrapper(model, backend="eager")
        switches = Switches(backends=False, casting=True)
        rows = [way for way in strategies(model, switches) if way.name in ("float8_e4m3fn_scaled", "bfloat16")]
        for way in rows:
            with pytest.raises(NotHere, match=r"^torch\.compile stands before Compare Strategies and would go on"):
                way.make(model)
        assert len(rows) == 2

    def test_without_a_reference_the_others_run(self) -> None:
        comparison = run(work("wan21"), [Strategy("first", partial(failing, MemoryError())), REFERENCE])
        assert comparison.reference is None
        assert comparison.outcomes[1].measured.peak > 0
        assert comparison.error_text(comparison.outcomes[1]) == ("unknown", "")

    def test_where_nothing_runs_the_reason_is_raised(self) -> None:
        asked = work("wan21")
        with pytest.raises(RuntimeError, match=r"no strategy ran; as it is: failed: "):
            run(Work(asked.model, asked.samples, FAMILIES["sd15"].conditioning(1), asked.negative, 3.0), [REFERENCE])

    def test_a_cancel_ends_it(self) -> None:
        later: list[Any] = []

        def cancelling(model: Any) -> Any:
            comfy.model_management.interrupt_current_processing()
            return model.clone()

        ways = [REFERENCE, Strategy("cancelled", cancelling), Strategy("later", lambda model: later.append(model))]
        with pytest.raises(comfy.model_management.InterruptProcessingException):
            run(work("wan21"), ways)
        assert not later
        assert compared(work("wan21")).reference is not None

    def test_video_with_sound_is_refused(self) -> None:
        asked = work("wan21")
        both = comfy.nested_tensor.NestedTensor([asked.samples["samples"], torch.zeros(1, 8, 4)])
        with pytest.raises(ValueError, match="samples: a latent of video and sound"):
            run(Work(asked.model, {"samples": both}, asked.positive, asked.negative, 3.0), [REFERENCE])


def failing(error: Exception, model: Any) -> Any:
    raise error


class TestAround:
    def test_a_cast_is_gone_after_its_row(self) -> None:
        asked = work("flux")
        ways = strategies(asked.model, Switches(False, "", False, True))
        (way,) = (way for way in ways if way.name == "float8_e4m3fn_scaled")
        alive: list[weakref.ref[Any]] = []

        def make(model: Any) -> Any:
            result = way.make(model)
            alive.append(weakref.ref(result.model))
            return result

        def look(model: Any) -> Any:
            assert alive[0]() is None
            return model.clone()

        outcomes = run(asked, [REFERENCE, Strategy("cast", make, reloads=True), Strategy("after", look)]).outcomes
        gc.collect()
        assert [outcome.remark for outcome in outcomes] == ["", "", ""]

    def test_no_sampling_is_logged(self) -> None:
        model = apply_attention(FAMILIES["sd15"].load(), backend="sdpa")
        before = LOG.rows("", "")
        compared(work("sd15", model=model), "attention online", switches=Switches(False, "", True))
        assert LOG.rows("", "") == before

    def test_a_mask_and_channels_are_as_in_the_sampler(self) -> None:
        asked = work("flux")
        four = {"samples": torch.zeros(1, 4, 8, 8), "noise_mask": torch.zeros(1, 64, 64)}
        first = run(Work(asked.model, four, asked.positive, asked.negative, 3.0), [REFERENCE]).reference
        assert first.peak == compared(asked).reference.peak

    def test_the_node(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(folder_paths, "temp_directory", str(tmp_path))
        asked = work("wan21")
        widgets = {"dtypes": False, "slice_sizes": "16", "backends": False, "casting": False}
        output = HeadroomCompare.execute(asked.model, asked.samples, asked.positive, asked.negative, 3.0, **widgets)
        table, chart = output.result
        assert "sliced, 16 rows" in table
        assert "reference" in table
        assert chart.ndim == 4
        assert chart.shape[-1] == 3
        assert output.ui["text"] == (table,)
        assert list(tmp_path.iterdir())
