"""Make It Fit: a plan that fits or the least that would, applied by clones, kept to in what is measured."""

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import comfy.model_management
import pytest
import torch
from comfy.latent_formats import LatentFormat
from comfy.patcher_extension import WrappersMP
from comfy_execution.graph import DynamicPrompt
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from headroom.benchmarks._harness import peak_bytes
from headroom.host.attention.backend import apply_attention
from headroom.host.attention.override import overrides_of
from headroom.host.casting.cast import CastSettings, cast_model
from headroom.host.core.compat import OVERRIDE
from headroom.host.core.internals import find
from headroom.host.measure.runs import LOG
from headroom.host.offload.block_offload import apply_offload
from headroom.host.offload.budget import budget_of
from headroom.host.offload.layers import ALL_STREAMS
from headroom.host.planning import fit as fit_of_the_host
from headroom.host.planning.decode_in_graph import decode_in_graph
from headroom.host.planning.fit import apply_fit, changed, find_fit
from headroom.host.prediction.kept import KEPT
from headroom.host.prediction.stages import Question, as_sampled, chosen_card, coding_stage, decode_of, estimate
from headroom.host.prediction.vae import Coding
from headroom.host.sampling.guidance import KEPT_TOGETHER, guide_in_turns, in_turns
from headroom.host.vae.settings import VAESettings
from headroom.host.vae.wrapper import LowMemoryVAE, low_memory_vae, planned_vae
from headroom.host.workflow.dry_run import DryRun
from headroom.host.workflow.running import around
from headroom.memory.prediction import THIS_MACHINE, Card, Fit, Loss, Verdict, named_card
from headroom.memory.render import NodeReport, render_report, why_nothing_fits
from headroom.nodes.fit import HeadroomFit
from headroom.nodes.report import HeadroomReport

from ..nightly import NIGHTLY, at_night, grid, some_of
from .autoencoders import AUTOENCODERS
from .drawn import drawn
from .families import FAMILIES, load_vae, psnr, sample
from .full_fits import CARDS, WISHES, question, write_files
from .one_step import CPU, one_call
from .test_casting import BETTER
from .workflows import node

GB = 2**30
QUALITIES = ("exact", "near_exact", "any")
SIZE = r"\d+(\.\d\d)? [MG]B"
SAMPLING = rf"sampling needs {SIZE} at least \([^;]+\)"
DECODING = rf"decoding(: exact strips need {SIZE} at least| needs {SIZE} \([^;]+\))"
ADVICE = r"(Set quality to (near_exact|any), which allows more, or m|M)ake the picture, batch or video smaller"
WHY_NOT = re.compile(rf"{SIZE} are allowed and nothing fits: ({SAMPLING}|({SAMPLING}; )?{DECODING})\. {ADVICE}\.")


MAKES_PARTS = hasattr(LatentFormat, "fix_empty_latent")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def asked(name: str = "flux", side: int = 256, model: Any = None, **changes: Any) -> Question:
    family = FAMILIES[name]
    settings = {"vae": load_vae("flux"), "positive": family.conditioning(1), "negative": family.conditioning(2)}
    latent = {"samples": family.latent(side, side)}
    return Question(model or drawn(name, 0.02, 6), latent, **({"cfg": 3.0} | settings | changes))


@pytest.mark.skipif(not MAKES_PARTS, reason="samplers of this host make one part of an empty latent")
def test_a_vae_gets_the_first_part_of_what_a_sampler_makes_of_an_empty_latent() -> None:
    model = drawn("flux", 0.02, 6).clone()
    model.add_object_patch("latent_format", find("comfy.latent_formats:MiniMaxH3AV")())
    empty = {"samples": torch.zeros(1, 16, 8, 8)}  # its sampler makes a video and a sound of it
    vae = AUTOENCODERS["minimax"].load()
    fit = as_sampled(Question(model, empty, vae))
    assert fit.latent is empty
    assert decode_of(fit).x.ndim == 5
    assert decode_of(fit).x.shape[1] == vae.latent_channels
    stage = coding_stage(decode_of(fit), named_card("sm86", 12.0))
    assert not stage.doubt


@pytest.mark.parametrize("to_file", [False, True])
def test_a_low_memory_vae_is_predicted_within_the_limit(to_file: bool) -> None:
    """Without a budget it takes what the card has, and does with less where less may be used; a budget of its own
    stands."""
    vae, x = AUTOENCODERS["sd"].load(), torch.zeros(1, 4, 128, 128)
    card = named_card("sm86", 1.3)  # of which the host reserves a third

    def asked(gb: float) -> Coding:
        if to_file:
            return Coding(vae, x, file_budget_gb=gb)
        return Coding(low_memory_vae(vae, VAESettings(vram_budget_gb=gb)), x)

    free = coding_stage(asked(0.0), card)
    assert "in strips" in free.method
    allowed = int(0.8 * free.peak)
    kept = coding_stage(asked(0.0), card, allowed)
    assert 0 < kept.peak <= allowed < kept.up_to == free.peak
    assert kept.method == free.method
    assert coding_stage(asked(0.0), card, free.peak) == free
    assert coding_stage(asked(0.0), card, kept.weights + 2**20) == free, "it takes no less than strips need"
    own = coding_stage(asked(0.8), card, allowed)
    assert own.peak > allowed
    assert not own.up_to


def test_a_vae_whose_settings_stay_is_planned_within_the_limit() -> None:
    """Its own node has said how it works, and set no budget."""
    card, vae = named_card("sm86", 1.3), low_memory_vae(load_vae("flux"), VAESettings("exact", store="float16"))
    question = asked(side=1024, vae=vae)
    free = coding_stage(decode_of(question), card)
    fit = find_fit(question, card, limit=0.8 * free.peak / card.total)
    assert fit.found
    (decode,) = (stage for stage in fit.forecast.stages if stage.work == "decode")
    assert decode.peak <= fit.allowed < free.peak == decode.up_to


def test_frames_that_do_not_fit_into_ram_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie there beside the weights, to the byte; decoded to a file they do not."""
    question = asked(side=64)
    card, ram = named_card("sm86", 8.0), [2**40]
    monkeypatch.setattr(fit_of_the_host, "ram_total", lambda gb: ram[0])
    plain = find_fit(question, card)
    assert plain.notes == ()
    ram[0] = plain.forecast.ram_needed + 4 * 3 * 64 * 64
    assert find_fit(question, card).notes == ()
    ram[0] -= 1
    (note,) = find_fit(question, card).notes
    assert note.startswith("RAM: the decoded frames take ")
    decode = Coding(question.vae, question.latent["samples"], file_budget_gb=0.0, file_format="mkv ffv1")
    assert find_fit(replace(question, decode=decode), card).notes == ()


# ------------------------------------------------------------------------------------------ models in their real size

EASY, LONGEST = ("SD1.5, 512 px", "SD1.5, 1024 px"), "Wan 14B, 832 x 480, 81 frames"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_files(folder)
    return folder


@pytest.mark.parametrize(
    "name", [name for name in WISHES if name not in EASY and (NIGHTLY or name not in ("SDXL, 1024 px", LONGEST))]
)
def test_a_plan_for_every_card_that_fits_and_gets_no_worse_with_memory(files: Path, name: str) -> None:
    """The table of settings in benchmarks/fit.md is made of these, and of the cards between."""
    asked = question(files, WISHES[name], named_card("sm86", 24.0))
    speed = named_card("sm86", 24.0).speed  # one card, but for its memory
    fits = [find_fit(asked, replace(named_card("sm86", vram), measured=speed)) for vram in CARDS[::2]]
    for fit in fits:
        assert_kept(fit)
    ranks = [(fit.loss, fit.seconds) for fit in fits if fit.found]
    assert len(ranks) >= 2  # all but perhaps the smallest card
    assert ranks == sorted(ranks, reverse=True)


def assert_kept(fit: Fit) -> None:
    if fit.found:
        assert fit.forecast.peak <= fit.allowed
        assert fit.loss <= {"exact": 0, "near_exact": 1, "any": 2}[fit.quality]
    else:
        assert fit.forecast.least > fit.allowed or fit.vae is None
        assert WHY_NOT.fullmatch(why_nothing_fits(fit)), why_nothing_fits(fit)


@at_night
def test_casting_is_for_cards_on_which_nothing_exact_fits(files: Path) -> None:
    wish = WISHES["Flux.1, 1024 px"]
    asked = question(files, wish, named_card("sm86", 24.0))
    plain = find_fit(asked, named_card("sm86", 6.0)).sampling
    assert plain is not None
    below = (plain.stage.least - 2**20) / GB
    assert find_fit(asked, named_card("sm86", below), limit=1.0).sampling is None
    cast = find_fit(asked, named_card("sm86", below), "near_exact", limit=1.0).sampling
    assert cast is not None
    assert (cast.storage, cast.loss) == (BETTER, Loss.NEAR_EXACT)
    assert cast.stage.weights < 0.56 * plain.stage.weights


# --------------------------------------------------------------------------------------------------------- small models


class TestPlans:
    def test_what_fits_stays_as_it_is(self) -> None:
        question = asked()
        fit = find_fit(question, named_card("sm86", 8.0))
        model, vae = apply_fit(question.model, question.vae, fit)
        assert len(fit.considered) == 1
        assert fit.loss is Loss.EXACT
        assert budget_of(model) is None
        assert not overrides_of(model)
        assert vae.headroom_settings.method == "auto"

    @pytest.mark.parametrize("name", some_of(["sd15", "flux"], 2))
    def test_more_memory_is_never_worse(self, name: str) -> None:
        question = asked(name, vae=load_vae("flux" if name == "flux" else "sd"), model=FAMILIES[name].load())
        whole = find_fit(question, named_card("sm86", 8.0)).considered[0].stage.peak / GB
        fits = [find_fit(question, named_card("sm86", whole * share), "exact", 1.0) for share in (0.4, 0.6, 0.8, 1.0)]
        ranks = [(fit.sampling.loss, fit.seconds) for fit in fits if fit.sampling is not None]
        assert len(ranks) >= 3
        assert ranks == sorted(ranks, reverse=True)
        assert len(set(ranks)) > 1

    @pytest.mark.parametrize(("share", "quality"), grid([0.5, 0.7, 1.0], QUALITIES))
    def test_will_it_fit_agrees(self, share: float, quality: str) -> None:
        question = asked(side=512)
        peak = find_fit(question, named_card("sm86", 8.0)).forecast.peak
        card = named_card("sm86", share * peak / GB)
        fit = find_fit(question, card, quality, 1.0)
        assert fit.found
        model, vae = apply_fit(question.model, question.vae, fit)
        again = estimate(
            Question(
                model, question.latent, vae, positive=question.positive, negative=question.negative, cfg=question.cfg
            ),
            card,
            1.0,
        )
        assert again.forecast.verdict is not Verdict.DOES_NOT_FIT
        assert again.forecast.peak <= card.total

    def test_guidance_of_one_has_no_turns_to_take(self) -> None:
        question = asked(cfg=1.0)
        least = find_fit(question, named_card("sm86", 8.0)).considered[0].stage.least
        fit = find_fit(question, named_card("sm86", 0.9 * least / GB), limit=1.0)
        assert not any(plan.in_turns for plan in fit.considered)

    def test_nothing_fits_and_the_least_is_named(self) -> None:
        question, loaded = asked(), list(comfy.model_management.current_loaded_models)
        with pytest.raises(
            ValueError, match=r"nothing fits: sampling needs \d+ MB at least.*exact strips need"
        ) as error:
            HeadroomFit.execute(
                question.model, question.vae, question.latent, 3.0, "exact", question.positive, question.negative,
                vram_gb=0.01, gpu="sm86",
            )  # fmt: skip
        assert "near_exact" in str(error.value)
        assert comfy.model_management.current_loaded_models == loaded

    def test_a_quality_that_is_not_known(self) -> None:
        with pytest.raises(ValueError, match="quality: 'good'"):
            find_fit(asked(), named_card("sm86", 8.0), "good")


def with_theirs(model: Any, seen: list[str]) -> Any:
    """A clone with an override as another pack's, or the host's "Model Attention Backend", sets it."""

    def foreign(func: Any, *args: Any, **kwargs: Any) -> Tensor:
        seen.append(kwargs["transformer_options"]["block_type"])
        with sdpa_kernel(SDPBackend.MATH):  # which holds the score matrix: a plan would have another one run
            return func(*args, **kwargs)

    clone = model.clone()
    clone.model_options.setdefault("transformer_options", {})[OVERRIDE] = foreign
    return clone


class TestWhatOthersHaveSet:
    """Nodes before Make It Fit win, and of attention those behind it too."""

    def small(self, question: Question) -> Fit:
        plain = find_fit(question, named_card("sm86", 8.0)).considered[0].stage
        return find_fit(question, named_card("sm86", (plain.least + plain.peak) / 2 / GB), "any", 1.0)

    def test_attention(self) -> None:
        model = apply_attention(drawn("flux", 0.02, 6), backend="sdpa_math")
        fit = self.small(asked(model=model))
        assert {plan.attention for plan in fit.considered} == {""}
        assert any("attention stays" in note for note in fit.notes)

    @at_night
    def test_attention_of_another_pack(self) -> None:
        fit = self.small(asked(model=with_theirs(drawn("flux", 0.02, 6), [])))
        assert {plan.attention for plan in fit.considered} == {""}
        assert any("attention stays" in note for note in fit.notes)

    def test_attention_of_another_pack_behind_it(self) -> None:
        family, seen = FAMILIES["flux"], []
        sample(with_theirs(changed(family.load(), "online", False), seen), family, steps=1)
        assert set(seen) == {"double", "single"}
        row = LOG.rows("", "")[-1]
        assert row.attention is None
        assert [notice.partition(",")[0] for notice in row.notices] == [
            "a node behind Make It Fit chose another attention"
        ]
        report = render_report([NodeReport("5", "KSampler", [row])], "a machine", [])
        assert "asked for: online" not in report
        assert "reached HeadroomAttention" not in report

    def test_casting(self) -> None:
        model, _ = cast_model(drawn("flux", 0.02, 6), CastSettings("float8_e4m3fn_scaled"))
        question = asked(model=model)
        fit = find_fit(question, named_card("sm86", 0.01), "any", 1.0)
        assert {plan.storage for plan in fit.considered} == {""}
        assert any("weights stay" in note for note in fit.notes)

    def test_torch_compile(self) -> None:
        from comfy_api.torch_helpers import set_torch_compile_wrapper

        model = drawn("flux", 0.02, 6).clone()
        set_torch_compile_wrapper(model, backend="eager")  # nothing is compiled before it runs
        fit = find_fit(asked(model=model), named_card("sm86", 0.01), "any", 1.0)
        assert {plan.storage for plan in fit.considered} == {""}
        assert any("weights stay as they are: torch.compile stands before Make It Fit" in note for note in fit.notes)

    @at_night
    def test_a_budget(self) -> None:
        model = drawn("flux", 0.02, 6)
        model, _ = apply_offload(model, 0.6 * model.model_size() / GB, "leaf")
        question = asked(model=model)
        fit = self.small(question)
        assert all(plan.fixed for plan in fit.considered)
        result, _ = apply_fit(question.model, question.vae, find_fit(question, named_card("sm86", 8.0)))
        assert budget_of(result) == budget_of(model)

    def test_novram(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No budget would bring weights back onto the card."""
        state = comfy.model_management.VRAMState.NO_VRAM
        monkeypatch.setattr(comfy.model_management, "vram_state", state)
        question = asked()
        fit = find_fit(question, named_card("sm86", 8.0))
        assert all(plan.fixed and plan.stage.resident == plan.stage.least_weights for plan in fit.considered)
        assert ALL_STREAMS in fit.notes
        assert budget_of(apply_fit(question.model, question.vae, fit)[0]) is None
        assert fit.forecast.streamed_per_step > 0

    def test_a_vae_node_before_it(self) -> None:
        vae = low_memory_vae(load_vae("flux"), VAESettings(method="feathered", tile_size=128))
        question = asked(vae=vae)
        fit = find_fit(question, named_card("sm86", 8.0))
        assert apply_fit(question.model, vae, fit)[1] is vae

    def test_a_vae_node_behind_it(self) -> None:
        planned = planned_vae(load_vae("flux"), VAESettings(method="exact", vram_budget_gb=0.5))
        kept = low_memory_vae(planned, VAESettings())
        assert (kept.headroom_settings.method, kept.headroom_settings.vram_budget_gb) == ("exact", 0.5)
        assert low_memory_vae(planned, VAESettings(store="float16")).headroom_settings.method == "exact"
        assert low_memory_vae(planned, VAESettings(vram_budget_gb=0.7)).headroom_settings.vram_budget_gb == 0.7
        assert low_memory_vae(planned, VAESettings(method="feathered")).headroom_settings.vram_budget_gb == 0

    def test_a_second_make_it_fit_plans_anew(self) -> None:
        planned = planned_vae(load_vae("flux"), VAESettings(method="exact", vram_budget_gb=0.5))
        question = asked(vae=planned)
        _, vae = apply_fit(question.model, planned, find_fit(question, named_card("sm86", 8.0)))
        assert vae.headroom_settings.method == "auto"
        assert isinstance(vae, LowMemoryVAE)


class TestGuidanceInTurns:
    @pytest.mark.parametrize("name", ["sd15", "flux", "wan21"])
    def test_one_conditioning_per_call_and_the_same_picture(self, name: str) -> None:
        family, batches = FAMILIES[name], []
        model = family.load().clone()

        def count(executor: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            batches.append(x.shape[0])
            return executor(x, *args, **kwargs)

        model.add_wrapper_with_key(WrappersMP.APPLY_MODEL, "count", count)
        together = sample(model, family, steps=2)
        assert set(batches) == {2}
        batches.clear()
        turns = sample(guide_in_turns(model), family, steps=2)
        assert batches == [1] * 4
        assert psnr(turns, together) >= 80

    def test_a_prompt_of_two_parts(self) -> None:
        """Combined conditionings would be batched too."""
        import nodes

        family = FAMILIES["sd15"]
        both = family.conditioning(1) + family.conditioning(3)
        latent = {"samples": family.latent()}
        results = [
            nodes.KSampler().sample(
                model, 7, 1, 3.0, "euler", "normal", both, family.conditioning(2), latent
            )[0]["samples"]
            for model in (family.load(), guide_in_turns(family.load()))
        ]  # fmt: skip
        assert psnr(results[1], results[0]) >= 80

    def test_a_patch_that_compares_both_texts_keeps_them_together(self) -> None:
        """ComfyUI's Normalized Attention Guidance does nothing where it does not find both."""
        from comfy_extras.nodes_nag import NAGuidance

        family = FAMILIES["sd15"]
        (patched,) = NAGuidance.execute(family.load(), 5.0, 0.5, 1.5).result
        expected = sample(patched, family, steps=2)
        assert psnr(expected, sample(family.load(), family, steps=2)) < 60
        (behind,) = NAGuidance.execute(guide_in_turns(family.load()), 5.0, 0.5, 1.5).result
        for model in (guide_in_turns(patched), behind):
            assert psnr(sample(model, family, steps=2), expected) >= 80
            assert LOG.rows("", "")[-1].notices == [KEPT_TOGETHER]
        question = asked("sd15", 256, patched, vae=load_vae("sd"))
        least = find_fit(question, named_card("sm86", 8.0)).considered[0].stage.least
        fit = find_fit(question, named_card("sm86", 0.9 * least / GB), limit=1.0)
        assert not any(plan.in_turns for plan in fit.considered)
        assert KEPT_TOGETHER in fit.notes

    def test_calls_that_overlap_do_not_see_each_other(self) -> None:
        """The first ends within the second, as two threads that sample with one patcher may."""
        base = FAMILIES["sd15"].load().clone()
        base.model.current_patcher = base
        second_began, first_ended = threading.Event(), threading.Event()

        def room(model: Any) -> bool:
            return bool(model.memory_required([1, 4, 8, 8]) < model.current_patcher.get_free_memory(CPU))

        def first(model: Any) -> bool:
            assert second_began.wait(120)
            return room(model)

        def second(model: Any) -> tuple[bool, bool]:
            second_began.set()
            assert first_ended.wait(120)
            return room(model), room(base.model)

        with ThreadPoolExecutor(2) as pool:
            one, other = pool.submit(in_turns, first, base.model), pool.submit(in_turns, second, base.model)
            assert one.result() is False
            first_ended.set()
            assert other.result() == (False, True)

    def test_what_stands_behind_it_sees_the_model(self) -> None:
        model = FAMILIES["sd15"].load().model

        def look(seen: Any) -> None:
            assert isinstance(seen, type(model))
            assert seen.diffusion_model is model.diffusion_model
            seen.noted = 1

        in_turns(look, model)
        assert model.__dict__.pop("noted") == 1

    def test_an_error_leaves_the_patcher_as_it_was(self) -> None:
        family = FAMILIES["sd15"]
        model = guide_in_turns(family.load())

        def fail(executor: Any, *args: Any, **kwargs: Any) -> Tensor:
            raise RuntimeError("stop")

        model.add_wrapper_with_key(WrappersMP.APPLY_MODEL, "fail", fail)
        with pytest.raises(RuntimeError, match="stop"):
            sample(model, family)
        assert "get_free_memory" not in vars(model)


class TestWorkflows:
    """A workflow with Make It Fit, gone through without data."""

    def forecast(self, vram: float, **widgets: Any) -> DryRun:
        path = Path(__file__).parents[2] / "workflows" / "api" / "make_it_fit.json"
        workflow = json.loads(path.read_text(encoding="utf-8"))
        workflow["4"]["inputs"] |= {"width": 512, "height": 512}
        workflow["5"]["inputs"] |= widgets
        ours = {"HeadroomFit": HeadroomFit, "HeadroomReport": HeadroomReport}
        return DryRun(workflow, named_card("sm86", vram), ours=ours).run()

    def test_the_plan_is_for_the_card_that_is_asked_about(self) -> None:
        large, small = self.forecast(24.0), self.forecast(0.75)
        assert large.complete
        assert small.complete
        assert [stage.method for stage in large.stages if stage.work == "decode"] == ["in one piece"]
        assert [stage.method for stage in small.stages if stage.work == "decode"] == ["exact, in strips"]
        assert small.forecast().verdict is not Verdict.DOES_NOT_FIT

    def test_what_the_node_says_of_its_card_counts(self) -> None:
        run = self.forecast(24.0, vram_gb=0.75)
        assert [stage.method for stage in run.stages if stage.work == "decode"] == ["exact, in strips"]

    def test_where_nothing_fits_the_workflow_does_not_fit(self) -> None:
        run = self.forecast(0.1)
        assert any("nothing fits" in note for note in run.notes)
        assert run.forecast().verdict is Verdict.DOES_NOT_FIT
        (decode,) = (stage for stage in run.stages if stage.work == "decode")
        assert not decode.or_tiles  # the node ends the run before that


# ---------------------------------------------------------------------------------------------------------- as measured

SHARES = (1.0, 0.8, 0.5)


@pytest.mark.parametrize(("name", "vae"), some_of([("flux", "flux"), ("sd15", "sd"), ("wan21", "wan21")], 3))
def test_what_is_measured_stays_within_the_budget(name: str, vae: str) -> None:
    """On a CPU: weights have nowhere to be streamed from, so that attention, guidance and the VAE have to do it."""
    family = FAMILIES[name]
    side = 128 if family.frames else 256  # where the work is large beside the weights
    question = asked(name, side, family.load(), vae=load_vae(vae))
    unplanned = find_fit(question, cpu(64 * GB)).forecast.peak
    kept = 0
    for share in SHARES:
        card = cpu(int(share * unplanned))
        fit = find_fit(question, card, limit=1.0)
        assert_kept(fit)
        if fit.found:
            kept += 1
            assert max(measured(question, fit)) <= card.total
    assert kept >= 2


def measured(question: Question, fit: Fit) -> tuple[int, int]:
    """Bytes of a step and of the decode, weights included, by torch's profiler."""
    model, vae = apply_fit(question.model, question.vae, fit)
    latent = question.latent["samples"]
    family = next(one for one in FAMILIES.values() if one.load() is question.model)
    step = one_call(model, family, tuple(latent.shape), question.cfg)
    sampling = wrapped_in_turns(model, step)
    sampling(), vae.decode(latent[..., :8, :8])  # what is made once
    return model.model_size() + peak_bytes(sampling), vae.patcher.model_size() + peak_bytes(lambda: vae.decode(latent))


def wrapped_in_turns(model: Any, step: Any) -> Any:
    """A sampler hands a model's wrappers over in its options; :func:`one_call` has the options alone."""
    wrappers = {kind: dict(keyed) for kind, keyed in model.wrappers.items() if kind == WrappersMP.CALC_COND_BATCH}
    model.model_options["transformer_options"]["wrappers"] = wrappers
    return step


def cpu(total: int) -> Card:
    """This machine, of whose memory so much may be used: the host still finds all of it."""
    return chosen_card(THIS_MACHINE, total / GB, CPU)


def test_the_input_is_only_read() -> None:
    question = asked(side=512)
    before = (dict(question.model.model_options), dict(question.model.wrappers), dict(vars(question.vae)))
    peak = find_fit(question, named_card("sm86", 8.0)).forecast.peak
    fit = find_fit(question, named_card("sm86", 0.6 * peak / GB), "any", 1.0)
    apply_fit(question.model, question.vae, fit)
    assert before == (dict(question.model.model_options), dict(question.model.wrappers), dict(vars(question.vae)))
    assert budget_of(question.model) is None


def test_budgets_are_predicted_for_another_card_only_by_its_total(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is free here: the host asks it for how many pictures of a batch it decodes together."""
    latent = {"samples": FAMILIES["sd15"].latent(256, 256, batch=4)}
    question, fits = replace(asked("sd15", vae=load_vae("sd")), latent=latent), []
    for free in (2**20, 2**50):
        KEPT.clear()
        monkeypatch.setattr(
            comfy.model_management,
            "get_free_memory",
            lambda dev=None, torch_free_too=False, free=free: (free, free) if torch_free_too else free,
        )
        fits.append(find_fit(question, named_card("sm86", 4.0)))
    found = [[timeless(plan) for plan in (*fit.considered, *fit.vaes)] for fit in fits]
    assert found[0] == found[1]


def timeless(plan: Any) -> Any:
    """Without what the prediction itself took."""
    return replace(plan, stage=replace(plan.stage, prediction=replace(plan.stage.prediction, seconds=0.0)))


def test_a_decode_that_does_not_run_is_not_the_nearest() -> None:
    """A second pass that nothing saves, in front of the one that is saved."""
    prompt = {
        "1": node("HeadroomFit"),
        "2": node("KSampler", model=["1", 0]),
        "3": node("VAEDecodeTiled", samples=["2", 0], tile_size=64, overlap=16),
        "4": node("VAEDecode", samples=["2", 0]),
        "5": node("PreviewImage", images=["4", 0]),
    }
    asked = load_vae("sd"), {"samples": AUTOENCODERS["sd"].latent(8, 8)}
    assert decode_in_graph("1", around("1", DynamicPrompt(prompt)), *asked) is None
    saved = prompt | {"6": node("PreviewImage", images=["3", 0])}
    assert decode_in_graph("1", around("1", DynamicPrompt(saved)), *asked).tiles["tile_x"] == 8
