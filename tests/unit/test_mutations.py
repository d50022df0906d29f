"""The list of faults is of this source, and what is told of a run with one is what pytest said."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from headroom.tools.check import faults, suite

from ..mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
ENGINES = ("attention", "vae", "offload", "memory", "training", "video")
FEWEST, FEWEST_IN_A_ROOM = 60, 2


@pytest.mark.parametrize("fault", MUTATIONS, ids=lambda fault: fault.name)
def test_a_fault_is_of_this_source(fault: Mutation) -> None:
    """Its text is there once, and what takes its place is another program."""
    source = (ROOT / fault.file).read_text(encoding="utf-8")
    changed = fault.applied(source)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))


@pytest.mark.parametrize("fault", MUTATIONS, ids=lambda fault: fault.name)
def test_its_tests_are_there(fault: Mutation) -> None:
    assert fault.affected
    for file in fault.affected:
        assert (ROOT / "tests" / file).is_file(), file
        assert Path(file).name.startswith("test_")


def test_a_text_that_is_not_there_once_is_refused() -> None:
    fault = Mutation("twice", "there.py", "one", "two", ())
    with pytest.raises(ValueError, match="there 2 times, not once"):
        fault.applied("one one")


def test_names_are_their_own_and_fit_into_the_table() -> None:
    names = [fault.name for fault in MUTATIONS]
    assert len(set(names)) == len(names)
    assert not [name for name in names if "|" in name]


def test_every_engine_and_room_has_some() -> None:
    rooms = {f"host/{room.name}" for room in (ROOT / "host").iterdir() if (room / "__init__.py").is_file()}
    folders = [Path(fault.file).parts for fault in MUTATIONS]
    found = Counter("/".join(parts[: 2 if parts[0] == "host" else 1]) for parts in folders)
    assert set(found) == {*ENGINES, *rooms, "graph", "nodes", "cli"}
    assert min(found.values()) >= FEWEST_IN_A_ROOM, found
    assert found.total() >= FEWEST


class TestStarts:
    """What is run for a fault, in order."""

    FAST = (
        "tests/unit",
        "--deselect=tests/unit/test_a.py::test_slow",
        "tests/host/test_b.py::test_one",
        "tests/host/test_other.py",
        "tests/emulator/test_c.py::TestC",
        "tests/emulator/x",
    )

    def test_the_fast_ones_of_its_files_then_the_fast_tier_then_its_files(self) -> None:
        files = ("unit/test_a.py", "host/test_b.py", "emulator/test_c.py")
        found = list(faults.starts(files, self.FAST, no_card=False))
        assert [(one.tier, one.on_card) for one in found] == [
            (faults.FAST, False),
            (faults.FAST, True),
            (faults.FAST, False),
            (faults.FAST, True),
            (faults.FULL, False),
            (faults.FULL, True),
        ]
        assert found[0].arguments == ("tests/unit/test_a.py", self.FAST[2], self.FAST[1])
        assert found[1].arguments == (self.FAST[4],)
        assert found[2].arguments[-4:] == (*self.FAST[:2], self.FAST[3], "--ignore=tests/unit/test_a.py")
        assert found[3].arguments == (self.FAST[5],)
        assert found[4].arguments == ("tests/unit/test_a.py", "tests/host/test_b.py")
        assert found[5].arguments == ("tests/emulator/test_c.py",)

    def test_without_an_emulated_card(self) -> None:
        found = list(faults.starts(("host/test_d.py", "emulator/test_c.py"), self.FAST, no_card=True))
        assert [(one.tier, one.on_card) for one in found] == [(faults.FAST, False), (faults.FULL, False)]

    def test_the_list_itself_is_not_what_notices(self) -> None:
        assert (ROOT / faults.LEFT_OUT.removeprefix("--ignore=")).samefile(__file__)


class TestOutcome:
    @pytest.mark.parametrize(
        "test",
        [
            "tests/unit/test_a.py::test_b",
            "tests/unit/test_a.py::TestB::test_b[a - b, c-1]",
            "tests/host/test_x.py",
        ],
    )
    def test_the_first_failure_is_named(self, test: str) -> None:
        output = f"..F\nFAILED {test} - assert [1] == 2 - 1\nFAILED tests/unit/test_a.py::test_c\n"
        assert faults.failure_in(output, 1) == test
        assert faults.failure_in(f"ERROR {test}\n", 2) == test

    @pytest.mark.parametrize("status", [0, suite.NOTHING_RAN])
    def test_nothing_failed(self, status: int) -> None:
        assert faults.failure_in("3 passed", status) is None

    def test_a_status_without_a_test_is_no_verdict(self) -> None:
        assert not str(faults.failure_in("Segmentation fault", 139)).startswith("tests/")


class TestTable:
    VERDICTS = (
        faults.Verdict("halo one row short", "vae/a.py", "tests/unit/test_a.py::test_b[x|y]", faults.FAST),
        faults.Verdict("budget ignored", "vae/b.py", faults.SURVIVED, faults.NOBODY),
        faults.Verdict("card's reserve ignored", "host/c.py", f"{faults.UNCLEAR}: no end", faults.NOBODY),
    )

    def test_there_and_back(self) -> None:
        assert tuple(faults.read_table(faults.as_table(self.VERDICTS)).values()) == self.VERDICTS

    def test_what_is_tried(self) -> None:
        table = {verdict.name: verdict for verdict in self.VERDICTS}
        asked = [Mutation(name, "", "", "", ()) for name in (*table, "new")]

        def names(again: bool = False, survivors: bool = False) -> list[str]:
            return [fault.name for fault in faults.to_try(asked, table, again, survivors)]

        assert names() == ["new"]
        assert names(again=True) == [*table, "new"]
        assert names(survivors=True) == ["budget ignored", "card's reserve ignored"]
