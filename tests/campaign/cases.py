"""A case of the campaign, the file that keeps them, and the table made of them."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

FINE, SENTENCE, THEIRS, STOPPED = "fine", "sentence", "the host's", "stopped"
LONG = "long work, cancelled"
RAW, HANG, DEATH, DIFFERENT, LEFT, OUTSIDE = "raw error", "hang", "death", "different result", "left behind", "outside"
GOOD = (FINE, SENTENCE, THEIRS, STOPPED, LONG)
BAD = (RAW, HANG, DEATH, DIFFERENT, LEFT, OUTSIDE)


@dataclass(frozen=True)
class Found:
    """What came of a case.

    Attributes:
        outcome: one of :data:`GOOD` or :data:`BAD`.
        what: was done, in a few words.
        detail: what was answered; of a bad outcome enough to look for the cause.
    """

    outcome: str
    what: str
    detail: str = ""


@dataclass(frozen=True)
class Case:
    """A case as its line in the file has it.

    Attributes:
        part, seed, number: which it is; by these it can be done again.
        seconds: that it took.
    """

    part: str
    seed: int
    number: int
    outcome: str
    what: str
    detail: str
    seconds: float

    @property
    def is_good(self) -> bool:
        """Whether nothing has to be mended."""
        return self.outcome in GOOD


class Journal:
    """The file of all cases, a JSON object on each line; a campaign that is started again goes on where it ended."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[Case]:
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                yield Case(**json.loads(line))

    def add(self, case: Case) -> None:
        """Writes a case behind the others."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(case)) + "\n")

    def done(self, part: str, seed: int) -> set[int]:
        """The numbers of the cases that are there."""
        return {case.number for case in self if (case.part, case.seed) == (part, seed)}


def table(cases: Iterable[Case]) -> str:
    """A line for each part and seed, then the bad ones."""
    groups: dict[tuple[str, int], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.part, case.seed), []).append(case)
    lines = ["| part | seed | cases | outcomes | bad | seconds, middle | longest |", "|---|---|---|---|---|---|---|"]
    for (part, seed), some in sorted(groups.items()):
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in Counter(c.outcome for c in some).most_common())
        seconds = [case.seconds for case in some]
        bad = sum(not case.is_good for case in some)
        lines.append(
            f"| {part} | {seed} | {len(some):,} | {counts} | {bad} | {statistics.median(seconds):.2f}"
            f" | {max(seconds):.1f} |"
        )
    bad_ones = [case for some in groups.values() for case in some if not case.is_good]
    lines += [f"- {one.part} {one.seed}/{one.number}: {one.outcome}: {one.what}: {one.detail}" for one in bad_ones]
    return "\n".join(lines)
