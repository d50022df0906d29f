"""Once a prompt is over and its results are forgotten, nothing of ours keeps a model, or what was made of one."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import comfy.model_management as model_management
import execution
import pytest
import torch
from torch import nn

from headroom.host.core.compat import drop_cast_buffers

from ..nightly import NIGHTLY
from .in_process import GRAPHS, execute, prompt_executor, small

pytestmark = pytest.mark.usefixtures("one_thread")
BY_DAY = ["train_lora"]
MB = 2**20


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[execution.PromptExecutor]:
    with prompt_executor(tmp_path_factory.mktemp("input"), tmp_path_factory.mktemp("output")) as found:
        yield found


def alive(kind: type) -> dict[int, Any]:
    return {id(one): one for one in gc.get_objects() if issubclass(type(one), kind)}


def held_bytes() -> int:
    """Of all tensors, each storage once."""
    storages = (one.untyped_storage() for one in alive(torch.Tensor).values() if one.device.type == "cpu")
    return sum({one._cdata: one.nbytes() for one in storages}.values())


@pytest.mark.parametrize("name", list(GRAPHS) if NIGHTLY else BY_DAY)
def test_nothing_of_a_graph_stays(executor: execution.PromptExecutor, name: str) -> None:
    for prompt in ("first", "again"):  # tables that the host fills at their first use stay
        gc.collect()
        before, known = held_bytes(), set(alive(nn.Module))
        execute(executor, small(name), f"{name} {prompt}")
        made = [weakref.ref(one) for number, one in alive(nn.Module).items() if number not in known]
        executor.reset()
        model_management.unload_all_models()
        drop_cast_buffers()
        gc.collect()
    assert len(made) > 100
    assert [type(one()).__name__ for one in made if one() is not None] == []
    assert held_bytes() - before < MB
