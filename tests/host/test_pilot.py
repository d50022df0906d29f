"""A step of a plan measured before the rest runs: what holds, what is planned again, and what is kept for next time."""

import json
from pathlib import Path
from typing import Any

import comfy.model_management as model_management
import folder_paths
import pytest
import torch
from torch.nn import Module

from headroom.host.core.compat import out_of_memory_kind
from headroom.host.measure.speeds import speed_path
from headroom.host.planning import pilot, step_meter
from headroom.host.planning.fit import find_fit
from headroom.host.planning.pilot import Pilot, find_verified_fit
from headroom.host.prediction.stages import Question, own_card
from headroom.memory.prediction import named_card
from headroom.memory.speed.kept import device_key, kept_share, save_share
from headroom.nodes.fit import HeadroomFit

from .families import FAMILIES, load_vae

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
KIND = "Flux, sampling, float32"


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The host's user folder; no test looks at how long a step takes."""
    monkeypatch.setattr(step_meter, "MOST_TIMED", 1)
    monkeypatch.setattr(folder_paths, "user_directory", str(tmp_path))
    return tmp_path


def question(**changes: Any) -> Question:
    family = FAMILIES["flux"]
    given = {"positive": family.conditioning(1), "negative": family.conditioning(2), "cfg": 3.0, **changes}
    return Question(family.load(), {"samples": family.latent(128, 96)}, load_vae("flux"), **given)


def verified(share: float | None = None) -> tuple[Any, tuple[str, ...]]:
    if share is not None:
        save_share(speed_path(), device_key(CPU), KIND, share)
    return find_verified_fit(question(), own_card(CPU), "exact", 0.85)


def kept() -> float:
    return kept_share(speed_path(), device_key(CPU), KIND)


def test_a_plan_that_holds_is_measured_once_and_stays() -> None:
    fit, lines = verified()
    (line,) = lines
    assert line.startswith("a step took ")
    assert kept() == 1.0
    plain = find_fit(question(), own_card(CPU))
    assert fit.sampling.stage.prediction == plain.sampling.stage.prediction
    assert own_card(CPU).speed.history.count(KIND) == 1


@pytest.mark.parametrize("wrong", [3.0, 1 / 3])
def test_what_was_measured_wrongly_is_mended_by_the_first_step(wrong: float) -> None:
    true = find_fit(question(), own_card(CPU)).sampling
    assert true is not None
    fit, lines = verified(wrong)
    assert [line.startswith("a step took") for line in lines] == [True, False, True]
    assert lines[1] == "planned again by what was measured"
    assert kept() == pytest.approx(1.0, abs=pilot.DEVIATION)
    assert fit.sampling.stage.activations == pytest.approx(true.stage.activations, rel=pilot.DEVIATION)
    _, again = verified()
    assert len(again) == 1  # next time it is known


def test_a_share_that_cannot_be_one_is_bounded() -> None:
    for share, found in ((1000.0, 4.0), (1e-9, 0.25)):
        save_share(speed_path(), device_key(CPU), KIND, share)
        assert kept() == found
    speed_path().write_text(json.dumps({device_key(CPU): {"activations": {KIND: "much"}}}))
    assert kept() == 1.0


def test_a_card_that_is_not_here_is_planned_and_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pilot, "sample_one_step", None)
    _, lines = find_verified_fit(question(), named_card("sm86", 8.0), "exact", 0.85)
    if not torch.cuda.is_available():
        assert lines == ("not verified: this machine has no such card",)


def test_a_step_that_runs_out_of_memory_is_planned_for_twice_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = pilot.sample_one_step, []

    def failing_once(*args: Any, **kwargs: Any) -> None:
        calls.append(args)
        if len(calls) == 1:
            raise out_of_memory_kind()("no room")
        run(*args, **kwargs)

    monkeypatch.setattr(pilot, "sample_one_step", failing_once)
    _, lines = verified()
    assert lines[0] == "a step ran out of memory: planned again for twice as much"
    assert kept() == pytest.approx(1.0, abs=pilot.DEVIATION)  # it was wrong to be so careful


@pytest.mark.parametrize("error", [model_management.InterruptProcessingException(), ValueError("a mistake")])
def test_what_ends_it_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    asked, forward = question(), Module.__call__
    before = {name: value.clone() for name, value in asked.model.model.state_dict().items()}
    options = repr(asked.model.model_options)

    def ending(module: Module, *args: Any, **kwargs: Any) -> Any:
        if type(module).__name__ == "SingleStreamBlock":
            raise error
        return forward(module, *args, **kwargs)

    from comfy.ldm.flux.layers import SingleStreamBlock

    monkeypatch.setattr(SingleStreamBlock, "__call__", lambda self, *args, **kwargs: ending(self, *args, **kwargs))
    with pytest.raises(type(error)):
        pilot.run_pilot(asked, fit := find_fit(asked, own_card(CPU)), fit.sampling)
    assert repr(asked.model.model_options) == options
    assert all(torch.equal(value, before[name]) for name, value in asked.model.model.state_dict().items())


def test_copies_among_what_was_measured_leave_a_range() -> None:
    between = Pilot(least=80, most=120, predicted=100, seconds=None, expected=1.0)
    assert between.ratio == 1.0
    assert between.holds
    assert "80" not in between.describe().partition("beyond")[2]
    assert Pilot(80, 120, 60, None, 1.0).ratio == pytest.approx(80 / 60)
    assert Pilot(80, 120, 200, None, 1.0).ratio == pytest.approx(120 / 200)
    assert not Pilot(80, 120, 127, None, 1.0).holds


def test_the_node_says_what_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = question()
    given = (asked.model, asked.vae, asked.latent, 3.0, "exact", asked.positive, asked.negative)
    model, _, text, _ = HeadroomFit.execute(*given, verify="first_step").args
    assert "\nverified: a step took " in text
    assert model.model is asked.model.model
    monkeypatch.setattr(pilot, "sample_one_step", None)  # nothing runs where nobody asks for it
    assert "verified" not in HeadroomFit.execute(*given).args[2]
