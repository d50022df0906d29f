"""`check` without a card: what it says, in this process and as people run it, and that no part of it ends the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headroom.cli import check
from headroom.cli.checks import attention, casting, generated, offload, parts, probe, sizes, speed, vae
from headroom.cli.checks.bench import Bench
from headroom.cli.checks.clock import Clock, by_turns
from headroom.cli.checks.machine import describe
from headroom.cli.checks.rows import Check, CheckOutcome, CheckRow, Found
from headroom.cli.checks.text import WIDTH, table_row, to_paste
from headroom.offload import CastReport

from .conftest import ENVIRONMENT, ON_CARD

pytestmark = pytest.mark.skipif(ON_CARD, reason="a card has tests/emulator/test_check.py, a GPU the command itself")
PACK = Path(__file__).parents[2]
MODEL = sizes.ModelSize(256, 1, 2, 128)
VAE = sizes.VAESize(32 if generated.takes_narrow() else sizes.FULL_WIDTH, 128)
OURS = ("auto", "sdpa", "sdpa_math", "sliced", "online")


@pytest.fixture(scope="module")
def bench(one_thread: None) -> Bench:
    """The smallest models, made once."""
    found = Bench(3600.0)
    found.__dict__["sizes"] = sizes.Sizes(MODEL, VAE)
    return found


def looked_at(name: str, bench: Bench) -> dict[str, CheckRow]:
    """Rows of a part by their names."""
    (part,) = (part for part in parts.PARTS if part.name == name)
    return {row.name: row for row in parts.rows(part, bench)}


def outcomes(rows: dict[str, CheckRow]) -> dict[str, CheckOutcome]:
    return {name: row.outcome for name, row in rows.items()}


# --------------------------------------------------------------------------------------------------- the promises


class TestAttention:
    def test_every_exact_backend_is_held_to_the_hosts_own(self, bench: Bench) -> None:
        rows = looked_at("attention", bench)
        assert set(rows) >= {*OURS, "host", "sage", "xformers"}
        assert all(rows[name].outcome is CheckOutcome.HELD and rows[name].numbers["db"] >= 80 for name in OURS)
        assert rows["xformers"].outcome is CheckOutcome.NOT_HERE
        assert rows["xformers"].text == "it does not run on cpu"

    def test_a_wrong_kernel_is_seen(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        backends = dict(attention.BACKENDS)
        online = backends["online"]
        wrong = replace(online, compute=lambda *args, **options: online.compute(*args, **options) * 1.001)
        monkeypatch.setitem(attention.BACKENDS, "online", wrong)
        monkeypatch.setattr(attention, "BACKEND_CHOICES", ("online", "sliced"))
        rows = looked_at("attention", bench)
        assert outcomes(rows) == {"online": CheckOutcome.BROKEN, "sliced": CheckOutcome.HELD}


class TestCasting:
    def test_bytes_and_weights(self, bench: Bench) -> None:
        rows = looked_at("casting", bench)
        assert rows["float8_e4m3fn_scaled"].outcome is CheckOutcome.HELD
        assert rows["float8_e4m3fn_scaled"].numbers["bytes_after"] < 0.75 * bench.model.model_size()
        assert {row.outcome for row in rows.values()} <= {CheckOutcome.HELD, CheckOutcome.NOT_HERE}

    def test_weights_that_did_not_become_smaller_are_seen(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        cast = casting.cast_model

        def large(*args: Any) -> tuple[Any, CastReport]:
            model, report = cast(*args)
            report.done = [replace(layer, bytes_after=layer.bytes_before) for layer in report.done]
            return model, report

        monkeypatch.setattr(casting, "cast_model", large)
        monkeypatch.setattr(casting, "CASTS", ("float8_e4m3fn_scaled",))
        assert looked_at("casting", bench)["float8_e4m3fn_scaled"].outcome is CheckOutcome.BROKEN


class TestVAE:
    @pytest.mark.parametrize("way", ["decode", "encode"])
    def test_strips_are_exact_and_keep_to_their_budget(self, way: str, bench: Bench) -> None:
        rows = list(looked_at(way, bench).values())
        assert [row.outcome for row in rows[:1]] == [CheckOutcome.HELD]
        assert rows[0].numbers["db"] >= 100
        assert "in strips" in rows[0].text
        assert rows[-1].outcome in (
            CheckOutcome.HELD,
            CheckOutcome.NOT_HERE,
        )  # so small and wide a one takes less untiled
        if way == "decode" and generated.takes_narrow():
            numbers = rows[-1].numbers
            assert numbers["taken"] <= numbers["budget"] < numbers["untiled"]

    def test_a_fault_in_the_strips_is_seen(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        in_strips = vae.GeneratedCoding.in_strips
        monkeypatch.setattr(vae.GeneratedCoding, "in_strips", lambda self, model: in_strips(self, model) + 1e-3)
        assert next(vae.decode_checks(bench)).look()[0] is CheckOutcome.BROKEN

    @pytest.mark.parametrize(("strips", "outcome"), [(1.0, CheckOutcome.HELD), (1.001, CheckOutcome.BROKEN)])
    def test_an_error_of_the_untiled_result_is_not_taken_for_one_of_the_strips(
        self, strips: float, outcome: CheckOutcome, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        coding = vae.GeneratedCoding.decode(bench)
        monkeypatch.setattr(vae.GeneratedCoding, "single", coding.single * 1.0001)
        in_strips = vae.GeneratedCoding.in_strips
        monkeypatch.setattr(vae.GeneratedCoding, "in_strips", lambda self, model: in_strips(self, model) * strips)
        found, text, numbers = next(vae.decode_checks(bench)).look()
        assert found is outcome, text
        assert "dB from untiled; from float64 " in text
        assert numbers["db"] < 85 > numbers["db_untiled"]

    def test_more_than_the_budget_is_seen(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        followed = vae.followed
        monkeypatch.setattr(vae, "followed", lambda *args: followed(*args) + 2**24)
        monkeypatch.setattr(vae.GeneratedCoding, "least", lambda self: 1)
        real = vae.low_memory_vae

        def unbound(model: Any, settings: Any) -> Any:
            return real(model, replace(settings, vram_budget_gb=1024.0 if settings.vram_budget_gb else 0.0))

        monkeypatch.setattr(vae, "low_memory_vae", unbound)
        assert list(vae.decode_checks(bench))[-1].look()[0] is CheckOutcome.BROKEN


class TestOffload:
    def test_the_same_latents_within_the_budget(self, bench: Bench) -> None:
        assert set(outcomes(looked_at("offload", bench)).values()) == {CheckOutcome.HELD}

    def test_other_latents_are_seen(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        sample = Bench.sample
        monkeypatch.setattr(
            Bench, "sample",
            lambda self, model, *args: sample(self, model, *args) * (1 if model is self.model else 1.0001),
        )  # fmt: skip
        assert looked_at("offload", bench)["the same latents"].outcome is CheckOutcome.BROKEN

    def test_what_a_cpu_has_no_prefetch_for_is_said(self, bench: Bench) -> None:
        rows = looked_at("prefetch", bench)
        assert set(outcomes(rows).values()) == {CheckOutcome.NOT_HERE}
        assert "nothing is copied on cpu" in rows["copies overlap"].text

    def test_overlap_is_the_longer_one_over_the_step(self, bench: Bench) -> None:
        streaming = offload.Streaming(bench)
        streaming.__dict__ |= {"seconds": {"resident": [2.0], "blocks": [2.1], "host": [4.0]}, "speed": 1e9}
        streaming.__dict__ |= {"streamed": int(1.9e9), "timed_budget": 2**30}
        assert streaming.overlap()[0] is CheckOutcome.HELD
        assert streaming.beside_the_host()[0] is CheckOutcome.HELD
        streaming.__dict__["seconds"] = {"resident": [2.0], "blocks": [3.9], "host": [3.0]}
        assert streaming.overlap()[0] is CheckOutcome.BROKEN
        assert streaming.beside_the_host()[0] is CheckOutcome.BROKEN


class TestSpeed:
    def test_strips_are_held_to_cores_tiles(self, bench: Bench) -> None:
        decodes = speed.Decodes(bench)
        seconds = {speed.UNTILED: [1.0], speed.TILES: [3.0], speed.STRIPS: [1.2, 9.0, 1.3]}
        lean = {speed.TILES: [3.0], speed.LEAN: [4.0]}
        ways = dict.fromkeys(seconds | lean, lambda: None)
        decodes.__dict__ |= {"seconds": seconds, "lean_seconds": lean, "ways": ways}
        found = {name: decodes.row(name) for name in ways}
        assert [row[0] for row in found.values()] == [
            CheckOutcome.SEEN,
            CheckOutcome.SEEN,
            CheckOutcome.HELD,
            CheckOutcome.BROKEN,
        ]
        assert "1.3 s" in found[speed.STRIPS][1]
        assert "1.30x untiled, 0.43x core's tiles; medians of 3" in found[speed.STRIPS][1]

    def test_ways_are_run_by_turns(self) -> None:
        ran: list[str] = []
        ways = {name: lambda name=name: ran.append(name) for name in "ab"}
        found = by_turns(Clock(torch.device("cpu")), ways, 2, lambda: False)
        assert ran == [*"ab", *"ab", *"ab"]
        assert [len(times) for times in found.values()] == [2, 2]
        assert len(by_turns(Clock(torch.device("cpu")), ways, 9, lambda: True)["a"]) == 1
        assert ran == [*"ab"] * 4


def test_predictions_stand_beside_what_was_measured(bench: Bench) -> None:
    rows = looked_at("prediction", bench)
    assert set(outcomes(rows).values()) == {CheckOutcome.HELD}
    for row in rows.values():
        assert row.numbers["predicted"] == pytest.approx(row.numbers["measured"], rel=0.25)


# ------------------------------------------------------------------------------------------------------ the run


def said(outcome: CheckOutcome = CheckOutcome.HELD) -> Callable[[], Found]:
    return lambda: (outcome, "a result", {"db": 90.0})


def out_of_memory() -> Found:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def broken() -> Found:
    raise RuntimeError("the card fell off\nand a second line")


def stopped() -> Found:
    raise KeyboardInterrupt


def cannot_begin(bench: Bench) -> Iterator[Check]:
    raise LookupError("no such model")
    yield


@pytest.fixture
def these_parts(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts other checks in the place of the first parts."""

    def put(*checks: Any) -> None:
        made = [
            replace(part, checks=one if callable(one) else lambda bench, one=one: iter(one))
            for part, one in zip(parts.PARTS, checks)
        ]
        monkeypatch.setattr(parts, "PARTS", tuple(made))

    return put


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "MODELS", (MODEL,))
    monkeypatch.setattr(sizes, "VAES", (VAE,))


def run(*arguments: str) -> int:
    options, screen = check.parser().parse_args(arguments), check.Screen()
    bench = Bench(options.seconds, screen.doing)
    return check.run(options, screen, bench, describe(bench.device))


class TestRun:
    def test_what_fails_is_a_row_and_the_others_go_on(
        self, these_parts: Callable[..., None], capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        these_parts(
            [Check("one", out_of_memory), Check("two", broken), Check("three", said())], cannot_begin,
            [Check("four", said())],
        )  # fmt: skip
        assert run("--json", str(tmp_path / "c.json")) == check.NOT_HELD
        written = json.loads((tmp_path / "c.json").read_text())
        assert [(row["part"], row["name"], row["outcome"], row["text"]) for row in written["rows"]] == [
            ("attention", "one", "failed", "out of memory"),
            ("attention", "two", "failed", "RuntimeError: the card fell off"),
            ("attention", "three", "held", "a result"),
            ("casting", "casting", "failed", "LookupError: no such model"),
            ("decode", "four", "held", "a result"),
        ]
        assert written["held"] is False
        shown = capsys.readouterr().out
        assert "2 of 5 promises held, 3 failed" in shown
        assert "FAILED: attention, two: RuntimeError: the card fell off" in shown

    @pytest.mark.parametrize(
        ("outcome", "status"),
        [
            (CheckOutcome.HELD, check.HELD), (CheckOutcome.SEEN, check.HELD), (CheckOutcome.NOT_HERE, check.HELD),
            (CheckOutcome.BROKEN, check.NOT_HELD),
        ],
    )  # fmt: skip
    def test_exit_status(self, outcome: CheckOutcome, status: int, these_parts: Callable[..., None]) -> None:
        these_parts([Check("one", said(outcome))])
        assert run() == status

    def test_a_stop_shows_what_is_known(
        self, these_parts: Callable[..., None], capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        these_parts([Check("one", said()), Check("two", stopped), Check("three", said())], [Check("four", said())])
        assert run("--json", str(tmp_path / "c.json")) == check.NOT_HELD
        shown = capsys.readouterr().out
        assert "1 of 1 promises held, stopped before the end" in shown
        written = json.loads((tmp_path / "c.json").read_text())
        assert written["interrupted"]
        assert [row["name"] for row in written["rows"]] == ["one"]

    def test_one_part_alone(self, these_parts: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
        these_parts([Check("one", broken)], [Check("two", said())])
        assert run("--only", "casting") == check.HELD
        assert "one" not in capsys.readouterr().out.split("To paste")[1]

    def test_no_time_left_is_said_and_is_no_success(
        self, these_parts: Callable[..., None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        these_parts([Check("one", broken)])
        assert run("--seconds", "1e-9") == check.NOT_HELD
        assert "no time left" in capsys.readouterr().out

    def test_what_is_left_is_named(self) -> None:
        late = Bench(3600.0)

        def slow() -> Found:
            late.seconds = 1e-9
            return said()()

        part = replace(parts.PARTS[0], checks=lambda bench: iter([Check("one", slow), Check("two", broken)]))
        assert [(row.name, row.outcome) for row in parts.rows(part, late)] == [
            ("one", CheckOutcome.HELD), ("two", CheckOutcome.NOT_RUN),
        ]  # fmt: skip

    def test_work_is_cancelled_when_time_is_up(self, bench: Bench) -> None:
        """Between two steps, and what comes after it is not."""
        short = Bench(0.5)
        short.__dict__ |= {"sizes": bench.sizes, "model": bench.model}

        def endless() -> Found:
            short.sample(bench.model, 100_000)
            return said()()

        part = replace(parts.PARTS[0], checks=lambda bench: iter([Check("one", endless)]))
        assert [row.outcome for row in parts.rows(part, short)] == [CheckOutcome.NOT_RUN]
        assert bench.sample(bench.model, 2).isfinite().all()

    def test_a_step_further_on_after_out_of_memory_has_the_memory(self, bench: Bench) -> None:
        """The exception, which holds every tensor of what failed, is gone."""
        held: list[weakref.ref[torch.Tensor]] = []

        def fails() -> Found:
            tensor = torch.ones(3)
            held.append(weakref.ref(tensor))
            raise torch.OutOfMemoryError("no room")

        part = replace(parts.PARTS[0], checks=lambda bench: iter([Check("one", fails), Check("two", said())]))
        rows = parts.rows(part, bench)
        assert next(rows).outcome is CheckOutcome.FAILED
        assert held[0]() is None


def test_the_text_to_paste_is_short_and_the_table_is_narrow() -> None:
    long = "a result that is so long that it does not fit beside its name, and has to go on below itself, in a line"
    row = CheckRow("float8_e4m3fn_scaled", CheckOutcome.HELD, long, {"db": 31.5})
    assert max(map(len, table_row(row).splitlines())) <= WIDTH
    found = {part.name: [row] * (14 if part.name == "attention" else 3) for part in parts.PARTS}
    pasted = to_paste(["head"] * 2, found, 12.0, False).splitlines()
    assert len(pasted) <= 28
    assert sum(line.startswith("held: attention: ") for line in pasted) == 1


class TestSizes:
    @pytest.mark.parametrize(
        ("speed", "free_gb", "seconds", "model", "vae"),
        [
            (2e13, 11, 150, (1536, 512), (128, 1024)),
            (5e12, 7, 150, (1536, 512), (128, 512)),
            (2e13, 2, 150, (1536, 512), (64, 512)),
            (2e13, 1, 150, (1024, 512), (32, 128)),
            (2e13, 11, 10, (1024, 512), (64, 512)),
            (1e10, 16, 150, (256, 128), (32, 128)),
        ],
    )
    def test_they_follow_speed_and_memory(
        self, speed: float, free_gb: int, seconds: float, model: tuple[int, int], vae: tuple[int, int],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.undo()
        found = sizes.choose(seconds, speed, speed, free_gb * 2**30, 2)
        assert ((found.model.width, found.model.side), (found.vae.width, found.vae.side)) == (model, vae)

    @pytest.mark.parametrize(("speed", "side"), [(2e13, 1024), (5e12, 512), (1e10, 128)])
    def test_hosts_without_narrow_decoders_get_smaller_pictures(
        self, speed: float, side: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.undo()
        found = sizes.choose(150, speed, speed, 11 * 2**30, 2, narrow=False).vae
        assert (found.width, found.side) == (sizes.FULL_WIDTH, side)

    @pytest.mark.parametrize("speed_of", [1e8, 1e11, 3e13])
    def test_the_speed_is_not_that_of_launches(self, speed_of: float, monkeypatch: pytest.MonkeyPatch) -> None:
        """A device that takes 30 microseconds for whatever it is asked."""
        now = [0.0]
        monkeypatch.setattr(probe.time, "perf_counter", lambda: now[0])
        asked: list[int] = []

        def of(side: int) -> tuple[Callable[[], None], float]:
            asked.append(side)
            operations = 2.0 * 1024 * side**2
            return lambda: now.__setitem__(0, now[0] + 3e-5 + operations / speed_of), operations

        assert probe.speed((64, 256, 1024, 4096), of, lambda: None) == pytest.approx(speed_of, rel=0.1)
        assert asked == [64] if speed_of == 1e8 else len(asked) > 2

    def test_their_operations_are_those_that_torch_counts(self, bench: Bench) -> None:
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            bench.sample(bench.model, 1)
        assert counter.get_total_flops() == pytest.approx(MODEL.flops, rel=0.5)
        with FlopCounterMode(display=False) as counter:
            vae.GeneratedCoding.decode(bench).run(bench.vae)
        assert counter.get_total_flops() == pytest.approx(VAE.flops / sizes.DECODES, rel=0.5)


# ------------------------------------------------------------------------------------------------ as people run it


def script(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PACK / "cli" / "check.py"), *arguments],
        capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COMFYUI_PATH": "", "HEADROOM_COMFYUI": "", **variables},
    )  # fmt: skip


def test_as_a_script_it_writes_the_json_alone(tmp_path: Path) -> None:
    before = sorted(str(path) for path in ENVIRONMENT.comfyui.rglob("*") if "__pycache__" not in path.parts)
    target = tmp_path / "out" / "card.json"
    target.parent.mkdir()
    done = script(
        "--comfyui", str(ENVIRONMENT.comfyui), "--cpu", "--only", "offload", "--only", "prefetch", "--json",
        str(target), TMPDIR=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == check.HELD, done.stdout + done.stderr
    assert "bit for bit" in done.stdout
    written = json.loads(target.read_text())
    assert written["format"] == 1
    assert set(written) == {"format", "machine", "sizes", "seconds", "interrupted", "held", "rows"}
    assert set(written["machine"]) == {
        "device", "device_type", "device_bytes", "ram_bytes", "driver", "torch", "python", "system", "comfyui",
        "vram_state", "dynamic_vram", "headroom", "missing",
    }  # fmt: skip
    assert written["machine"]["comfyui"] == ENVIRONMENT.version
    assert {row["part"] for row in written["rows"]} == {"offload", "prefetch"}
    assert str(tmp_path) not in json.dumps(written)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert before == sorted(str(path) for path in ENVIRONMENT.comfyui.rglob("*") if "__pycache__" not in path.parts)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--comfyui", "/nowhere"), "no ComfyUI here"),
        (("--json", "/nowhere/card.json"), "there is no folder /nowhere"),
    ],
)
def test_what_keeps_it_from_starting_is_a_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    done = script(*arguments)
    assert done.returncode == check.CANNOT_START
    assert done.stderr.startswith("It could not start: ")
    assert sentence in done.stderr
    assert not done.stdout.strip()


def test_files_of_cards_say_what_they_are() -> None:
    """An emulated card's seconds must not be taken for those of a card."""
    files = sorted((PACK / "benchmarks" / "cards").glob("*.json"))
    assert files
    for path in files:
        content = json.loads(path.read_text())
        device = content["machine"]["device"]
        assert path.stem.endswith("_emulated") == ("emulated" in device), path
        assert path.stem.startswith("cpu") == (content["machine"]["device_type"] == "cpu"), path
        assert content["format"] == 1


def test_the_parts_of_the_command_line_are_those_there_are() -> None:
    assert tuple(part.name for part in parts.PARTS) == check.PARTS
