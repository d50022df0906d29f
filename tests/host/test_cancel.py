"""A prompt that is cancelled while something is predicted or planned, where nothing of the host asks for it."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import comfy.model_management as model_management
import pytest
import torch
from comfy_execution.graph import DynamicPrompt
from torch import Tensor

import headroom.host.planning.report as report
from headroom.host.attention.backend import apply_attention
from headroom.host.measure.runs import LOG
from headroom.host.planning.fit import find_fit
from headroom.host.prediction.stages import Question, estimate
from headroom.host.streaming.choice import Decoding
from headroom.memory import Row
from headroom.memory.prediction import LiveBytes, named_card
from headroom.nodes import NODES
from headroom.nodes.given import checked
from headroom.vae.exact.planning.planner import Planner

from .autoencoders import AUTOENCODERS
from .families import FAMILIES, sample
from .test_exact_vae import exact, input_of
from .test_streaming import Silent
from .workflows import with_headroom

Wrapped = Callable[..., Any]


def counted(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch, cancelled_at: int = -1) -> list[int]:
    """Counts the calls of a method, and has the user cancel the prompt at one of them."""
    count, method = [0], getattr(owner, name)

    def counting(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        if count[0] == cancelled_at:
            model_management.interrupt_current_processing()
        return method(*args, **kwargs)

    monkeypatch.setattr(owner, name, counting)
    return count


@pytest.fixture(autouse=True)
def _nothing_stays_cancelled() -> Iterator[None]:
    yield
    model_management.interrupt_current_processing(False)


class Node:
    """A node that predicts."""

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {}

    @classmethod
    @checked
    def execute(cls, work: Callable[[], Any]) -> Any:
        return work()


def question() -> Question:
    family = FAMILIES["sd15"]
    latent, text = {"samples": family.latent(16, 16)}, family.conditioning(1)
    return Question(family.load(), latent, AUTOENCODERS["sd"].load(), positive=text, negative=text, cfg=3.0)


@pytest.mark.parametrize("predict", [estimate, find_fit])
def test_a_prediction_ends_at_the_next_operator(predict: Wrapped, monkeypatch: pytest.MonkeyPatch) -> None:
    operators = counted(LiveBytes, "__torch_dispatch__", monkeypatch, cancelled_at=100)
    with pytest.raises(model_management.InterruptProcessingException):
        Node.execute(lambda: predict(question(), named_card("sm86", 8.0)))
    assert operators[0] == 100


@pytest.mark.parametrize("node", NODES)
def test_every_node_can_be_cancelled(node: Any) -> None:
    assert node.execute.__func__.__code__ is Node.execute.__func__.__code__


def asked() -> Row:
    """A sampling that was measured, and not yet predicted."""
    family = FAMILIES["flux"]
    sample(MODEL, family, steps=1, cfg=2.5)
    row = LOG.rows("", "")[-1]
    assert row.question is not None
    return row


MODEL = apply_attention(FAMILIES["flux"].load(), backend="auto")  # kept: a prediction needs it


def test_a_report_ends_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    row = asked()
    monkeypatch.setattr(LOG, "rows", lambda prompt, node: [row] if node == "5" else [])
    operators = counted(LiveBytes, "__torch_dispatch__", monkeypatch, cancelled_at=100)
    with pytest.raises(model_management.InterruptProcessingException):
        Node.execute(lambda: report.memory_report("p", "11", DynamicPrompt(with_headroom()), None))
    assert operators[0] == 100


def test_a_report_does_not_predict_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    row = asked()
    monkeypatch.setattr(LOG, "rows", lambda prompt, node: [row] if node == "5" else [])
    monkeypatch.setattr(report, "LONGEST", 0.0)
    text = report.memory_report("p", "11", DynamicPrompt(with_headroom()), None).text
    assert "not predicted: a report predicts for 0 s" in text
    assert "beyond the weights" in text
    assert row.predicted is None


def test_the_search_of_a_plan_ends_at_the_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    vae, x = exact("sd", tile_size=0, vram_budget_gb=0.01), input_of("sd", "decode")
    total = counted(Planner, "strip_rows", monkeypatch)
    with pytest.raises(ValueError, match=r"vram_budget_gb: 0\.010 GB is less than"):
        vae.decode(x)
    monkeypatch.undo()
    planned = counted(Planner, "strip_rows", monkeypatch, cancelled_at=10)
    with pytest.raises(model_management.InterruptProcessingException):
        exact("sd", tile_size=0, vram_budget_gb=0.01).decode(x)
    assert total[0] > 100
    assert planned[0] == 10


@pytest.mark.skipif("cogvideox" not in AUTOENCODERS, reason="this ComfyUI has no CogVideoX")
def test_what_a_module_computes_of_all_frames_ends_at_its_next_function(monkeypatch: pytest.MonkeyPatch) -> None:
    x = AUTOENCODERS["cogvideox"].latent(4, 5, cells_in_time=6)

    def convolutions(cancelled_at: int) -> list[int]:
        way = Decoding.of(AUTOENCODERS["cogvideox"].load(), {"samples": x}, 0.0)
        source = way.source(Row("decode"), Silent())
        count, convolution = [0], torch.nn.functional.conv3d

        def counting(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            count[0] += type(x) is Tensor
            if count[0] == cancelled_at:
                model_management.interrupt_current_processing()
            return convolution(x, *args, **kwargs)

        with monkeypatch.context() as patched, contextlib.suppress(model_management.InterruptProcessingException):
            patched.setattr(torch.nn.functional, "conv3d", counting)
            source.run(lambda piece: None, lambda save: None, 0, {})
        return count

    assert convolutions(-1)[0] > 100
    assert convolutions(10) == [10]
