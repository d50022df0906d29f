"""What a run shows: one table that stays in place on a terminal, a line for each event elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from . import journal as journals
from .journal import State

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from .driver import Driver

ORDER = ("done", "sent", "waiting", "failed", "refused")
WORDS = {"sent": "running"}
PER_SECOND = 4  # drawings
MOST_ROWS = 20  # workers that a terminal shows


@contextmanager
def shown(console: Console, driver: Driver) -> Iterator[None]:
    """Within it, a terminal shows how the run stands; events scroll above."""
    if not console.is_terminal:
        yield
        return
    from rich.live import Live

    with Live(get_renderable=lambda: picture(driver), console=console, refresh_per_second=PER_SECOND):
        yield


def picture(driver: Driver) -> RenderableType:
    """How a run stands."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in ("worker", "done", "runs", "at"):
        table.add_column(title, no_wrap=title == "worker")
    running = {state.worker: name for name, state in driver.states.items() if state.status == "sent"}
    for name, standing in list(driver.roster.standing.items())[:MOST_ROWS]:
        gone = Text(f"{standing.status}: {standing.reason}", style="red")
        what = Text(running.get(name, "")) if standing.status == "there" else gone
        table.add_row(name, str(standing.done), what, _place(standing.shown))
    if (more := len(driver.roster.standing) - MOST_ROWS) > 0:
        table.add_row(f"and {more} more", "", "", "")
    counts = Counter(state.status for state in driver.states.values())
    over = sum(counts[status] for status in ("done", "failed", "refused"))
    return Group(table, ProgressBar(len(driver.states), over), Text(_counted(counts)))


def status(folder: Path) -> RenderableType:
    """How the run of a folder stands, by its journal; the reasons of what failed or was refused stand below.

    Raises:
        ValueError: there is none.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    states = journals.states(journals.lines(folder))
    if not states:
        raise ValueError(f"{folder} holds no run: give the folder that was given to run with --out")
    table = Table(box=None, pad_edge=False)
    for title in ("job", "status", "worker", "seconds"):
        table.add_column(title, overflow="fold", justify="right" if title == "seconds" else "left")
    ordered = sorted(states.items(), key=lambda one: ORDER.index(one[1].status))
    for name, state in ordered:
        table.add_row(name, WORDS.get(state.status, state.status), state.worker, _seconds(state))
    reasons = [Text(f"{name}: {state.reason}") for name, state in ordered if state.reason]
    return Group(Text(_counted(Counter(state.status for state in states.values()))), table, *reasons)


def summary(states: dict[str, State]) -> str:
    """What came of a run, in a line."""
    return _counted(Counter(state.status for state in states.values()))


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[status]} {WORDS.get(status, status)}" for status in ORDER if counts[status])


def _seconds(state: State) -> str:
    return f"{state.seconds:.1f}" if state.seconds else ""


def _place(shown: object) -> str:
    if not isinstance(shown, dict) or not shown.get("node"):
        return ""
    steps = f", {shown['value']} of {shown['max']}" if shown.get("max") else ""
    return f"node {shown['node']}{steps}"
