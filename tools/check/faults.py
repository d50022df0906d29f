"""Puts the faults of `tests/mutations.py` into copies of the checkout, one at a time, and looks which test notices.

A fault that the fast tier does not notice is shown to the test files that its entry names. What fails is run once more
without the fault: a test that fails there too has noticed nothing. The verdicts are in `tests/mutations.md`, written
after each; the next run goes on with those that have none.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..card import emulator
from ..setup.environment import PACK, Environment
from ..setup.progress import SetupError
from . import suite

TABLE = PACK / "tests" / "mutations.md"
UNIT = "tests/unit/"
# In a copy with a fault the list no longer agrees with the source.
LEFT_OUT = f"--ignore={UNIT}test_mutations.py"
PYTEST = ("-q", "-x", "--tb=no", "--show-capture=no", "-rfE", LEFT_OUT)
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/[^\s\[]+(?:\[.*?\])?)(?: - .*)?$", re.MULTILINE)
LONGEST = 45 * 60.0  # seconds of one start of pytest: a fault may have a test wait for ever
FAST, FULL, NOBODY = "fast", "full", "-"
SURVIVED, UNCLEAR = "**SURVIVED**", "**unclear**"
ROW = re.compile(r"^\| (.+?) \| `(.+?)` \| (.+) \| (\S+) \|$")
HEAD = """# Which test notices which fault

Written by `python3 -m tools mutations` from `tests/mutations.py`. The tier is "fast" where
`python3 -m tools test --fast` notices, "full" where it takes the test files that the entry names.

| fault | file | caught by | tier |
|---|---|---|---|
"""


@dataclass(frozen=True)
class Verdict:
    """What came of a fault.

    Attributes:
        name, file: of the fault.
        by: the test that noticed, as pytest names it; :data:`SURVIVED`, or :data:`UNCLEAR` and why.
        tier: :data:`FAST`, :data:`FULL`, or :data:`NOBODY`.
    """

    name: str
    file: str
    by: str
    tier: str

    @property
    def is_caught(self) -> bool:
        """Whether a test noticed."""
        return self.tier != NOBODY


@dataclass(frozen=True)
class Start:
    """One start of pytest.

    Attributes:
        tier: that it belongs to.
        arguments: of pytest.
        on_card: whether it runs on the emulated card.
    """

    tier: str
    arguments: tuple[str, ...]
    on_card: bool = False


def look(environment: Environment, names: Sequence[str], *, again: bool = False, survivors: bool = False) -> int:
    """Tries faults, prints a line for each, and keeps the table. Returns 1 if one of them is noticed by no test.

    Args:
        names: of the faults; none: all.
        again: those that have a verdict too.
        survivors: those alone that no test has noticed so far.

    Raises:
        SetupError: a name that no fault has.
    """
    every = all_faults()
    unknown = set(names) - {fault.name for fault in every}
    if unknown:
        raise SetupError(f"There is no fault {min(unknown)!r}: the names are in tests/mutations.py.")
    asked = [fault for fault in every if not names or fault.name in names]
    table = read_table(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    for fault in to_try(asked, table, again, survivors):
        verdict = table[fault.name] = tried(environment, fault)
        print(f"{verdict.tier:<5} {verdict.name}: {verdict.by}", flush=True)
        TABLE.write_text(as_table([table[one.name] for one in every if one.name in table]), encoding="utf-8")
    known = [table[fault.name] for fault in asked if fault.name in table]
    missed = [verdict for verdict in known if not verdict.is_caught]
    print(f"{len(known) - len(missed)} of {len(asked)} faults are noticed, {len(missed)} are not", flush=True)
    return 1 if missed else 0


def all_faults() -> list[Any]:
    """The list, in its order. It lies beside this package, whatever that is called."""
    root = __name__.partition("tools")[0]
    return list(importlib.import_module(f"{root}tests.mutations").MUTATIONS)


def to_try(asked: Sequence[Any], table: Mapping[str, Verdict], again: bool, survivors: bool) -> list[Any]:
    """The faults to try now: those without a verdict, or as the options say."""
    if survivors:
        return [fault for fault in asked if fault.name in table and not table[fault.name].is_caught]
    return [fault for fault in asked if again or fault.name not in table]


# ---------------------------------------------------------------------------------------------------------- one fault


def tried(environment: Environment, fault: Any) -> Verdict:
    """Tries one fault in a copy of its own."""
    with tempfile.TemporaryDirectory(prefix="headroom-fault-") as folder:
        copy = replace(environment, pack=copied(Path(folder) / "headroom"))
        path = copy.pack / fault.file
        source = path.read_text(encoding="utf-8")
        for start in starts(fault.affected, suite.fast_tests(), bool(emulator.missing())):
            path.write_text(fault.applied(source), encoding="utf-8")
            failed = first_failure(copy, start)
            if failed is None:
                continue
            path.write_text(source, encoding="utf-8")
            if not failed.startswith("tests/"):
                return Verdict(fault.name, fault.file, f"{UNCLEAR}: {failed}", NOBODY)
            if first_failure(copy, replace(start, arguments=(failed,))) is not None:
                return Verdict(fault.name, fault.file, f"{UNCLEAR}: {failed} fails without the fault too", NOBODY)
            return Verdict(fault.name, fault.file, failed, start.tier)
    return Verdict(fault.name, fault.file, SURVIVED, NOBODY)


def copied(place: Path) -> Path:
    """The checkout as it stands, with what git knows of it: some tests ask git which files there are."""
    git = ("git", "-c", "safe.directory=*")
    subprocess.run([*git, "clone", "--quiet", "--no-checkout", PACK, place], check=True)
    listed = subprocess.run([*git, "-C", PACK, "ls-files", "-z"], check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (PACK / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PACK / name, place / name)
    subprocess.run([*git, "-C", place, "add", "--all"], check=True)
    return place


def starts(affected: Sequence[str], fast: Sequence[str], no_card: bool) -> Iterator[Start]:
    """What is run for a fault, in order, until something fails.

    Those of its own test files that are part of the fast tier come first, which saves most of the time.

    Args:
        affected: test files below `tests/`.
        fast: of the fast tier, arguments of pytest.
        no_card: whether there can be no emulated card here.
    """
    files = [f"tests/{name}" for name in dict.fromkeys(affected)]
    left_out = [argument for argument in fast if argument.startswith("--deselect=")]
    units = [file for file in files if file.startswith(UNIT)]
    others, on_card = suite.by_place([*units, *(test for test in fast if test.partition("::")[0] in files)])
    if others:
        yield Start(FAST, (*others, *left_out))
    if on_card and not no_card:
        yield Start(FAST, tuple(on_card), on_card=True)
    tried = (*others, *on_card)
    others, on_card = suite.by_place([test for test in fast if test not in tried])
    yield Start(FAST, (*suite.side_by_side(suite.FAST_WORKERS), *others, *(f"--ignore={file}" for file in units)))
    if not no_card and on_card:
        yield Start(FAST, tuple(on_card), on_card=True)
    others, on_card = suite.by_place(files)
    if others:
        yield Start(FULL, tuple(others))
    if on_card and not no_card:
        yield Start(FULL, tuple(on_card), on_card=True)


def first_failure(environment: Environment, start: Start) -> str | None:
    """The first test that fails, as pytest names it; None if none does; why it is not known, in other words."""
    variables = {"OMP_NUM_THREADS": "1", **os.environ, **environment.variables()}
    if start.on_card:
        variables |= emulator.variables(environment)
    # A copy's bytecode would be taken for that of the same file without its fault, written within one second.
    variables["PYTHONDONTWRITEBYTECODE"] = "1"
    command: list[str | Path] = [environment.script("pytest"), *PYTEST, *start.arguments]
    with subprocess.Popen(
        command, cwd=environment.pack, env=variables, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    ) as child:  # fmt: skip
        try:
            output, _ = child.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            _end(child)
            return f"nothing failed within {LONGEST / 60:.0f} minutes, and the tests did not end"
        except BaseException:
            _end(child)
            raise
    return failure_in(output, child.returncode)


def failure_in(output: str, status: int) -> str | None:
    """The same from what pytest has printed, and its status."""
    if status in (0, suite.NOTHING_RAN):
        return None
    found = FAILED.search(output)
    return found[1] if found else f"pytest ended with status {status} and named no test"


def _end(child: subprocess.Popen[str]) -> None:
    """Ends pytest and what it has started: servers, workers."""
    if hasattr(os, "killpg"):
        os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()


# ---------------------------------------------------------------------------------------------------------- the table


def as_table(verdicts: Sequence[Verdict]) -> str:
    """The text of `tests/mutations.md`."""
    rows = (f"| {one.name} | `{one.file}` | {_cell(one.by)} | {one.tier} |\n" for one in verdicts)
    return HEAD + "".join(rows)


def read_table(text: str) -> dict[str, Verdict]:
    """The verdicts of such a text, by the faults' names."""
    rows = filter(None, map(ROW.match, text.splitlines()))
    return {row[1]: Verdict(row[1], row[2], row[3].strip("`").replace("\\|", "|"), row[4]) for row in rows}


def _cell(by: str) -> str:
    text = by.replace("|", "\\|")
    return f"`{text}`" if by.startswith("tests/") else text
