"""What breaks saved workflows, and what does not, by changes to the contract as it is."""

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headroom.tools.contract_diff import breaks

ROOT = Path(__file__).parents[2]
CONTRACT = json.loads((ROOT / "tests" / "host" / "contract.json").read_text())
Change = Callable[[dict[str, Any]], object]


def changed(change: Change) -> dict[str, Any]:
    contract = copy.deepcopy(CONTRACT)
    change(contract)
    assert contract != CONTRACT
    return contract


def required(contract: dict[str, Any], node: str) -> dict[str, Any]:
    return contract[node]["input"]["required"]


def test_the_contract_agrees_with_itself() -> None:
    assert breaks(CONTRACT, copy.deepcopy(CONTRACT)) == []


def add_optional(contract: dict[str, Any]) -> None:
    node = contract["HeadroomOffload"]
    node["input"]["optional"]["added"] = ["INT", {"default": 0}]
    node["input_order"]["optional"].append("added")


def add_option(contract: dict[str, Any]) -> None:
    options = contract["HeadroomCast"]["input"]["optional"]["sensitivity"][1]["options"]
    options.append({"key": "added", "inputs": {"required": {"inner": ["INT", {"default": 0}]}}})


@pytest.mark.parametrize(
    "change",
    [
        lambda contract: contract.update(HeadroomAdded=contract["HeadroomVAE"]),
        add_optional,
        add_option,
        lambda contract: required(contract, "HeadroomAttention")["backend"][1]["options"].append("added"),
        lambda contract: required(contract, "HeadroomAttention")["slice_rows"][1].update(max=1 << 20),
        lambda contract: required(contract, "HeadroomAttention")["slice_rows"][1].update(advanced=False),
        lambda contract: contract["HeadroomCast"]["output"].append("IMAGE"),
    ],
    ids=["node", "optional input", "option with inputs", "choice", "wider range", "advanced", "output"],
)
def test_additions_break_nothing(change: Change) -> None:
    assert breaks(CONTRACT, changed(change)) == []


def add_required(contract: dict[str, Any]) -> None:
    required(contract, "HeadroomAttention")["added"] = ["INT", {"default": 0}]
    contract["HeadroomAttention"]["input_order"]["required"].append("added")


def insert_widget(contract: dict[str, Any]) -> None:
    node = contract["HeadroomCast"]
    node["input"]["optional"]["added"] = ["INT", {"default": 0}]
    node["input_order"]["optional"].insert(0, "added")


def remove_input(contract: dict[str, Any]) -> None:
    del required(contract, "HeadroomFit")["quality"]
    contract["HeadroomFit"]["input_order"]["required"].remove("quality")


def sensitivity(contract: dict[str, Any]) -> list[dict[str, Any]]:
    return contract["HeadroomCast"]["input"]["optional"]["sensitivity"][1]["options"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda contract: contract.pop("HeadroomVAE"), "HeadroomVAE: the node is gone"),
        (remove_input, "HeadroomFit: quality: the input is gone"),
        (
            add_required,
            "HeadroomAttention: added: a new input that is required, which saved prompts lack: make it optional",
        ),
        (
            lambda contract: required(contract, "HeadroomFit")["quality"][1].update(default="any"),
            "HeadroomFit: quality: its default was 'exact' and is 'any'",
        ),
        (
            lambda contract: required(contract, "HeadroomFit")["quality"][1]["options"].remove("any"),
            "HeadroomFit: quality: the choice 'any' is gone",
        ),
        (
            lambda contract: required(contract, "HeadroomFit").update(quality=["STRING", {"default": "exact"}]),
            "HeadroomFit: quality: it was of type COMBO and is STRING",
        ),
        (
            lambda contract: required(contract, "HeadroomAttention")["slice_rows"][1].update(max=1024),
            "HeadroomAttention: slice_rows: its max was 65536 and is 1024",
        ),
        (
            lambda contract: required(contract, "HeadroomAttention")["slice_rows"][1].update(min=16),
            "HeadroomAttention: slice_rows: its min was 0 and is 16",
        ),
        (lambda contract: sensitivity(contract).pop(1), "HeadroomCast: sensitivity: the choice 'error' is gone"),
        (
            lambda contract: sensitivity(contract)[1]["inputs"]["required"].clear(),
            "HeadroomCast: sensitivity[error].target_db: the input is gone",
        ),
        (
            lambda contract: contract["HeadroomFit"]["output"].reverse(),
            "HeadroomFit: outputs: IMAGE, STRING, VAE, MODEL do not begin with MODEL, VAE, STRING, IMAGE",
        ),
        (
            insert_widget,
            "HeadroomCast: widgets: storage, compute, skip, added, cache_file, sensitivity have another order than "
            "storage, compute, skip, cache_file, sensitivity: put new ones last",
        ),
    ],
)
def test_what_breaks_is_said_in_one_line(change: Change, line: str) -> None:
    assert breaks(CONTRACT, changed(change)) == [line]


def test_an_input_that_becomes_required() -> None:
    def change(contract: dict[str, Any]) -> None:
        node = contract["HeadroomReport"]
        node["input"]["required"]["model"] = node["input"]["optional"].pop("model")
        node["input_order"]["required"].append(node["input_order"]["optional"].pop(0))

    assert breaks(CONTRACT, changed(change)) == ["HeadroomReport: model: it was optional and is required"]


def test_a_widget_that_becomes_a_socket() -> None:
    broken = changed(lambda contract: required(contract, "HeadroomFit")["cfg"][1].update(forceInput=True))
    (line,) = breaks(CONTRACT, broken)
    assert line.startswith("HeadroomFit: widgets: quality, ")


def test_the_command_answers_by_its_status(tmp_path: Path) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"

    def run() -> subprocess.CompletedProcess[str]:
        script = ROOT / "tools" / "contract_diff.py"
        return subprocess.run([sys.executable, script, before, after], capture_output=True, text=True)

    before.write_text(json.dumps(CONTRACT))
    missing = run()
    assert missing.returncode == 2
    assert "after.json" in missing.stderr
    after.write_text(json.dumps(changed(lambda contract: contract.pop("HeadroomVAE"))))
    broken = run()
    assert (broken.returncode, broken.stdout) == (1, "HeadroomVAE: the node is gone\n")
    after.write_text(json.dumps(CONTRACT))
    assert run().returncode == 0
