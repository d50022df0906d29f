"""The command line of the campaign."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headroom.tools.server.client import ClientError
from headroom.tools.server.server import ServerError
from headroom.tools.setup.environment import PACK, Environment

from . import card, disk, memory, prompts, requests
from .cases import Case, Journal, table
from .stand import Stand

PARTS: dict[str, Any] = {
    part.name: part for part in (*prompts.PARTS, *requests.PARTS, *memory.PARTS, *card.PARTS, *disk.PARTS)
}
JOURNAL = PACK / "output" / "campaign.jsonl"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a part; 1 if a case was bad."""
    parser = argparse.ArgumentParser(prog="python3 -m tools campaign", description=__doc__)
    parser.add_argument("part", choices=[*PARTS, "table"], help="what to try, or the table of what was tried")
    parser.add_argument("--cases", type=int, default=100, metavar="N", help="how many (default 100)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of the cases: the same seed, the same cases")
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="begin here")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="one case again")
    parser.add_argument("--minutes", type=float, default=1e9, metavar="M", help="end after so many")
    parser.add_argument("--journal", type=Path, default=JOURNAL, help="a line a case; what is in it is not done again")
    options = parser.parse_args((sys.argv[1:] if arguments is None else arguments) or ["--help"])
    journal = Journal(options.journal)
    if options.part == "table":
        print(table(journal))
        return 0
    variables = {name: value for name, value in os.environ.items() if name.startswith("EMU_")} or None
    if needs_card(options.part) and variables is None:
        parser.error(
            f"{options.part} takes the memory of an emulated card: tools campaign --card 8GB-rtx3060 {options.part}"
        )
    with Stand(Environment.from_variables(), variables) as stand:
        numbers = range(options.first, options.cases) if options.only is None else [options.only]
        done = journal.done(options.part, options.seed) if options.only is None else set()
        ended = time.monotonic() + 60 * options.minutes
        part = PARTS[options.part](stand)
        cases = []
        for number in numbers:
            if number in done or time.monotonic() >= ended:
                continue
            try:
                case = one_case(part, options.seed, number)
            except (OSError, ClientError, ServerError) as error:  # a machine that is asked for too much
                print(f"{options.part} {options.seed}/{number}: not counted: {error}", file=sys.stderr)
                continue
            cases.append(kept(journal, case))
    print(table(cases))
    return 0 if all(case.is_good for case in cases) else 1


def needs_card(part: str) -> bool:
    """Whether a part runs on an emulated card alone."""
    return getattr(PARTS[part], "on_card", False)


def one_case(part: Any, seed: int, number: int) -> Case:
    """A case of a part; by its seed and number it is always the same."""
    started = time.monotonic()
    found = part.case(random.Random(f"{part.name} {seed} {number}"))
    return Case(part.name, seed, number, found.outcome, found.what, found.detail, round(time.monotonic() - started, 3))


def kept(journal: Journal, case: Case) -> Case:
    """Writes a case down, and shows it if something has to be mended."""
    journal.add(case)
    if not case.is_good:
        print(f"{case.part} {case.seed}/{case.number}: {case.outcome}: {case.what}: {case.detail}", file=sys.stderr)
    return case
