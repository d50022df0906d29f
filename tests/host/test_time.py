"""How long work takes, as predicted: its kernels against those that run, its steps, and what runs teach."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import folder_paths
import pytest
import torch
from comfy.quant_ops import QuantizedTensor
from comfy_execution.graph import DynamicPrompt
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

import nodes
from headroom.host.attention.backend import apply_attention
from headroom.host.core.wrapper_kinds import DIFFUSION_MODEL
from headroom.host.following.calling import Nodes
from headroom.host.following.inputs import Inputs
from headroom.host.following.steps import CALLS
from headroom.host.measure.runs import LOG
from headroom.host.measure.speeds import kind_of_sampling, speed_path, with_speed
from headroom.host.planning import step_meter
from headroom.host.planning.compare import Work, compare
from headroom.host.planning.report import memory_report
from headroom.host.planning.rows import ask
from headroom.host.planning.strategies import Switches
from headroom.host.prediction.stages import Question, own_card, sampling_stage
from headroom.host.prediction.step import Step, predict_step
from headroom.host.prediction.vae import Coding, predict_coding
from headroom.host.vae.settings import VAESettings
from headroom.host.vae.wrapper import low_memory_vae
from headroom.host.workflow.dry_run import DryRun
from headroom.host.workflow.estimate import estimate_workflow
from headroom.memory.prediction import Card, Forecast, Stage, named_card
from headroom.memory.render import render_forecast
from headroom.memory.speed import TimedRun
from headroom.memory.speed.kept import device_key, load_speed, save_run
from headroom.memory.speed.kernels import KernelCosts, count, flops_of

from .families import FAMILIES, load_vae, sample
from .one_step import one_call
from .workflows import node, text_to_image, with_headroom

pytestmark = pytest.mark.usefixtures("one_thread", "extra_nodes")
CPU = torch.device("cpu")
CARD = named_card("sm86", 12.0)
PACK = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The host's user folder, where what was measured is kept."""
    monkeypatch.setattr(folder_paths, "user_directory", str(tmp_path))
    return tmp_path


def operations(work: Any) -> int:
    """Of work with data, by torch's own counter, and by the same formulas where it has none."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    formulas = {one: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v) for one in (kernel, kernel.default)}
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter, torch.inference_mode():
        work()
    return int(counter.get_total_flops())


# ----------------------------------------------------------------------------------------------- kernels of real work


def test_a_quantised_weight_that_is_turned_is_no_kernel() -> None:
    weight = QuantizedTensor.from_float(torch.randn(32, 64, dtype=torch.bfloat16), "TensorCoreFP8Layout")
    work = KernelCosts()
    count(work, torch.ops.aten.t.default, (weight,), {}, weight.t())  # a product turns its weight, in place
    assert not work
    count(work, torch.ops.aten.clone.default, (weight,), {}, weight.clone())
    assert sum(work.values()) == 1


@pytest.mark.parametrize("name", ["sd15", "sdxl", "sd3", "flux", "wan21", "ltxv", "qwen_image", "lumina2"])
def test_a_step_has_the_operations_that_it_is_predicted_to_have(name: str) -> None:
    family, model = FAMILIES[name], FAMILIES[name].load()
    latent = family.latent(128, 96)
    with torch.inference_mode():
        step = Step(model, latent, family.conditioning(1), family.conditioning(2), 3.0)
        found = predict_step(step, own_card(CPU))
    assert found.flops == operations(one_call(model, family, tuple(latent.shape)))
    assert found.flops == flops_of(found.work) > 0


@pytest.mark.parametrize(("name", "shape"), [("sd", (2, 4, 20, 24)), ("wan21", (1, 16, 3, 12, 12))])
@pytest.mark.parametrize("tiled", [False, True])
def test_a_decode_has_the_operations_of_all_its_tiles(name: str, shape: tuple[int, ...], tiled: bool) -> None:
    vae, latent = load_vae(name), torch.zeros(shape)
    options = {"tile_x": 16, "tile_y": 16, "overlap": 4} if tiled else None
    found = predict_coding(Coding(vae, latent, tiles=options), own_card(CPU)).prediction
    work = (lambda: vae.decode_tiled(latent, **options)) if options else (lambda: vae.decode(latent))
    assert found.flops == pytest.approx(operations(work), rel=0.02 if tiled else 0.0)


@pytest.mark.parametrize(
    ("settings", "within"),
    [
        (VAESettings(batch_slice=1), 0.0),
        (VAESettings(method="exact", vram_budget_gb=0.2), 0.3),  # what strips compute again is not counted
        (VAESettings(method="feathered", tile_size=128), 0.02),
    ],
)
def test_a_low_memory_decode_has_about_the_operations_of_the_whole(settings: VAESettings, within: float) -> None:
    vae, latent = low_memory_vae(load_vae("sd"), settings), torch.zeros(2, 4, 24, 24)
    found = predict_coding(Coding(vae, latent), own_card(CPU)).prediction
    assert found.flops == pytest.approx(operations(lambda: vae.decode(latent)), rel=within)


def test_equal_blocks_are_counted_each() -> None:
    """They are followed once, and an attention that tells blocks apart has all of them followed."""
    family = FAMILIES["flux"]
    texts = family.conditioning(1), family.conditioning(2)
    plain, apart = family.load(), apply_attention(family.load(), backend="auto", blocks="double:0")
    card = own_card(CPU)
    found = [predict_step(Step(model, family.latent(), *texts, 3.0), card) for model in (plain, apart)]
    assert found[0].flops == found[1].flops


# -------------------------------------------------------------------------------------------------------------- steps


def sampled(**changes: Any) -> list[Stage]:
    graph = text_to_image(save_latent=False)
    graph["5"]["inputs"].update(changes)
    with torch.inference_mode():
        return [stage for stage in DryRun(graph, CARD).run().stages if stage.work == "sampling"]


@pytest.mark.parametrize(("sampler", "times"), [("euler", 20), ("heun", 39), ("seeds_3", 58), ("dpm_adaptive", 0)])
def test_a_sampler_calls_its_model_as_often_as_it_does(sampler: str, times: int) -> None:
    (stage,) = sampled(steps=20, sampler_name=sampler)
    assert stage.times == times


@pytest.mark.parametrize("name", [*CALLS, "euler", "dpmpp_2m", "lcm", "uni_pc", "res_multistep"])
def test_the_table_of_calls_is_the_hosts(name: str) -> None:
    import comfy.samplers

    if name not in comfy.samplers.SAMPLER_NAMES:
        pytest.skip("this ComfyUI has no such sampler")
    family, calls = FAMILIES["sd3"], 0
    model = family.load().clone()

    def counted(executor: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return executor(*args, **kwargs)

    from comfy.patcher_extension import WrappersMP

    model.add_wrapper_with_key(WrappersMP.PREDICT_NOISE, "counted", counted)
    texts = family.conditioning(1), family.conditioning(2)
    nodes.KSampler().sample(model, 7, 6, 1.0, name, "normal", *texts, {"samples": family.latent(64, 64)})
    each = CALLS.get(name, 1)
    assert 6 * each - (each - 1) - (each > 2) <= calls <= 6 * each


def test_a_part_of_the_steps() -> None:
    graph = text_to_image(save_latent=False)
    inputs = graph["5"]["inputs"]
    more = {"add_noise": "enable", "noise_seed": 1, "start_at_step": 5, "end_at_step": 1000}
    kept = {name: value for name, value in inputs.items() if name not in ("seed", "denoise")}
    graph["5"] = node("KSamplerAdvanced", **{**kept, **more, "steps": 20, "return_with_leftover_noise": "disable"})
    with torch.inference_mode():
        (stage,) = (one for one in DryRun(graph, CARD).run().stages if one.work == "sampling")
    assert stage.times == 15


def custom(*, sigmas: dict[str, Any], output: int = 0, more: dict[str, Any] | None = None) -> float:
    graph = text_to_image(save_latent=False)
    inputs = graph["5"]["inputs"]
    given = {name: inputs[name] for name in ("model", "positive", "negative", "latent_image", "cfg")}
    graph |= {"20": node("KSamplerSelect", sampler_name="dpmpp_sde"), "21": sigmas, **(more or {})}
    graph["5"] = node(
        "SamplerCustom",
        **given,
        sampler=["20", 0],
        sigmas=["22" if more else "21", output],
        noise_seed=1,
        add_noise=True,
    )
    with torch.inference_mode():
        run = DryRun(graph, CARD).run()
    assert not run.unknown
    (stage,) = (one for one in run.stages if one.work == "sampling")
    return stage.times


def test_noise_levels_are_counted_through_the_nodes_that_make_them() -> None:
    basic = node("BasicScheduler", model=["1", 0], scheduler="normal", steps=10, denoise=0.5)
    assert custom(sigmas=basic) == 19
    assert custom(sigmas=node("ManualSigmas", sigmas="1.0, 0.5, 1e-2, 0")) == 5
    split = {"22": node("SplitSigmas", sigmas=["21", 0], step=4)}
    assert custom(sigmas=basic, more=split) == 7
    assert custom(sigmas=basic, output=1, more=split) == 11
    share = {"22": node("SplitSigmasDenoise", sigmas=["21", 0], denoise=0.3)}
    assert custom(sigmas=basic, output=1, more=share) == 5
    assert custom(sigmas=basic, more={"22": node("FlipSigmas", sigmas=["21", 0])}) == 19


@pytest.mark.parametrize(
    ("kind", "inputs", "steps"),
    [
        ("AlignYourStepsScheduler", {"model_type": "SD1", "steps": 20}, 10),
        ("GITSScheduler", {"coeff": 1.2, "steps": 20}, 10),
        ("OptimalStepsScheduler", {"model_type": "FLUX", "steps": 20}, 10),
        ("SDTurboScheduler", {"model": ["1", 0], "steps": 8}, 5),
    ],
)
def test_schedulers_of_which_denoise_takes_a_share_of_the_steps(kind: str, inputs: dict[str, Any], steps: int) -> None:
    family = FAMILIES["sd15"]
    given = {**inputs, "model": family.load()} if "model" in inputs else inputs
    levels, *_ = Nodes({}).call(kind, Inputs(kind, {**given, "denoise": 0.5}))
    assert len(levels) == steps + 1  # as the host makes them
    assert custom(sigmas=node(kind, **inputs, denoise=0.5)) == 2 * steps - 1
    assert custom(sigmas=node(kind, **inputs, denoise=1.0)) == 2 * inputs["steps"] - 1


def test_two_samplings_of_one_model_take_the_time_of_both() -> None:
    graph = text_to_image(save_latent=False)
    graph["9"] = node("KSampler", **{**graph["5"]["inputs"], "steps": 7})
    with torch.inference_mode():
        (stage,) = (one for one in DryRun(graph, CARD).run().stages if one.work == "sampling")
    assert stage.times == 9


# ------------------------------------------------------------------------------------------------------------- answers


def test_a_workflow_is_told_how_long_it_takes() -> None:
    with torch.inference_mode():
        answer = estimate_workflow(text_to_image(save_latent=False), CARD, 0.85)
    numbers, text = answer.numbers, answer.text
    each = {stage["work"]: stage["seconds_each"] * stage["times"] for stage in numbers["stages"]}
    assert set(each) == {"text", "sampling", "decode"}
    assert numbers["seconds"] == pytest.approx(sum(each.values()))
    assert numbers["seconds_by"] == "the documented figures of the RTX 3060"
    assert "not measured here" in text
    assert " a step, " in text
    assert " for 2 steps" in text


def test_a_sampler_that_says_not_how_often_leaves_its_time_open() -> None:
    graph = text_to_image(save_latent=False)
    graph["5"]["inputs"]["sampler_name"] = "dpm_adaptive"
    with torch.inference_mode():
        answer = estimate_workflow(graph, CARD, 0.85)
    assert answer.numbers["seconds"] is None
    assert " without sampling" in answer.text


def test_copies_are_part_of_a_step() -> None:
    family = FAMILIES["flux"]
    question = Question(family.load(), {"samples": family.latent(512, 512)}, positive=family.conditioning(1), cfg=1.0)
    with torch.inference_mode():
        stage = sampling_stage(question, CARD)
    small = Forecast(named_card("sm86", (stage.least + 2**20) / 2**30), (stage,), limit=1.0)
    large = Forecast(CARD, (stage,))
    assert small.streamed(stage) > 0
    computing, copying = small.computing(stage), small.streamed(stage) * stage.prediction.calls / small.card.speed.link
    assert small.copying(stage) == pytest.approx(copying)
    # ComfyUI's own streaming hides half of the shorter one, Block Offload all of it.
    assert small.seconds_each(stage) == pytest.approx(computing + copying - min(computing, copying) / 2)
    staged = replace(stage, budget=stage.resident, staging=2**10)
    assert small.seconds_each(staged) == pytest.approx(max(computing, small.copying(staged)))
    assert large.seconds_each(stage) == large.computing(stage)
    assert "weights are copied" in render_forecast(small)


# -------------------------------------------------------------------------------------------------- what runs teach


def test_a_sampling_is_timed_without_its_first_step() -> None:
    model = apply_attention(FAMILIES["sd3"].load(), backend="auto")
    sample(model, FAMILIES["sd3"], steps=3)
    row = LOG.rows("", "")[-1]
    assert row.steps == 3
    assert row.step_seconds is None or 0 < row.step_seconds < row.seconds
    sample(model, FAMILIES["sd3"], steps=1)
    assert LOG.rows("", "")[-1].step_seconds is None


def test_what_a_step_took_is_kept_and_counts_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    family = FAMILIES["sd3"]
    model = apply_attention(family.load(), backend="auto")
    sample(model, family, steps=2)
    row = LOG.rows("", "")[-1]
    row.step_seconds = 12.0
    ask(row)
    kind = kind_of_sampling(model)
    history = with_speed(own_card(CPU)).speed.history
    assert history.count(kind) == 1
    texts = {"positive": family.conditioning(1), "negative": family.conditioning(2)}
    question = Question(model, {"samples": family.latent()}, **texts, cfg=3.0)
    with torch.inference_mode():
        stage = sampling_stage(question, own_card(CPU))
    assert Forecast(own_card(CPU), (stage,)).seconds_each(stage) == pytest.approx(12.0, rel=0.1)
    assert row.expected is not None
    report = memory_report("", "1", DynamicPrompt({"1": node("HeadroomReport")}), None)
    assert report.text


def leaves_calls_out(model: Any) -> Any:
    """As the host's EasyCache: a wrapper that gives what the call before gave."""
    model.add_wrapper_with_key(
        DIFFUSION_MODEL, "easycache", lambda executor, *args, **kwargs: executor(*args, **kwargs)
    )
    return model


def guides_by_itself(model: Any) -> Any:
    """As the host's Skip Layer Guidance: one more call of the model after those of each step."""
    model.set_model_sampler_post_cfg_function(lambda given: given["denoised"])
    return model


@pytest.mark.parametrize("change", [leaves_calls_out, guides_by_itself])
def test_a_model_whose_steps_are_not_those_that_are_predicted_teaches_nothing(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]
) -> None:
    monkeypatch.setattr(step_meter, "MOST_TIMED", 1)
    family = FAMILIES["sd3"]
    model = change(apply_attention(family.load(), backend="auto"))
    sample(model, family, steps=2)
    row = LOG.rows("", "")[-1]
    row.step_seconds = 12.0
    ask(row)
    assert row.predicted is not None
    assert row.expected is None
    work = Work(model, {"samples": family.latent(64, 64)}, family.conditioning(1), family.conditioning(2), 3.0)
    compare(work, Switches(dtypes=False, backends=False, slice_sizes=""))
    assert own_card(CPU).speed.history.count(kind_of_sampling(model)) == 0


def test_texts_that_count_in_a_part_of_the_steps_teach_nothing() -> None:
    family = FAMILIES["sd3"]
    model = apply_attention(family.load(), backend="auto")
    texts = [[text, {**options, "end_percent": 0.5}] for text, options in family.conditioning(1)]
    latent = {"samples": family.latent()}
    nodes.KSampler().sample(model, 7, 2, 3.0, "euler", "normal", texts, family.conditioning(2), latent)
    row = LOG.rows("", "")[-1]
    row.step_seconds = 12.0
    ask(row)
    assert row.predicted is not None
    assert own_card(CPU).speed.history.count(kind_of_sampling(model)) == 0


def test_a_report_says_how_long_a_step_took_and_was_told_to_take() -> None:
    row = LOG.start("timed", "5", "sampling")
    row.seconds, row.outcome, row.steps, row.step_seconds, row.expected = 3.0, "done", 4, 0.5, 0.45
    text = memory_report("timed", "11", DynamicPrompt(with_headroom()), None).text
    assert "4 calls of the model, 0.5 s each · predicted 0.5 s, 10% less" in text


def test_compare_says_what_it_predicted_and_learns_from_the_model_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_meter, "MOST_TIMED", 1)
    family = FAMILIES["sd3"]
    model = family.load()
    work = Work(model, {"samples": family.latent(64, 64)}, family.conditioning(1), family.conditioning(2), 3.0)
    text, _ = compare(work, Switches(dtypes=False, backends=False, slice_sizes="64"))
    header, *lines = text.splitlines()[4:]
    assert "predicted" in header
    assert all(line.count(" s") + line.count(" ms") == 2 for line in lines)  # measured and predicted
    assert own_card(CPU).speed.history.count(kind_of_sampling(model)) == 1


def test_the_error_so_far_stands_beside_a_prediction() -> None:
    kind, key = "Flux, sampling, float32", device_key(CPU)
    for measured in (2.0, 2.2):
        save_run(speed_path(), key, kind, TimedRun(1.0, measured))
    family = FAMILIES["flux"]
    question = Question(family.load(), {"samples": family.latent()}, positive=family.conditioning(1), cfg=1.0)
    with torch.inference_mode():
        stage = sampling_stage(question, own_card(CPU))
    assert stage.kind == kind
    assert "(here in 2 runs up to 10% off)" in render_forecast(Forecast(own_card(CPU), (stage,)))


def test_a_card_that_is_not_here_learns_nothing_from_this_machine() -> None:
    save_run(speed_path(), device_key(CPU), "Flux", TimedRun(1.0, 2.0))
    assert not with_speed(CARD).speed.history.runs
    assert not with_speed(Card("x", torch.device("cuda"), 2**33, (8, 6))).speed.history.runs


def test_the_command_measures_this_machine(tmp_path: Path) -> None:
    """In a process of its own, as people run it."""
    short = "import headroom.memory.speed.measuring as m; m.SECONDS = 0.02"
    code = f"import sys; sys.path.insert(0, {str(PACK / 'cli')!r}); import host; host.load_pack(); {short};"
    code += "import calibrate; sys.exit(calibrate.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "--cpu", "--base-directory", str(tmp_path)]
    done = subprocess.run(command, env={**os.environ}, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "operations a second: product in float32" in done.stdout
    (path,) = tmp_path.rglob("speed.json")
    (key,) = json.loads(path.read_text())
    assert key in done.stdout
    assert load_speed(path, key, CARD.speed).source.startswith("measured on this CPU")
