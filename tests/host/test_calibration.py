"""Measurements of this machine's card: where they are kept, what a workflow asks to be measured, and the refusal."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import folder_paths
import pytest
import torch

import nodes
from headroom.cli.calibrate import NothingToMeasure, convolutions_of, measure_speed, table
from headroom.host.measure.calibrated import (
    calibration_path,
    collecting,
    in_strips,
    measured_for,
    own_key,
    workspaces_for,
    workspaces_on,
)
from headroom.host.prediction.vae import Coding, predict_coding
from headroom.host.vae.settings import VAESettings
from headroom.host.vae.wrapper import low_memory_vae
from headroom.memory.prediction import DOCUMENTED, Calibration, Card, ConvolutionCall, Workspaces, named_card
from headroom.memory.prediction.calibration import Key, save
from headroom.memory.speed import measuring

from .conftest import ENVIRONMENT
from .families import load_vae
from .workflows import node

PACK = Path(__file__).parents[2]
CARD = named_card("sm86", 12.0)
KEY = Key("Some Card", "2.11.0", "13.0", "91002")
MIB = 2**20


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The host's user folder."""
    monkeypatch.setattr(folder_paths, "user_directory", str(tmp_path))
    return tmp_path


def decoded() -> Any:
    latent = torch.zeros(1, 4, 16, 16)
    return predict_coding(Coding(load_vae("sd"), latent), CARD, workspaces_for(CARD)).prediction


def test_the_file_is_in_the_hosts_user_folder(user: Path) -> None:
    assert calibration_path() == user / "headroom" / "calibration.json"


@pytest.mark.parametrize("card", [CARD, Card("cpu", torch.device("cpu"), 2**34)])
def test_cards_that_are_not_this_machines_go_by_the_rule(card: Card) -> None:
    assert own_key(card) is None
    assert workspaces_for(card) == DOCUMENTED


@pytest.mark.usefixtures("user")
def test_what_was_measured_under_a_key_is_taken() -> None:
    assert measured_for(KEY) == DOCUMENTED
    save(calibration_path(), KEY, Calibration({"a": 7}, 3 * MIB))
    assert measured_for(KEY).measured == {"a": 7}
    assert measured_for(KEY).constant(CARD) == 3 * MIB


@pytest.mark.usefixtures("user")
def test_a_damaged_file_does_not_stop_a_prediction() -> None:
    calibration_path().parent.mkdir()
    calibration_path().write_text("{")
    assert measured_for(KEY) == DOCUMENTED


def test_predictions_note_convolutions_while_they_are_collected() -> None:
    before = decoded()
    with collecting() as seen:
        assert decoded().activations == before.activations
    assert any(ConvolutionCall.parse(line).x[1] == 4 for line in seen)
    count = len(seen)
    assert workspaces_for(CARD) == DOCUMENTED
    assert decoded().activations == before.activations
    assert len(seen) == count


STRIP = "float32 1x4x9x16 contiguous 512x4x3x3 contiguous stride 1x1 padding 0x1 dilation 1x1 groups 1"


class TestStrips:
    """Plans count what predictions do."""

    def planned(self, workspaces: Workspaces) -> Any:
        vae = low_memory_vae(load_vae("sd"), VAESettings("exact", tile_size=64))
        latent = torch.zeros(1, 4, 32, 32)
        return predict_coding(Coding(vae, latent), CARD, workspaces).prediction

    def test_what_a_card_is_known_to_hold_is_in_the_plan(self) -> None:
        nothing, documented, more = (self.planned(Workspaces(factor, factor)).activations for factor in (0.0, 1.0, 3.0))
        assert nothing < documented < more
        assert self.planned(DOCUMENTED).activations == documented

    def test_strips_that_were_measured_are_found(self) -> None:
        found = in_strips(Calibration({STRIP: 7, "of another version": 8}).workspaces())
        (call,) = found.measured
        assert (call.x, call.weight, call.padding) == ((1, 4, 9, 16), (512, 4, 3, 3), (0, 1))
        assert found.of(call) == 7
        assert found.of(call._replace(x=(1, 4, 10, 16))) > 7

    @pytest.mark.parametrize("changed", ["contiguous 512", "contiguous stride"])
    def test_those_of_another_layout_are_others(self, changed: str) -> None:
        line = STRIP.replace(changed, changed.replace("contiguous", "channels_last"))
        assert line != STRIP
        assert not in_strips(Calibration({line: 7, f"{STRIP} transposed 0x0": 7}).workspaces()).measured

    def test_a_card_that_holds_nothing(self) -> None:
        lines = [STRIP.replace("x9x", f"x{rows}x") for rows in range(3, 12)]
        found = in_strips(Calibration(dict.fromkeys(lines, 0)).workspaces())
        assert (found.convolution, found.pointwise) == (0.0, 0.0)

    def test_a_device_that_is_not_cudas_is_not_asked(self) -> None:
        assert workspaces_on(torch.device("cpu")) == DOCUMENTED


def workflow(number: int = 512) -> dict[str, Any]:
    checkpoint = nodes.CheckpointLoaderSimple.INPUT_TYPES()["required"]["ckpt_name"][0]
    return {
        "1": node("CheckpointLoaderSimple", ckpt_name=next(name for name in checkpoint if "sd15" in name)),
        "2": node("CLIPTextEncode", clip=["1", 1], text="a lighthouse at dusk"),
        "3": node("EmptyLatentImage", width=number, height=number, batch_size=1),
        "4": node(
            "KSampler", model=["1", 0], positive=["2", 0], negative=["2", 0], latent_image=["3", 0], seed=1, steps=20,
            cfg=7.0, sampler_name="euler", scheduler="simple", denoise=1.0,
        ),
        "5": node("VAEDecode", samples=["4", 0], vae=["1", 2]),
    }  # fmt: skip


def test_convolutions_of_a_workflow(extra_nodes: None) -> None:
    """Of its sampler and of its VAE, with the guidance's batch and the picture's size."""
    found = [ConvolutionCall.parse(line) for line in convolutions_of(workflow(), CARD)]
    assert any(one.x[0] == 2 and one.x[2:] == (64, 64) for one in found), "the sampler's"
    assert any(one.weight[0] == 3 and one.x[2:] == (512, 512) for one in found), "the decoder's last"
    lines = list(table(Calibration({str(one): 5 * MIB for one in found}, left=("x",), failed={"y": "no room"}), CARD))
    assert lines[1].split()[0] == "5.0"
    assert lines[-2].startswith("no time for 1 ")
    assert lines[-1] == "not run: y: no room"


def test_a_card_that_is_full_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a speed that could not be measured kept as if the card had none."""

    def no_room(device: torch.device, work: object) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 MiB.\nSee the documentation")

    monkeypatch.setattr(measuring, "_seconds", no_room)
    with pytest.raises(NothingToMeasure, match=r"64\.00 MiB\.; close what uses it, such as a ComfyUI"):
        list(measure_speed())


def test_a_machine_without_a_card_is_told_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "workflow.json"
    path.write_text(json.dumps(workflow()))
    result = subprocess.run(
        [sys.executable, str(PACK / "cli" / "calibrate.py"), str(path), "--comfyui", str(ENVIRONMENT.comfyui),
         "--base-directory", str(tmp_path)],
        capture_output=True, text=True, timeout=600, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, check=False,
    )  # fmt: skip
    assert result.returncode == 2
    assert result.stderr.strip() == "no CUDA device here: calibration measures the card of the machine it runs on"
    assert not result.stdout
    assert list(tmp_path.iterdir()) == [path]
