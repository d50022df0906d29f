"""What a server keeps of models without data from one question to the next, and when it loads them again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import folder_paths
import pytest
import torch

from headroom.host.following import loads as loads_module
from headroom.host.following.calling import Nodes
from headroom.host.following.loads import Loads
from headroom.host.workflow.estimate import WorkflowAnswer, estimate_workflow
from headroom.memory.prediction import named_card

from . import full_size
from .workflows import text_to_image

FILE, PUBLIC = "full_sd15.safetensors", "v1-5-pruned-emaonly-fp16.safetensors"
Workflow = dict[str, Any]


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the host of this process looks for them."""
    folder = tmp_path / "checkpoints"
    full_size.write_all(tmp_path, [FILE])
    for kind, place in (("checkpoints", folder), ("loras", tmp_path / "loras")):
        places = ([str(place)], folder_paths.folder_names_and_paths[kind][1])
        monkeypatch.setitem(folder_paths.folder_names_and_paths, kind, places)
    folder_paths.filename_list_cache.clear()
    return folder


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The classes of loaders and text encoders that the host ran."""
    found = list[str]()
    prepared = Nodes.prepared

    def noted(self: Nodes, kind: str, inputs: Any) -> Callable[..., Any]:
        found.append(kind)
        return prepared(self, kind, inputs)

    monkeypatch.setattr(Nodes, "prepared", noted)
    return found


def workflow(name: str = FILE, side: int = 256, seed: int = 1) -> Workflow:
    found = text_to_image(side=side, seed=seed, save_latent=False)
    found["1"]["inputs"]["ckpt_name"] = name
    return found


def answer(prompt: Workflow, loads: Loads | None, vram: float = 8.0) -> WorkflowAnswer:
    with torch.inference_mode():
        return estimate_workflow(prompt, named_card("sm86", vram), 0.85, loads=loads)


def told(found: WorkflowAnswer) -> tuple[str, str]:
    return found.text, json.dumps(found.numbers)


LOADED, TEXTS = ["CheckpointLoaderSimple"], ["CLIPTextEncode", "CLIPTextEncode"]


@pytest.mark.usefixtures("checkpoints")
def test_a_question_that_is_asked_again_loads_nothing(ran: list[str]) -> None:
    kept = Loads()
    first = answer(workflow(), kept)
    assert ran == [*LOADED, *TEXTS, "EmptyLatentImage"]
    del ran[:]
    assert told(answer(workflow(seed=2), kept)) == told(first)
    assert ran == ["EmptyLatentImage"]
    larger = answer(workflow(side=512), kept)
    assert LOADED[0] not in ran
    assert told(larger) == told(answer(workflow(side=512), None))
    assert told(larger) != told(first)


@pytest.mark.usefixtures("checkpoints")
def test_another_text_and_another_card(ran: list[str]) -> None:
    kept = Loads()
    answer(workflow(), kept)
    del ran[:]
    other = workflow()
    other["2"]["inputs"]["text"] = "lighthouse " * 100  # more than are encoded at once
    assert told(answer(other, kept)) == told(answer(other, None))
    assert ran[: len(TEXTS)] == ["CLIPTextEncode", "EmptyLatentImage"]
    del ran[:]
    assert told(answer(workflow(), kept, vram=4.0)) == told(answer(workflow(), None, vram=4.0))
    assert ran[:1] == LOADED


def test_a_file_that_was_changed_is_loaded_again(checkpoints: Path, ran: list[str]) -> None:
    kept = Loads()
    before = answer(workflow(), kept)
    without_text = {name: shape for name, shape in full_size.sd15().items() if not name.startswith("cond_stage")}
    full_size.write(checkpoints / FILE, without_text, torch.float16)
    del ran[:]
    with pytest.raises(ValueError, match="clip gets no text encoder"):
        answer(workflow(), kept)
    assert ran[:1] == LOADED
    full_size.write(checkpoints / FILE, full_size.sd15(), torch.float16)
    assert told(answer(workflow(), kept)) == told(before)
    os.utime(checkpoints / FILE, ns=(1, 1))  # of the same size
    del ran[:]
    answer(workflow(), kept)
    assert ran[:1] == LOADED


def test_a_public_file_counts_until_it_is_there(checkpoints: Path, ran: list[str]) -> None:
    kept = Loads()
    for _ in range(2):
        found = answer(workflow(PUBLIC), kept)
        assert [file.name for file in found.absent] == [PUBLIC]
        assert f"{PUBLIC} (" in found.text
    assert ran.count(LOADED[0]) == 1
    (checkpoints / FILE).rename(checkpoints / PUBLIC)
    there = answer(workflow(PUBLIC), kept)
    assert there.absent == ()
    (checkpoints / PUBLIC).unlink()
    assert [file.name for file in answer(workflow(PUBLIC), kept).absent] == [PUBLIC]


def test_few_are_kept(checkpoints: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads_module, "MOST_KEPT", 2)
    names = [f"{number}.safetensors" for number in range(3)]
    for name in names:
        os.link(checkpoints / FILE, checkpoints / name)
    folder_paths.filename_list_cache.clear()
    kept = Loads()
    for name in (*names, names[2], names[0]):
        answer(workflow(name), kept)
    assert ran.count(LOADED[0]) == 4


def test_a_file_that_cannot_be_read_is_not_kept(checkpoints: Path) -> None:
    kept, file = Loads(), checkpoints / FILE
    os.truncate(file, 100)
    with pytest.raises(ValueError, match="nothing to predict"):
        answer(workflow(), kept)
    full_size.write(file, full_size.sd15(), torch.float16)
    assert answer(workflow(), kept).complete
