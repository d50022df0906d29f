"""Attention that learns and attention that is compiled: the host's training node and its torch.compile wrapper."""

from typing import Any

import pytest
import torch

from headroom.host.attention.backend import apply_attention
from headroom.host.measure.runs import LOG

from ..nightly import some_of
from .conftest import ENVIRONMENT
from .families import FAMILIES, psnr, sample
from .training import train, training_node


@pytest.fixture
def node() -> Any:
    return training_node()


class Calls:
    """Counts the backwards of online attention."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from headroom.attention import online_backward

        self.backwards = 0
        original = online_backward.attention_gradients

        def counted(*args: Any) -> Any:
            self.backwards += 1
            return original(*args)

        monkeypatch.setattr(online_backward, "attention_gradients", counted)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def test_the_hosts_training_node_learns_the_same_through_online(node: Any, calls: Calls) -> None:
    if tuple(map(int, ENVIRONMENT.version.split("."))) < (0, 27):
        pytest.skip("this ComfyUI's own node cannot train in fp32: its weights are inference tensors then")
    family = FAMILIES["sd3"]
    latents = torch.randn(1, family.channels, 16, 16, generator=torch.Generator().manual_seed(1))
    # In bfloat16, rounding that differs from one CPU to the next is all that could be seen.
    stock = train(node, family.load(), family, latents, "fp32")
    assert calls.backwards == 0
    ours = train(node, apply_attention(family.load(), backend="online"), family, latents, "fp32")
    assert calls.backwards > 0
    assert ours.keys() == stock.keys()
    moved = [key for key in stock if stock[key].ndim > 1 and stock[key].abs().max() > 0]
    assert moved
    for key in moved:
        assert psnr(ours[key], stock[key]) > 100, key  # the host's own with another number of threads: 127 dB at least


@pytest.mark.parametrize("backend", some_of(["online", "auto", "sdpa_flash"], 3))
def test_a_compiled_model_takes_the_override(backend: str) -> None:
    """By dynamo without a compiler: the graph breaks at the override, as docs/hosts.md says; the picture is right."""
    from comfy_api.torch_helpers import set_torch_compile_wrapper

    family = FAMILIES["flux"]
    stock = sample(family.load(), family, steps=1)
    model = apply_attention(family.load(), backend=backend)
    set_torch_compile_wrapper(model, backend="eager")
    try:
        assert psnr(sample(model, family, steps=1), stock) >= 80
    finally:
        torch._dynamo.reset()
    row = LOG.rows("", "")[-1]
    assert row.attention is not None
    assert row.attention.total > 0
