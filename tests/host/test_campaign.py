"""A slice of the reliability campaign (`tests/campaign`); `python3 -m tools campaign` runs the whole."""

import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..campaign.cases import DEATH, DIFFERENT, FINE, HANG, SENTENCE, STOPPED, Case, Journal, table
from ..campaign.command import PARTS, main, needs_card, one_case
from ..campaign.prompts import reseeded
from ..campaign.stand import Stand, api_graphs
from ..nightly import NIGHTLY
from .conftest import ENVIRONMENT

SLICE = {
    "prompts": 3,
    "routes": 60,
    "commands": 4,
    "headers": 25,
    "interrupts": 1,
    "soak": 2,
    "files": 1,
}
#: Of those that take minutes or servers of their own.
AT_NIGHT = {"prompts": 150, "interrupts": 20, "soak": 40, "clients": 10, "killed": 10, "clock": 10}
SEED = 1


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with Stand(ENVIRONMENT) as running:
        yield running


@pytest.mark.parametrize("name", [name for name in PARTS if not needs_card(name) and (NIGHTLY or name in SLICE)])
def test_nothing_has_to_be_mended(stand: Stand, name: str) -> None:
    part = PARTS[name](stand)
    count = AT_NIGHT.get(name, 10 * SLICE.get(name, 1)) if NIGHTLY else SLICE[name]
    cases = [one_case(part, SEED, number) for number in range(count)]
    # How long an answer takes is the campaign's to judge, on a machine that does nothing else.
    assert not [case for case in cases if not case.is_good and case.outcome != HANG], table(cases)
    assert {case.outcome for case in cases} & {FINE, SENTENCE, STOPPED, HANG}, "some cases reach the pack"


def test_a_server_that_dies_is_no_prompt_that_was_stopped(stand: Stand, capsys: pytest.CaptureFixture[str]) -> None:
    graph = api_graphs()["sd15_high_resolution"]
    timer = threading.Timer(0.3, os.kill, (stand.server.pid, signal.SIGKILL))
    timer.start()
    found = stand.run(reseeded(graph, 1))
    assert (found.outcome, found.detail.rpartition(" ")[2]) == (DEATH, "-9"), found
    assert stand.run(reseeded(graph, 2)).outcome == FINE, "on the next server"
    (kept,) = re.findall(r"status -9: see (\S+)", capsys.readouterr().err)
    assert "got prompt" in Path(kept).read_text()
    Path(kept).unlink()


def test_a_case_is_the_same_again_and_is_kept(stand: Stand, tmp_path: Path) -> None:
    part = PARTS["commands"](stand)
    first, second = (one_case(part, 3, 7) for _ in range(2))
    assert (first.what, first.outcome) == (second.what, second.outcome)
    journal = Journal(tmp_path / "x.jsonl")
    journal.add(first)
    assert list(journal) == [first]
    assert journal.done("commands", 3) == {7}
    assert journal.done("commands", 4) == set()


def test_what_needs_a_card_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """tests/emulator/test_campaign.py runs a slice of it on one."""
    monkeypatch.setattr(os, "environ", {name: value for name, value in os.environ.items() if name[:4] != "EMU_"})
    with pytest.raises(SystemExit):
        main(["card_memory"])
    assert (
        "card_memory takes the memory of an emulated card: tools campaign --card 8GB-rtx3060" in capsys.readouterr().err
    )


def test_the_table_names_what_is_bad() -> None:
    cases = [
        Case("prompts", 1, 0, FINE, "as it is", "", 0.5),
        Case("prompts", 1, 1, DIFFERENT, "with another", "hash", 1.5),
    ]
    lines = table(cases).splitlines()
    assert lines[2] == "| prompts | 1 | 2 | 1 fine, 1 different result | 1 | 1.00 | 1.5 |"
    assert lines[3] == "- prompts 1/1: different result: with another: hash"
